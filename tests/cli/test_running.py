"""What `unhang run` does behind a training: the report for a browser, which may fail and change nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from unhang.cli import running
from unhang.errors import EXIT_INTERRUPTED, UnhangError
from unhang.launch import environment, events, supervise
from unhang.launch.command import Command
from unhang.model import Finding, Outcome, Verdict
from unhang.records.rundir import RunDir
from unhang.report import html

VERDICT = Verdict(primary=Finding(cause="process-stuck", standing="possible", says="rank 1 stands still"))


@pytest.fixture
def rundir(tmp_path):
    rundir = RunDir.create(tmp_path / "run")
    rundir.write(rundir.run, {"schema": "unhang/run/1", "torch": "2.13"})
    return rundir


def test_the_report_is_in_the_run_directory(rundir, capsys):
    running.write_report(rundir, VERDICT)
    assert "rank 1 stands still" in rundir.report_html.read_text("utf-8")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError(), ValueError("of our own"), KeyboardInterrupt()])
def test_a_report_that_fails_is_told_and_no_more(rundir, capsys, monkeypatch, error):
    def fails(*_args, **_more):
        raise error

    monkeypatch.setattr(html, "render", fails)
    running.write_report(rundir, VERDICT)
    assert not rundir.report_html.exists()
    assert (str(rundir.report_html) in capsys.readouterr().err) is not isinstance(error, KeyboardInterrupt)


def request_of(run_dir):
    return running.Request(
        words=("sh", "-c", "echo started"),
        nproc_per_node=None,
        module=False,
        on_failure="abort",
        max_restarts=0,
        hang_after_s=None,
        startup_s=9.0,
        run_dir=run_dir,
        prefix=False,
        quiet=True,
        python=None,
        check_world=True,
        dry_run=False,
        as_json=False,
    )


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"fallback": "ask", "max_restarts": 3}, "--fallback ask has no effect with --on-failure abort"),
        ({"fallback": "ask", "on_failure": "restart"}, "--fallback ask has no effect with --max-restarts 0"),
        ({"trial_command": "t.py", "on_failure": "restart", "max_restarts": 3, "fallback": "off"}, "--trial-command .* --fallback off"),
        ({"fallback_limit_s": 60.0, "on_failure": "report"}, "--fallback-limit .* --on-failure report"),
        ({"trial_limit_s": 60.0, "on_failure": "restart", "max_restarts": 3}, "without --trial-command"),
    ],
)
def test_options_that_would_do_nothing_are_refused(tmp_path, given, named):
    with pytest.raises(UnhangError, match=named):
        running.run(replace(request_of(tmp_path / "r"), **given))
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"trial_command": "sh -c :"}, r"--trial-command has no effect with \[run\] fallback of unhang.toml"),
        ({"fallback": "auto", "trial_command": "no-such-command"}, "no such command"),
        ({"fallback": "maybe"}, "it is one of auto, ask, off"),
    ],
)
def test_what_unhang_toml_says_of_trying_holds_where_nothing_is_typed(tmp_path, monkeypatch, given, named):
    (tmp_path / "unhang.toml").write_text("[run]\nfallback = 'off'\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnhangError, match=named):
        running.run(replace(request_of(tmp_path / "r"), on_failure="restart", max_restarts=3, **given))
    assert not (tmp_path / "r").exists()


def test_the_limit_of_unhang_toml_reaches_the_ladder(tmp_path, monkeypatch):
    (tmp_path / "unhang.toml").write_text("[run]\nfallback = 'ask'\nfallback-limit = '2m'\n")
    monkeypatch.chdir(tmp_path)
    asked = []

    class Noted(Exception):
        pass

    def made(*_, mode, limit_s, **__):
        asked.append((mode, limit_s))
        raise Noted

    monkeypatch.setattr(running, "Fallback", made)
    for given in ({}, {"fallback": "auto", "fallback_limit_s": 30.0}):
        with pytest.raises(Noted):
            running.run(replace(request_of(tmp_path / "r"), dry_run=True, on_failure="restart", max_restarts=3, **given))
    assert asked == [("ask", 120.0), ("auto", 30.0)]


@pytest.mark.parametrize(("set_apart", "front"), [(False, ()), (True, ("--",))])
def test_what_was_typed_reaches_solution_md(tmp_path, monkeypatch, set_apart, front):
    asked = []

    class Noted(Exception):
        pass

    def made(*_, words, options, **__):
        asked.append((*options, *words))
        raise Noted

    monkeypatch.setattr(running, "Fallback", made)
    with pytest.raises(Noted):
        running.run(replace(request_of(tmp_path / "r"), dry_run=True, own_words=("--set", "timeout=20m"), set_apart=set_apart))
    assert asked == [("--set", "timeout=20m", *front, "sh", "-c", "echo started")]


def test_a_dry_run_shows_what_is_remembered(tmp_path, monkeypatch, capsys):
    command = Command(argv=("sh",), python="python", name="t", world_size=None, port=None)
    asked = []

    class Remembers:
        outcome = Outcome(chosen={"interface": "lo"}, rungs=(), confirmed=True)

        def at_start(self, tell, *, looks_only):
            asked.append(looks_only)
            tell(events.FellBack(choice={"interface": "lo"}, environment={}, arguments=(), says="lo is what it got on with", remembered=True))
            return supervise.Changed(environ={"GLOO_SOCKET_IFNAME": "lo"}, command=replace(command, argv=("sh", "-x")))

    monkeypatch.setattr(environment, "torch_version", lambda _: None)
    for as_json in (False, True):
        running._dry_run(command, RunDir(tmp_path / "r"), None, Remembers(), as_json=as_json, lang="en")
    shown, _, described = capsys.readouterr().out.partition("sh -x\n")
    assert "# lo is what it got on with\n" in shown and "\nGLOO_SOCKET_IFNAME=lo\n" in shown and asked == [True, True]
    found = json.loads(described)
    assert found["remembered"] == {"interface": "lo"} and found["command"] == ["sh", "-x"] and not (tmp_path / "r").exists()


@pytest.mark.parametrize("made_before", [False, True])
def test_an_interrupt_before_the_training_began_leaves_no_run_directory(tmp_path, monkeypatch, capsys, made_before):
    def interrupted(_):
        assert (tmp_path / "r").is_dir()
        raise SystemExit(EXIT_INTERRUPTED)

    monkeypatch.setattr(environment, "torch_version", interrupted)
    if made_before:
        (tmp_path / "r").mkdir()
    with pytest.raises(SystemExit):
        running.run(request_of(tmp_path / "r"))
    assert (tmp_path / "r").exists() is made_before
    assert "interrupted before the training began" in capsys.readouterr().err


def test_an_interrupt_of_a_training_that_had_begun_leaves_its_records(tmp_path, monkeypatch, capsys):
    def ended(supervisor):
        supervisor._tell(events.Started(attempt=0, pid=1, command=("sh",)))
        raise SystemExit(EXIT_INTERRUPTED)

    monkeypatch.setattr(supervise.Supervisor, "run", ended)
    monkeypatch.setattr(supervise.Supervisor, "_started", 0.0, raising=False)
    with pytest.raises(SystemExit):
        running.run(request_of(tmp_path / "r"))
    assert (tmp_path / "r" / "events.jsonl").is_file() and "before" not in capsys.readouterr().err
