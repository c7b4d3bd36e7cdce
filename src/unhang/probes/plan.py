"""What is tested, in which order, with how many ranks, and how long each stage may take."""

from __future__ import annotations

from dataclasses import dataclass

from unhang.i18n import chinese


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One test. `bound_s` is how long it may take; `ranks` is "one" where it needs no other rank. Without `needed` nothing after it can be tested."""

    id: str
    title: str
    bound_s: float
    ranks: str = "several"
    needed: bool = False

    @property
    def title_zh(self) -> str:
        return chinese(self.title, "title") or self.title


STAGES = (
    # A cold network file system takes a minute to import torch.
    Stage(id="import", title="import torch", bound_s=180, ranks="one", needed=True),
    Stage(id="device", title="device", bound_s=60, ranks="one", needed=True),
    Stage(id="train-step", title="forward and backward, one device", bound_s=60, ranks="one"),
    Stage(id="process-group", title="process group", bound_s=60, needed=True),
    Stage(id="barrier", title="barrier", bound_s=60, needed=True),
    Stage(id="broadcast", title="broadcast", bound_s=30),
    Stage(id="all_reduce-float32", title="all_reduce, float32", bound_s=30),
    Stage(id="all_reduce-bfloat16", title="all_reduce, bfloat16", bound_s=30),
    Stage(id="all_reduce-int64", title="all_reduce, int64", bound_s=30),
    Stage(id="all_gather", title="all_gather", bound_s=30),
    Stage(id="reduce_scatter", title="reduce_scatter", bound_s=30),
    Stage(id="all_to_all", title="all_to_all", bound_s=30),
    Stage(id="send-recv", title="send and recv", bound_s=30),
    Stage(id="pairs", title="each pair of ranks", bound_s=90),
    Stage(id="sizes", title="rising sizes", bound_s=120),
    Stage(id="ddp-step", title="DDP step", bound_s=60),
)
# Not a part of every examination: its batches take 150 MB of /dev/shm for each two ranks.
LOADER = Stage(id="loader-workers", title="loader workers", bound_s=60)


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
