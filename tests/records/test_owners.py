"""Whose settings, caches and code are taken: real files, owners and modes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from unhang.cli import options
from unhang.fsio import check_owner
from unhang.report import screen
from unhang.settings import configuration

UNHANG = (sys.executable, "-m", "unhang")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
OTHER = 54321


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "unhang.toml"
    path.write_text("[run]\nshm = false\n")
    path.chmod(0o644)
    return path


def test_what_is_the_users_own(file):
    file.chmod(0o664)  # a group of one's own is usual
    assert check_owner(file) is None and configuration.load(file.parent).settings
    assert check_owner("/etc/passwd") is None, "root's"


def test_what_anybody_may_write_is_ignored(file):
    file.chmod(0o646)
    found = configuration.load(file.parent)
    assert not found.settings and not found.path and f"chmod o-w {file}" in found.ignored and f"chmod o-w {file}" in found.ignored.of("zh")
    done = subprocess.run([*UNHANG, "run", "--dry-run", "true"], cwd=file.parent, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and f"chmod o-w {file}" in done.stderr and "NCCL_SHM_DISABLE" not in done.stdout
    subprocess.run(["chmod", "o-w", str(file)], check=True)
    assert configuration.load(file.parent).settings


@as_root
@pytest.mark.parametrize("below", [".", "project/of/mine"])
def test_what_another_user_left_is_passed_over_and_said(file, below, monkeypatch):
    os.chown(file, OTHER, OTHER)
    here = file.parent / below
    here.mkdir(parents=True, exist_ok=True)
    found = configuration.load(here)
    assert not found.settings and not found.path and "chown" in found.ignored and str(file) in found.ignored.of("zh")
    done = subprocess.run([*UNHANG, "run", "--dry-run", "true"], cwd=here, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and str(file) in done.stderr and "NCCL_SHM_DISABLE" not in done.stdout
    monkeypatch.setenv("UNHANG_TRUST", f"/nowhere:{file}")
    assert configuration.load(here).settings
    monkeypatch.setenv("UNHANG_TRUST", str(file.parent / "other"))
    monkeypatch.setenv("SUDO_UID", str(OTHER))
    assert configuration.load(here).settings, "of the user who called sudo"


@as_root
def test_a_link_of_another_user(file):
    link = file.with_name("link")
    link.symlink_to(file)
    assert check_owner(link) is None
    os.lchown(link, OTHER, OTHER)
    assert check_owner(link) is not None


@pytest.mark.parametrize("how", ["writable", pytest.param("another's", marks=as_root)])
def test_a_cache_that_another_user_may_have_filled(tmp_path, monkeypatch, capsys, how):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert options.cache_folder() == tmp_path / "unhang", "to be made"
    (tmp_path / "unhang").mkdir(mode=0o755)
    assert options.cache_folder() == tmp_path / "unhang"
    screen.say_once.cache_clear()
    (tmp_path / "unhang").chmod(0o777) if how == "writable" else os.chown(tmp_path / "unhang", OTHER, OTHER)
    assert options.cache_folder() is None and options.cache_folder() is None
    assert len(capsys.readouterr().err.splitlines()) == 1


ASKING = (
    ["presets"],
    ["doctor"],
    ["run", "--dry-run", "true"],
    ["run", "--dry-run", "-m", "module"],
    ["export", "torchrun", "--python", sys.executable],
)


@pytest.mark.parametrize("argv", ASKING, ids=" ".join)
def test_nothing_is_imported_from_the_directory_of_a_stranger(tmp_path, argv):
    for name in ("importlib", "json", "torch", "re", "os", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'taken')!r}, 'w').close()")
    unhang = Path(sys.executable).with_name("unhang")
    subprocess.run([unhang, *argv], cwd=tmp_path, capture_output=True, timeout=120, check=False)
    assert not (tmp_path / "taken").exists()
