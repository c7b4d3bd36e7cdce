"""What really works here: small torch programs with 1, 2, 4, ... ranks, each stage within its bound, and what follows from the first that fails."""

from __future__ import annotations

import importlib.util
import os
import selectors
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from unhang import fsio
from unhang.errors import UnhangError
from unhang.i18n import NOTHING, Text, msg
from unhang.model import Live, StageResult, Verdict
from unhang.probes import plan
from unhang.probes.plan import Stage
from unhang.probes.ranks import Ranks, end_group
from unhang.variables.value_parsers import hides_gpus

# More failures of one world size say nothing new, and each may cost its whole bound.
_MAX_FAILURES = 3
_ASK_S = 180.0
_END_S = 3.0
_MOST_PER_CORE = 4
# Prints the number of GPUs that torch sees. -1: torch is there and sees none.
_ASK = """import sys
sys.path[:] = filter(None, sys.path)
import torch, torch.distributed as d
print(torch.cuda.device_count() if torch.cuda.is_available() and d.is_nccl_available() else -1)
"""


def examine(
    *,
    python: str | None = None,
    ranks: int | None = None,
    environ: Mapping[str, str] | None = None,
    begun: Callable[[Stage, int], None] = lambda stage, world_size: None,
    ended: Callable[[Stage, StageResult], None] = lambda stage, result: None,
) -> Live:
    """Run all stages with the Python of the training, over NCCL on all GPUs, or over Gloo on the CPU with `ranks` (at most the cores, 2 at least).

    `begun` and `ended` are told of each stage as it goes. Raises UnhangError where there is no such Python.
    """
    chosen = find_python(python)
    around = dict(os.environ if environ is None else environ)
    gpus = gpus_of(chosen, around)
    backend = "nccl" if gpus else "gloo"
    if gpus and ranks is not None and ranks > gpus:
        raise UnhangError(f"{ranks} ranks on {gpus} GPUs: NCCL wants a GPU for each", hint=f"unhang doctor --live --ranks {gpus}")
    if not gpus and ranks is not None and ranks > (most := _MOST_PER_CORE * _cores()):
        raise UnhangError(f"{ranks} ranks on {_cores()} cores would take minutes for each stage", hint=f"unhang doctor --live --ranks {most}")
    several = ranks or gpus or min(4, max(2, _cores()))
    results: list[StageResult] = []
    held: list[int] = []
    with fsio.temporary_directory("live-") as folder:
        for world_size in plan.ladder(several):
            world = _World(python=chosen, size=world_size, backend=backend, folder=folder, environ=around, begun=begun, ended=ended)
            results += world.run(stopped=any(r.state == "failed" for r in results))
            held += world.held
            # What failed can be read again.
            if any(r.logs for r in results):
                fsio.keep(folder)
    said = conclusion(results, backend)
    if (command := _another(results, chosen, asked=python is not None)) is not None:
        said += msg("; {python} has no torch: name the training's Python, {command}", python=chosen, command=command)
    if held:
        pids = ", ".join(map(str, held))
        said += msg("; the kernel does not let go of process {pids}: a driver or a file server hangs", pids=pids)
    return Live(python=chosen, backend=backend, stages=tuple(results), conclusion=said)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2


def find_python(asked: str | None) -> str:
    """The Python of the training: as asked, else as `unhang run` chooses: ours where torch is beside us, else the first on PATH."""
    if asked is not None:
        found = shutil.which(asked)
        if found is None:
            raise UnhangError(f"there is no Python at {asked}", hint="unhang doctor --live --python /path/to/env/bin/python")
        return found
    if _torch_is_beside_us():
        return sys.executable
    return shutil.which("python") or shutil.which("python3") or sys.executable


def _torch_is_beside_us() -> bool:
    return importlib.util.find_spec("torch") is not None


def _another(results: list[StageResult], chosen: str, *, asked: bool) -> str | None:
    """The command that names the Python to be taken instead, where this one has no torch."""
    if not any(r.stage == "import" and r.state == "failed" and "No module named 'torch'" in r.says for r in results):
        return None
    if _torch_is_beside_us() and chosen != sys.executable:
        return f"unhang doctor --live --python {shlex.quote(sys.executable)}"
    return None if asked else "unhang doctor --live --python PATH"


def gpus_of(python: str, environ: Mapping[str, str]) -> int:
    """How many are to be tested: what torch sees; where it sees none, or does not answer, what is there, for the stage of the device to say why."""
    if hides_gpus(environ.get("CUDA_VISIBLE_DEVICES", "0")):
        return 0
    try:
        seen = int(_answer(python, _ASK, environ).split()[-1])
    except (OSError, ValueError, IndexError):
        seen = 0
    return seen if seen > 0 else _nvidia_devices()


