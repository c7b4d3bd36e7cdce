"""What `unhang run --fallback` decides, without a process: the ladder is a fake here."""

from __future__ import annotations

import pytest

from unhang.cli import fallback
from unhang.cli.fallback import Fallback
from unhang.knowledge.settings.setting import Installed
from unhang.launch import events
from unhang.launch.attempt import Result
from unhang.launch.command import Command
from unhang.model import Finding, Outcome, Verdict
from unhang.records.rundir import RunDir
from unhang.remedies import fingerprint, ladder

COMMAND = Command(
    argv=("python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py", "--token", "hf_" + "a" * 34),
    python="python",
    name="train",
    world_size=2,
    port=None,
    needs_torch=True,
)


def failed(cause="gloo-connect"):
    verdict = Verdict(primary=Finding(cause=cause, standing="likely", says=""))
    return Result(exitcode=1, ended_by_us=False, interrupted=False, steps=0, pace=None, incident=None, verdict=verdict)


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

        def climb(self, *args, **more):
            self.climbs += 1
            return self.found

    made = Here()
    monkeypatch.setattr(ladder, "climb", made.climb)
    monkeypatch.setattr(fallback, "find_installed", lambda python, host: Installed(torch=(2, 13), nccl=None))
    monkeypatch.setattr(fingerprint, "key", lambda **asked: fingerprint.Key(place=str(asked["words"]), versions=made.versions))
    monkeypatch.setattr(fallback.caches, "folder", lambda: tmp_path / "cache")
    return made


def test_the_next_attempt_has_what_was_found(here):
    run = here(environ={"HOME": "/root"})
    assert run.at_start(here.told.append) is None
    changed = run.after(failed(), here.told.append, lambda: False)
    assert changed.environ == {"HOME": "/root", "GLOO_SOCKET_IFNAME": "lo"} and changed.command == COMMAND
    assert here.said(events.FellBack)[0].choice == {"interface": "lo"}


def test_the_next_run_begins_there(here):
    here().after(failed(), here.told.append, lambda: False)
    again = here()
    assert again.at_start(here.told.append).environ["GLOO_SOCKET_IFNAME"] == "lo"
    assert here.climbs == 1 and here.said(events.FellBack)[-1].remembered


def test_what_was_remembered_and_fails_is_forgotten_and_looked_for_anew(here):
    here().after(failed(), here.told.append, lambda: False)
    again = here()
    again.at_start(here.told.append)
    here.found = outcome({"processes": 1})
    changed = again.after(failed(), here.told.append, lambda: False)
    assert here.climbs == 2
    assert "GLOO_SOCKET_IFNAME" not in changed.environ
    assert changed.command.world_size == 1 and "--nproc-per-node 1 " in " ".join(changed.command.argv)


def test_what_was_just_found_and_fails_is_forgotten_and_not_looked_for_again(here):
    run = here()
    run.after(failed(), here.told.append, lambda: False)
    assert run.after(failed(), here.told.append, lambda: False) is None
    assert here.climbs == 1 and here().at_start(here.told.append) is None


def test_it_expires_with_the_versions(here):
    here().after(failed(), here.told.append, lambda: False)
    here.versions = "torch 2.14"
    assert here().at_start(here.told.append) is None
    assert any("no longer holds" in e.text for e in here.said(events.Note))


def test_it_can_be_forgotten(here):
    here().after(failed(), here.told.append, lambda: False)
    assert here(forgets=True).at_start(here.told.append) is None
    assert here().at_start(here.told.append) is None


@pytest.mark.parametrize("cause", ["rank-exception", "collective-mismatch", "gpu-oom"])
def test_the_code_is_not_answered_by_settings(here, cause):
    assert here().after(failed(cause), here.told.append, lambda: False) is None
    assert here.climbs == 0


@pytest.mark.parametrize("environ", [{"NNODES": "2"}, {"SLURM_JOB_NUM_NODES": "4"}])
def test_several_hosts_are_told_why_nothing_is_tried(here, environ):
    assert here(environ=environ).after(failed(), here.told.append, lambda: False) is None
    assert here.climbs == 0 and "hosts" in here.said(events.Note)[0].text


@pytest.mark.parametrize("chosen", [None, {}])
def test_where_nothing_is_found_nothing_is_changed(here, chosen):
    here.found = outcome(chosen)
    run = here()
    assert run.after(failed(), here.told.append, lambda: False) is None
    assert "nothing is changed" in here.said(events.Note)[0].text
    assert run.after(failed(), here.told.append, lambda: False) is None and here.climbs == 1


def test_off_is_off(here):
    here().after(failed(), here.told.append, lambda: False)
    off = here(mode="off")
    assert off.at_start(here.told.append) is None and off.after(failed(), here.told.append, lambda: False) is None
    assert here.climbs == 1


def test_who_interrupts_changes_nothing(here):
    assert here().after(failed(), here.told.append, lambda: True) is None
    assert here().at_start(here.told.append) is None


def test_the_report_holds_no_credentials(here, tmp_path):
    here().after(failed(), here.told.append, lambda: False)
    text = (tmp_path / "run1" / "solution.md").read_text()
    assert "unhang run --set interface=lo -n 2 train.py" in text and "hf_aaa" not in text
