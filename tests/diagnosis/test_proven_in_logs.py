"""What unhang run found by trials is a part of what unhang why says of a run or of a terminal log, and only for the cause it was found for."""

from __future__ import annotations

import io
import json

import pytest
from tests.chinese import both, zh

from unhang.diagnosis import proven_change, proven_in_logs
from unhang.diagnosis.logs import judge_logs
from unhang.knowledge.words import Text
from unhang.launch import events
from unhang.model import Finding, Outcome, Remedy, Trial, Tried, Verdict
from unhang.records.rundir import RunDir
from unhang.report.console import Console
from unhang.report.live_line import Live

CHOICE = {"shm": False, "interface": "auto"}
FOUND = Verdict(
    primary=Finding(cause="interface-selection", standing="established", says="", remedies=(Remedy(id="unset-gloo", says="s"),)),
)
LOG = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/app/train.py", line 3, in <module>
[rank0]:     dist.init_process_group("gloo")
[rank0]: RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: nosuch0
unhang: a rank has failed; taking evidence
unhang: interface-selection: settings may answer it; trying them on this machine with 2 ranks, 10:00 at most
unhang:   as it is: fails (4.1 s): process group: rank 0: RuntimeError
unhang: {says}: from here on GLOO_SOCKET_IFNAME unset
unhang: starting again (restart 1 of 3)
"""
SAYS = {
    "interface=auto is the smallest change that works here; it passed twice": "interface=auto",
    "interface=lo is the smallest change that works here; it passed twice; lo reaches this host alone: a job on several hosts would": "interface=lo",
    "shm=off, ib=off works here, and passed twice; whether all of it is needed could not be found out": "shm=off, ib=off",
    "backend=gloo was chosen; it passed twice": "backend=gloo",
}


def trial(outcome):
    return Trial(choice=CHOICE, outcome=outcome, world_size=2, backend="gloo", says="", busbw_gbps=1.5)


@pytest.fixture
def rundir(tmp_path):
    made = RunDir.create(tmp_path / "run")
    made.write(made.run, {"command": ["torchrun", "my train.py"]})
    tried = Tried(id="interface-auto", title=both("", ""), cost=both("", ""), trial=trial("passed"))
    dropping = (trial("failed"), trial("passed"))
    made.write(made.solution, Outcome(chosen=CHOICE, rungs=(tried,), dropping=dropping, confirmed=True, why="interface-selection"))
    return made


@pytest.mark.parametrize(
    ("events", "then"),
    [
        (("FellBack", "FirstStep", "Finished"), "ended well with it"),
        (("FellBack", "Finished", "Note"), "ended well with it"),
        (("FellBack", "FirstStep"), "took steps with it"),
        (("FirstStep", "FellBack"), "no step with it is recorded"),
    ],
)
def test_a_run_names_the_change_how_it_was_proven_and_how_to_keep_it(rundir, events, then):
    rundir.events.write_text("".join(json.dumps({"event": e, "s": 1.0, "exitcode": 0}) + "\n" for e in events))
    first, second = proven_change.told(FOUND, rundir).primary.remedies
    assert (first.id, first.trial, second.id) == ("proven-here", "passed", "unset-gloo")
    assert "shm=off, interface=auto passed 2 trials with 2 ranks over gloo, 1.5 GB/s" in first.says and then in first.says and zh(first.says)
    assert first.command == "unhang run --set shm=off --set interface=auto torchrun 'my train.py'"


@pytest.mark.parametrize(
    "command", ["unhang run --set shm=off --set interface=auto torchrun 'my train.py'", "unhang run --set shm=off -- torchrun train.py"]
)
def test_a_remedy_with_the_command_that_was_proven_is_not_listed_again(rundir, command):
    same, other = Remedy(id="set-it", says="s", command=command), Remedy(id="unset-gloo", says="s")
    found = Verdict(primary=Finding(cause="interface-selection", standing="established", says="", remedies=(same, other)))
    first, *others = proven_change.told(found, rundir).primary.remedies
    assert first.id == "proven-here" and [r.id for r in others] == (["unset-gloo"] if command == first.command else ["set-it", "unset-gloo"])


def test_without_the_command_of_the_run_a_remedy_is_told_from_the_proven_one_by_its_settings():
    same, other = (Remedy(id=v, says="s", command=f"unhang run --set interface={v} -- COMMAND") for v in ("auto", "lo"))
    found = Verdict(primary=Finding(cause="interface-selection", standing="established", says="", remedies=(same, other)))
    found = proven_in_logs.first(found, proven_in_logs.remedy(Text("s", "s"), ["interface=auto"], None))
    assert [r.id for r in found.primary.remedies] == ["proven-here", "lo"]


@pytest.mark.parametrize("more", [{"why": "p2p-broken"}, {"chosen": None}, {"chosen": {}}])
def test_what_was_found_for_something_else_or_not_at_all_is_not_told(rundir, more):
    found = rundir.read(rundir.solution, Outcome)
    rundir.write(rundir.solution, type(found)(**{**{f: getattr(found, f) for f in found.__dataclass_fields__}, **more}))
    assert proven_change.told(FOUND, rundir) == FOUND


def test_settings_that_anybody_may_have_written_become_no_command(rundir):
    rundir.path.chmod(0o777)
    assert proven_change.told(FOUND, RunDir(rundir.path)) == FOUND


def test_a_damaged_solution_is_said_to_be_unread(rundir):
    rundir.solution.write_text("{")
    found = proven_change.told(FOUND, rundir)
    assert found.primary == FOUND.primary and [n.what for n in found.not_examined] == ["solution.json"]


@pytest.mark.parametrize("says", SAYS)
def test_a_terminals_log_names_it_too(tmp_path, says):
    log = tmp_path / "train.log"
    log.write_text(LOG.format(says=says))
    primary = judge_logs([str(log)]).verdict.primary
    assert primary.cause == "interface-selection"
    assert primary.remedies[0].id == "proven-here" and f": {SAYS[says]} (GLOO_SOCKET_IFNAME unset)" in primary.remedies[0].says
    log.write_text(LOG.format(says=says).replace("interface-selection:", "p2p-broken:"))
    assert judge_logs([str(log)]).verdict.primary.remedies[0].id == "unset-gloo"


@pytest.mark.parametrize(
    ("end", "says", "remedy"),
    [
        (
            "unhang: training finished after 0:12, 2 attempts\n",
            "; with interface=auto the training then finished",
            "the training then ended well with it",
        ),
        ("step 1 loss: 0.5\n" * 3, "; it then went on with interface=auto", "the next attempt ran with it"),
    ],
)
def test_a_log_that_ended_well_names_what_had_failed_and_what_answered_it(tmp_path, end, says, remedy):
    log = tmp_path / "train.log"
    log.write_text(LOG.format(says=next(iter(SAYS))) + end)
    found = judge_logs([str(log)]).verdict
    assert found.primary.cause == "interface-selection" and says in found.primary.says
    assert found.primary.remedies[0].id == "proven-here" and remedy in found.primary.remedies[0].says
    assert not any("attempt" in n.what for n in found.not_examined)
    # Of another failure between the change and the end it answered nothing.
    oom = "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB\n"
    log.write_text(LOG.format(says=next(iter(SAYS))) + oom + "unhang: starting again (restart 2 of 3)\n" + end)
    assert judge_logs([str(log)]).verdict.primary is None


def test_a_log_that_tells_of_a_good_end_and_of_no_failure_says_so(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("unhang: 2 ranks on cpu (gloo); first step 1.0 s after the start\nunhang: training finished after 0:04\n")
    found = judge_logs([str(log)]).verdict
    assert found.primary is None and any("the training finished" in n.why and ":2)" in n.why for n in found.not_examined)


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_what_the_terminal_showed_is_read_back_at_any_width(tmp_path, width, lang, monkeypatch):
    monkeypatch.setenv("LC_ALL", {"en": "C.UTF-8", "zh": "zh_CN.UTF-8"}[lang])
    log = tmp_path / "train.log"
    out = io.StringIO()
    live = Live(console=Console(out, force_terminal=True, width=width))
    live.tell(events.Pace(step=3, steps_per_s=1.0, ranks=2, elapsed_s=3.0))
    live.tell(events.Climbing(cause="interface-selection", ranks=2, limit_s=600))
    live.tell(events.RungTried(rung="as-is", title="as it is", outcome="failed", says="process group: rank 0: RuntimeError " * 4))
    environment = {"GLOO_SOCKET_IFNAME": "", "NCCL_SOCKET_IFNAME": ""}
    says = next(iter(SAYS))
    says_zh = "interface=auto 是此处可行的最小改动，已通过两次"
    fell_back = events.FellBack(choice={"interface": "auto"}, environment=environment, arguments=(), says=both(says, says_zh), remembered=False)
    live.tell(fell_back)
    live.tell(events.Restarting(attempt=1, of=3))
    log.write_text("".join(LOG.splitlines(keepends=True)[:4]) + out.getvalue())
    assert judge_logs([str(log)]).verdict.primary.remedies[0].id == "proven-here"


@pytest.mark.parametrize(
    "then",
    [
        "failed before its first step: taken back, and forgotten",
        "failed before its first step: taken back",
        "failed all the same: that is forgotten",
        "failed all the same: that is taken back",
    ],
)
def test_what_was_taken_back_is_not_proven(tmp_path, then):
    log = tmp_path / "train.log"
    again = "".join(LOG.splitlines(keepends=True)[:5])
    log.write_text(LOG.format(says=next(iter(SAYS))) + again + f"unhang: with interface=auto it {then}\n")
    assert judge_logs([str(log)]).verdict.primary.remedies[0].id == "unset-gloo"


SAYS_ZH = {
    "interface=auto 是此处可行的最小改动，已通过两次": "interface=auto",
    "interface=lo 是此处可行的最小改动，已通过两次；lo 只能到达本机，多主机作业用它无法启动": "interface=lo",
    "shm=off, ib=off 在此可行，已通过两次；其中是否每一项都必需，未能测完": "shm=off, ib=off",
    "选择了 backend=gloo，已通过两次": "backend=gloo",
}


@pytest.fixture
def in_chinese(tmp_path, monkeypatch):
    """Writes the log of a terminal that spoke Chinese: a change that was taken, and what came after it."""
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")

    def write(says_zh, *then, again=False):
        out = io.StringIO()
        live = Live(console=Console(out, force_terminal=False, width=80))
        failure = "".join(LOG.splitlines(keepends=True)[:4])
        out.write(failure)
        live.tell(events.Climbing(cause="interface-selection", ranks=2, limit_s=600))
        live.tell(events.FellBack(choice={}, environment={"GLOO_SOCKET_IFNAME": ""}, arguments=(), says=both("", says_zh)))
        live.tell(events.Restarting(attempt=1, of=3))
        out.write(failure if again else "")
        for event in then:
            live.tell(event)
        log = tmp_path / "train.log"
        log.write_text(out.getvalue(), encoding="utf-8")
        return judge_logs([str(log)]).verdict

    return write


@pytest.mark.parametrize("says", SAYS_ZH)
def test_what_was_said_in_chinese_is_read_back(in_chinese, says):
    assert f": {SAYS_ZH[says]} (GLOO_SOCKET_IFNAME unset)" in in_chinese(says).primary.remedies[0].says
    ended = in_chinese(says, events.Finished(exitcode=0, attempts=2, incidents=1, elapsed_s=12.0, run_dir="runs/train-1"))
    assert "此后训练以此正常结束" in zh(ended.primary.remedies[0].says) and "（第 1 次尝试，共 2 次）" in zh(ended.primary.says)


@pytest.mark.parametrize("then", ["在第一步之前失败：已撤回并忘记", "在第一步之前失败：已撤回", "仍然失败：已忘记", "仍然失败：已撤回"])
def test_what_was_taken_back_in_chinese_is_not_proven(in_chinese, then):
    told = events.Note(text=both("with interface=auto it failed", f"以 interface=auto 训练{then}"))
    assert in_chinese(next(iter(SAYS_ZH)), told, again=True).primary.remedies[0].id == "unset-gloo"


HANG = """\
unhang: 2 ranks on cpu (gloo); first step 16.5 s after the start
step 20
{before}✗ process-stuck  likely
  A rank is alive and stands still outside any collective
{end}
unhang: {records} runs/train-1; unhang why runs/train-1
"""
INTERRUPTED = "W1124 10:28:36.572000 1715 torch/distributed/elastic/agent/server/api.py:753] Received 2 death signal, shutting down workers\n"


@pytest.mark.parametrize("records", ["records in", "记录在"])
@pytest.mark.parametrize(("before", "cause"), [("", "unknown"), (INTERRUPTED, "launcher-teardown")])
def test_what_unhang_run_printed_of_a_hang_leads_to_its_records(tmp_path, records, before, cause):
    log = tmp_path / "run.log"
    log.write_text(HANG.format(before=before, end="unhang: ended with exit code 1 after 0:57", records=records))
    found = judge_logs([str(log)]).verdict
    assert (found.primary.cause, found.primary.standing) == (cause, "not-established")
    assert [r.command for r in found.primary.remedies] == ["unhang why runs/train-1"]
    assert cause == "unknown" or "by the user: Ctrl-C" in found.primary.says
    assert not any("healthy" in n.why for n in found.not_examined)


def test_what_ended_well_after_all_has_failed_in_nothing(tmp_path):
    log = tmp_path / "run.log"
    log.write_text(HANG.format(before="", end="unhang: training finished after 0:38, 2 attempts", records="records in"))
    found = judge_logs([str(log)]).verdict
    assert found.primary is None and any("the training finished" in n.why for n in found.not_examined)


def test_of_several_runs_the_records_of_the_last_are_named(tmp_path):
    log = tmp_path / "run.log"
    first = HANG.format(before="", end="unhang: ended with exit code 1 after 0:57", records="records in")
    log.write_text(first + first.replace("train-1", "train-2"))
    found = judge_logs([str(log)]).verdict.primary
    assert found.remedies[0].command == "unhang why runs/train-2" and found.evidence[0].line == 12


def test_a_cause_that_is_named_keeps_its_own_remedies(tmp_path):
    log = tmp_path / "run.log"
    named = "[rank0]: RuntimeError: Distributed package doesn't have NCCL built in\n"
    log.write_text(HANG.format(before=named, end="unhang: ended with exit code 1 after 0:57", records="records in"))
    found = judge_logs([str(log)]).verdict.primary
    assert found.cause == "backend-unavailable" and "read-verdict" not in [r.id for r in found.remedies]
