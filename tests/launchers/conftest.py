"""Real launchers under `unhang run`: how each is started, and what must be true of every one of them."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest
from tests.launch.conftest import Launcher, Run, launcher  # noqa: F401
from tests.launchers.environments import NotMade, environment, supported

SCRIPTS = Path(__file__).parent / "scripts"
ABORT = ("--on-failure", "abort")
# What the scripts print of their own world.
FINISHED = "finished with 2 processes"


@dataclass
class Training:
    """A script of scripts/ (or the model code of one) under a launcher, with the places of its faults."""

    launcher: Launcher
    path: Path
    script: Path
    env: Mapping[str, str]

    def line(self, mark: str) -> str:
        """file.py:LINE of what carries the comment `mark`."""
        (number,) = [n for n, text in enumerate(self.script.read_text().splitlines(), 1) if text.endswith(f"# {mark}")]
        return f"{self.script.name}:{number}"

    def run(
        self, *argv: str, fault: str = "", options: Sequence[str] = (), timeout_s: float = 600.0, more: Mapping[str, str] = MappingProxyType({})
    ) -> Run:
        """`unhang run OPTIONS -- ARGV`, with the environment's programs first on PATH. The fault happens in the first attempt only."""
        soon = ("--hang-after", "25") if fault == "hang" else ()
        return self.launcher.run(*soon, *options, "--", *argv, env={**self._environ(), "FAULT": fault, **more}, timeout_s=timeout_s)

    def run_without_interface(self, *argv: str) -> Run:
        """The same where the user's own setting names an interface that this machine does not have."""
        return self.run(*argv, options=("--fallback", "auto"), more={"GLOO_SOCKET_IFNAME": "nosuch0"})

    def run_over_gloo(self, *argv: str, backend: str = "nccl") -> Run:
        """The same where the script asks for NCCL, which nothing can give it on a machine without a GPU."""
        return self.run(*argv, options=("--set", "backend=gloo"), more={"BACKEND": backend})

    def exported(self, form: str, name: str, *words: str) -> Path:
        """The file that `unhang export FORM WORDS` writes."""
        path = self.launcher.tmp_path / name
        command = [sys.executable, "-m", "unhang", "export", form, "-o", str(path), *words]
        done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return path

    def start(self, *argv: str, answer: str | None = None, timeout_s: float = 600.0, **more: str) -> Run:
        """A file that calls `unhang run` by itself. With `answer` it stands at a terminal, where that is typed."""
        key, _, value = self.launcher.mark.partition("=")
        programs = [str(self.path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
        cache = {"XDG_CACHE_HOME": str(self.launcher.tmp_path / "cache")}
        env = {**os.environ, **cache, **self._environ(), "PATH": os.pathsep.join(programs), key: value, **more}
        ours, theirs = pty.openpty()
        if answer is not None:
            os.write(ours, f"{answer}\n".encode())
        try:
            done = subprocess.run(
                argv,
                cwd=self.launcher.tmp_path,
                env=env,
                stdin=subprocess.DEVNULL if answer is None else theirs,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
                start_new_session=True,
            )
        finally:
            os.close(ours)
            os.close(theirs)
        assert not self.launcher.living(), "processes were left behind"
        made = list((self.launcher.tmp_path / "runs").glob("*"))
        assert len(made) == 1, done.stdout[-4000:]
        run = Run(exitcode=done.returncode, out="", err=done.stdout, path=made[0])
        (run.outcome,) = run.happened("Finished")
        return run

    def _environ(self) -> dict[str, str]:
        return {
            "PATH": f"{self.path / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "BACKEND": "gloo",
            "FAULT": "",
            "FAULT_ONCE": str(self.launcher.tmp_path / "once"),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            **self.env,
        }


@pytest.fixture
def training(launcher: Launcher) -> Callable[..., Training]:  # noqa: F811
    def make(name: str | None, script: str, **env: str) -> Training:
        if name and not supported():
            pytest.skip("the lock files of the launchers are of Python 3.11 and newer")
        launcher.python = None
        try:
            path = environment(name) if name else Path(sys.prefix)
        except NotMade as e:
            raise pytest.fail.Exception(f"{e}\nto try again: python -m tests.launchers.environments {name}", pytrace=False) from None
        return Training(launcher=launcher, path=path, script=SCRIPTS / script, env=env)

    return make


def ran_clean(run: Run, *, finished: str = FINISHED) -> None:
    """Both ranks were watched, nothing was alarmed about, nothing was started again."""
    assert run.exitcode == 0, run.err[-4000:]
    assert (run.outcome["attempts"], run.outcome["incidents"]) == (1, 0), run.err[-4000:]
    _was_one_world(run, attempts=1, finished=finished)


def recovered(run: Run, *, cause: str, where: str, finished: str = FINISHED, certain: bool = True) -> None:
    """Rank 1 failed at that line; its evidence was taken, the training was started again and finished.

    A hang that something might still have ended is not certain: it is named first, and the training is ended later.
    """
    assert run.exitcode == 0, run.err[-4000:]
    assert (run.outcome["attempts"], run.outcome["incidents"]) == (2, 1 if certain else 2), run.err[-4000:]
    _was_explained(run, cause=cause, where=where, standing="established" if certain else "likely")
    _was_one_world(run, attempts=2, finished=finished)


def ran_over_gloo(run: Run, *, finished: str = FINISHED, backend: str = "nccl") -> None:
    """Both ranks asked for NCCL, were given Gloo, and that was told."""
    ran_clean(run, finished=finished)
    told = [(e["was"], e["now"], e["ranks"]) for e in run.happened("Overridden") if e["what"] == "backend"]
    assert told == [(backend, "gloo", [0, 1])], told


def fell_back(run: Run, *, finished: str = FINISHED) -> None:
    """No group came about at first; that none needs to be named was found by trying, and reached every rank of the second attempt."""
    assert run.exitcode == 0, run.err[-4000:]
    assert (run.outcome["attempts"], run.outcome["incidents"]) == (2, 1), run.err[-4000:]
    assert (run.primary["cause"], run.primary["standing"]) == ("interface-selection", "established"), run.primary
    found = run.outcome["fallback"]
    assert (found["chosen"], found["confirmed"], found["remembered"]) == ({"interface": "auto"}, True, False)
    assert {e["rung"]: e["outcome"] for e in run.happened("RungTried")}["as-is"] == "failed"
    assert "interface=auto" in (run.path / "solution.md").read_text()
    # Who joins at all does so in the second attempt.
    _was_one_world(run, attempts=1, finished=finished)


def ended(run: Run, *, cause: str, where: str) -> None:
    """The same with `--on-failure abort`, which spares a slow launcher its second start: the exit code is the launcher's own."""
    assert run.exitcode not in (0, 2, 3, 130), run.err[-4000:]
    assert (run.outcome["attempts"], run.outcome["incidents"]) == (1, 1), run.err[-4000:]
    _was_explained(run, cause=cause, where=where)
    _was_one_world(run, attempts=1, finished=None)


def _was_explained(run: Run, *, cause: str, where: str, standing: str = "established") -> None:
    primary = run.primary
    assert (primary["cause"], primary["standing"], primary["ranks"]) == (cause, standing, [1]), primary
    assert f"/{where} in " in primary["where"], primary
    for incident in (run.path / "incidents").iterdir():
        for kind in ("stacks", "flight"):
            assert len(list((incident / kind).iterdir())) == 2, (kind, sorted(incident.rglob("*")))


def _was_one_world(run: Run, *, attempts: int, finished: str | None) -> None:
    joined = [(e["rank"], e["world_size"], e["backend"]) for e in run.happened("Joined")]
    assert sorted(joined) == sorted([(0, 2, "gloo"), (1, 2, "gloo")] * attempts), joined
    assert finished is None or finished in run.err, run.err[-4000:]
