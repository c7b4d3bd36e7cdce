"""Flight-recorder dumps summed up where they lie; the summaries of all hosts are judged together."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from unhang.cli import json_errors, unpacking
from unhang.errors import EXIT_OK, EXIT_USER, RecordError, UnhangError
from unhang.printable import one_line
from unhang.report import screen
from unhang.report.screen import reading

if TYPE_CHECKING:
    from unhang.model import NotExamined

_DUMP = "flight-recorder dump"
# Of what is no dump, so many are named.
_NAMES = 3


def write(paths: list[str], folder: Path, *, as_json: bool) -> int:
    """Write this host's digest and say where; the exit code. Raises UnhangError."""
    from unhang import fsio
    from unhang.diagnosis.redact import redact
    from unhang.flight.rank_from_name import closed_ranks
    from unhang.flight.read_all import sum_up
    from unhang.logs.discovery import find
    from unhang.model import NotExamined

    summed = [_dumps_of_run(p) for p in paths]
    of_runs = [left for _, left in summed if left is not None]
    given = find([path for path, _ in summed], wanted=_DUMP)
    with unpacking.taken_out(given, runs=False) as taken, reading(quiet=as_json) as progress:
        found = taken.found
        if not found.dumps:
            was = f"{len(given.sources)} other file{'s' if len(given.sources) != 1 else ''}, as {given.sources[0].name}" if given.sources else None
            raise UnhangError(f"there is no {_DUMP} to sum up", cause=was and f"given were {was}", hint="unhang why --digest DIR /path/to/dumps")
        # Empty, or without anything of a dump, and called as the others are.
        none = [*found.not_examined, *(NotExamined(what=s.name, why="there is no dump in it") for s in found.sources)]
        beside = closed_ranks([n.what for n in none], [taken.called(str(p)) for p in found.dumps]).values()
        lost = [n for n in none if n.what in beside]
        try:
            done = sum_up(found.dumps, folder, socket.gethostname(), clean=redact, called=taken.called, lost=lost, beside=of_runs, progress=progress)
        except RecordError as e:
            raise UnhangError(str(e), cause=e.cause, hint="move it away, or name another directory") from e
        except (FileExistsError, NotADirectoryError) as e:
            raise UnhangError(f"cannot write a digest to {one_line(str(folder))}: it is no directory") from e
        except OSError as e:
            raise UnhangError(f"cannot write a digest to {one_line(str(folder))}: {e.strerror or e}") from e
    missed = [*(n for n in found.not_examined if n not in lost), *done.not_examined]
    size = done.path.stat().st_size
    if as_json:
        told = {
            "schema": "unhang/digest/1",
            "digest": str(done.path),
            "bytes": size,
            "ranks": done.ranks,
            "dumps": done.dumps,
            "not_examined": missed,
        }
        json_errors.print_json(told)
    else:
        dumps = f"{done.dumps} dump{'s' if done.dumps != 1 else ''}"
        next_step = f"unhang why {fsio.as_argument(folder)}"
        screen.echo(f"{one_line(str(done.path))}: {dumps} in {size:,} bytes; when the digests of all hosts are there: {one_line(next_step)}")
        for n in missed:
            screen.say(f"not in it: {one_line(n.what)}: {one_line(n.why)}")
        if others := [s.name for s in found.sources if s.name not in beside]:
            more = f" and {len(others) - _NAMES} more" if len(others) > _NAMES else ""
            screen.say(f"not in it: {', '.join(map(one_line, others[:_NAMES]))}{more}: no dump{'s' if len(others) > 1 else ''}")
    return EXIT_USER if any(n.unread for n in missed) else EXIT_OK


def _dumps_of_run(path: str) -> tuple[str, NotExamined | None]:
    """Of a run directory the dumps of its last incident, and what it holds beside them; anything else as it is."""
    from unhang import fsio
    from unhang.model import NotExamined
    from unhang.records.rundir import RunDir

    run = RunDir(Path(path))
    if not RunDir.is_one(run.path) or (dumps := run.last_flight()) is None:
        return path, None
    screen.say(f"{one_line(path)} is a run directory: summing up {run.relative(dumps)}")
    stacks = sum(1 for _ in (dumps.parent / "stacks").glob("rank*.json"))
    others = [f"the stacks of {stacks} rank{'s' if stacks != 1 else ''}"] if stacks else []
    others += ["the logs"] if any((run.path / "logs").glob("*")) else []
    if not others:
        return str(dumps), None
    # It is read elsewhere, too.
    whole = str(run.path.absolute())
    why = f"a digest holds flight-recorder dumps alone; unhang why {fsio.as_argument(whole)} judges all of it"
    return str(dumps), NotExamined(what=f"{' and '.join(others)} in the run directory {one_line(whole)}", why=why)
