"""Collectives that end: they name who is missing, on every rank alike, and leave the training's own groups as they were.

    board       the store beside all groups: bounded waits, one decision for all
    circle      the ranks of a process group, the count of its guarded calls, and how one call ends
    lane        a process group of our own that can be broken at will, so that nothing is ever abandoned
    nccl_lane   one over NCCL, without torch's watchdog
    asking      what may never answer, asked for in a thread
    leftovers   what calls leave in the store, and when it is forgotten
    layout      how a tensor's elements lie in memory, and how they come to stand in one row
    deadlines   how long to wait without progress
    moving      the collectives
    agreement   agree, all_ok, barrier

Imported when a name of `unhang` is first used; torch is imported at the top of these modules, and only there.
"""
