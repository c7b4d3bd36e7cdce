from pathlib import Path

import pytest

import unhang.runtime.attach as attach
from unhang.runtime.attach.user_files import is_library_file, is_user_file

PACKAGE = Path(attach.__file__).parents[2]


@pytest.mark.parametrize(
    "path",
    [
        "/home/me/train.py",
        "train.py",
        "/home/me/lib/python_tools/train.py",
        "/data/torch/examples/main.py",
        "/v/lib/python3.12/site-packages/unhang/recipes/t5_sft/train.py",
    ],
)
def test_user_files(path):
    assert is_user_file(path)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "<string>",
        "<frozen importlib._bootstrap>",
        "/usr/lib/python3.12/threading.py",
        "/opt/conda/lib/python3.13t/asyncio/events.py",
        "/usr/lib/python312.zip/threading.py",
        "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py",
        "/usr/lib/python3/dist-packages/numpy/__init__.py",
        str(PACKAGE / "runtime" / "attach" / "heartbeat.py"),
        str(PACKAGE / "testing" / "faults.py"),
    ],
)
def test_other_files(path):
    assert not is_user_file(path)


def test_second_best_are_libraries_other_than_torch():
    assert is_library_file("/v/lib/python3.11/site-packages/accelerate/utils.py")
    assert not is_library_file("/v/lib/python3.11/site-packages/torch/nn/modules.py")
    assert not is_library_file("/usr/lib/python3.12/threading.py")
    assert not is_library_file("<string>")
