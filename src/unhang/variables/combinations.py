"""What several settings say together: names that overlap, time-outs that do not fit, what the host does not have.

Each check is a function of the view that yields remarks for a setting; a value that is not known contradicts nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from unhang.facts import job
from unhang.facts.variables import beyond, visible_gpus
from unhang.i18n import msg
from unhang.model import Severity, frozen
from unhang.variables import value_parsers
from unhang.variables.judge import Judged, Place, Remark
from unhang.variables.known import Text, entries
from unhang.variables.readers import release

_DAY_S = 86_400
_NCCL_TIMEOUT_S = 600
_Said = tuple[str, Remark]


@frozen
class _View:
    """The last value of each name, and the host."""

    last: dict[str, Judged]
    place: Place
    options: tuple[tuple[str, str], ...]

    def text(self, name: str) -> str | None:
        """The value, where it is known."""
        found = self.last.get(name)
        return found.value if found is not None and value_parsers.is_known(found.value) else None

    def number(self, *names: str) -> int | None:
        return next((n for name in names if (t := self.text(name)) is not None and (n := value_parsers.number(t)) is not None), None)

    def whole(self, *names: str) -> int | None:
        return next((n for name in names if (t := self.text(name)) is not None and (n := value_parsers.whole(t)) is not None), None)

    def hosts(self, *names: str) -> int | None:
        """How many hosts there are at most: 4 of "1:4"."""
        return next((h[1] for name in names if (t := self.text(name)) is not None and (h := value_parsers.hosts(t)) is not None), None)

    def first_of(self, *names: str) -> str | None:
        return next((n for n in names if n in self.last), None)

    def option(self, name: str) -> str | None:
        return next((value for known, value in reversed(self.options) if known == name), None)

    def seconds(self, name: str) -> int | None:
        option = self.option(name)
        return int(float(option)) if option is not None else None


def compare(judged: list[Judged], place: Place, options: tuple[tuple[str, str], ...]) -> tuple[Judged, ...]:
    """The same settings, each with what the others say about it; a setting that is overridden further down gets nothing."""
    view = _View(last={j.name: j for j in judged}, place=place, options=options)
    said = [pair for check in _CHECKS for pair in check(view)]
    kept = [_without_new_name(_without_guess(j, place), view) for j in judged]
    last = {j.name: i for i, j in enumerate(judged)}
    for name, remark in said:
        if remark.kind == "host" and not place.is_this_host:
            # A file is meant for a host that need not be the one it was looked at on.
            remark = replace(remark, severity="note")
        kept[last[name]] = kept[last[name]].with_remark(remark)
    return tuple(kept)


def _without_guess(judged: Judged, place: Place) -> Judged:
    """A list of adapters is told by what it matches where that is known; where there are none, nothing is lost without them. A file may be meant for
    other hosts than this one.
    """
    guess = (judged.name == "NCCL_IB_HCA" and place.adapters is not None and place.is_this_host) or (
        judged.name == "NCCL_IB_DISABLE" and place.adapters == ()
    )
    if not guess or not value_parsers.is_known(judged.value):
        return judged
    return replace(judged, remarks=tuple(r for r in judged.remarks if r.kind != "effect"))


def _without_new_name(judged: Judged, view: _View) -> Judged:
    """Where both names are set and both count, neither takes the other's place."""
    entry = entries().get(judged.name)
    return replace(judged, now="") if judged.now in view.last and entry is not None and entry.both is not None else judged


def _remark(severity: Severity, says: Text) -> Remark:
    return Remark(kind="contradiction", severity=severity, says=says)


def _of_host(severity: Severity, says: Text) -> Remark:
    return Remark(kind="host", severity=severity, says=says)


def _old_and_new(view: _View) -> Iterator[_Said]:
    for name in view.last:
        entry = entries().get(name)
        new = view.last.get(entry.now) if entry is not None and entry.now else None
        if entry is not None and new is not None and new.value != view.last[name].value and new.state == "read":
            both = entry.both or msg("that one wins")
            yield name, _remark("warning", msg("{shown} is set as well: {both}", shown=f"{new.name}={_shown(new.value)}", both=both))


