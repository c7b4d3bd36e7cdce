"""The map of the rooms: imports go one way, and torch stays inside the rooms that may use it, inside functions."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import unhang

PACKAGE = Path(unhang.__file__).parent
# A room may import those of lower levels only; rooms on one level do not import each other.
LEVELS = [
    {"model", "errors", "frozen", "patterns", "encoding", "kernel_lines", "__init__"},
    {"facts", "records"},
    {"knowledge"},
    {"diagnosis"},
    {"probes", "remedies"},
    {"runtime", "bench", "plan", "pack"},
    {"launch"},
    {"report"},
    {"testing"},
    {"cli"},
    {"__main__"},
]
MAY_IMPORT_TORCH = {"probes", "runtime", "bench", "testing"}
LEVEL = {room: i for i, rooms in enumerate(LEVELS) for room in rooms}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def modules() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if "recipes" not in p.relative_to(PACKAGE).parts[:1])


def imported(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    room = room_of(path)
    assert room in LEVEL, f"room {room} is not on the map"
    for name in imported(ast.parse(path.read_text())):
        parts = name.split(".")
        if parts[0] != "unhang" or len(parts) < 2 or parts[1] not in LEVEL:
            continue
        assert parts[1] == room or LEVEL[parts[1]] < LEVEL[room], f"{path.name} imports {name}: {parts[1]} is not below {room}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_torch_is_imported_inside_functions_of_the_rooms_that_may(path):
    tree = ast.parse(path.read_text())
    heavy = {"torch", "transformers", "pyarrow", "numpy"}
    at_top = {n for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom)) for n in imported(node)}
    assert not {n for n in at_top if n.split(".")[0] in heavy}
    anywhere = {n for n in imported(tree) if n.split(".")[0] == "torch"}
    assert not anywhere or room_of(path) in MAY_IMPORT_TORCH


@pytest.mark.parametrize("argv", [["-c", "import unhang"], ["-m", "unhang", "--help"], ["-m", "unhang", "explain", "--list"]])
def test_torch_is_not_loaded(argv):
    done = subprocess.run([sys.executable, "-X", "importtime", *argv], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    loaded = {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "unhang" in loaded
    assert not {name for name in loaded if name.split(".")[0] in ("torch", "numpy", "transformers")}
