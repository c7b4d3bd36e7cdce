"""Whoever asks for --json is told of a refusal by one object on stdout; what people read stays on stderr, and the exit code as it is."""

from __future__ import annotations

import json
import sys
import tempfile

import pytest

from unhang.cli import app
from unhang.errors import EXIT_OURS, EXIT_USER
from unhang.report import language

WITH_JSON = [name for name in app.SAYS if any("--json" in p.opts for p in app.whole(name).params)]


@pytest.fixture
def unhang(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    language.chosen(None)

    def unhang(*words):
        monkeypatch.setattr(sys, "argv", ["unhang", *words])
        with pytest.raises(SystemExit) as left:
            app._answer()
        said = capsys.readouterr()
        return left.value.code, said.out, said.err

    return unhang


@pytest.mark.parametrize("verb", WITH_JSON)
def test_an_option_that_no_command_has(unhang, verb):
    code, out, err = unhang(verb, "--json", "--zzz")
    assert (code, json.loads(out)) == (
        EXIT_USER,
        {
            "schema": "unhang/refusal/1",
            "exitcode": EXIT_USER,
            "error": "No such option: --zzz",
            "error_zh": "没有选项 --zzz",
            "cause": None,
            "cause_zh": None,
            "try": f"unhang {verb} -h",
            "try_zh": None,
        },
    )
    assert "Error: No such option: --zzz" in err
    assert unhang(verb, "--zzz")[1] == ""


REFUSED = {
    "run": (["nosuch.py"], "nosuch.py: no such file", "没有文件 nosuch.py"),
    "top": (["nosuch"], "there is no run directory nosuch", "没有运行目录 nosuch"),
    "why": (["nosuch.log"], "there is no nosuch.log", "没有 nosuch.log"),
    "doctor": (["--fix-limit", "40s"], "--fix-limit is for --live --fix", "--fix-limit 只用于 --live --fix"),
    "presets": (["nope"], "there is no preset 'nope'", "没有名为 'nope' 的预设"),
    "export": (["nothing"], "there is no form 'nothing'", "没有名为 'nothing' 的形式"),
    "plan": (["nosuch.json"], "there is no nosuch.json", "没有 nosuch.json"),
    "vars": (["nosuch.sh"], "cannot read nosuch.sh: No such file or directory", "无法读取 nosuch.sh：没有这个文件或目录"),
    "explain": (
        ["limit"],
        "there is no cause named 'limit'; did you mean limits, wsl-limits?",
        "没有名为 'limit' 的原因；是不是 limits, wsl-limits？",
    ),
    "demo": (["--only", "nope"], "there is no fault nope", "没有名为 nope 的故障"),
}


@pytest.mark.parametrize("verb", WITH_JSON)
def test_what_a_command_refuses(unhang, verb):
    words, error, error_zh = REFUSED[verb]
    code, out, err = unhang(verb, "--json", *words)
    told = json.loads(out)
    assert (code, told["exitcode"], told["error"], told["error_zh"]) == (EXIT_USER, EXIT_USER, error, error_zh)
    assert f"unhang: {error}" in err and unhang(verb, *words)[1] == ""


def test_a_refused_setting_comes_with_its_cause_and_what_to_try(unhang):
    told = json.loads(unhang("run", "--json", "--set", "batch=4", "--dry-run", "true")[1])
    assert told["error"].startswith("--set batch") and told["try"] and told["try_zh"]


@pytest.mark.parametrize("words", [["nosuch.py", "--json"], ["--", "nosuch.py", "--json"]])
def test_a_word_of_the_script_asks_unhang_for_nothing(unhang, words):
    code, out, err = unhang("run", *words)
    assert (code, out) == (EXIT_USER, "") and "nosuch.py" in err


def test_words_that_are_not_understood_may_hide_where_the_options_end(unhang):
    assert json.loads(unhang("run", "--zzz", "5", "--json", "train.py")[1])["error"] == "No such option: --zzz"
    assert json.loads(unhang("run", "--max-restarts", "x", "--json", "train.py")[1])["error"].startswith("Invalid value for '--max-restarts'")
    assert unhang("run", "--zzz", "--", "train.py", "--json")[1] == ""


def test_our_own_failure(unhang, monkeypatch):
    monkeypatch.setattr("unhang.cli.app.write_bug_report", lambda error: "report.md")
    monkeypatch.setattr("unhang.cli.top._looker", lambda path: 1 / 0)
    code, out, err = unhang("top", "--json", ".")
    assert (code, json.loads(out)["exitcode"]) == (EXIT_OURS, EXIT_OURS) and "report.md" in err
    assert json.loads(out)["error"] == "this is our own failure: ZeroDivisionError: division by zero"


@pytest.mark.parametrize("words", [["--bundle", "no/x.tar.gz"], ["--report", "no/x.html"], ["--bundle", "no/x.tar.gz", "--report", "no/x.html"]])
def test_a_file_that_cannot_be_written_beside_an_answer_is_told_of_on_stderr_alone(unhang, tmp_path, words):
    (tmp_path / "train.log").write_text("RuntimeError: CUDA error: an illegal memory access was encountered\n")
    code, out, err = unhang("why", "--json", *words, "train.log")
    assert (code, json.loads(out)["schema"]) == (EXIT_USER, "unhang/verdict/1")
    assert "cannot write the" in err
    # Of the next command nothing is answered yet.
    assert json.loads(unhang("why", "--json", "nosuch.log")[1])["schema"] == "unhang/refusal/1"


def test_our_own_failure_behind_an_answer(unhang, tmp_path, monkeypatch):
    monkeypatch.setattr("unhang.cli.app.write_bug_report", lambda error: "report.md")
    monkeypatch.setattr("unhang.cli.why.write_report", lambda *given: 1 / 0)
    (tmp_path / "train.log").write_text("RuntimeError: CUDA error: an illegal memory access was encountered\n")
    code, out, err = unhang("why", "--json", "--report", "x.html", "train.log")
    assert (code, json.loads(out)["schema"]) == (EXIT_OURS, "unhang/verdict/1") and "report.md" in err


def test_a_verb_that_cannot_be_imported(unhang, tmp_path, monkeypatch):
    """Nor can it be asked then whether --json is a word of its own."""

    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name == "unhang.cli.top":
                raise ImportError("no such symbol")

    monkeypatch.delitem(sys.modules, "unhang.cli.top", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code, out, err = unhang("top", "--json", "x")
    (report,) = tmp_path.glob("unhang-report-*.md")
    assert (code, out) == (EXIT_OURS, "") and f"A report ready to paste is in {report}" in err
    report.unlink()
    # As without it.
    code, _, plain = unhang("top", "x")
    assert code == EXIT_OURS and plain.splitlines()[:-1] == err.splitlines()[:-1]


def test_the_report_is_written_before_a_program_is_told(unhang, monkeypatch):
    order = []
    monkeypatch.setattr("unhang.cli.app.write_bug_report", lambda error: order.append("report") or "report.md")
    monkeypatch.setattr("unhang.cli.json_errors.tell", lambda *said, **more: order.append("told"))
    monkeypatch.setattr("unhang.cli.top._looker", lambda path: 1 / 0)
    assert unhang("top", "--json", ".")[0] == EXIT_OURS and order == ["report", "told"]


def test_a_reader_that_has_gone_changes_no_exit_code(unhang, monkeypatch):
    class Gone:
        def write(self, text):
            raise BrokenPipeError

        def flush(self):
            pass

    monkeypatch.setattr("unhang.cli.json_errors.os.dup2", lambda a, b: None)
    monkeypatch.setattr(sys, "stdout", Gone())
    assert unhang("why", "--json", "nosuch.log")[0] == EXIT_USER
