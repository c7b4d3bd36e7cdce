"""What is tested, in which order, with how many ranks, and how long each stage may take."""

from __future__ import annotations

from unhang import data
from unhang.i18n import msg
from unhang.model import frozen


@frozen
class Stage:
    """One test; the fields are those of `stages.toml`."""

    id: str
    title: str
    bound_s: float
    ranks: str = "several"
    needed: bool = False


_ALL = {id: Stage(id=id, **{**known, "title": msg(known["title"], "title")}) for id, known in data.table("probes/stages").items()}
LOADER = _ALL.pop("loader-workers")
STAGES = tuple(_ALL.values())


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
