"""What ranks of a probe say of a stage, in Chinese; what torch or the system says stays as it is."""

from __future__ import annotations

import ast
import inspect

import pytest
from tests.chinese import english

from unhang.probes import ranks, worker
from unhang.probes.told import in_chinese


@pytest.mark.parametrize(
    ("said", "chinese"),
    [
        ("", ""),
        ("torch 2.13.0+cpu, CPU build", "torch 2.13.0+cpu，CPU 版"),
        ("torch 2.13.0, CUDA 12.6", "torch 2.13.0，CUDA 12.6"),
        ("2 threads", "2 个线程"),
        ("up to 4 MiB, bus bandwidth 1.2 GB/s (median of 3)", "最大 4 MiB，总线带宽 1.2 GB/s（3 次的中位数）"),
        ("rank 3 did not come back within 5 s", "rank 3 在 5 秒内没有返回"),
        ("ranks 0, 1 did not come back within 30 s (at 4 MiB)", "rank 0, 1 在 30 秒内没有返回（停在 4 MiB）"),
        ("ranks 0, 1 did not come back within 30 s (at ranks 0 and 1)", "rank 0, 1 在 30 秒内没有返回（停在 rank 0 与 1 之间）"),
        ("rank 0: ended by SIGKILL; ranks 1, 2: RuntimeError: closed; by peer", "rank 0：被 SIGKILL 结束；rank 1, 2：RuntimeError: closed; by peer"),
    ],
)
def test_a_stage_is_told_in_chinese(said, chinese):
    assert in_chinese(said) == chinese


def said_by(module):
    """What a module returns or raises as text, with a number in the place of each value."""
    for n in ast.walk(ast.parse(inspect.getsource(module))):
        value = n.value if isinstance(n, ast.Return) else None
        prefix = ""
        if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "Wrong":
            value, prefix = n.args[0], "Wrong: "
        for one in (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,):
            if isinstance(one, ast.JoinedStr):
                yield prefix + "".join(str(v.value) if isinstance(v, ast.Constant) else "7" for v in one.values)
            elif isinstance(one, ast.Constant) and isinstance(one.value, str):
                yield prefix + one.value


def test_all_that_a_worker_says_in_words_is_known():
    said = {s.replace("torch 7, 7", "torch 7, CPU build").replace("up to 7,", "up to 7 MiB,") for m in (worker, ranks) for s in said_by(m)}
    said = {s.replace("ended by 7", "ended by SIGKILL") for s in said if " " in s and not s.startswith(("7: 7", "/proc"))}
    said = {f"rank 7 {s.removeprefix('7 ').removesuffix('7')}" if "did not come back" in s else s for s in said}
    assert len(said) > 15
    assert [s for s in said if english(in_chinese(s))] == []
