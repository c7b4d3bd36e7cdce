"""Exported files with the real launchers: two processes on Gloo, and accelerate reading its file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import unhang
from unhang.remedies.exports.form_settings import Layout
from unhang.remedies.exports.launch_command import export
from unhang.settings.catalogue import PRESETS

SCRIPT = """import os
import torch, torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
# In one piece: torchrun's Python writes every argument of a print by itself, and both ranks write to one pipe.
os.write(1, f"world {dist.get_world_size()} sum {int(one)} level {os.environ.get('TORCH_DISTRIBUTED_DEBUG')}\\n".encode())
dist.destroy_process_group()
"""


@pytest.mark.integration
@pytest.mark.torch
@pytest.mark.parametrize(("name", "words"), [("torchrun", []), ("bash", ["3"])])
def test_it_starts(name, words, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "start.sh").write_text(export(name, {"detail": True}, Layout(gpus=False)).text)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(Path(unhang.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(["bash", "start.sh", *words], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100, check=False)
    world = 1 if words else 2
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count(f"world {world} sum {world} level DETAIL") == world


@pytest.mark.integration
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("choice", [{}, {"backend": "gloo"}, PRESETS["conservative"].settings])
def test_accelerate_reads_its_file(choice, nodes, tmp_path):
    commands = pytest.importorskip("accelerate.commands.config.config_args")
    file = tmp_path / "accelerate.yaml"
    file.write_text(export("accelerate", choice, Layout(nodes=nodes)).text)
    read = commands.load_config_from_file(str(file))
    assert (read.num_processes, read.num_machines, read.main_process_port) == (2 * nodes, nodes, 29500)
    file.write_text(file.read_text() + "backend: gloo\n")
    with pytest.raises(ValueError, match="backend"):
        commands.load_config_from_file(str(file))
