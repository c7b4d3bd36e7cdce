"""What `unhang run --fallback` decides, without a process: the ladder is a fake here."""

from __future__ import annotations

import contextlib
import os
import pty
import sqlite3
import sys
import threading
import time
from dataclasses import replace

import pytest
from tests.chinese import both, zh

from unhang.cli import fallback, training_command
from unhang.cli.fallback import Fallback
from unhang.launch import command as commands
from unhang.launch import events
from unhang.launch.attempt import Result
from unhang.launch.command import Command
from unhang.model import Evidence, Finding, Outcome, Trial, Tried, Verdict
from unhang.records.rundir import RunDir
from unhang.remedies import job_fingerprint, ladder, outcome_store
from unhang.settings.setting import Installed

COMMAND = Command(
    argv=("python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py", "--token", "hf_" + "a" * 34),
    python="python",
    name="train",
    world_size=2,
    port=None,
    needs_torch=True,
)


STEPPED = events.FirstStep(ranks=2, devices=("cpu",), backend="gloo", after_s=1.0)
FINISHED = events.Finished(exitcode=0, attempts=2, incidents=1, elapsed_s=9.0)


def failed(cause="gloo-connect", steps=0):
    verdict = Verdict(primary=Finding(cause=cause, standing="likely", says=""))
    return Result(exitcode=1, ended_by_us=False, interrupted=False, steps=steps, pace=None, incident=None, verdict=verdict)


