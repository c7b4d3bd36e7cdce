"""Stacks of many ranks as one tree: the frames that they share once, then where they part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from unhang.errors import UnhangError
from unhang.frames import Frame, without_hook
from unhang.model import frozen
from unhang.records import stacks
from unhang.records.incident import Incident, Stacks
from unhang.records.rundir import RunDir

_MOST_FRAMES = 60
_Key = tuple[str, int, str]


@frozen
class Trunk:
    """Frames, outermost first, that all of `ranks` stand in, below those of the trunk that it grows from; and where these ranks part.

    A branch without frames is of ranks that stand where the trunk ends. Branches with the fewest ranks come first: those are the odd ones.
    """

    ranks: tuple[int, ...]
    frames: tuple[Frame, ...]
    branches: tuple[Trunk, ...] = ()


def group(frames: Mapping[int, Sequence[Frame]]) -> Trunk | None:
    """The tree of the main threads by rank, without unhang's own frames; frames are the same by file, line and name. None without any frames."""
    kept = {rank: shown for rank, found in sorted(frames.items()) if (shown := without_hook(found)[-_MOST_FRAMES:])}
    return _grown(kept) if kept else None


def ends(trunk: Trunk) -> Iterator[tuple[tuple[int, ...], tuple[Frame, ...]]]:
    """The ranks of each end of the tree, and all frames that lead to it."""
    if not trunk.branches:
        yield trunk.ranks, trunk.frames
    for branch in trunk.branches:
        yield from ((ranks, (*trunk.frames, *frames)) for ranks, frames in ends(branch))


def of_run(rundir: RunDir, number: int | None = None) -> tuple[Trunk, str] | None:
    """The tree of incident `number`, by default of the last that can be read, and its working directory; None without stacks."""
    for n in [number] if number is not None else reversed(rundir.incident_numbers()):
        with suppress(UnhangError):
            incident = rundir.read_incident(n)
            trunk = group(main_threads(rundir, incident))
            return None if trunk is None else (trunk, incident.cwd)
    return None


def main_threads(rundir: RunDir, incident: Incident) -> dict[int, tuple[Frame, ...]]:
    """Where the main thread of each rank stood at an incident, or raised; ranks of which that cannot be read are left out."""
    found: dict[int, tuple[Frame, ...]] = {}
    for record in incident.ranks:
        with suppress(UnhangError, OSError):
            if record.stacks and rundir.holds(rundir.path / record.stacks):
                found[record.rank] = stacks.main_thread(rundir.read(rundir.path / record.stacks, Stacks))
        if record.raised is not None and record.raised.frames:
            found[record.rank] = record.raised.frames
    return found


def _grown(frames: Mapping[int, Sequence[Frame]]) -> Trunk:
    shared = 0
    for level in zip(*frames.values(), strict=False):
        if len({_key(f) for f in level}) > 1:
            break
        shared += 1
    rest: dict[_Key | None, dict[int, Sequence[Frame]]] = {}
    for rank, found in frames.items():
        rest.setdefault(_key(found[shared]) if len(found) > shared else None, {})[rank] = found[shared:]
    grown = [_grown(of_branch) for of_branch in rest.values()] if len(rest) > 1 else []
    first = next(iter(frames.values()))
    return Trunk(ranks=tuple(frames), frames=tuple(first[:shared]), branches=tuple(sorted(grown, key=lambda t: (len(t.ranks), t.ranks))))


def _key(frame: Frame) -> _Key:
    return (frame.file, frame.line, frame.name)
