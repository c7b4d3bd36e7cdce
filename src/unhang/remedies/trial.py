"""A trial: small torch programs run under a candidate's settings, stage by stage, each within its bound; numbers are checked as well as survival.

A stage that comes before any communication (importing torch, the device) says nothing about the candidate when it fails: that is inconclusive.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from unhang import fsio
from unhang.i18n import same
from unhang.knowledge.words import Text, joined, msg
from unhang.logs import nccl_lines
from unhang.model import StageResult, Steps, Trial, frozen
from unhang.probes import plan
from unhang.probes.live import verdict_of
from unhang.probes.ranks import Ranks
from unhang.settings.setting import Applied, Choice, Installed, Refused, applied

_STAGES = ("import", "device", "process-group", "barrier", "all_reduce-float32", "all_reduce-bfloat16", "all_reduce-int64", "all_gather")
_MEASURING = ("sizes", "ddp-step")
_BEFORE_ANY_TALK = ("import", "device")
# What works takes a second; the examination's own bounds would add up to minutes for each rung.
_BOUND_S = 30.0
_SLOW_TO_START = ("import", "device", plan.LOADER.id)
_MAX_LOG_BYTES = 8 * 1024 * 1024
# What decides how processes talk: shown as the effective environment.
OF_COMMUNICATION = re.compile(
    r"(?:NCCL|TORCH_NCCL|GLOO|TORCH_GLOO|UCX|CUDA_(?:VISIBLE|LAUNCH|DEVICE)|UNHANG_(?:BACKEND|TIMEOUT|LOADER|PIN|PERSIST|PREFETCH))"
)
# What the probes do not see: our hook reads it in the training's own processes alone, or a trial sets it anyway.
UNSEEN = ("NCCL_DEBUG", "UNHANG_TIMEOUT_S", "UNHANG_PIN_MEMORY", "UNHANG_PERSISTENT_WORKERS", "UNHANG_PREFETCH", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC")
LOADER_WORKERS = "UNHANG_LOADER_WORKERS"
_BANDWIDTH = re.compile(r"bus bandwidth ([\d.e+-]+) GB/s")
_GLOO_AT = re.compile(r"^gloo at (.+)$")


@frozen
class Wrong:
    """The user's own command ends so whatever is set."""

    why: Text


@frozen
class Bench:
    """Where trials are run: `world_size` ranks with the training's Python and environment, over `backend` unless the candidate names another.

    `loaders`: loader workers are tried, too. `own` runs the user's own few steps under the candidate, within so many seconds, where they were
    given; it answers with the reason where it could not be run under it, with `Wrong` where no setting can mend it. `trials` is where logs are kept:
    a directory of the run's, which need not be there yet; None for the system's temporary one. `cancelled` is asked several times a second.
    """

    python: str
    world_size: int
    backend: str
    environ: Mapping[str, str]
    installed: Installed
    launcher: str = "torchrun"
    loaders: bool = False
    own: Callable[[Choice, int, float], Steps | Text | Wrong] | None = None
    trials: Path | None = None
    cancelled: Callable[[], bool] = lambda: False

    def applied(self, choice: Choice) -> Applied:
        """What the choice comes to here."""
        return applied(choice, self.installed, launcher=self.launcher)

    def refused(self, choice: Choice) -> tuple[Refused, ...]:
        return self.applied(choice).refused


def run(bench: Bench, choice: Choice, *, limit_s: float, keeps_logs: bool = False) -> Trial:
    """Try one candidate, within `limit_s` in all. Nothing of it stays but the logs of what failed, where they are wanted."""
    began = time.monotonic()
    size = int(choice.get("processes", bench.world_size))
    backend = str(choice.get("backend", bench.backend))
    done = bench.applied(choice)
    environ = {**bench.environ, **done.env}
    # NCCL says at this level which transports it takes, and to a file of the user's it would say it there.
    ours = {name: value for name, value in environ.items() if name not in ("NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS")} | {"NCCL_DEBUG": "INFO"}
    kept: Path | None = None
    with fsio.temporary_directory("trial-") as folder:
        stages, cut = _stages(bench, ours, size, backend, folder, began + limit_s)
        has_failed = any(s.state == "failed" for s in stages)
        if keeps_logs and has_failed and not bench.cancelled():
            kept = _kept(folder, bench.trials)
        logs = sorted((kept or folder).glob("rank*.log"))
        transports, interfaces = _told_by_nccl(logs) if backend == "nccl" else _of_gloo(stages)
        verdict = verdict_of(logs) if has_failed else None
        if kept == folder:
            fsio.keep(folder)
    stages = [replace(s, logs=str(kept)) if s.state == "failed" and kept is not None else s for s in stages]
    failed = next((s for s in stages if s.state == "failed"), None)
    steps: Steps | Text | Wrong | None = None
    if failed is None and not cut and bench.own is not None and not bench.cancelled():
        steps = bench.own(choice, size, max(1.0, began + limit_s - time.monotonic()))
    outcome, said = _judged(bench, done, failed, too_little_time(limit_s) if cut else steps)
    return Trial(
        choice=dict(choice),
        outcome=outcome,  # type: ignore[arg-type]
        world_size=size,
        backend=backend,
        says=said,
        environment={name: environ[name] for name in sorted(environ) if OF_COMMUNICATION.match(name)},
        transports=transports,
        interfaces=interfaces,
        stages=tuple(stages),
        busbw_gbps=_bandwidth(stages),
        steps=steps if isinstance(steps, Steps) else None,
        wrong_command=isinstance(steps, Wrong),
        seconds=round(time.monotonic() - began, 3),
        verdict=verdict,
    )


