"""What a command refuses with, in Chinese: what was wrong, why, and what to try."""

from __future__ import annotations

import re
import sys

import pytest
import typer
from tests.tables import for_each
from typer.testing import CliRunner

from unhang.cli import app as whole
from unhang.cli import doctor, export, presets, run
from unhang.errors import UnhangError
from unhang.report import language

# Four words of prose, or more, that are no command line, no option and no list of names.
_PROSE = re.compile(r"(?<![-\w/.])[a-z']+(?: [a-z']+){3,}")
_COMMANDS = re.compile(r"unhang [a-z]+(?: [-\w./=:]+)*")

REFUSED = {
    "a form": ["export", "nothing"],
    "no form": ["export"],
    "hosts of the menu": ["export", "bash", "--nodes", "2"],
    "a launcher in another": ["export", "torchrun", "--", "accelerate", "launch", "torchrun", "train.py"],
    "a name": ["export", "slurm", "--name", "X_Y"],
    "fp8": ["export", "lightning", "--set", "precision=fp8"],
    "what no form carries": ["export", "torchrun", "--set", "batch=4"],
    "a preset": ["presets", "nope"],
    "a preset of a run": ["run", "--preset", "nope", "true"],
    "a setting": ["run", "--set", "nope=1", "true"],
    "a number of processes for python": ["run", "-n", "2", "--", "python3", "train.py"],
    "a number for python without a script": ["run", "-n", "2", "python3", "-c", "1"],
    "a value": ["run", "--set", "shm=maybe", "true"],
    "no value": ["run", "--set", "shm", "true"],
    "a setting without an effect": ["run", "--set", "batch=4", "--dry-run", "true"],
    "an interface": ["run", "--set", "interface=nosuch0", "--dry-run", "true"],
    "a mode": ["run", "--fallback", "nope", "true"],
    "a policy": ["run", "--on-failure", "nope", "true"],
    "a limit for nothing": ["run", "--trial-limit", "9s", "true"],
    "a trial that is never run": ["run", "--trial-command", "t.py", "--fallback", "off", "true"],
    "a trial that cannot be run": ["run", "--trial-command", "nosuchcommand", "true"],
    "a limit of doctor's": ["doctor", "--fix-limit", "40s"],
    "options behind the command": ["run", "train.py", "--dry-run"],
}


@for_each("words", REFUSED.values(), ids=REFUSED)
def test_refusals_leave_no_english_sentence_under_chinese(words, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    (tmp_path / "train.py").write_text("")
    app = typer.Typer()
    app.callback()(lambda: None)
    for verb in (doctor, export, presets, run):
        verb.register(app)
    ran = CliRunner().invoke(app, words)
    assert isinstance(ran.exception, UnhangError), ran.output
    language.chosen(None)
    whole._complain(ran.exception)
    said = capsys.readouterr().err
    for line in said.splitlines():
        assert not _PROSE.search(_COMMANDS.sub("", line)), line
    assert re.search("[\u4e00-\u9fff]", said.splitlines()[0]), said
    monkeypatch.setenv("LC_ALL", "C")
    whole._complain(ran.exception)
    assert not re.search("[\u4e00-\u9fff]", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["why", "--nope"], "没有选项 --nope"),
        (["why", "--repor", "x"], "没有选项 --repor"),
        (["run", "--max-restarts", "x", "t.py"], "'--max-restarts' 的值无效：'x' 不是整数"),
        (["run", "--max-restarts", "-1", "t.py"], "-1 不在 x>=0 的范围内"),
        (["run"], "缺少参数"),
        (["top", "a", "b"], "多余的参数"),
        (["explian"], "没有命令 'explian'"),
        (["--nope"], "没有选项 --nope"),
        (["why", "--lang"], "需要一个值"),
    ],
)
def test_what_typer_refuses(words, says, monkeypatch, capfd):
    language.chosen(None)
    for locale in ("zh_CN.UTF-8", "C.UTF-8"):
        monkeypatch.setenv("LC_ALL", locale)
        with pytest.raises(SystemExit) as left:
            whole.app(words, prog_name="unhang")
        assert left.value.code == 2
        said = capfd.readouterr().err
        lines = said.splitlines()
        if locale == "C.UTF-8":
            assert lines[-1].startswith("Error: ") and not re.search("[\u4e00-\u9fff]", said)
        else:
            assert says in lines[-1] and not re.search(r"[a-z]+ [a-z]+ [a-z]+", lines[-1]), said
            # Of an option without its value typer tells no more.
            assert "Usage" not in said and (words[-1] == "--lang" or re.search("用 unhang.* -h 查看帮助", said))


@pytest.mark.parametrize(
    "name", ["password='; touch PWN; '", "x --token='$(x)'", "password=\"'; x; '\"", "://u:'; x; '@h/", "it's password='; x", "a b"]
)
def test_what_is_suggested_keeps_its_quotes_without_a_credential(name, tmp_path, monkeypatch, capsys):
    """What somebody else called a file becomes no command of its own when the credential in it is hidden."""
    monkeypatch.chdir(tmp_path)
    for words in (["python", f"./{name}.py", name], ["python", name]):
        monkeypatch.setattr(sys, "argv", ["unhang", "run", "-n", "2", *words])
        with pytest.raises(SystemExit):
            whole._answer()
        for line in capsys.readouterr().err.splitlines():
            if line.startswith("Try: "):
                assert not re.search(r"[;$`|&'\"]", re.sub(r"'[^']*'|\"'\"", "", line)), line
