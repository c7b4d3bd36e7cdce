"""torch stays inside the rooms that may use it, inside functions but for the library's; what a command does not need is not loaded.

That imports go one way is held by import-linter (pyproject.toml, `make check`).
"""

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.tables import for_each

import unhang
from unhang.cli.app import SAYS

PACKAGE = Path(unhang.__file__).parent
MAY_IMPORT_TORCH = {"attach", "probes", "runtime", "integrations", "testing"}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def modules() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if "recipes" not in p.relative_to(PACKAGE).parts[:1])


def imported(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(without_types(tree)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


def without_types(tree: ast.AST) -> ast.AST:
    """Without what only type checkers import."""

    class Leaves(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> ast.AST | None:
            return None if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" else self.generic_visit(node)

    return Leaves().visit(tree)


def test_torch_is_imported_inside_functions_of_the_rooms_that_may():
    wrong = []
    for path in modules():
        tree = ast.parse(path.read_text())
        # The library is imported by trainings, which have torch; the hook is in every process of theirs.
        room = room_of(path)
        is_library = room == "integrations" or room == "runtime"
        heavy = {"pyarrow"} if room == "integrations" else {"transformers", "pyarrow", "numpy"} | (set() if is_library else {"torch"})
        at_top = {n for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom)) for n in imported(node)}
        anywhere = {n for n in imported(tree) if n.split(".")[0] == "torch"}
        if any(n.split(".")[0] in heavy for n in at_top) or (anywhere and room not in MAY_IMPORT_TORCH):
            wrong.append(str(path.relative_to(PACKAGE)))
    assert wrong == []


LOADED = """import atexit, runpy, sys
sys.argv[0] = "unhang"
atexit.register(lambda: print("loaded:", *sys.modules, file=sys.stderr))
runpy.run_module("unhang", run_name="__main__", alter_sys=True)
"""


def loaded(*argv: str, code: int = 0) -> set[str]:
    """What the command has imported when it ends. `-X importtime` does not tell of what `importlib` was asked for."""
    done = subprocess.run([sys.executable, "-c", LOADED, *argv], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr[-2000:]
    return set(done.stderr.rpartition("loaded:")[2].split())


def within(names: set[str], *packages: str) -> set[str]:
    return {name for name in names for package in packages if name == package or name.startswith(f"{package}.")}


@pytest.mark.parametrize("argv", [["--help"], ["explain", "--list"]])
def test_torch_is_not_loaded(argv):
    names = loaded(*argv)
    assert "unhang" in names
    assert not within(names, "torch", "numpy", "transformers")


def test_the_library_loads_nothing():
    code = "import sys; before = set(sys.modules); import unhang; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert set(done.stdout.split()) <= {"unhang", "__future__"}


# What other verbs, other records and other packages need: half of the time in which a small log is answered would go there.
NOT_FOR_A_LOG = (
    *(f"unhang.cli.{verb}" for verb in ("run", "doctor", "vars", "explain", "demo", "digest", "ras", "running", "doctor_fix")),
    *(f"unhang.records.{name}" for name in ("incident", "incident_view", "kernel_events", "packed", "run_follower", "stack_tree", "stacks")),
    *("unhang.diagnosis.contradictions", "unhang.diagnosis.recorders", "unhang.diagnosis.why", "unhang.diagnosis.bundle"),
    *("unhang.bench", "unhang.facts", "unhang.files", "unhang.flight", "unhang.launch", "unhang.pack", "unhang.plan", "unhang.probes"),
    *("unhang.ras", "unhang.remedies", "unhang.runtime", "unhang.settings", "unhang.testing", "unhang.variables"),
    *("unhang.report.html", "unhang.report.markdown"),
    *("msgspec", "yaml", "psutil", "pynvml", "zstandard", "tarfile", "zipfile", "multiprocessing", "concurrent", "asyncio", "html", "secrets"),
    *("polib", "rich.markdown", "rich.traceback", "rich.live", "pygments", "torch", "numpy"),
)
FAILED = "2026-11-03 02:16:07,507 - INFO - step 1 loss 5.8\n[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def test_what_is_not_for_a_log_exists():
    assert [name for name in NOT_FOR_A_LOG if name.startswith("unhang.") and find_spec(name) is None] == []


def test_what_a_small_log_does_not_need_is_not_loaded(tmp_path):
    log = tmp_path / "rank3.log"
    log.write_text(FAILED)
    names = loaded("why", str(log), code=1)
    assert "unhang.knowledge.causes.gpu_oom" in names and within(names, *NOT_FOR_A_LOG) == set()
    assert sum(name.startswith("unhang.knowledge.causes.") for name in names) <= 9


def test_json_of_a_small_log_needs_no_terminal(tmp_path):
    log = tmp_path / "rank3.log"
    log.write_text(FAILED)
    names = loaded("why", "--json", str(log), code=1)
    assert "msgspec" in names and within(names, "rich", *(set(NOT_FOR_A_LOG) - {"msgspec"})) == set()


@for_each("verb", [None, "run", "top", "why", "doctor", "plan", "bench", "vars", "explain", "demo"])
def test_help_loads_what_it_prints(verb):
    names = loaded(*([verb] if verb else []), "--help")
    others = {f"unhang.cli.{other}" for other in SAYS if other != verb}
    assert verb is None or f"unhang.cli.{verb}" in names
    below = (
        *("facts", "logs", "flight", "ras", "records", "variables", "files", "settings", "knowledge", "diagnosis"),
        *("attach", "launch", "probes", "remedies", "runtime", "testing"),
    )
    assert within(names, *others, *(f"unhang.{room}" for room in below), "rich", "msgspec", "psutil", "yaml") == set()


def test_textual_is_imported_where_the_application_is_and_nowhere_else(tmp_path):
    users = {p.relative_to(PACKAGE).as_posix() for p in modules() if within(imported(ast.parse(p.read_text())), "textual")}
    assert users == {"report/top/app.py"}
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "events.jsonl").write_text('{"s": 1, "event": "Finished", "exitcode": 0, "attempts": 1, "incidents": 0, "elapsed_s": 1}\n')
    for option in ("--once", "--json"):
        names = loaded("top", str(tmp_path), option)
        assert "unhang.records.run_follower" in names and not within(names, "textual", "torch", "numpy", "asyncio", "unhang.launch")