def _blocking_and_handling(view: _View) -> Iterator[_Said]:
    blocking = view.first_of("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
    handling = view.first_of("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
    if blocking and handling and value_parsers.is_on(view.text(blocking)) and view.number(handling) not in (None, 0):
        yield (
            handling,
            _remark(
                "warning",
                msg("{blocking} is on: torch then uses blocking wait only, and this one has no effect", blocking=blocking),
            ),
        )


def _interfaces(view: _View) -> Iterator[_Said]:
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        wanted = (view.text(name) or "").strip()
        have = view.place.interfaces if view.place.running is None or not name.startswith("NCCL_") else view.place.running
        if not wanted or have is None:
            continue
        if missing := _missing(name, wanted, have):
            says = msg("the host that this was looked at on has no interface {missing} that is up with an address: it has {value}")
            if view.place.is_this_host:
                says = msg("there is no interface {missing} that is up with an address: the start fails (this host has {value})")
            yield name, _of_host("error", says.fill(missing=missing, value=", ".join(have) or msg("none")))


def _missing(name: str, wanted: str, have: tuple[str, ...]) -> str:
    if not name.startswith("NCCL_"):
        return ", ".join(w for w in wanted.split(",") if w and w not in have)
    return "" if wanted.startswith("^") or any(job.matches(i, wanted) for i in have) else wanted.lstrip("=")


def _adapters(view: _View) -> Iterator[_Said]:
    have, wanted = view.place.adapters, (view.text("NCCL_IB_HCA") or "").strip()
    excludes = wanted.startswith("^")
    if have is None or not wanted or (excludes and not have):
        return
    taken = [a for a in have if job.matches(a, wanted)]
    if not have:
        says = msg("this host has no RDMA adapter, and so no {wanted}: NCCL goes on over TCP", wanted=wanted.removeprefix("="))
        yield "NCCL_IB_HCA", _of_host("warning", says)
    elif not taken:
        says = msg("it takes none of the adapters here ({have}): NCCL goes on over TCP", have=", ".join(have))
        yield "NCCL_IB_HCA", _of_host("warning", says)
    elif len(taken) < len(have) and not excludes:
        left = ", ".join(a for a in have if a not in taken)
        # Whoever wrote several names, or exact ones, meant those.
        severity: Severity = "note" if wanted.startswith("=") or "," in wanted else "warning"
        yield "NCCL_IB_HCA", _remark(severity, msg("it takes {taken} and leaves {left} unused", taken=", ".join(taken), left=left))
    named = [] if not taken or excludes else wanted.removeprefix("=").split(",")
    exact = "=" if wanted.startswith("=") else ""
    absent = ", ".join(n for n in named if n and not any(job.matches(a, exact + n) for a in have))
    if absent:
        yield "NCCL_IB_HCA", _of_host("note", msg("there is no {absent} here: {have}", absent=absent, have=", ".join(have)))


def _gpus(view: _View) -> Iterator[_Said]:
    number, value = view.place.installed, view.text("CUDA_VISIBLE_DEVICES")
    if not number or value is None:
        return
    shown, _ = visible_gpus(value)
    first = beyond(shown, number)
    if first is not None:
        here = "this host" if view.place.is_this_host else "the host that this was looked at on"
        yield (
            "CUDA_VISIBLE_DEVICES",
            _of_host(
                "error",
                msg(
                    "there is no GPU {shown} among the {number} of {here}: CUDA shows the {first} before it",
                    shown=shown[first],
                    number=number,
                    here=here,
                    first=first,
                ),
            ),
        )
    elif value_parsers.hides_gpus(value) and view.place.is_this_host:
        yield "CUDA_VISIBLE_DEVICES", _of_host("warning", msg("it hides all {number} GPUs of this host", number=number))


def _minutes(seconds: float) -> int:
    """Whole ones, which is all that DeepSpeed takes: those that are not shorter."""
    return math.ceil(seconds / 60)


def _timeouts(view: _View) -> Iterator[_Said]:
    ddp, group, deepspeed = view.seconds("ddp_timeout"), view.seconds("group_timeout"), view.number("DEEPSPEED_TIMEOUT")
    if ddp is not None and deepspeed is not None and deepspeed != _minutes(ddp):
        yield (
            "DEEPSPEED_TIMEOUT",
            _remark(
                "warning",
                msg("{deepspeed} minutes, but ddp_timeout is {ddp} s, and with the Trainer that one holds", deepspeed=deepspeed, ddp=ddp),
            ),
        )
    if ddp is None and group is not None and deepspeed is not None and deepspeed != _minutes(group):
        yield (
            "DEEPSPEED_TIMEOUT",
            _remark(
                "warning",
                msg(
                    "{deepspeed} minutes, but init_process_group is given {group} s: which one holds depends on who makes the group first",
                    deepspeed=deepspeed,
                    group=group,
                ),
            ),
        )
    for name in ("NCCL_TIMEOUT", "TORCH_DISTRIBUTED_TIMEOUT", "TORCH_NCCL_TIMEOUT"):
        wanted = view.number(name)
        real = ddp if ddp is not None else group
        if wanted is not None and real is not None and wanted != real:
            yield name, _remark("warning", msg("it says {wanted}, and what holds is {real} s", wanted=wanted, real=real))
    beat, dump = (
        view.first_of("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"),
        view.number("TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"),
    )
    beat_s = view.number("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC")
    if beat and beat_s is not None and dump is not None and dump >= beat_s * 1000:
        yield (
            beat,
            _remark(
                "warning",
                msg(
                    "{beat_s} s is not longer than the {dump:g} s that the dump may take: the process is ended before it is written",
                    beat_s=beat_s,
                    dump=dump / 1000,
                ),
            ),
        )
    if beat and value_parsers.is_known(off := view.text("TORCH_NCCL_ENABLE_MONITORING")) and not value_parsers.is_on(off):
        yield beat, _remark("note", msg("TORCH_NCCL_ENABLE_MONITORING is off: it has no effect"))
    packet, tries = view.number("NCCL_IB_TIMEOUT"), view.number("NCCL_IB_RETRY_CNT")
    limit = ddp or group or _NCCL_TIMEOUT_S
    if packet is not None and 0 < packet < 32:
        total_s = 4.096e-6 * 2**packet * (7 if tries is None else tries)
        if total_s >= limit:
            yield (
                "NCCL_IB_TIMEOUT",
                _remark(
                    "warning",
                    msg(
                        "InfiniBand would try for {total_s:.0f} s, the collective is given up after {limit} s: its error is never seen",
                        total_s=total_s,
                        limit=limit,
                    ),
                ),
            )
    wait = view.first_of("TORCH_NCCL_NONBLOCKING_TIMEOUT")
    if wait and not value_parsers.is_on(view.text("TORCH_NCCL_USE_COMM_NONBLOCKING")):
        yield wait, _remark("note", msg("no effect without TORCH_NCCL_USE_COMM_NONBLOCKING=1"))
    if ddp is not None and ddp > _DAY_S and (any_timeout := view.first_of("NCCL_TIMEOUT", "DEEPSPEED_TIMEOUT", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC")):
        yield (
            any_timeout,
            _remark("warning", msg("ddp_timeout is {ddp:.0f} days: a hang never ends", ddp=ddp / _DAY_S)),
        )


def _recorder(view: _View) -> Iterator[_Said]:
    dump = view.first_of("TORCH_FR_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT")
    size = view.number("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    if dump and value_parsers.is_on(view.text(dump)) and size == 0:
        yield dump, _remark("warning", msg("the flight recorder's size is 0: there is nothing to write"))


_NUMBERED = (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE"), ("NODE_RANK", "NNODES"))


def _ranks(view: _View) -> Iterator[_Said]:
    for rank, size in _NUMBERED:
        r, n = view.whole(rank), view.hosts(size) if size == "NNODES" else view.whole(size)
        if r is not None and n is not None and r >= n:
            yield (
                rank,
                _remark(
                    "error",
                    msg(
                        "{rank}={r} does not exist where {size} is {n}: the start fails, or ends when the store's timeout is over "
                        "(timeout=, 30 min where it is not given, 10 with nccl)",
                        rank=rank,
                        r=r,
                        size=size,
                        n=n,
                    ),
                ),
            )
    world, each = view.whole("WORLD_SIZE"), view.whole("NPROC_PER_NODE", "PET_NPROC_PER_NODE") or view.place.gpus
    if world is not None and "RANK" in view.last and "LOCAL_RANK" not in view.last and _counts_hosts(world, view.hosts("NNODES", "PET_NNODES"), each):
        yield (
            "WORLD_SIZE",
            _remark(
                "warning",
                msg(
                    "without LOCAL_RANK, and with {each} processes or GPUs on a host, {world} counts hosts, as some platforms have it: "
                    "torchrun --nnodes $WORLD_SIZE --node-rank $RANK; a program that takes it for the number of processes hangs or "
                    "trains on too few",
                    each=each,
                    world=world,
                ),
            ),
        )
    yield from _counted_by_slurm(view)
    hosts = view.hosts("NNODES")
    if "FORCE_TORCHRUN" in view.last and hosts is not None and hosts > 1:
        if "NODE_RANK" not in view.last and "RANK" in view.last:
            yield (
                "RANK",
                _remark(
                    "warning",
                    msg("LLaMA-Factory since 0.9.1 reads NODE_RANK; with RANK all hosts are host 0"),
                ),
            )
        if "MASTER_PORT" not in view.last:
            yield (
                "NNODES",
                _remark(
                    "error",
                    msg("without MASTER_PORT LLaMA-Factory takes a random port on each host: the start hangs"),
                ),
            )


_NUMBER_OF_HOSTS = re.compile(r"\$\{?(?:SLURM_NNODES|SLURM_JOB_NUM_NODES)\}?")


def _counted_by_slurm(view: _View) -> Iterator[_Said]:
    world = view.last.get("WORLD_SIZE")
    each = max((int(value) for name, value in view.options if name == "per_node"), default=1)
    is_number = world is not None and _NUMBER_OF_HOSTS.fullmatch(world.value or "")
    if is_number and each > 1 and ("nnodes", "WORLD_SIZE") not in view.options:
        yield (
            "WORLD_SIZE",
            _remark(
                "error",
                msg(
                    "it counts hosts, and the job has {each} tasks or GPUs on each: the processes beyond that number are in no group, "
                    "and the start hangs or fails; with one task for each process: WORLD_SIZE=$SLURM_NTASKS",
                    each=each,
                ),
            ),
        )


def _counts_hosts(world: int, hosts: int | None, each: int | None) -> bool:
    """Whether a WORLD_SIZE cannot be a number of processes; where it may be both it is taken for that."""
    return each is not None and each > 1 and (world == hosts if hosts is not None else world % each != 0)


def _of_no_use(view: _View) -> Iterator[_Said]:
    level = view.text("NCCL_DEBUG")
    if "NCCL_DEBUG_SUBSYS" in view.last and (
        ("NCCL_DEBUG" not in view.last and view.place.is_this_host) or (level or "").upper() in ("WARN", "VERSION")
    ):
        yield "NCCL_DEBUG_SUBSYS", _remark("warning", msg("no effect without NCCL_DEBUG=INFO"))
    if view.number("NCCL_IB_DISABLE") == 1:
        for name in view.last:
            if name.startswith("NCCL_IB_") and name != "NCCL_IB_DISABLE":
                yield name, _remark("note", msg("no effect: NCCL_IB_DISABLE is 1"))
        if (view.text("NCCL_NET") or "").upper() == "IB":
            yield (
                "NCCL_NET",
                _remark("error", msg("NCCL_NET=IB and NCCL_IB_DISABLE=1: the start fails")),
            )
    if view.number("NCCL_P2P_DISABLE") == 1:
        if "NCCL_P2P_LEVEL" in view.last:
            yield "NCCL_P2P_LEVEL", _remark("warning", msg("no effect: NCCL_P2P_DISABLE is 1"))
        if view.number("NCCL_SHM_DISABLE") == 1:
            yield (
                "NCCL_SHM_DISABLE",
                _remark(
                    "warning",
                    msg("with NCCL_P2P_DISABLE=1, too, GPUs of one host talk over the network"),
                ),
            )
    threads, each = view.number("NCCL_SOCKET_NTHREADS"), view.number("NCCL_NSOCKS_PERTHREAD")
    if threads is not None and each is not None and threads * each > 64:
        yield "NCCL_NSOCKS_PERTHREAD", _remark("warning", msg("{threads} × {each} sockets are more than 64", threads=threads, each=each))


# What torch/csrc/distributed/c10d/nccl2 does not read of torch's variables for NCCL.
_NOT_NCCL2 = (
    "TORCH_NCCL_BCAST_UNIQUEID",
    "TORCH_NCCL_COORD_CHECK_MILSEC",
    "TORCH_NCCL_DESYNC_DEBUG",
    "NCCL_DESYNC_DEBUG",
    "TORCH_NCCL_EXTRA_DUMP_ON_EXEC",
    "TORCH_NCCL_NAN_CHECK",
    "TORCH_NCCL_NONBLOCKING_TIMEOUT",
    "TORCH_NCCL_PROPAGATE_ERROR",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS",
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING",
    "TORCH_NCCL_TEARDOWN_ON_TIMEOUT",
    "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
    "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
)


def _nccl2(view: _View) -> Iterator[_Said]:
    version = view.place.libraries.get("torch", "")
    if not version or release(version)[:2] < (2, 15) or view.number("TORCH_DIST_USE_NCCL2") == 0:
        return
    for name in _NOT_NCCL2:
        if name in view.last:
            yield (
                name,
                _remark(
                    "note",
                    msg(
                        "nccl2, which torch {version} takes for the backend nccl, does not read it; nccl-legacy does (TORCH_DIST_USE_NCCL2=0)",
                        version=version,
                    ),
                ),
            )


def _on_rocm(view: _View) -> Iterator[_Said]:
    """Seen on Slingshot with PHB and SYS; other releases of ROCm are not known to do so."""
    level = (view.text("NCCL_NET_GDR_LEVEL") or "").strip().upper()
    loaded = view.option("rocm")
    is_rocm = loaded is not None or "rccl" in view.place.libraries or any(n.startswith(("FI_CXI_", "HSA_", "ROCR_", "HIP_")) for n in view.last)
    if level in ("PHB", "SYS") and is_rocm and (loaded is None or loaded.partition(".")[0] in ("", "7")):
        yield (
            "NCCL_NET_GDR_LEVEL",
            _remark(
                "note",
                msg(
                    "with ROCm 7 jobs of several hosts were seen to hang with {level}; RCCL finds the distance by itself where it is not set",
                    level=level,
                ),
            ),
        )


def _from_conf(view: _View) -> Iterator[_Said]:
    for name, judged in view.last.items():
        if judged.source.endswith(("nccl.conf", "rccl.conf")) and not name.startswith("NCCL_") and judged.state != "not-read":
            yield (
                name,
                _remark(
                    "warning",
                    msg("NCCL reads {source} when it starts; torch has read its own variables before", source=judged.source),
                ),
            )


def _conf_file(view: _View) -> Iterator[_Said]:
    if view.place.missing and "NCCL_CONF_FILE" in view.last:
        yield (
            "NCCL_CONF_FILE",
            _of_host(
                "warning",
                msg("there is no file {missing}: NCCL goes on without a word, and reads no ~/.nccl.conf either", missing=view.place.missing),
            ),
        )
    elif view.last.get("NCCL_CONF_FILE") is not None and not view.place.is_this_host:
        yield (
            "NCCL_CONF_FILE",
            _remark("note", msg("what that file sets was not looked at: unhang vars FILE does")),
        )


def _launcher(view: _View) -> Iterator[_Said]:
    if view.option("launcher") != "deepspeed":
        return
    for name, judged in view.last.items():
        if name.startswith(("TORCH_", "GLOO_", "FI_", "OFI_")) and judged.state != "not-read":
            yield (
                name,
                _remark(
                    "warning",
                    msg("DeepSpeed's launcher does not hand it to other hosts: write it to ~/.deepspeed_env"),
                ),
            )


def _shown(value: str | None) -> str:
    return "…" if value is None else value


_CHECKS: tuple[Callable[[_View], Iterable[_Said]], ...] = (
    _old_and_new,
    _blocking_and_handling,
    _interfaces,
    _adapters,
    _gpus,
    _timeouts,
    _recorder,
    _ranks,
    _of_no_use,
    _nccl2,
    _on_rocm,
    _from_conf,
    _conf_file,
    _launcher,
)
