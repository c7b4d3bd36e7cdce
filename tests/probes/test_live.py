"""Stages really run, with real faults put into the ranks: named, bounded, and nobody left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.chinese import zh

from unhang.errors import UnhangError
from unhang.launch import command
from unhang.probes import live, plan, ranks

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def nobody_is_left():
    yield
    assert [command for p in psutil.Process().children(recursive=True) if "worker.py" in (command := cmdline(p))] == []


def cmdline(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        # It has ended, here or in a test before.
        return ""


@pytest.fixture
def python(tmp_path):
    """A Python whose ranks are faulty: `code` runs before the stages, with torch's `dist` and `rank`."""

    def faulty(code: str) -> str:
        script = tmp_path / "faulty.py"
        script.write_text(
            "import os, runpy, sys, time, signal\n"
            "sys.argv = sys.argv[1:]\n"
            "if sys.argv[0].endswith('worker.py'):\n"
            "    import torch, torch.distributed as dist\n"
            "    rank, world_size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])\n"
            + "".join(f"    {line}\n" for line in code.splitlines())
            + "runpy.run_path(sys.argv[0], run_name='__main__')\n"
        )
        wrapper = tmp_path / "python"
        wrapper.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exec {sys.executable} "$@"\nexec {sys.executable} {script} "$@"\n')
        wrapper.chmod(0o755)
        return str(wrapper)

    return faulty


@pytest.fixture
def only(monkeypatch):
    """Leaves out the other stages, and bounds those."""

    def limited(*ids: str, bound_s: float = 60):
        monkeypatch.setattr(plan, "STAGES", tuple(replace(s, bound_s=bound_s) for s in plan.STAGES if s.needed or s.id in ids))

    return limited


def states(found):
    return {(r.world_size, r.stage): r.state for r in found.stages}


def test_what_works(only):
    only("train-step", "all_reduce-int64", "pairs")
    found = live.examine(python=sys.executable, ranks=2)
    assert set(states(found).values()) == {"passed"}
    assert (found.backend, found.python) == ("gloo", sys.executable)
    assert found.conclusion == "2 ranks over gloo work on this machine: everything that was tested gave the right numbers; no GPU was tested"
    assert zh(found.conclusion) == "本机上 2 个 rank 通过 gloo 工作正常：所有测试的结果都正确；未测试 GPU"
    assert {zh(r.says).partition("，")[2] for r in found.stages if r.stage == "import"} == {"CPU 版"}
    assert not any(r.logs for r in found.stages)


@pytest.mark.integration
def test_wrong_numbers(only, python):
    only("all_reduce-int64", "broadcast")
    code = "whole = dist.all_reduce\ndef all_reduce(x):\n    whole(x)\n    if rank == 1: x.zero_()\ndist.all_reduce = all_reduce"
    found = live.examine(python=python(code), ranks=2)
    failed = next(r for r in found.stages if r.stage == "all_reduce-int64")
    assert failed.state == "failed"
    assert "rank 1" in failed.says
    assert "numbers are wrong" in failed.says
    assert states(found)[2, "broadcast"] == "passed"


@pytest.mark.integration
def test_a_rank_that_never_comes_back(only, python):
    only("broadcast", "all_gather", bound_s=20)
    code = "whole = dist.broadcast\ndist.broadcast = lambda *a, **k: time.sleep(3600) if rank == 1 and world_size > 1 else whole(*a, **k)"
    found = live.examine(python=python(code), ranks=2)
    failed = next(r for r in found.stages if r.stage == "broadcast")
    assert failed.state == "failed"
    assert "did not come back within 20 s" in failed.says
    # The rest was tested in fresh processes.
    assert states(found)[2, "all_gather"] == "passed"
    log = Path(failed.logs, "rank1.log").read_text()
    assert "in check" in log
    assert "faulty.py" in log


@pytest.mark.integration
def test_a_rank_that_crashes(only, python):
    only("all_to_all")
    found = live.examine(
        python=python("dist.all_to_all_single = lambda *a: os.kill(os.getpid(), signal.SIGABRT) if rank == 1 else time.sleep(3600)"), ranks=2
    )
    failed = next(r for r in found.stages if r.stage == "all_to_all")
    assert "rank 1: ended by SIGABRT" in failed.says


