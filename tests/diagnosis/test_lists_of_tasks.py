"""Lines that name thousands of tasks: they are judged in time, and what they say is still said."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from unhang.diagnosis.logs import judge_logs
from unhang.logs import exits

BYTES = 1_000_000
MOST_TIMES = 16
# Each line names one task.
HARMLESS = "".join(f"srun: error: node{n}: task {n}: Killed\n" for n in range(BYTES // 38))
MANY = "srun: error: node[0-99999]: tasks 0-65000: "
# Each took minutes or gigabytes, however few of its lines there were.
HOSTILE = {
    "killed": "srun: error: node1: tasks 0-9999: Killed\n",
    "aborted": "srun: error: node1: tasks 0-9999: Aborted\n",
    "killed, line by line": f"{MANY}Out Of Memory\n" * (BYTES // 60),
    "aborted, line by line": f"{MANY}Aborted\n" * (BYTES // 60),
    "exited, line by line": "".join(f"{MANY}Exited with exit code {n}\n" for n in range(BYTES // 70)),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_list_of_tasks_takes_little_more_time_than_the_tasks_one_by_one(tmp_path, kind, cpu_seconds):
    """CPU time against what as long a log takes that names a task in each line; what is quadratic is ended before."""

    def seconds(text: str) -> float:
        path = tmp_path / "train.log"
        path.write_text(text)
        began = time.thread_time()
        judge_logs([str(path)])
        return time.thread_time() - began

    # Patterns are compiled when they are first used.
    seconds(HOSTILE[kind].replace("0-9999", "0-9").replace("0-65000", "0-9"))
    ordinary = seconds(HARMLESS)
    cpu_seconds(30)
    assert seconds(HOSTILE[kind]) < MOST_TIMES * ordinary


@pytest.mark.parametrize(
    ("behind", "killed", "first"),
    [
        ("tasks 0-29: Killed\n", 30, True),
        ("tasks 5-9: Exited with exit code 1\nsrun: error: node1: tasks 0-4: Killed\n", 0, False),
        ("tasks 0-4: Killed\nsrun: error: node1: tasks 5-9: Exited with exit code 1\n", 5, True),
    ],
)
def test_whom_slurm_killed_behind_a_failure_is_no_cause(tmp_path: Path, behind, killed, first):
    path = tmp_path / "train.log"
    path.write_text(f"srun: error: node1: {behind}")
    verdict = judge_logs([str(path)]).verdict
    assert (verdict.primary.cause == "host-oom-or-killed", len(verdict.primary.ranks) if first else 0) == (first, killed)
    assert len(verdict.primary.ranks) <= exits.MAX_TASKS
