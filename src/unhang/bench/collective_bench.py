"""Collectives measured by ranks that a launcher starts (`probes.comm`), and what those report."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from unhang.attach import protocol
from unhang.errors import CommandNotFound, UnhangError
from unhang.i18n import msg
from unhang.launch import terminate
from unhang.probes import live
from unhang.settings.setting import parse_size

# Operations of all ranks together, and those that one rank measures by itself.
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "broadcast", "reduce", "send_recv", "pairs", "barrier")
LOCAL = ("memory", "loader")
# Launchers may write the rank in front of a line.
_MARK = "@unhang-comm "
_END_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is measured, and by whom: `launcher` starts the ranks."""

    launcher: tuple[str, ...]
    backend: str
    ops: tuple[str, ...]
    sizes: tuple[int, ...]
    time_s: float
    python: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """One operation at one size. Bandwidths are in GB/s (1e9 bytes); `wrong` and `lacking` say why there is nothing to trust, or nothing at all."""

    op: str
    size_bytes: int
    calls: int = 0
    mean_s: float = 0.0
    p50_s: float = 0.0
    p95_s: float = 0.0
    p99_s: float = 0.0
    algbw_gbps: float | None = None
    busbw_gbps: float | None = None
    wrong: str = ""
    lacking: str = ""
    pair: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Group:
    """The ranks that measured; `hosts` has the host of each."""

    backend: str
    hosts: tuple[str, ...]
    torch: str
    nccl: str | None
    device: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """`failure` is why the ranks ended early, in a sentence; `log` holds what they printed."""

    stopped: Literal["complete", "interrupted", "failed"]
    rows: tuple[Row, ...]
    group: Group | None
    failure: str = ""
    log: str = ""


class _Line(msgspec.Struct):
    row: Row | None = None
    group: Group | None = None


def parse_sizes(text: str) -> tuple[int, ...]:
    """ "8..256M" goes up by factors of 4, "1M,16M" is a list. Raises ValueError."""
    low, is_span, high = text.partition("..")
    if not is_span:
        return tuple(map(parse_size, text.split(",")))
    found = [parse_size(low)]
    if found[0] > (last := parse_size(high)):
        raise ValueError(text)
    while found[-1] * 4 < last:
        found.append(found[-1] * 4)
    return (*found, last) if last > found[-1] else tuple(found)


def launcher(words: tuple[str, ...], *, ranks: int | None, python: str) -> tuple[str, ...]:
    """What starts the ranks: as typed, else torchrun with `ranks` of them. Raises UnhangError."""
    if words and ranks is not None:
        raise UnhangError(msg("-n and a launcher: choose one"))
    if words and shutil.which(words[0]) is None:
        raise CommandNotFound(msg("there is no command {words}", words=words[0]))
    if words:
        return words
    count = ranks or max(2, live.gpus_of(python, os.environ))
    return (python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count))


def measure(asked: Asked, *, on_row: Callable[[Row], None]) -> Result:
    """Start the ranks and read what rank 0 reports; an interruption (SystemExit) ends them, and what came before it is kept."""
    rows: list[Row] = []
    group: Group | None = None
    alone, together = (",".join(op for op in names if op in asked.ops) for names in (LOCAL, OPS))
    words = (_MARK, asked.backend, alone, together, ",".join(map(str, asked.sizes)), str(asked.time_s))
    argv = [*asked.launcher, str(Path(live.__file__).with_name("comm.py")), *words]
    token = secrets.token_hex(8)
    environ = {**os.environ, protocol.ENV_SWITCH: "0", protocol.ENV_TOKEN: token}
    terminate.adopt_orphans()
    with tempfile.NamedTemporaryFile(prefix="unhang-comm-", suffix=".log", delete=False) as log:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environ,
            start_new_session=True,
            preexec_fn=terminate.die_with_parent,
        )
        family = terminate.Family(child, token)
        stopped: Literal["complete", "interrupted", "failed"] = "complete"
        try:
            assert child.stdout is not None
            for line in child.stdout:
                _, marked, said = line.partition(_MARK.encode())
                if not marked:
                    log.write(line)
                    continue
                message = msgspec.json.decode(said, type=_Line)
                group = message.group or group
                if message.row is not None:
                    rows.append(message.row)
                    on_row(message.row)
            stopped = "failed" if child.wait() else "complete"
        except SystemExit:
            stopped = "interrupted"
        finally:
            family.members()
            if child.poll() is None:
                # A launcher may have ranks on other hosts to end.
                child.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(_END_S)
            family.kill()
    if stopped != "failed":
        Path(log.name).unlink()
        return Result(stopped=stopped, rows=tuple(rows), group=group)
    return Result(stopped=stopped, rows=tuple(rows), group=group, failure=_failure(Path(log.name)), log=log.name)


def _failure(log: Path) -> str:
    verdict = live.verdict_of([log])
    if verdict is not None and verdict.primary is not None and verdict.primary.standing != "not-established":
        return verdict.primary.says
    return next((line for line in reversed(log.read_text(errors="replace").splitlines()) if line.strip()), "the ranks printed nothing")