def outcome(chosen):
    return Outcome(chosen=chosen, rungs=(), confirmed=bool(chosen), says="it is so", environment={"GLOO_SOCKET_IFNAME": "lo"} if chosen else {})


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Makes one for a run; `found` is what the ladder will find, `climbs` how often it was asked, `told` what was said."""

    class Here:
        found = outcome({"interface": "lo"})
        climbs = 0
        versions = "torch 2.13"

        def __init__(self):
            self.told = []
            self.runs = 0

        def __call__(self, command=COMMAND, environ=None, **more):
            self.runs += 1
            rundir = RunDir.create(tmp_path / f"run{self.runs}")
            return Fallback(command, rundir=rundir, words=command.argv[6:], environ=environ or {}, **more)

        def said(self, kind):
            return [e for e in self.told if isinstance(e, kind)]

        def climb(self, bench, rungs, **more):
            self.climbs += 1
            self.bench, self.rungs, self.limit_s = bench, rungs, more["limit_s"]
            return self.found

        def before(self):
            """An earlier run of the job, whose change brought it to a step."""
            run = self()
            run.after(failed(), self.told.append, lambda: False)
            run.saw(STEPPED)
            run.saw(FINISHED)

        @contextlib.contextmanager
        def locked(self):
            """Another training holds the memory."""
            with contextlib.closing(sqlite3.connect(tmp_path / "cache" / outcome_store.FILE, isolation_level=None)) as other:
                other.execute("BEGIN EXCLUSIVE")
                yield
                other.execute("ROLLBACK")

        def texts(self):
            return [e.text for e in self.said(events.Note)]

    made = Here()
    monkeypatch.setattr(ladder, "climb", made.climb)
    monkeypatch.setattr(fallback, "find_installed", lambda python, host: Installed(torch=(2, 13), nccl=None))
    monkeypatch.setattr(job_fingerprint, "key", lambda **asked: job_fingerprint.Key(place=str(asked["words"]), versions=made.versions))
    monkeypatch.setattr(fallback, "cache_folder", lambda: tmp_path / "cache")
    return made


def test_the_next_attempt_has_what_was_found(here):
    run = here(environ={"HOME": "/root"})
    assert run.at_start(here.told.append) is None
    changed = run.after(failed(), here.told.append, lambda: False)
    assert changed.environ == {"HOME": "/root", "GLOO_SOCKET_IFNAME": "lo"} and changed.command == COMMAND
    assert here.said(events.FellBack)[0].choice == {"interface": "lo"}


def test_the_next_run_begins_there(here):
    here.before()
    again = here()
    assert again.at_start(here.told.append).environ["GLOO_SOCKET_IFNAME"] == "lo"
    assert here.climbs == 1 and here.said(events.FellBack)[-1].remembered


def test_who_only_looks_changes_nothing_of_what_is_remembered(here):
    here.before()
    for looking in (here(), here(forgets=True)):
        looking.at_start(here.told.append, looks_only=True)
    here.versions = "torch 2.14"
    assert here().at_start(here.told.append, looks_only=True) is None
    here.versions = "torch 2.13"
    assert here().at_start(here.told.append) is not None


def test_what_was_remembered_and_fails_is_forgotten_and_looked_for_anew(here):
    here.before()
    again = here()
    again.at_start(here.told.append)
    here.found = outcome({"processes": 1})
    changed = again.after(failed(), here.told.append, lambda: False)
    assert here.climbs == 2
    assert "GLOO_SOCKET_IFNAME" not in changed.environ
    assert changed.command.world_size == 1 and "--nproc-per-node 1 " in " ".join(changed.command.argv)


def test_what_was_just_found_and_fails_is_forgotten_and_not_looked_for_again(here, tmp_path):
    run = here(environ={"HOME": "/root"})
    run.after(failed(), here.told.append, lambda: False)
    back = run.after(failed(), here.told.append, lambda: False)
    assert back.environ == {"HOME": "/root"} and back.command == COMMAND
    assert run.outcome.chosen is None and not run.outcome.confirmed
    assert "taken back" in (tmp_path / "run1" / "solution.md").read_text()
    assert run.after(failed(), here.told.append, lambda: False) is None
    assert here.climbs == 1 and here().at_start(here.told.append) is None


def test_probes_alone_are_not_remembered(here):
    here().after(failed(), here.told.append, lambda: False)
    assert here().at_start(here.told.append) is None


@pytest.mark.parametrize("cause", ["gpu-oom", "config-error"])
def test_a_change_with_which_it_comes_to_no_step_is_taken_back_whatever_the_cause(here, cause):
    here.before()
    again = here(environ={"HOME": "/root"})
    assert again.at_start(here.told.append).environ["GLOO_SOCKET_IFNAME"] == "lo"
    assert again.after(failed(cause), here.told.append, lambda: False).environ == {"HOME": "/root"}
    assert here().at_start(here.told.append) is None and here.climbs == 1


def test_a_change_with_which_it_trained_stays(here):
    here.before()
    again = here()
    again.at_start(here.told.append)
    assert again.after(failed("gpu-oom", steps=100), here.told.append, lambda: False) is None
    assert here().at_start(here.told.append) is not None


def test_what_was_typed_is_not_overruled(here):
    here.before()
    typed = here(typed=["interface"])
    assert typed.at_start(here.told.append) is None and "given by hand" in here.said(events.Note)[-1].text
    typed.after(failed(), here.told.append, lambda: False)
    assert not any("interface" in rung.adds for rung in here.rungs) and any("processes" in rung.adds for rung in here.rungs)


@pytest.mark.parametrize("value", ["gloo", " Gloo ", "nccl"])
def test_the_backend_is_the_one_that_the_hook_puts(here, value):
    # It ignores any but Gloo, and what is left decides: there are no GPUs.
    here(environ={"UNHANG_BACKEND": value}).after(failed(), here.told.append, lambda: False)
    assert here.bench.backend == "gloo"


def test_gloo_that_never_joined_is_tried_over_gloo(here, monkeypatch):
    monkeypatch.setattr(fallback, "find_installed", lambda python, host: Installed(torch=(2, 13), nccl=(2, 27, 3), gpus=8))
    here().after(failed("gloo-connect"), here.told.append, lambda: False)
    assert here.bench.backend == "gloo"
    here().after(failed("unhandled-generic"), here.told.append, lambda: False)
    assert here.bench.backend == "nccl"


def test_a_typed_configuration_of_the_rendezvous_stays(here):
    here(environ={"PET_RDZV_CONF": "join_timeout=9"}).after(failed(), here.told.append, lambda: False)
    assert here.climbs == 1 and not any("timeout" in rung.adds for rung in here.rungs)
    here().after(failed(), here.told.append, lambda: False)
    assert any("timeout" in rung.adds for rung in here.rungs)


def test_it_expires_with_the_versions(here):
    here.before()
    here.versions = "torch 2.14"
    assert here().at_start(here.told.append) is None
    assert any("no longer holds" in e.text for e in here.said(events.Note))


def test_it_can_be_forgotten(here):
    here.before()
    assert here(forgets=True).at_start(here.told.append) is None
    assert here().at_start(here.told.append) is None


def test_what_cannot_be_forgotten_is_not_said_to_be(here, monkeypatch):
    here.before()
    here.told.clear()
    monkeypatch.setattr(outcome_store, "_BUSY_S", 0.05)
    with here.locked():
        assert here(forgets=True).at_start(here.told.append) is None
    assert len(here.told) == 1 and "is not forgotten" in here.texts()[0] and "locked" in here.texts()[0]
    again = here(environ={"HOME": "/root"})
    assert again.at_start(here.told.append) is not None
    with here.locked():
        assert again.after(failed("gpu-oom"), here.told.append, lambda: False).environ == {"HOME": "/root"}
    assert here.texts()[-1].endswith("it failed before its first step: taken back") and "is not forgotten" in here.texts()[-2]


def test_what_becomes_of_a_change_is_told_in_chinese_too(here):
    here.found = replace(here.found, says=both(here.found.says, "如此"))
    run = here()
    run.after(failed(), here.told.append, lambda: False)
    assert [zh(e.says) for e in here.said(events.FellBack)] == ["如此"]
    run.saw(STEPPED)
    run.saw(FINISHED)
    for cause, said in (("gpu-oom", "以 interface=lo 训练在第一步之前失败：已撤回并忘记"), ("gloo-connect", "以 interface=lo 训练仍然失败：已忘记")):
        again = here()
        here.told.clear()
        again.at_start(here.told.append)
        assert "以 interface=lo 正常运行（用 unhang run --forget 可忘记）" in zh(here.said(events.FellBack)[0].says)
        again.after(failed(cause), here.told.append, lambda: False)
        assert said in [zh(e.text) for e in here.said(events.Note)]
        here.before()


def test_a_memory_that_is_held_by_another_training_holds_up_nobody(here):
    here.before()
    here.versions = "torch 2.14"
    run = here()
    assert run.at_start(here.told.append) is None
    run.after(failed(), here.told.append, lambda: False)
    here.told.clear()
    with here.locked():
        began = time.monotonic()
        run.saw(STEPPED)
        assert time.monotonic() - began < outcome_store._BUSY_S / 4
        assert not here.told
    run.saw(FINISHED)
    assert ["is remembered for this job" in text for text in here.texts()] == [True]
    assert here().at_start(here.told.append) is not None


def test_a_memory_that_never_answers_ends_no_run_late(here, monkeypatch):
    run, answers = here(), threading.Event()
    monkeypatch.setattr(fallback, "_KEEP_S", 0.05)
    monkeypatch.setattr(outcome_store.Memory, "keep", lambda *_, **__: answers.wait(60))
    run.after(failed(), here.told.append, lambda: False)
    try:
        run.saw(STEPPED)
        run.saw(FINISHED)
        assert "is not known" in here.texts()[-1] and "has not answered" in here.texts()[-1]
    finally:
        answers.set()


def test_the_machine_is_not_looked_at_while_the_training_is_watched(here, monkeypatch):
    looked = []
    monkeypatch.setattr(job_fingerprint, "key", lambda **_: looked.append(1) or job_fingerprint.Key(place="a", versions="b"))
    run = here()
    run.at_start(here.told.append)
    run.after(failed(), here.told.append, lambda: False)
    assert looked == [1]
    run.saw(STEPPED)
    run.saw(FINISHED)
    assert looked == [1] and "is remembered" in here.texts()[-1]


@pytest.mark.parametrize("cause", ["rank-exception", "collective-mismatch", "gpu-oom"])
def test_the_code_is_not_answered_by_settings(here, cause):
    assert here().after(failed(cause), here.told.append, lambda: False) is None
    assert here.climbs == 0


@pytest.mark.parametrize(
    "environ",
    [
        {"NNODES": "2"},
        {"SLURM_JOB_NUM_NODES": "4"},
        {"PET_NNODES": "1:3"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"},
        {"RANK": "1", "WORLD_SIZE": "2"},
    ],
)
def test_several_hosts_are_told_why_nothing_is_tried(here, environ):
    assert here(environ=environ).after(failed(), here.told.append, lambda: False) is None
    assert here.climbs == 0 and "say nothing about the others" in here.said(events.Note)[0].text


def test_a_file_may_name_hosts(here, tmp_path):
    two, one = tmp_path / "two.yaml", tmp_path / "one.yaml"
    two.write_text("num_machines: 2\n")
    one.write_text("num_machines: 1\n")
    for argv, climbs in (
        (("deepspeed", "--hostfile", "hosts", "t.py"), 0),
        (("accelerate", "launch", "--config_file", str(two), "t.py"), 0),
        (("accelerate", "launch", "--config_file", str(one), "t.py"), 1),
    ):
        command = Command(argv=argv, python="python", name="t", world_size=2, port=None)
        here(command=command).after(failed(), here.told.append, lambda: False)
        assert here.climbs == climbs


@pytest.mark.timeout(300)
def test_a_file_of_which_nothing_can_be_told_may_name_hosts(here, tmp_path):
    """Nested beyond what a parser takes, too large, a number without end, a pipe that nobody writes."""
    deep, large, endless, pipe = (tmp_path / name for name in ("deep.yaml", "large.yaml", "endless.yaml", "pipe.yaml"))
    deep.write_text("x: " + "[" * 5000)
    large.write_text("num_machines: 1\n" + "# much\n" * 300_000)
    endless.write_text("num_machines: .inf\n")
    os.mkfifo(pipe)
    for path in (deep, large, endless, pipe):
        command = Command(argv=("accelerate", "launch", "--config_file", str(path), "t.py"), python="python", name="t", world_size=2, port=None)
        here(command=command).after(failed(), here.told.append, lambda: False)
        assert here.climbs == 0 and f"{path} may be for several hosts" in here.said(events.Note)[-1].text
    (tmp_path / "fields.yaml").symlink_to(deep)
    factory = Command(argv=("llamafactory-cli", "train", str(tmp_path / "fields.yaml")), python="python", name="t", world_size=2, port=None)
    assert commands.option(factory, "--ddp-timeout") is None


def test_a_cache_that_cannot_be_is_no_reason_to_stop(here, tmp_path, monkeypatch):
    monkeypatch.setattr(fallback, "cache_folder", lambda: tmp_path / ("long" * 100))
    assert here().at_start(here.told.append, looks_only=True) is None


def test_so_may_the_files_that_launchers_read_by_themselves(here, tmp_path, monkeypatch):
    monkeypatch.setattr(training_command, "_HOSTFILE", tmp_path / "hostfile")
    default = tmp_path / "accelerate/default_config.yaml"
    default.parent.mkdir()
    deepspeed, accelerate, told = ("deepspeed", "t.py"), ("accelerate", "launch", "t.py"), ("accelerate", "launch", "--num_machines", "1", "t.py")

    def is_tried(argv):
        before = here.climbs
        command = Command(argv=argv, python="python", name="t", world_size=2, port=None)
        here(command=command, environ={"HF_HOME": str(tmp_path)}).after(failed(), here.told.append, lambda: False)
        return here.climbs > before

    assert is_tried(deepspeed) and is_tried(accelerate)
    (tmp_path / "hostfile").write_text("a slots=2\nb slots=2\n")
    default.write_text("num_machines: 2\n")
    assert not is_tried(deepspeed) and not is_tried(accelerate) and is_tried(told)


def test_ranks_that_run_elsewhere_are_seen(here):
    run = here()
    run.saw(events.Joined(rank=0, world_size=16, backend="nccl", device=None))
    assert run.after(failed(), here.told.append, lambda: False) is None and here.climbs == 0


@pytest.mark.parametrize("chosen", [None, {}])
def test_where_nothing_is_found_nothing_is_changed(here, chosen):
    here.found = outcome(chosen)
    run = here()
    assert run.after(failed(), here.told.append, lambda: False) is None
    assert "nothing is changed" in here.said(events.Note)[0].text
    assert run.after(failed(), here.told.append, lambda: False) is None and here.climbs == 1


def test_off_is_off(here):
    here.before()
    off = here(mode="off")
    assert off.at_start(here.told.append) is None and off.after(failed(), here.told.append, lambda: False) is None
    assert here.climbs == 1


def test_off_tells_once_what_would_have_been_tried(here):
    off = here(mode="off")
    for cause in ("gpu-oom", "gloo-connect", "gloo-connect"):
        off.after(failed(cause), here.told.append, lambda: False)
    assert ["--fallback auto" in e.text and "gloo-connect" in e.text for e in here.said(events.Note)] == [True]
    here.told.clear()
    here(mode="off", environ={"NNODES": "2"}).after(failed(), here.told.append, lambda: False)
    assert not here.told


def test_who_cannot_be_asked_is_told_at_once_and_not_again(here, monkeypatch):
    monkeypatch.setattr(fallback, "_can_ask", lambda: False)
    run = here(mode="ask")
    run.at_start(here.told.append)
    assert ["no terminal" in e.text for e in here.said(events.Note)] == [True]
    run.after(failed(), here.told.append, lambda: False)
    run.after(failed(), here.told.append, lambda: False)
    assert len(here.told) == 1 and here.climbs == 0


def test_the_ways_are_offered_in_the_order_of_the_ladder(here, monkeypatch):
    def tried(id, choice, busbw_gbps=1.0):
        trial = Trial(choice=choice, outcome="passed", world_size=2, backend="gloo", says="", busbw_gbps=busbw_gbps)
        return Tried(id=id, title=both(id, id), cost=both("", ""), trial=trial)

    found = (tried("ib-off", {"ib": False}), tried("interface", {"interface": "lo"}), tried("nvls-off", {"nvls": False}, 9.0))
    here.found = replace(outcome({"interface": "lo"}), rungs=found)
    monkeypatch.setattr(fallback, "_can_ask", lambda: True)
    offered = []
    monkeypatch.setattr(fallback.ladder_report, "menu", lambda ways, lang: offered.extend(w.title for w in ways) or "")
    monkeypatch.setattr(fallback.termios, "tcflush", lambda *_: None)
    monkeypatch.setattr(fallback.sys, "stdin", None)
    run = here(mode="ask")
    monkeypatch.setattr(run, "_number", lambda *_: 1)
    assert run.after(failed(), here.told.append, lambda: False) is not None
    assert offered == ["interface", "ib-off", "nvls-off"]


@pytest.fixture
def terminal(monkeypatch):
    """What types into the terminal at which the user is asked."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "rb", buffering=0) as stdin:
        monkeypatch.setattr(fallback.sys, "stdin", stdin)
        monkeypatch.setattr(fallback, "_can_ask", lambda: True)
        yield lambda text: os.write(ours, text)
    os.close(ours)


