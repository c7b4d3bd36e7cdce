"""Failures that are really provoked: commands run as a user runs them, their logs kept, and the proof that nothing of them is left."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.leftovers import unnumbered

SCRIPTS = Path(__file__).parent / "scripts"
# What the surrounding shell may hold of a training of its own, and what would change what torch prints.
_FOREIGN = (
    "UNHANG_",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_",
    "GLOO_",
    "TORCH",
    "TORCHELASTIC_",
    "PYTHONUNBUFFERED",
    "PYTEST_",
    "VIRTUAL_ENV",
)


@dataclass(frozen=True)
class Ran:
    """A command that has ended. `log` holds everything that it and its children printed, in the order in which they did."""

    exitcode: int
    log: Path

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")


class Provoke:
    """Runs commands in process groups of their own, for a bounded time, and judges what they printed."""

    scripts = SCRIPTS
    python = sys.executable

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.mark = f"UNHANG_TEST_MARK={uuid.uuid4().hex}"
        # Of its own, for torchrun leaves folders there; and short, for sockets lie in it.
        self.scratch = tempfile.mkdtemp(prefix="unhang-")
        self.logs = 0

    def __call__(
        self,
        *command: str | Path,
        env: Mapping[str, str] | None = None,
        wrap: Sequence[str] = (),
        cwd: Path | None = None,
        timeout_s: float = 90.0,
    ) -> Ran:
        """Run `command` under `wrap` to its end."""
        (ran,) = self.together([(command, env or {})], wrap=wrap, cwd=cwd, timeout_s=timeout_s)
        return ran

    def together(
        self,
        commands: Sequence[tuple[Sequence[str | Path], Mapping[str, str]]],
        *,
        wrap: Sequence[str] = (),
        cwd: Path | None = None,
        timeout_s: float = 90.0,
        separate: bool = False,
    ) -> list[Ran]:
        """Run commands at one time. They write into one log, or each into a log of its own, as `rank0.log`, `rank1.log`, ..."""
        self.logs += 1
        log = self.tmp_path / f"run{self.logs}.log"
        places = [self.tmp_path / f"run{self.logs}" / f"rank{n}.log" if separate else log for n in range(len(commands))]
        processes = []
        try:
            for (command, env), place in zip(commands, places, strict=True):
                place.parent.mkdir(exist_ok=True)
                with place.open("ab") as out:
                    processes.append(
                        subprocess.Popen(
                            [*wrap, *map(str, command)],
                            env=self.environ(env),
                            cwd=cwd or self.tmp_path,
                            stdin=subprocess.DEVNULL,
                            stdout=out,
                            stderr=out,
                            start_new_session=True,
                        )
                    )
            deadline = time.monotonic() + timeout_s
            return [Ran(p.wait(timeout=max(0.1, deadline - time.monotonic())), place) for p, place in zip(processes, places, strict=True)]
        finally:
            for p in processes:
                _end_group(p)

    def environ(self, env: Mapping[str, str]) -> dict[str, str]:
        key, _, value = self.mark.partition("=")
        own = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
        return {**own, "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1", "UNHANG_ATTACH": "0", "TMPDIR": self.scratch, key: value, **env}

    def ranks(
        self,
        script: str,
        *arguments: str | Path,
        world: int = 2,
        env: Mapping[str, str] | None = None,
        of_rank: Mapping[int, Mapping[str, str]] | None = None,
        wrap_of: Mapping[int, Sequence[str]] | None = None,
        **more: Any,
    ) -> list[Ran]:
        """A script of this folder on each rank, started by hand: python with RANK and WORLD_SIZE set."""
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world), **(env or {})}
        command = (self.python, SCRIPTS / script, *arguments)
        commands = [((*(wrap_of or {}).get(r, ()), *command), {**common, "RANK": str(r), **(of_rank or {}).get(r, {})}) for r in range(world)]
        return self.together(commands, **more)

    def torchrun(self, script: str, *arguments: str | Path, options: Sequence[str] = ("--nproc-per-node=2",), **more: Any) -> Ran:
        """A script of this folder under torchrun, which is asked for a port of its own."""
        own = () if any("rdzv" in o or "master" in o for o in options) else (f"--master-port={free_port()}",)
        return self(self.python, "-m", "torch.distributed.run", *own, *options, SCRIPTS / script, *arguments, **more)

    def verdict(self, *logs: Path) -> dict[str, Any]:
        """What `unhang why --json` says of them."""
        asked = subprocess.run(
            [self.python, "-m", "unhang", "why", "--json", *map(str, logs)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert asked.returncode in (0, 1), asked.stderr
        verdict: dict[str, Any] = json.loads(asked.stdout)
        assert asked.returncode == (verdict["primary"] is not None), asked.stderr
        assert not [n for n in verdict["not_examined"] if "its check is broken" in n["why"]]
        (logs[0].parent / f"{logs[0].name}.verdict.json").write_text(asked.stdout)
        return verdict

    def primary(self, *logs: Path) -> dict[str, Any]:
        """The primary finding; the test fails, with the end of the log, where there is none."""
        found = self.verdict(*logs)["primary"]
        assert found is not None, logs[0].read_text(errors="replace")[-3000:] if logs[0].is_file() else logs
        return dict(found)

    def living(self) -> list[tuple[int, str]]:
        """Processes of this test that still live, wherever they have put themselves."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if self.mark.encode() in (entry / "environ").read_bytes():
                        found.append((int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()))
                except OSError:
                    continue
        return found

    def end_all(self) -> None:
        """Workers of torchrun and of DataLoaders have sessions of their own: the mark finds them."""
        deadline = time.monotonic() + 10.0
        while living := self.living():
            assert time.monotonic() < deadline, f"still alive: {living}"
            for pid, _ in living:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=10)


