"""Machines that are only a directory: files as the kernel documents them, and the answers that only a live kernel would give."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.leftovers import Session

from unhang.facts.host import Host, Ran, Space
from unhang.report.language import chosen

# Generating examples may take long on a busy machine; that fails no test.
settings.register_profile("unhang", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhang")

# Under nohup, or in the background of a script, they are ignored, and whatever is started would inherit that.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

# As in a shell that exports them, and in every process that pytest-xdist starts: what is shown would be wrapped at their width.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)


_SESSION = pytest.StashKey[Session]()

# Of the integration tests: what takes a launcher's usual port or compiles into a shared folder, and what shares a browser or a training, stays in
# one process, one after the other (--dist loadscope).
_TOGETHER = {
    "tests/integrations/": "launchers",
    "tests/launchers/": "launchers",
    # Four minutes for one test: begun last, everything would wait for it.
    "tests/launch/test_launchers.py": "launchers",
    "tests/recipes/deepspeed_eval/": "launchers",
    "tests/remedies/exports/": "launchers",
    "tests/recipes/t5_sft/": "t5_sft",
    "tests/report/html/": "browser",
}


def pytest_configure(config):
    # A worker of pytest-xdist is within the session of the one that started it.
    if not hasattr(config, "workerinput"):
        config.stash[_SESSION] = Session()


def pytest_unconfigure(config):
    if _SESSION in config.stash:
        config.stash[_SESSION].end()


@pytest.fixture(autouse=True)
def no_language_that_was_asked_for_before():
    """A process of `unhang` lives for one command; this one for all tests."""
    chosen(None)


# Its own --dist loadgroup does nothing beside pytest 9.2 (pytest-xdist 3.8.0): it renames what has another name there.
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            # What a file's tests share is made once.
            return next((group for folder, group in _TOGETHER.items() if file.startswith(folder)), file)

    return Together(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Marks what exhaustive.txt names."""
    by_file = {}
    for item in items:
        by_file.setdefault(item.nodeid.partition("::")[0], []).append(item)
    for line in Path(__file__).with_name("exhaustive.txt").read_text().splitlines():
        file, *patterns = line.partition("#")[0].split() or [""]
        if not (Path(__file__).parents[1] / file).exists():
            raise pytest.UsageError(f"tests/exhaustive.txt: there is no {file}")
        for pattern in patterns if file in by_file else ():
            named = [item for item in by_file[file] if fnmatchcase(item.name, pattern)]
            if not named and not any("::" in word for word in config.args):
                raise pytest.UsageError(f"tests/exhaustive.txt: {pattern} names nothing in {file}")
            for item in named:
                item.add_marker("exhaustive")


def pytest_collection_finish():
    """Thousands of tests are no garbage. To look through them takes longer than what a test bounds, and counts as its CPU time."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not any(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("there is no NVIDIA GPU here")


class Machine(Host):
    """Laid out by a test. A text that begins with "-> " is a symbolic link; a None is a directory; what nothing was laid out for raises OSError."""

    def __init__(
        self,
        root: Path,
        files: Mapping[str, str | None],
        *,
        environ: Mapping[str, str] | None = None,
        places: Sequence[str] = (),
        now_s: float = 1_800_000_000.0,
    ):
        super().__init__(root, environ=environ or {}, places=places)
        self.spaces: dict[str, Space] = {}
        self.commands: dict[tuple[str, ...], Ran] = {}
        self.names_known: dict[str, tuple[str, ...]] = {}
        self.interfaces: dict[str, tuple[str, ...]] | None = None
        self.nvml_answers: object | None = None
        self.clock: tuple[int, float] | None = None
        self._now_s = now_s
        for name, text in files.items():
            self.lay(name, text)

    def lay(self, name: str, text: str | None) -> None:
        path = self.path(name)
        if text is None:
            path.mkdir(parents=True, exist_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            path.symlink_to(text[3:])
        else:
            path.write_text(text)

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Ran:
        return self.commands[tuple(argv)] if tuple(argv) in self.commands else super().run(argv, timeout_s=timeout_s)

    def space(self, path: str) -> Space:
        return self.spaces[path] if path in self.spaces else super().space(path)

    def resolve(self, name: str) -> tuple[str, ...]:
        return self.names_known[name] if name in self.names_known else super().resolve(name)

    def addresses(self) -> Mapping[str, tuple[str, ...]]:
        return self.interfaces if self.interfaces is not None else super().addresses()

    def nvml(self) -> object:
        return self.nvml_answers if self.nvml_answers is not None else super().nvml()

    def kernel_clock(self) -> tuple[int, float]:
        return self.clock if self.clock is not None else super().kernel_clock()

    def now_s(self) -> float:
        return self._now_s


@pytest.fixture
def machine(tmp_path):
    """Lays out a machine: `machine({"/proc/meminfo": "..."}, environ={...})`.

    Its `spaces`, `commands`, `names_known`, `interfaces`, `clock` and `nvml_answers` (in place of the module pynvml) can be set.
    """
    made = []

    def lay_out(files: Mapping[str, str | None] | None = None, **more) -> Machine:
        made.append(tmp_path / f"machine{len(made)}")
        return Machine(made[-1], {"/etc/hostname": "node7\n"} | dict(files or {}), **more)

    return lay_out


@pytest.fixture
def cpu_seconds() -> Iterator[Callable[[float], None]]:
    """`cpu_seconds(5)`: from here on the test may compute for that long; called again, it begins anew. The load of the machine does not count."""

    def spent(number: int, frame: object) -> None:
        pytest.fail(f"computed for more than {granted[-1]} s")

    granted = []

    def grant(seconds: float) -> None:
        granted.append(seconds)
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)

    before = signal.signal(signal.SIGVTALRM, spent)
    yield grant
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)
