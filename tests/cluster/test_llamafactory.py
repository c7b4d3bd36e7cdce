"""recipes/llamafactory as its README starts it, on two hosts that are namespaces: ZeRO-2 on Gloo, in an environment that was sent there.

torch is not sent (it would take two minutes): the hosts take the one of this machine.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from tests.cluster.hosts import SBIN, Cluster
from tests.cluster.test_hosts import hosts_can_be_made, need  # noqa: F401
from tests.cluster.test_preflight import nobody_is_left
from tests.launchers.environments import ROOT, environment, supported

pytestmark = [pytest.mark.torch, pytest.mark.integration, pytest.mark.timeout(1500)]

REPOSITORY = Path(__file__).parents[2]
RECIPE = REPOSITORY / "recipes" / "llamafactory"
# What each rank has written: the stage, and how many numbers of the optimizer's state it holds.
READ = """
import sys, torch
for path in sys.argv[1:]:
    state = torch.load(path, weights_only=False)["optimizer_state_dict"]
    print(int(state["zero_stage"]), sum(part.numel() for part in state["single_partition_of_fp32_groups"]))
"""


@pytest.fixture
def there(tmp_path):
    """The recipe's directory, with an environment that holds unhang, too."""
    if not supported():
        pytest.skip("the lock files of the launchers are of Python 3.11 and newer")
    need(("g++",))
    made, folder = environment("llamafactory"), tmp_path / "recipe"
    shutil.copytree(RECIPE, folder)
    shutil.copytree(made, folder / ".venv", symlinks=True)
    for script in (folder / ".venv/bin").iterdir():
        if not script.is_symlink() and (text := script.read_bytes()).startswith(b"#!"):
            script.write_bytes(text.replace(bytes(made), bytes(folder / ".venv")))
    shutil.copytree(REPOSITORY / "src/unhang", _site(folder / ".venv") / "unhang")
    (_site(folder / ".venv") / "_of_the_maker.pth").unlink()
    yield folder
    for large in (folder / ".venv", tmp_path / "cluster"):
        shutil.rmtree(large)


def _site(env: Path) -> Path:
    return env / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def test_the_readme_on_two_hosts(there, tmp_path):
    readme = [line.partition("#")[0] for line in (RECIPE / "README.md").read_text().splitlines()]
    prepare, send, doctor, run = (line.split() for line in readme if line.startswith(("    python", "    unhang")))
    extensions = ROOT / "hosts-extensions"
    for lock in extensions.glob("**/lock"):
        lock.unlink()
    variables = {
        "PATH": f"{Path(sys.executable).parent}:{SBIN}",
        "GLOO_SOCKET_IFNAME": "eth0",
        "HF_HOME": "/scratch/hf",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TORCH_EXTENSIONS_DIR": str(extensions),
    }
    with Cluster(2, tmp_path / "cluster") as cluster:

        def at_login(*words: str) -> subprocess.CompletedProcess[str]:
            inside = ("env", "-C", str(there), *(f"{name}={value}" for name, value in variables.items()), *words)
            done = subprocess.run(cluster.login.inside(*inside), capture_output=True, text=True, timeout=1000, stdin=subprocess.DEVNULL)
            assert done.returncode == 0, f"{words}: {done.stdout[-4000:]}{done.stderr[-8000:]}"
            return done

        at_login(*prepare)
        at_login(*send)
        for node in cluster.nodes:
            node.run(f"echo {sysconfig.get_path('purelib')} > {_site(Path('/scratch/env'))}/torch.pth")
        at_login(*doctor)
        done = at_login(*run)
        assert nobody_is_left(cluster)
    steps = [json.loads(line) for line in (there / "out/trainer_log.jsonl").read_text().splitlines()]
    losses = [step["loss"] for step in steps if "loss" in step]
    assert len(losses) == 8 and losses[-1] < losses[0] and f"'loss': {losses[-1]}" in done.stdout, done.stderr
    parts = [there / f"out/checkpoint-40/global_step40/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(2)]
    read = subprocess.run([environment("llamafactory") / "bin/python", "-c", READ, *parts], capture_output=True, text=True, check=True, timeout=100)
    # Half of the model's 2,864 parameters each.
    assert read.stdout.splitlines()[-2:] == ["2 1432", "2 1432"]