def two_ways():
    def tried(choice):
        trial = Trial(choice=choice, outcome="passed", world_size=2, backend="gloo", says="")
        return Tried(id="x", title=both("x", "x"), cost=both("", ""), trial=trial)

    return replace(outcome({"interface": "lo"}), rungs=(tried({"interface": "lo"}), tried({"ib": False})))


def test_an_answer_is_not_waited_for_longer_than_the_limit(here, terminal, capsys):
    here.found = two_ways()
    began = time.monotonic()
    run = here(mode="ask", limit_s=0.5)

    def tell(event):
        here.told.append(event)
        sys.stderr.write(f"{type(event).__name__}\n")

    assert run.after(failed(), tell, lambda: False) is None
    assert 0.5 <= time.monotonic() - began < 60
    assert run.outcome.chosen is None and "before the time of 0.5 s was over" in run.outcome.says
    assert here.texts()[-1].endswith("was over; nothing is changed")
    # Told before the menu, and a quarter of it is kept for the answer.
    assert here.said(events.Asking)[0].within_s <= 0.5 and here.limit_s == 0.375
    before, menu, _ = capsys.readouterr().err.partition("what works on this machine")
    # Whoever shows it gives out first what is held back.
    assert menu and "Asking\n" in before


def test_a_way_that_is_tried_once_more_has_what_is_left_of_the_limit(here, terminal, monkeypatch):
    here.found = two_ways()
    limits = []

    def again(bench, choice, limit_s):
        limits.append(limit_s)
        terminal(b"2\n" if len(limits) < 2 else b"0\n")
        return Trial(choice=choice, outcome="failed", world_size=2, backend="gloo", says="it fails")

    monkeypatch.setattr(fallback.trial, "run", again)
    monkeypatch.setattr(fallback.termios, "tcflush", lambda *_: terminal(b"2\n"))
    run = here(mode="ask", limit_s=60.0)
    assert run.after(failed(), here.told.append, lambda: False) is None
    assert len(limits) == 2 and 60 > limits[0] > limits[1] > 50