@pytest.mark.integration
def test_without_a_process_group_nothing_more_is_tested_and_the_cause_is_named(only):
    only("broadcast")
    found = live.examine(python=sys.executable, ranks=2, environ={"GLOO_SOCKET_IFNAME": "nosuch0", "PATH": "/usr/bin:/bin"})
    assert states(found)[2, "process-group"] == "failed"
    assert states(found)[2, "broadcast"] == "not-tested"
    failed = next(r for r in found.stages if r.state == "failed")
    assert failed.verdict.primary.cause == "interface-selection"
    assert found.conclusion.endswith("ranks cannot work together over gloo: process group fails (interface-selection)")


def test_without_torch(only, tmp_path):
    only()
    found = live.examine(python=sys.executable, ranks=2, environ={"PYTHONPATH": str(hidden(tmp_path))})
    assert [(r.stage, r.state) for r in found.stages[:2]] == [("import", "failed"), ("device", "not-tested")]
    assert "torch" in found.stages[0].says
    assert found.conclusion.startswith("not even one rank works: import torch fails")


@pytest.mark.integration
@pytest.mark.parametrize("answer", ["sleep 60", "exit 134", "echo -1", "echo what"])
def test_gpus_that_torch_does_not_see_are_not_passed_over(only, monkeypatch, tmp_path, answer):
    """A driver that hangs, a crash, a CPU build: the stage of the device says what is wrong, and the CPU is no answer."""
    only()
    monkeypatch.setattr(live, "_ASK_S", 1.0)
    monkeypatch.setattr(live, "_nvidia_devices", lambda: 2)
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\n[ "$1" = -c ] && {answer} && exit\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    found = live.examine(python=str(wrapper))
    assert (found.backend, states(found)[1, "device"]) == ("nccl", "failed")
    assert found.conclusion.startswith("not even one rank works: device fails")


@pytest.mark.integration
def test_one_rank_says_nothing_of_several(only):
    only()
    assert live.examine(python=sys.executable, ranks=1).conclusion == "one rank works on this machine; no GPU was tested; several were not tested"


def test_more_ranks_than_the_cores_can_bear():
    with pytest.raises(UnhangError, match="10000 ranks on") as error:
        live.examine(python=sys.executable, ranks=10_000)
    assert error.value.hint.startswith("unhang doctor --live --ranks ")


@pytest.mark.parametrize("none", ["", "-1", "NoDevFiles", "none"])
def test_gpus_that_were_left_out(monkeypatch, none):
    monkeypatch.setattr(live, "_nvidia_devices", lambda: 2)
    assert live.gpus_of(sys.executable, {"CUDA_VISIBLE_DEVICES": none}) == 0


def test_devices_that_a_cgroup_refuses_are_not_ours(monkeypatch):
    def refuse(path, flags):
        raise PermissionError(1, "Operation not permitted", str(path))

    assert live._may_be_opened(Path("/dev/null/none"))
    monkeypatch.setattr(os, "open", refuse)
    assert not live._may_be_opened(Path("/dev/nvidia0"))


def test_a_rank_that_the_kernel_holds_is_not_waited_for(monkeypatch, tmp_path):
    monkeypatch.setattr(ranks, "_GRACE_S", 0.1)
    here = tmp_path / "here"
    (tmp_path / "torch.py").write_text(f"import ctypes\nopen({str(here)!r}, 'w').close()\nctypes.PyDLL(None).sleep(600)\n")
    started = ranks.Ranks(
        sys.executable, size=1, backend="gloo", stages=["import"], logs=tmp_path, timeout_s=1.0, environ={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path
    )
    with started:
        (process,) = (p.popen for p in started._processes)
        until = time.monotonic() + 30
        while not here.exists() and time.monotonic() < until:
            time.sleep(0.02)
        monkeypatch.setattr(os, "killpg", lambda group, number: None)
    assert started.held == [process.pid]
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(20) == -signal.SIGKILL


@pytest.mark.integration
def test_what_a_job_around_us_has_set_is_not_for_these_ranks(only):
    only("broadcast")
    found = live.examine(python=sys.executable, ranks=2, environ={**os.environ, "TORCHELASTIC_USE_AGENT_STORE": "True", "GROUP_RANK": "7"})
    assert set(states(found).values()) == {"passed"}


def test_a_rank_that_holds_the_gil_dies_with_whoever_started_it(tmp_path):
    folder, log = tmp_path / "modules", tmp_path / "log"
    folder.mkdir()
    (folder / "torch.py").write_text("import ctypes\nctypes.PyDLL(None).sleep(600)\n")
    code = (
        "import os, sys; from pathlib import Path; from unhang.probes.ranks import Ranks\n"
        f"logs = Path({str(tmp_path)!r})\n"
        "more = dict(logs=logs, timeout_s=60, environ=dict(os.environ), cwd=logs)\n"
        "with Ranks(sys.executable, size=1, backend='gloo', stages=['import'], **more) as ranks:\n"
        "    print(ranks._processes[0].popen.pid, flush=True)\n"
        "    ranks.wait('import', 600)\n"
    )
    with log.open("wb") as err:
        starter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=err, env={**os.environ, "PYTHONPATH": str(folder)})
    try:
        rank = psutil.Process(int(starter.stdout.readline()))
        deadline = time.monotonic() + 30
        # It is asleep in C once it has told that it has begun.
        while "hrtimer_nanosleep" not in wchan(rank) and time.monotonic() < deadline:
            time.sleep(0.02)
        starter.kill()
        assert psutil.wait_procs([rank], timeout=10)[1] == [], log.read_text()
    finally:
        starter.kill()
        starter.wait()
        starter.stdout.close()


