"""Collectives that end: they name who is missing, on every rank alike, and leave the training's own groups as they were.

    board       the store beside all groups: bounded waits, one decision for all, and when what calls leave there is forgotten
    meeting     how ranks find one another in a store that outlives them
    calls       what a guarded call is, how it ends, and how that is said
    circle      the ranks of a process group, and the count of its guarded calls, in three parts:
    ending      how a call ends where it does not get on
    agreeing    what all ranks say before a call of a new kind travels
    exchange    values that go through the store
    lane        a process group of our own that can be broken at will, so that nothing is ever abandoned; its ranks' addresses
    nccl_lane   one over NCCL, without torch's watchdog
    asking      what may never answer, asked for in a thread
    shutdown    the end of the process: no thread is inside torch then
    living      which ranks' processes have ended, as this host knows it
    layout      how a tensor's elements lie in memory, and how they come to stand in one row
    deadlines   how long to wait without progress; torch's own calls, which have no such bound
    moving      the collectives
    agreement   agree, all_ok, barrier

Imported when a name of `unhang` is first used; torch is imported at the top of these modules, and only there.
"""
