"""What a reader of Chinese sees of a run, from its start to what is read of it afterwards: no sentence of English but what others have said."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]

UNHANG = (sys.executable, "-m", "unhang")
TRAIN = """\
import sys, torch, torch.distributed as dist
dist.init_process_group(sys.argv[1])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""
BOOM = 'raise RuntimeError("boom")\n'

# Three words of prose in a row: no part of a path, an option, a name, a number. What is quoted, or in the places below, is others' or no prose.
_PROSE = re.compile(r"(?<![-\w./=`'\"])[a-z']+(?:,? [a-z']+){2,}(?![-\w./=(`])", re.IGNORECASE | re.ASCII)
# Behind these stands what the training, torch or the system has said; commands and code are to be copied.
_QUOTED = re.compile(r"(?:\b\w*(?:Error|Exception)\b: .*|^\s*\$ .*|`[^`]*`|unhang (?:run|why|explain)\b.*$|\"[^\"]*\"|'[^']*')")
# Names of things that are the same in both languages.
_NAMES = re.compile(r"flight recorder|ip route get|unhang run", re.IGNORECASE)
_EVIDENCE = ("证据", "各主线程所在的位置", "验证方法", "命令")


def english(output: str) -> list[str]:
    """The lines in which a sentence of English stands. Sections of evidence, stacks and blocks of code are left out."""
    found, quotes, code = [], False, False
    for line in output.splitlines():
        if line.startswith("```"):
            code = not code
        # A label, or a line that says something: what others have said is indented below its label.
        quotes = line.startswith(_EVIDENCE) or (quotes and line.startswith(" "))
        if not (quotes or code or line.lstrip().startswith(_EVIDENCE)) and _PROSE.search(_NAMES.sub("X1", _QUOTED.sub("", line))):
            found.append(line)
    return found


@pytest.fixture(scope="module")
def chinese(tmp_path_factory):
    """Runs a command of ours under a Chinese locale, in a folder and with a memory of its own, and gives all that it says."""
    here = tmp_path_factory.mktemp("chinese")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("UNHANG_", "LC_", "GLOO_", "NCCL_"))}
    (here / "train.py").write_text(TRAIN)
    (here / "boom.py").write_text(BOOM)

    def run(*argv: str, **more: str) -> str:
        environ = kept | {"LANG": "zh_CN.UTF-8", "XDG_CACHE_HOME": str(here / "cache"), "COLUMNS": "200"} | more
        ran = subprocess.run([*UNHANG, *argv], cwd=here, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=240, check=False)
        return (ran.stdout + ran.stderr).decode("utf-8")

    run.here = here
    return run


# Of each run: the script and its argument, what is set wrongly, and a word of its output that shows that the run went the way that is meant.
RUNS = {
    "interface": (("train.py", "gloo"), {"GLOO_SOCKET_IFNAME": "nosuch0"}, ("最小改动", "训练正常结束", "interface-selection")),
    "backend": (("train.py", "nccl"), {}, ("最小改动", "训练正常结束", "backend-unavailable")),
    "again": (("boom.py",), {}, ("不再重新启动", "以退出码 1 结束", "rank-exception")),
}


@pytest.fixture(scope="module", params=[pytest.param(name, marks=[pytest.mark.integration] if name != "again" else []) for name in RUNS])
def run(request, chinese):
    command, environ, says = RUNS[request.param]
    if request.param == "backend":
        import torch

        if torch.cuda.is_available():
            pytest.skip("NCCL works here")
    out = chinese("run", "--quiet", "-n", "2", "--run-dir", request.param, *command, **environ)
    assert [word for word in says if word not in out] == [], out
    return request.param, out


def test_a_run_is_told_in_chinese(run):
    assert english(run[1]) == []


@pytest.mark.parametrize("argv", [("why",), ("why", "--all"), ("why", "--markdown"), ("top", "--once")], ids=" ".join)
def test_what_is_read_of_it_afterwards_is_chinese(chinese, run, argv):
    out = chinese(*argv[:1], run[0], *argv[1:])
    assert re.search("[一-鿿]", out) and english(out) == []


def test_the_solution_is_chinese(chinese, run):
    solution = Path(chinese.here / run[0] / "solution.md")
    assert solution.exists() is (run[0] != "again")
    assert not solution.exists() or english(solution.read_text("utf-8")) == []


@pytest.mark.parametrize("given", ["never", "0.1"])
def test_a_time_that_is_none_is_refused_in_chinese(chinese, given):
    out = chinese("run", "--hang-after", given, "train.py")
    assert f"{given}：应为 0.5 秒到 30 天的时间" in out and english(out) == []


def test_english_is_found():
    assert english(
        "unhang: 不再重新启动：the same failure again, each time\n  RuntimeError: an error of torch itself\n$ unhang run --set it now or so"
    ) == ["unhang: 不再重新启动：the same failure again, each time"]
    assert english("证据\n  train.log:3  the evidence is quoted as it stands\n未能检查\n  stacks: the process did not answer") == [
        "  stacks: the process did not answer"
    ]
    assert english("```bash\nfor all of us\n```\nunhang: training finished after 0:12") == ["unhang: training finished after 0:12"]