def _mounted(own: Path, others: Path) -> list[str]:
    """Lines of mounts, without those below `others` that are not below `own`: a test beside this one has mounted them, and takes them away."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line for line in lines if own in (path := Path(line.split()[1])).parents or others not in path.parents]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each of them starts a training: together they take minutes."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.integration)


@pytest.fixture
def provoke(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provoke]:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    # That of all processes of the tests.
    others = tmp_path_factory.getbasetemp().parent
    before = _mounted(tmp_path, others)
    provoke = Provoke(tmp_path)
    yield provoke
    provoke.end_all()
    shutil.rmtree(provoke.scratch)
    assert _mounted(tmp_path, others) == before


@pytest.fixture
def unnumbered_path() -> Iterator[Path]:
    """As `tmp_path`, which has numbers in it, that of a rank among them."""
    made = unnumbered(Path(tempfile.gettempdir()))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def port() -> int:
    return free_port()


def _namespaces_refused(*kinds: str) -> str | None:
    if os.geteuid() != 0:
        return "namespaces need root"
    tried = subprocess.run(["unshare", *kinds, "--propagation", "private", "true"], capture_output=True, text=True, timeout=10, check=False)
    return None if tried.returncode == 0 else f"namespaces are refused here: {tried.stderr.strip()}"


@pytest.fixture
def mounts() -> Any:
    """A wrap that runs shell commands in a mount namespace of its own before the command: mounts made there end with it."""
    if refused := _namespaces_refused("--mount"):
        pytest.skip(refused)

    def wrap(before: str, *, ends_as: str = 'exec "$@"') -> tuple[str, ...]:
        return ("unshare", "--mount", "--propagation", "private", "sh", "-ec", f"{before}\n{ends_as}", "sh")

    return wrap


@pytest.fixture
def hosts(provoke: Provoke) -> Any:
    """Runs a script of this folder on two hosts, node0 and node1, joined by a cable; `between` are shell commands that spoil it."""
    if refused := _namespaces_refused("--mount", "--net", "--uts"):
        pytest.skip(refused)

    def run(script: str, *arguments: str, between: str = "", env: Mapping[str, str] | None = None, timeout_s: float = 90.0) -> Ran:
        wrap = ("unshare", "--mount", "--net", "--uts", "--propagation", "private", "bash", str(SCRIPTS / "two_hosts.sh"))
        return provoke(
            provoke.python,
            SCRIPTS / script,
            *arguments,
            wrap=wrap,
            env={"BETWEEN": between, "MASTER_PORT": "29500", **(env or {})},
            timeout_s=timeout_s,
        )

    return run
