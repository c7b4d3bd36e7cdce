"""Options as words that start the same again."""

import typer
from typer.testing import CliRunner

from unhang.cli import run


def again_of(*typed, monkeypatch):
    """What `unhang run TYPED` would be started with again."""
    from unhang.cli import running

    asked = []
    monkeypatch.setattr(running, "run", asked.append)
    app = typer.Typer()
    run.register(app)
    app.callback()(lambda: None)
    done = CliRunner().invoke(app, ["run", *typed])
    assert done.exit_code == 0, done.output
    return asked[0].own_words


def test_what_was_typed_stays_and_what_is_for_one_run_goes(monkeypatch):
    typed = ("--nproc-per-node=2", "--set", "timeout=20m", "--set", "p2p=off", "--preset", "basic", "--run-dir", "r", "--forget", "--no-world-check")
    words = again_of(*typed, "--hang-after", "2000000", "--timeout", "2h", "-m", "mod", "--x", "1", monkeypatch=monkeypatch)
    assert " ".join(words) == "-n 2 --hang-after 2000000 --preset basic --set timeout=20m --set p2p=off --timeout 2h --no-world-check -m"
    # What they come to is the same.
    assert again_of(*words, "mod", monkeypatch=monkeypatch) == words


def test_defaults_are_not_said(monkeypatch):
    assert again_of("train.py", "--quiet", monkeypatch=monkeypatch) == ()
