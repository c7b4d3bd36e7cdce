"""The faults that `unhang demo` injects into the recipe t5_sft, and what must be said of each."""

from __future__ import annotations

from pathlib import Path

from unhang.model import frozen


@frozen
class Scenario:
    """One injected fault. `line` is a piece of the source line that the verdict has to name; `restarts`: the training must be started again.

    `mute`: its rank cannot tell any more what it did; the recorders of all others have to be there.
    """

    name: str
    says: str
    fault: str
    cause: str
    rank: int
    line: str
    restarts: bool = True
    mute: bool = False


SCENARIOS = (
    Scenario(
        name="stuck-loader",
        says="rank 1 stuck in its data loader, in evaluation",
        fault="stuck@evaluate.sample:rank=1,step=8",
        cause="dataloader-deadlock",
        rank=1,
        line='faults.point("evaluate.sample"',
    ),
    Scenario(
        name="killed",
        says="rank 1 killed with SIGKILL",
        fault="sigkill@train.step:rank=1,step=12",
        cause="host-oom-or-killed",
        rank=1,
        line='faults.point("train.step"',
        mute=True,
    ),
    Scenario(
        name="stopped",
        says="rank 1 stopped with SIGSTOP",
        fault="sigstop@train.step:rank=1,step=12",
        cause="process-stuck",
        rank=1,
        line='faults.point("train.step"',
        mute=True,
    ),
    Scenario(
        name="exception",
        says="an exception on rank 1 only",
        fault="raise@train.step:rank=1,step=12",
        cause="rank-exception",
        rank=1,
        line='faults.point("train.step"',
    ),
    Scenario(
        name="shapes",
        says="rank 1 brings another shape into an all_reduce",
        fault="mismatch@evaluate.stats:rank=1,step=16",
        cause="collective-mismatch",
        rank=1,
        line="all_reduce(stats",
    ),
    Scenario(
        name="guarded-barrier",
        says="a barrier under `if rank == 0`",
        fault="barrier@checkpoint.saved:rank=0,step=12",
        cause="rank0-guarded-collective",
        rank=0,
        line='faults.point("checkpoint.saved"',
    ),
    Scenario(
        name="slow",
        says="rank 1 slow but alive",
        fault="slow@train.step:rank=1,step=12,seconds=15",
        cause="straggler-timeout",
        rank=1,
        line='faults.point("train.step"',
        restarts=False,
    ),
)
QUICK = ("stuck-loader", "killed")


def places(recipe: Path, text: str) -> set[tuple[str, int]]:
    """Every (file name, line number) of a recipe's sources whose line holds `text`."""
    found = set()
    for file in sorted(recipe.glob("*.py")):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if text in line:
                found.add((file.name, number))
    return found
