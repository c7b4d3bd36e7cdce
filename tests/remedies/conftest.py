"""Machines on which some settings work and others do not, as the probes see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from unhang.model import StageResult, StageState
from unhang.remedies import trial
from unhang.settings.setting import Installed

# Whether so many ranks over that backend work under an environment.
Works = Callable[[Mapping[str, str], int, str], bool]

OF_NCCL = """\
node1:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.7<0>
node1:1:1 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.7<0>
node1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via {via}
"""


class World:
    def __init__(self) -> None:
        self.works: Works = lambda environ, size, backend: True
        self.started: list[tuple[dict[str, str], int, str]] = []
        self.fails_at = "barrier"
        # A clock that stands still but for what trials take, and how long that is; None for the real one.
        self.now_s: float | None = None
        self.takes_s: Callable[[Mapping[str, str]], float] = lambda environ: 0.0

    def __call__(self, python: str, **asked: object) -> FakeRanks:
        self.started.append((dict(asked["environ"]), asked["size"], asked["backend"]))  # type: ignore[call-overload]
        return FakeRanks(self, **asked)  # type: ignore[arg-type]


class FakeRanks:
    def __init__(self, world: World, *, size: int, backend: str, environ: Mapping[str, str], logs: Path, **_: object) -> None:
        self._world, self._size, self._backend, self._environ = world, size, backend, environ
        self.logs = [logs / "rank0.log"]
        via = "NET/Socket/0" if environ.get("NCCL_SHM_DISABLE") == "1" else "SHM/direct/direct"
        self.logs[0].write_text(OF_NCCL.format(via=via) if backend == "nccl" else "")

    def __enter__(self) -> FakeRanks:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, stage: str, bound_s: float) -> StageResult:
        if stage == "process-group" and self._world.now_s is not None:
            takes_s = self._world.takes_s(self._environ)
            self._world.now_s += min(takes_s, bound_s)
            if takes_s > bound_s:
                return self._result(stage, "failed", f"rank 0: nothing was heard within {bound_s:g} s", bound_s)
        if stage == self._world.fails_at and not self._world.works(self._environ, self._size, self._backend):
            return self._result(stage, "failed", "rank 0: RuntimeError: NCCL error")
        said = {
            "sizes": "up to 16 MiB, bus bandwidth 4.5 GB/s (median of 5)",
            "process-group": "gloo at 127.0.0.1" if self._backend == "gloo" else "",
        }
        return self._result(stage, "passed", said.get(stage, ""))

    def _result(self, stage: str, state: StageState, says: str, seconds: float = 0.01) -> StageResult:
        return StageResult(stage=stage, world_size=self._size, state=state, seconds=seconds, says=says)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(trial, "Ranks", made)
    return made


@pytest.fixture
def clock(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """The world with a clock of its own, in which a trial takes no longer than it may."""
    world.now_s = 1000.0
    monkeypatch.setattr(trial.time, "monotonic", lambda: world.now_s)
    return world


class Benches:
    """Makes one; eight GPUs unless told otherwise."""

    no_gpu = Installed(torch=(2, 13), nccl=None)

    @staticmethod
    def installed(**more: object) -> Installed:
        return Installed(**{"torch": (2, 9), "nccl": (2, 27, 5), "gpus": 8, **more})  # type: ignore[arg-type]

    def __call__(self, installed: Installed | None = None, **more: object) -> trial.Bench:
        here = installed or self.installed()
        asked = {"python": "python", "world_size": 8, "backend": "nccl" if here.gpus else "gloo", "environ": {"PATH": "/usr/bin"}}
        return trial.Bench(**{**asked, **more}, installed=here)  # type: ignore[arg-type]


@pytest.fixture
def bench() -> Benches:
    return Benches()
