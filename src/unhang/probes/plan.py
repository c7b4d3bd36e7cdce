"""What is tested, in which order, with how many ranks, and how long each stage may take."""

from __future__ import annotations

from dataclasses import dataclass

from unhang.i18n import msg


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One test. `bound_s` is how long it may take; `ranks` is "one" where it needs no other rank. Without `needed` nothing after it can be tested."""

    id: str
    title: str
    bound_s: float
    ranks: str = "several"
    needed: bool = False


STAGES = (
    # A cold network file system takes a minute to import torch.
    Stage(id="import", title=msg("import torch", "title"), bound_s=180, ranks="one", needed=True),
    Stage(id="device", title=msg("device", "title"), bound_s=60, ranks="one", needed=True),
    Stage(id="train-step", title=msg("forward and backward, one device", "title"), bound_s=60, ranks="one"),
    Stage(id="process-group", title=msg("process group", "title"), bound_s=60, needed=True),
    Stage(id="barrier", title=msg("barrier", "title"), bound_s=60, needed=True),
    Stage(id="broadcast", title=msg("broadcast", "title"), bound_s=30),
    Stage(id="all_reduce-float32", title=msg("all_reduce, float32", "title"), bound_s=30),
    Stage(id="all_reduce-bfloat16", title=msg("all_reduce, bfloat16", "title"), bound_s=30),
    Stage(id="all_reduce-int64", title=msg("all_reduce, int64", "title"), bound_s=30),
    Stage(id="all_gather", title=msg("all_gather", "title"), bound_s=30),
    Stage(id="reduce_scatter", title=msg("reduce_scatter", "title"), bound_s=30),
    Stage(id="all_to_all", title=msg("all_to_all", "title"), bound_s=30),
    Stage(id="send-recv", title=msg("send and recv", "title"), bound_s=30),
    Stage(id="pairs", title=msg("each pair of ranks", "title"), bound_s=90),
    Stage(id="sizes", title=msg("rising sizes", "title"), bound_s=120),
    Stage(id="ddp-step", title=msg("DDP step", "title"), bound_s=60),
)
# Not a part of every examination: its batches take 150 MB of /dev/shm for each two ranks.
LOADER = Stage(id="loader-workers", title=msg("loader workers", "title"), bound_s=60)


def ladder(ranks: int) -> tuple[int, ...]:
    """World sizes 1, 2, 4, ... and the whole. Raises ValueError below 1."""
    if ranks < 1:
        raise ValueError(f"{ranks} ranks")
    steps = [1]
    while steps[-1] * 2 < ranks:
        steps.append(steps[-1] * 2)
    return (*steps, ranks) if ranks > 1 else (1,)


def stages_of(world_size: int) -> tuple[Stage, ...]:
    """The stages of one world size: of one rank what needs no other; after that only what is not known yet (a process group needs torch)."""
    if world_size == 1:
        return tuple(s for s in STAGES if s.ranks == "one")
    return tuple(s for s in STAGES if s.ranks != "one")


def before(stage: str) -> tuple[str, ...]:
    """What has to be done again in a fresh process before a stage."""
    needed = [s.id for s in STAGES if s.needed]
    return tuple(id for id in needed[: needed.index(stage) if stage in needed else len(needed)])
