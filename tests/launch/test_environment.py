import os
import sys
from pathlib import Path

import pytest

from unhang.launch import environment


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ((2, 1), set()),
        ((2, 4), {"TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_DUMP_ON_TIMEOUT"}),
        ((2, 8), {"TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DUMP_ON_TIMEOUT"}),
        ((2, 15), {"TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_FR_DUMP_ON_TIMEOUT"}),
        (None, set()),
    ],
)
def test_names_as_the_installed_torch_reads_them(version, names):
    chosen = environment.evidence(version, {}, dumps=Path("/run/dumps"))
    assert {name for name in chosen if name.startswith("TORCH")} == names
    assert all(value == "/run/dumps/rank_" for name, value in chosen.items() if "FILE" in name)


@pytest.mark.parametrize("name", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"])
def test_what_the_user_set_stays(name):
    chosen = environment.evidence((2, 13), {name: "16"}, dumps=Path("/d"))
    assert "TORCH_FR_BUFFER_SIZE" not in chosen
    assert "TORCH_NCCL_TRACE_BUFFER_SIZE" not in chosen


@pytest.mark.parametrize("version", [(2, 4), (2, 13), (2, 15)])
@pytest.mark.parametrize("name", ["TORCH_FR_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT"])
def test_a_dump_on_timeout_that_the_user_decided_on(version, name):
    chosen = environment.evidence(version, {name: "0"}, dumps=Path("/d"))
    assert not [other for other in chosen if other.endswith("DUMP_ON_TIMEOUT")]


def test_the_hook_stands_before_the_users_path():
    extra = environment.attached({}, {"PYTHONPATH": "/mine"}, run=Path("/r"), fatal=Path("/f"), attempt=2, stdio="1:2,1:3")
    assert extra["PYTHONPATH"].split(os.pathsep) == [str(environment.HOOK), "/mine"]
    assert extra["UNHANG_ATTEMPT"] == "2"
    assert (environment.HOOK / "sitecustomize.py").is_file()


def test_torch_version_of_an_interpreter_that_is_none(tmp_path):
    assert environment.torch_version(str(tmp_path / "python")) is None


@pytest.mark.torch
def test_torch_version():
    import torch

    assert environment.torch_version(sys.executable) == tuple(int(x) for x in torch.__version__.split(".")[:2])


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        ("nosuchmodule", True),
        ("nosuch.module", True),
        ("pkg.train", False),
        ("pkg.trian", True),
        ("pkg", True),
        ("runs", False),
        ("alone", False),
        ("alone.py", True),
        ("json.tool", False),
        # Only its own __init__ knows where its modules are.
        ("spread.elsewhere", False),
        # It breaks when it is imported: that is for the training to say.
        ("broken.module", False),
    ],
)
def test_a_module_that_is_not_there(tmp_path, monkeypatch, name, lacks):
    for file, text in {
        "pkg/__init__.py": "print('imported')",
        "pkg/train.py": "",
        "runs/__main__.py": "",
        "alone.py": "open('ran', 'w')",
        "spread/__init__.py": "__path__.append('other')",
        "other/elsewhere.py": "",
        "broken/__init__.py": "1 / 0",
    }.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert environment.lacks_module(sys.executable, name) is lacks
    assert not (tmp_path / "ran").exists()
    assert not environment.lacks_module(str(tmp_path / "python"), name)
