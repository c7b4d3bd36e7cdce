"""Collectives that end: they name who is missing, on every rank alike, and leave the training's own groups as they were.

    bounded_store    the store beside all groups: bounded waits, one decision for all, and when what calls leave there is forgotten
    rendezvous       how ranks find one another in a store that outlives them
    calls            what a guarded call is, how it ends, how that is said, and who is told
    guarded_group    the ranks of a process group, and the count of its guarded calls, in three parts:
    abort            how a call ends where it does not get on
    preflight        what all ranks say before a call of a new kind travels
    store_gather     values that go through the store
    abortable_group  a process group of our own that can be broken at will, so that nothing is ever abandoned; its ranks' addresses
    abortable_nccl   one over NCCL, without torch's watchdog; what may never answer, asked for in a thread
    shutdown         the end of the process: no thread is inside torch then
    call_sites       where a rank stands, and which ranks' processes have ended, as this host knows it
    tensor_layout    how a tensor's elements lie in memory, and how they come to stand in one row
    deadlines        how long to wait without progress; torch's own calls, which have no such bound
    collectives      the collectives
    agreement        agree, all_ok, barrier, reduce_metrics

Imported when a name of `unhang` is first used; torch is imported at the top of these modules, and only there.
"""