def _answer(python: str, code: str, environ: Mapping[str, str]) -> bytes:
    """What it prints until all of it has ended, or the bound is over; nothing of it stays. Raises OSError where it cannot be started."""
    asked = subprocess.Popen(
        [python, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        # A wrapper has children of its own.
        start_new_session=True,
    )
    assert asked.stdout is not None
    said = b""
    until = time.monotonic() + _ASK_S
    try:
        with asked.stdout as pipe, selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while selector.select(max(0.0, until - time.monotonic())) and (more := os.read(pipe.fileno(), 65536)):
                said += more
    finally:
        end_group(asked, _END_S)
    return said


def _nvidia_devices() -> int:
    """Those that this container or job step was given: a cgroup refuses the others."""
    return sum(p.name[len("nvidia") :].isdigit() and _may_be_opened(p) for p in Path("/dev").glob("nvidia*"))


def _may_be_opened(device: Path) -> bool:
    try:
        os.close(os.open(device, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except PermissionError:
        return False
    except OSError:
        # There, and out of order: for the stage of the device to say.
        return True
    return True


@dataclass(kw_only=True)
class _World:
    """The stages of one world size. After a failure the rest goes on in fresh processes."""

    python: str
    size: int
    backend: str
    folder: Path
    environ: Mapping[str, str]
    begun: Callable[[Stage, int], None]
    ended: Callable[[Stage, StageResult], None]
    held: list[int] = field(default_factory=list)
    _results: list[StageResult] = field(default_factory=list)

    def run(self, *, stopped: bool) -> list[StageResult]:
        left = list(plan.stages_of(self.size))
        while left and not stopped:
            done = self._in_fresh_processes(left)
            left = left[done:]
            failed = [r.stage for r in self._results if r.state == "failed"]
            stopped = len(failed) >= _MAX_FAILURES or any(s.needed and s.id in failed for s in plan.STAGES)
        for stage in left:
            self._results.append(StageResult(stage=stage.id, world_size=self.size, state="not-tested"))
        return self._results

    def _in_fresh_processes(self, stages: list[Stage]) -> int:
        """How many stages were answered: all, or up to the first that failed."""
        again = [id for id in plan.before(stages[0].id) if id not in {s.id for s in stages}]
        bounds = {s.id: s.bound_s for s in plan.STAGES}
        logs = self.folder / f"{self.size}-{stages[0].id}"
        logs.mkdir()
        ranks = Ranks(
            self.python,
            size=self.size,
            backend=self.backend,
            stages=[*again, *(s.id for s in stages)],
            logs=logs,
            # Longer than any stage: who does not come is for us to name.
            timeout_s=2 * max(bounds.values()),
            environ=self.environ,
            cwd=logs,
        )
        try:
            return self._through(ranks, again, stages, bounds)
        finally:
            self.held += ranks.held

    def _through(self, ranks: Ranks, again: list[str], stages: list[Stage], bounds: Mapping[str, float]) -> int:
        with ranks:
            for id in again:
                result = ranks.wait(id, bounds[id])
                if result.state != "passed":
                    return self._fail(stages[0], replace(result, stage=stages[0].id, says=f"{id}: {result.says}"), ranks.logs)
            for done, stage in enumerate(stages):
                self.begun(stage, self.size)
                result = ranks.wait(stage.id, stage.bound_s)
                if result.state == "failed":
                    return done + self._fail(stage, result, ranks.logs)
                self._results.append(result)
                self.ended(stage, result)
        shutil.rmtree(ranks.logs[0].parent, ignore_errors=True)
        return len(stages)

    def _fail(self, stage: Stage, found: StageResult, logs: list[Path]) -> int:
        result = replace(found, state="failed", verdict=verdict_of(logs), logs=str(logs[0].parent))
        self._results.append(result)
        self.ended(stage, result)
        return 1


def verdict_of(logs: list[Path]) -> Verdict | None:
    """What `unhang why` says of the ranks' own output; None where they wrote nothing."""
    from unhang.diagnosis.logs import judge_logs

    written = [str(log) for log in logs if log.exists() and log.stat().st_size]
    return judge_logs(written).verdict if written else None


def conclusion(results: list[StageResult], backend: str) -> Text:
    """What follows."""
    failed = next((r for r in results if r.state == "failed"), None)
    most = max((r.world_size for r in results if r.state == "passed"), default=0)
    if failed is None:
        untested = msg("; no GPU was tested") if backend == "gloo" else NOTHING
        if most <= 1:
            return msg("one rank works on this machine{untested}; several were not tested", untested=untested)
        return msg(
            "{n} ranks over {backend} work on this machine: everything that was tested gave the right numbers{untested}",
            n=most,
            backend=backend,
            untested=untested,
        )
    title = next(s.title for s in plan.STAGES if s.id == failed.stage)
    cause = failed.verdict.primary.cause if failed.verdict is not None and failed.verdict.primary is not None else None
    fails = msg("{title} fails ({cause})", title=title, cause=cause) if cause else msg("{title} fails", title=title)
    alone = any(r.stage == "train-step" and r.state == "passed" for r in results)
    if failed.world_size == 1:
        return msg("not even one rank works: {fails}; nothing with several ranks was tested", fails=fails)
    smaller = max((r.world_size for r in results if r.state == "passed" and r.world_size < failed.world_size), default=1)
    if smaller > 1:
        return msg("{smaller} ranks work, {n} do not: {fails}", smaller=smaller, n=failed.world_size, fails=fails)
    one = msg("one device trains, but ") if alone else NOTHING
    return msg("{one}ranks cannot work together over {backend}: {fails}", one=one, backend=backend, fails=fails)