def too_little_time(left_s: float) -> Text:
    return msg("of the whole time only {left_s:.0f} s were left for it", left_s=left_s)


def refusal(refused: Sequence[Refused]) -> Text:
    return joined(r.why for r in refused)


def _kept(folder: Path, trials: Path | None) -> Path:
    """Where its logs lie from now on: it has run elsewhere, since a disk that is full, as that of a run may be, would be no fault of the settings."""
    if trials is None:
        return folder
    home: Path | None = None
    try:
        trials.mkdir(mode=0o700, exist_ok=True)
        home = Path(tempfile.mkdtemp(prefix="trial-", dir=trials))
        for log in folder.glob("rank*.log"):
            shutil.copyfile(log, home / log.name)
    except OSError:
        if home is not None:
            shutil.rmtree(home, ignore_errors=True)
        return folder
    return home


def _stages(bench: Bench, environ: Mapping[str, str], size: int, backend: str, folder: Path, until: float) -> tuple[list[StageResult], bool]:
    """Up to the first that fails, or that was cut off: what was interrupted, or had less time than is its due, has not failed."""
    known = {s.id: s for s in (*plan.STAGES, plan.LOADER)}
    ids = [*_STAGES[:2], *([plan.LOADER.id] if bench.loaders else []), *_STAGES[2:], *_MEASURING]
    results: list[StageResult] = []
    ranks = Ranks(
        bench.python,
        size=size,
        backend=backend,
        stages=ids,
        logs=folder,
        timeout_s=2 * plan.STAGES[0].bound_s,
        environ=environ,
        cwd=folder,
        cancelled=bench.cancelled,
    )
    failed = cut = False
    with ranks:
        for id in ids:
            bound_s = known[id].bound_s if id in _SLOW_TO_START else min(_BOUND_S, known[id].bound_s)
            left_s = max(0.5, until - time.monotonic())
            result = ranks.wait(id, min(bound_s, left_s))
            failed = result.state == "failed"
            cut = failed and (bench.cancelled() or result.seconds >= round(left_s, 3))
            if cut:
                break
            results.append(result)
            if failed:
                break
    results += [StageResult(stage=id, world_size=size, state="not-tested") for id in ids[len(results) :]]
    return results, cut


def _judged(bench: Bench, done: Applied, failed: StageResult | None, steps: Steps | Text | Wrong | None) -> tuple[str, Text]:
    if bench.cancelled():
        return "inconclusive", msg("interrupted")
    if failed is not None:
        stage = next(s for s in (*plan.STAGES, plan.LOADER) if s.id == failed.stage)
        said = msg("{title}: {says}", title=stage.title, says=failed.says)
        return ("inconclusive" if failed.stage in _BEFORE_ANY_TALK else "failed"), said
    if isinstance(steps, (Text, Wrong)):
        return "inconclusive", steps if isinstance(steps, Text) else steps.why
    if steps is not None and (steps.exitcode != 0 or steps.says):
        return "failed", same(steps.says) if steps.says else msg("the command ended with exit code {exitcode}", exitcode=steps.exitcode)
    return "passed", msg("every stage passed, with the right numbers")


def _bandwidth(stages: Sequence[StageResult]) -> float | None:
    said = next((s.says for s in stages if s.stage == "sizes" and s.state == "passed" and s.world_size > 1), "")
    found = _BANDWIDTH.search(said)
    return float(found[1]) if found else None


def _told_by_nccl(logs: Sequence[Path]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    transports: dict[str, None] = {}
    interfaces: dict[str, None] = {}
    transport, interface = re.compile(nccl_lines.TRANSPORT.pattern), re.compile(nccl_lines.INTERFACE.pattern)
    for line in _lines(logs):
        if nccl_lines.TRANSPORT.needle in line and (found := transport.search(line)) is not None:
            transports[found["via"]] = None
        elif nccl_lines.INTERFACE.needle in line and (found := interface.search(line)) is not None:
            interfaces[f"{found['kind']} {found['interface'].strip()}"] = None
    return tuple(transports), tuple(interfaces)


def _lines(logs: Sequence[Path]) -> Iterator[str]:
    for log in logs:
        try:
            with log.open("rb") as f:
                yield from f.read(_MAX_LOG_BYTES).decode(errors="replace").splitlines()
        except OSError:
            continue


def _of_gloo(stages: Sequence[StageResult]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """TCP, and the interfaces at whose addresses it listens; nothing where it was not seen to."""
    said = next((s.says for s in stages if s.stage == "process-group" and s.state == "passed"), "")
    found = _GLOO_AT.match(said)
    if found is None:
        return (), ()
    names = {a.address.partition("%")[0]: name for name, addresses in psutil.net_if_addrs().items() for a in addresses}
    return ("Gloo/TCP",), tuple(f"{names.get(address, '?')} ({address})" for address in found[1].split(", "))