def test_who_interrupts_changes_nothing(here):
    assert here().after(failed(), here.told.append, lambda: True) is None
    assert here().at_start(here.told.append) is None


def test_who_interrupts_keeps_what_was_measured(here, tmp_path):
    here.found = replace(outcome(None), says="interrupted: what was tried until then is all there is")
    here().after(failed(), here.told.append, lambda: True)
    assert "interrupted" in (tmp_path / "run1" / "solution.md").read_text()
    (note,) = here.said(events.Note)
    assert "nothing is changed: nothing had passed until then" in note.text and str(tmp_path / "run1" / "solution.md") in note.text


def test_the_report_holds_no_credentials(here, tmp_path):
    here(options=("-n", "2")).after(failed(), here.told.append, lambda: False)
    text = (tmp_path / "run1" / "solution.md").read_text()
    assert "unhang run --set interface=lo -n 2 train.py" in text and "hf_aaa" not in text


def lacks_nccl():
    finding = Finding(
        cause="backend-unavailable",
        standing="established",
        says="",
        evidence=(Evidence(source="log", text="RuntimeError: Distributed package doesn't have NCCL built in"),),
    )
    return replace(failed(), verdict=Verdict(primary=finding))


@pytest.mark.parametrize("nccl", [None, (2, 27, 3)])
def test_where_nccl_cannot_be_gloo_is_tried(here, monkeypatch, nccl):
    # A torch for CUDA has the library on a machine without GPUs, too.
    monkeypatch.setattr(fallback, "find_installed", lambda python, host: Installed(torch=(2, 13), nccl=nccl))
    here.found = outcome({"backend": "gloo"})
    assert here().after(lacks_nccl(), here.told.append, lambda: False).environ["UNHANG_BACKEND"] == "gloo"
    assert here.bench.backend == "nccl" and here.bench.installed.nccl is None and here.rungs[0].id == "prescribed-gloo"


@pytest.mark.parametrize(("gpus", "environ"), [(8, {}), (0, {"CUDA_VISIBLE_DEVICES": ""})])
def test_who_has_gpus_is_not_put_on_the_cpu_by_itself(here, monkeypatch, gpus, environ):
    monkeypatch.setattr(fallback, "find_installed", lambda python, host: Installed(torch=(2, 13), nccl=None, gpus=gpus))
    assert here(environ=environ).after(lacks_nccl(), here.told.append, lambda: False) is None
    assert here.climbs == 0 and "unhang run --set backend=gloo" in here.said(events.Note)[-1].text
