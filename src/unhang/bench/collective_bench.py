"""Collectives measured by ranks that a launcher starts (`probes.comm`), what those report, and what the links between them should carry, as far as
this host tells: the rates of NVLink, PCIe, InfiniBand and Ethernet, or its memory's.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from unhang.attach import protocol
from unhang.errors import CommandNotFound, UnhangError
from unhang.facts import gpu, infiniband, network, pcie, snapshot
from unhang.facts.host import Host
from unhang.i18n import msg
from unhang.launch import terminate
from unhang.model import frozen
from unhang.probes import live
from unhang.settings.setting import parse_size

# Operations of all ranks together, and those that one rank measures by itself.
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "broadcast", "reduce", "send_recv", "pairs", "barrier")
LOCAL = ("memory", "loader")
# Launchers may write the rank in front of a line.
_MARK = "@unhang-comm "
_END_S = 5.0


@frozen
class Asked:
    """What is measured, and by whom: `launcher` starts the ranks."""

    launcher: tuple[str, ...]
    backend: str
    ops: tuple[str, ...]
    sizes: tuple[int, ...]
    time_s: float
    python: str


@frozen
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


@frozen
class Group:
    """The ranks that measured; `hosts` has the host of each."""

    backend: str
    hosts: tuple[str, ...]
    torch: str
    nccl: str | None
    device: str


@frozen
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


@frozen
class Limit:
    """GB/s (1e9 bytes) in one direction, and of what."""

    gbps: float
    what: str


def link_limit(group: Group, *, memory_gbps: float | None, host: Host | None = None) -> Limit | None:
    """The narrowest link on a ring of the ranks; None where that is not known, or other hosts than this one hold them."""
    several = len(set(group.hosts)) > 1
    if socket.gethostname() not in group.hosts:
        return None
    if group.backend == "gloo" and not several:
        # Over loopback the processor copies each byte.
        return None if memory_gbps is None else Limit(gbps=memory_gbps, what="a copy in memory")
    seen = snapshot.take(host or Host(), only=("gpu", "infiniband", "network", "pcie"))
    found: list[Limit | None] = []
    if several:
        found.append(_network(seen, group.backend))
    if group.backend == "nccl" and len(set(group.hosts)) < len(group.hosts):
        found.append(_gpus(seen))
    known = [one for one in found if one is not None]
    return min(known, key=lambda one: one.gbps) if known and len(known) == len(found) else None


def _network(seen: snapshot.Snapshot, backend: str) -> Limit | None:
    adapters, nets = seen.get(infiniband.SUBJECT), seen.get(network.SUBJECT)
    if backend == "nccl" and adapters is not None and (rates := [port.rate_gbps for _, port in infiniband.active(adapters)]):
        return None if None in rates else Limit(gbps=sum(rate or 0 for rate in rates) / 8, what=f"{len(rates)} ports of InfiniBand or RoCE")
    choice = None if nets is None else nets.nccl if backend == "nccl" else nets.gloo
    speeds = [i.speed_mbps for name in (choice.interfaces or ()) if nets and (i := nets.interface(name))][:1] if choice is not None else []
    return Limit(gbps=speeds[0] / 8000, what="Ethernet") if speeds and speeds[0] else None


def _gpus(seen: snapshot.Snapshot) -> Limit | None:
    gpus, bus = seen.get(gpu.SUBJECT), seen.get(pcie.SUBJECT)
    if gpus is not None and gpus.pairs and all(pair.link and pair.link.startswith("NV") for pair in gpus.pairs):
        speeds = [[link.speed_mb_per_s for link in one.nvlinks if link.active] for one in gpus.gpus]
        if all(each and None not in each for each in speeds):
            return Limit(gbps=min(sum(speed or 0 for speed in each) for each in speeds) / 1000, what="NVLink")
        return None
    cards = [d for d in (bus.devices if bus is not None else ()) if d.kind == "gpu"]
    if not cards or any(d.width is None or d.speed_max_gt_s is None for d in cards):
        return None
    return Limit(gbps=min(pcie_gbps(d.width or 0, d.speed_max_gt_s or 0) for d in cards), what="PCIe")


def pcie_gbps(lanes: int, gt_s: float) -> float:
    """Payload of the line code in one direction: 8b/10b up to 5 GT/s, 128b/130b up to 32, 242 of 256 bytes at 64 (PCI Express Base Specification)."""
    return lanes * gt_s / 8 * (0.8 if gt_s <= 5 else 128 / 130 if gt_s <= 32 else 242 / 256)
