"""Flight-recorder dumps summed up where they lie; the summaries of all hosts are judged together."""

from __future__ import annotations

import socket
from pathlib import Path

import typer


def write(paths: list[str], folder: Path, *, as_json: bool) -> int:
    """Write this host's digest and say where; the exit code. Raises UnhangError."""
    import sys

    import msgspec

    from unhang.errors import EXIT_OK, EXIT_USER, UnhangError
    from unhang.records.flight.recordings import sum_up
    from unhang.records.logs.finding import find
    from unhang.report.progress import reading

    found = find(paths)
    if not found.dumps:
        raise UnhangError("there is no flight-recorder dump to sum up", hint="unhang why --digest DIR /path/to/dumps")
    with reading(quiet=as_json) as progress:
        try:
            done = sum_up(found.dumps, folder, socket.gethostname(), progress=progress)
        except OSError as e:
            raise UnhangError(f"cannot write a digest to {folder}: {e.strerror or e}") from e
    missed = [*found.not_examined, *done.not_examined]
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
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(told), indent=2).decode() + "\n")
    else:
        typer.echo(f"{done.path}: {done.dumps} dumps in {size:,} bytes; when those of all hosts are there: unhang why {folder}")
        for n in missed:
            typer.echo(f"unhang: not in it: {n.what}: {n.why}", err=True)
        if found.sources:
            typer.echo("unhang: not in it: logs, which were given, too", err=True)
    return EXIT_USER if any(n.unread for n in missed) else EXIT_OK
