"""The command that removes a lock: only where nobody compiles, and only where that could be found out."""

import shutil
import subprocess

import pytest

from unhang.knowledge import catalogue

CAUSE = catalogue.load()["extension-build-lock"]

COMMAND = CAUSE.remedies[0].command


@pytest.fixture
def removes(tmp_path):
    """Runs it with these answers of pgrep; whether the lock is gone."""
    lock = tmp_path / "fused_adam" / "lock"
    lock.parent.mkdir()
    lock.touch()
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "find").symlink_to(shutil.which("find"))

    def run(pgrep: str | None) -> bool:
        if pgrep is not None:
            (tools / "pgrep").write_text(f"#!/bin/sh\n{pgrep}\n")
            (tools / "pgrep").chmod(0o755)
        subprocess.run(["/bin/sh", "-c", COMMAND], env={"PATH": str(tools), "TORCH_EXTENSIONS_DIR": str(tmp_path)}, timeout=30, check=False)
        return not lock.exists()

    return run


@pytest.mark.parametrize(
    ("pgrep", "gone"), [("exit 1", True), ("echo 12 ninja", False), ("exit 2", False), ("exit 3", False), (None, False)], ids=str
)
def test_it_is_removed_only_where_nobody_was_found(removes, pgrep, gone):
    assert removes(pgrep) is gone


@pytest.mark.parametrize("name", ["ninja", "clang++-17", "hipcc", "c++", "g++-13"])
@pytest.mark.skipif(shutil.which("pgrep") is None, reason="no pgrep here")
def test_compilers_are_known_by_their_names(removes, tmp_path, name):
    shutil.copy(shutil.which("sleep"), tmp_path / name)
    compiler = subprocess.Popen([str(tmp_path / name), "60"])
    try:
        assert not removes(f'exec {shutil.which("pgrep")} "$@"')
    finally:
        compiler.kill()
        compiler.wait(10)
