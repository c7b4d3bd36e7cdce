"""The recipe's modules import each other as siblings, so its directory has to be on the path."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[3] / "recipes" / "t5_sft"
DEADLINE_S = 100.0

sys.path.insert(0, str(RECIPE))

for needed in ("torch", "transformers", "tokenizers", "pyarrow"):
    pytest.importorskip(needed, reason=f"the recipe needs unhang[demo]: no {needed}")


class Recipe:
    """Runs train.py as a user does."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.processes: list[subprocess.Popen[str]] = []

    def train(self, output: Path, *options: str, ranks: int, **env: str) -> subprocess.CompletedProcess[str]:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        return self.python(
            *launcher, str(RECIPE / "train.py"), "train", "--preset", "demo", "--data", str(self.data), "--output", str(output), *options, **env
        )

    def python(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        surroundings = {k: v for k, v in os.environ.items() if not k.startswith("UNHANG_")} | env
        process = subprocess.Popen(
            [sys.executable, *arguments], env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.processes.append(process)
        try:
            out, err = process.communicate(timeout=DEADLINE_S)
        except BaseException:
            # torchrun's workers stay in its session.
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared data, small."""
    import prepare

    out = tmp_path_factory.mktemp("t5") / "data"
    prepare.prepare(out, rows=400, eval_rows=24, vocab=1024, seed=0)
    return out


@pytest.fixture(scope="session")
def recipe(data: Path) -> Recipe:
    return Recipe(data)
