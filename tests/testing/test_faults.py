"""Every kind of fault does what it says, in a process of its own; and nothing happens where it should not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from tests.tables import for_each

from unhang.testing import faults

DEADLINE_S = 30.0

# A training of six steps: prints each step, then "end".
TRAINING = """
import sys, threading, time
from unhang.testing import faults
{before}
for step in range(1, 7):
    faults.point("here", step=step)
    print(step, flush=True)
print("end", flush=True)
{after}
"""


@contextmanager
def training(spec: str | None, *, before: str = "", after: str = "", **env: str) -> Iterator[subprocess.Popen[str]]:
    surroundings = {k: v for k, v in os.environ.items() if not k.startswith("UNHANG_") and k != "RANK"}
    surroundings |= env | ({faults.ENV_FAULT: spec} if spec is not None else {})
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINING.format(before=before, after=after)],
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run(spec: str | None, *, before: str = "", after: str = "", **env: str) -> tuple[int, list[str], str]:
    with training(spec, before=before, after=after, **env) as process:
        out, err = process.communicate(timeout=DEADLINE_S)
        return process.returncode, out.split(), err


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


ALL_STEPS = ["1", "2", "3", "4", "5", "6", "end"]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("stuck@a.b:rank=1,step=12", faults.Injection(kind="stuck", point="a.b", rank=1, step=12)),
        (" gil@x : seconds=2.5 ", faults.Injection(kind="gil", point="x", seconds=2.5)),
        ("slow@x", faults.Injection(kind="slow", point="x", rank=None, step=None, seconds=15.0)),
    ],
)
def test_a_specification_is_read(spec: str, expected: faults.Injection) -> None:
    assert faults.parse(spec) == expected


@for_each(
    ("spec", "says"),
    [
        ("stick@x", "valid kinds: stuck, sigkill, sigstop, raise, mismatch, drift, barrier, slow, exit, gil, burst"),
        ("stuck", "needs a point"),
        ("stuck@", "needs a point"),
        ("stuck@x:rank", "'rank' is not one of rank=N, step=N, seconds=S"),
        ("stuck@x:node=1", "'node=1' is not one of"),
        ("stuck@x:rank=one", "rank=one is not a number"),
        ("stuck@x:step=1.5", "step=1.5 is not a number"),
        ("stuck@x:rank=1,rank=2", "rank is given twice"),
        ("stuck@x:rank=-1", "rank=-1 must be 0 or more"),
        ("slow@x:seconds=nan", "seconds=nan must be 0 or more, and finite"),
    ],
)
def test_a_wrong_specification_says_what_is_wrong(spec: str, says: str) -> None:
    with pytest.raises(ValueError) as raised:
        faults.parse(spec)
    assert says in str(raised.value)
    assert repr(spec) in str(raised.value)


def test_a_wrong_specification_ends_the_training_at_its_first_point() -> None:
    code, out, err = run("stick@here")
    assert code == 1
    assert out == []
    assert "ValueError: UNHANG_FAULT='stick@here': there is no fault 'stick'; valid kinds:" in err


@pytest.mark.parametrize(
    ("spec", "env"),
    [
        (None, {}),
        ("", {}),
        ("raise@elsewhere", {}),
        ("raise@here:rank=1", {}),
        ("raise@here:rank=1", {"RANK": "0"}),
        ("raise@here:step=7", {}),
        ("raise@here", {"UNHANG_ATTEMPT": "1"}),
    ],
)
def test_nothing_happens_without_a_fault_that_is_due(spec: str | None, env: dict[str, str]) -> None:
    assert run(spec, **env) == (0, ALL_STEPS, "")


@pytest.mark.parametrize("env", [{"RANK": "1"}, {"RANK": "1", "UNHANG_ATTEMPT": "0"}])
def test_raise_fires_at_its_step_on_its_rank(env: dict[str, str]) -> None:
    code, out, err = run("raise@here:rank=1,step=3", **env)
    assert (code, out) == (1, ["1", "2"])
    assert "RuntimeError: injected at here" in err


def test_step_means_that_step_or_the_first_later_one() -> None:
    _, out, _ = run("exit@here:step=3", before="faults.point('here'); faults.point('here', step=2)")
    assert out == ["1", "2"]
    _, out, _ = run("exit@here:step=3", before="faults.point('here', step=4)")
    assert out == []


def test_a_fault_fires_once() -> None:
    code, out, _ = run("burst@here:seconds=0.01", before="naps = []; time.sleep = naps.append", after="print(naps)")
    assert (code, out) == (0, [*ALL_STEPS, "[0.01]"])


def test_the_record_says_what_fired(tmp_path: Path) -> None:
    record = tmp_path / "record"
    run("exit@here:rank=1,step=2", RANK="1", UNHANG_FAULT_RECORD=str(record))
    (said,) = map(json.loads, record.read_text().splitlines())
    assert {k: said[k] for k in ("kind", "point", "rank", "step")} == {"kind": "exit", "point": "here", "rank": 1, "step": 2}


def test_exit_leaves_with_zero() -> None:
    assert run("exit@here:step=2") == (0, ["1"], "")


def test_sigkill_grows_and_is_killed() -> None:
    with training("sigkill@here:step=2") as process:
        first, peak = None, 0
        while process.poll() is None:
            try:
                rss = psutil.Process(process.pid).memory_info().rss
            except psutil.Error:
                break
            first, peak = first or rss, max(peak, rss)
            time.sleep(0.02)
        assert process.wait(DEADLINE_S) == -signal.SIGKILL
        assert peak > 200 << 20


def test_sigstop_stops() -> None:
    with training("sigstop@here:step=2") as process:
        assert until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)


def test_stuck_blocks_without_cpu(tmp_path: Path) -> None:
    record = tmp_path / "record"
    with training("stuck@here:step=2", UNHANG_FAULT_RECORD=str(record)) as process:
        assert until(record.exists)
        spent = psutil.Process(process.pid).cpu_times().user
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        assert psutil.Process(process.pid).cpu_times().user - spent < 0.1


def test_slow_computes_and_goes_on() -> None:
    code, out, _ = run("slow@here:step=2,seconds=0.5", before="began = time.process_time()", after="print(time.process_time() - began)")
    assert (code, out[:7]) == (0, ALL_STEPS)
    assert float(out[7]) > 0.05


# The longest time between two turns of a second thread. A signal arrives meanwhile: the call must not return early.
WATCH = """
import signal
turns = []
def watch():
    while True:
        turns.append(time.monotonic())
        time.sleep(0.01)