def wchan(process: psutil.Process) -> str:
    return Path(f"/proc/{process.pid}/wchan").read_text()


def hidden(folder: Path) -> Path:
    (folder / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    return folder


@pytest.fixture
def group_of(tmp_path):
    """A Python that is a shell's script without exec, which tells of its group; and who is left of that."""

    def wrapper(code: str) -> str:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/group\n{code}\n")
        path.chmod(0o755)
        return str(path)

    def left() -> list[str]:
        group = int((tmp_path / "group").read_text())
        alive = [p for p in psutil.process_iter() if group_id(p) == group]
        return [cmdline(p) for p in psutil.wait_procs(alive, timeout=5)[1] if p.status() != psutil.STATUS_ZOMBIE]

    return wrapper, left


def group_id(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None


@pytest.mark.parametrize("code", ["sleep 987", "sleep 987 & exit 0"])
def test_what_a_wrapper_has_started_ends_with_it(group_of, monkeypatch, tmp_path, code):
    monkeypatch.setattr(ranks, "_GRACE_S", 0.2)
    wrapper, left = group_of
    with ranks.Ranks(
        wrapper(code), size=1, backend="gloo", stages=["import"], logs=tmp_path, timeout_s=5, environ=dict(os.environ), cwd=tmp_path
    ) as started:
        assert started.wait("import", 1).state == "failed"
    assert (started.held, left()) == ([], [])


@pytest.mark.parametrize("code", ["sleep 987", "sleep 987 >/dev/null & exit 0"])
def test_a_wrapper_that_does_not_answer_leaves_nobody_behind(group_of, monkeypatch, code):
    monkeypatch.setattr(live, "_ASK_S", 1.0)
    monkeypatch.setattr(live, "_nvidia_devices", lambda: 0)
    wrapper, left = group_of
    assert live.gpus_of(wrapper(code), dict(os.environ)) == 0
    assert left() == []


@pytest.mark.parametrize("torch", [True, False])
def test_the_same_python_as_run_takes(monkeypatch, torch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if torch else None)
    assert live.find_python(None) == command.training_python(os.environ)
    assert (live.find_python(None) == sys.executable) is torch or not torch


def test_where_the_python_that_was_chosen_has_no_torch_another_is_named(only, monkeypatch, tmp_path):
    only()
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH={hidden(tmp_path)} exec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    found = live.examine(python=str(wrapper), ranks=1)
    assert found.conclusion.endswith(f"{wrapper} has no torch: name the training's Python, unhang doctor --live --python {sys.executable}")
    monkeypatch.setattr(live, "_torch_is_beside_us", lambda: False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert live.examine(ranks=1).conclusion.endswith("name the training's Python, unhang doctor --live --python PATH")


def test_no_such_python():
    with pytest.raises(UnhangError, match="there is no Python at /no/such/python"):
        live.examine(python="/no/such/python")


@pytest.mark.gpu
def test_real_gpus_over_nccl():
    found = live.examine(python=sys.executable)
    assert found.backend == "nccl"
    assert {(r.stage, r.says) for r in found.stages if r.state != "passed"} == set(), found.conclusion