threading.Thread(target=watch, daemon=True).start()
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.2)
"""
GAP = "print(max(b - a for a, b in zip(turns, turns[1:] + [time.monotonic()])))"


def test_gil_lets_no_other_thread_run() -> None:
    code, out, _ = run("gil@here:step=2,seconds=1", before=WATCH, after=GAP)
    assert (code, out[:7]) == (0, ALL_STEPS)
    assert float(out[7]) > 0.9


def test_burst_lets_other_threads_run() -> None:
    code, out, _ = run("burst@here:step=2,seconds=1", before=WATCH, after="print(len(turns))")
    assert (code, out[:7]) == (0, ALL_STEPS)
    assert int(out[7]) > 10


def test_mismatch_needs_a_tap() -> None:
    code, _, err = run("mismatch@here")
    assert code == 1
    assert "mismatch alters a value, and here is a point without one; it needs a tap" in err


def test_a_tap_is_a_point_too() -> None:
    code, out, err = run("raise@value", before="print(faults.tap('other', 5)); faults.tap('value', 5)")
    assert (code, out) == (1, ["5"])
    assert "injected at value" in err


def test_without_a_fault_torch_is_not_imported() -> None:
    assert run(None, after="print('torch' in sys.modules)")[1] == [*ALL_STEPS, "False"]


@pytest.fixture
def armed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def arm(spec: str) -> None:
        for name in ("RANK", faults.ENV_ATTEMPT, faults.ENV_RECORD):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(faults.ENV_FAULT, spec)
        monkeypatch.setattr(faults, "_ready", False)
        monkeypatch.setattr(faults, "_armed", None)

    return arm


@pytest.mark.torch
def test_mismatch_appends_one_element_once(armed: Callable[[str], None]) -> None:
    torch = pytest.importorskip("torch")
    armed("mismatch@stats:step=8")
    value = torch.ones(2, 3, dtype=torch.float64)
    assert faults.tap("stats", value, step=7) is value
    longer = faults.tap("stats", value, step=8)
    assert longer.shape == (7,)
    assert longer.dtype == value.dtype
    assert faults.tap("stats", value, step=16) is value


@pytest.mark.torch
def test_drift_changes_one_number_in_place_once(armed: Callable[[str], None]) -> None:
    torch = pytest.importorskip("torch")
    armed("drift@weights:step=8")
    weights = torch.nn.Linear(3, 2).weight
    before = weights.detach().clone()
    assert faults.tap("weights", weights, step=8) is weights
    assert (weights.detach() - before).count_nonzero() == 1
    changed = weights.detach().clone()
    faults.tap("weights", weights, step=9)
    assert torch.equal(weights.detach(), changed)
    armed("drift@weights")
    with pytest.raises(TypeError, match="drift needs a tensor, and the tap passes a float"):
        faults.tap("weights", 1.0)
    armed("drift@weights")
    with pytest.raises(ValueError, match="drift alters a value, and weights is a point without one"):
        faults.point("weights")


@pytest.mark.torch
def test_barrier_enters_a_barrier(armed: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    dist = pytest.importorskip("torch.distributed")
    entered: list[bool] = []
    monkeypatch.setattr(dist, "barrier", lambda: entered.append(True))
    armed("barrier@here")
    faults.point("here", step=1)
    assert entered == [True]


def test_the_table_lists_every_kind() -> None:
    assert list(faults.FAULTS) == [fault.name for fault in faults.FAULTS.values()]
    assert set(faults.FAULTS) == {*faults._ACTIONS, *faults._ALTERATIONS}
