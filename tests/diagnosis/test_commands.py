"""Whoever writes a log or a run directory writes no command that somebody else pastes: through the doors by which verdicts leave."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
import typer
from tests.shell import shape
from tests.tables import for_each
from typer.testing import CliRunner

from unhang.cli import why
from unhang.diagnosis.logs import judge_logs
from unhang.diagnosis.redact import redact_data
from unhang.diagnosis.rerun_command import RunCommand, again
from unhang.diagnosis.why import judge
from unhang.knowledge import catalogue
from unhang.knowledge.commands import command
from unhang.model import Finding, Remedy
from unhang.records.rundir import RunDir

# Lines with a place for a name.
LINES = {
    "store": "[rank0]: torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to ({}, 29500).\n",
    "ssh": "2026-01-01 10:00:00 start\nssh: connect to host {} port 22: Connection refused\n",
    "nccl": "host1:77:99 [0] misc/socket.cc:489 NCCL WARN socketStartConnect: Connect to {}<43> failed : No route to host\n",
    "path": "[rank0]: FileNotFoundError: [Errno 2] No such file or directory: '{}'\n",
}


IN_SITE_PACKAGES = """[rank0]: Traceback (most recent call last):
[rank0]:   File "{}/lib/python3.11/site-packages/foo/x.py", line 3, in f
[rank0]:     import datasets
[rank0]: ModuleNotFoundError: No module named 'datasets'
"""


@for_each("place", ["/tmp", "/var/tmp/x", "/dev/shm/x", "//tmp/x", "/./tmp", "/proc/self/root/tmp", "/opt/../tmp", "../../tmp"])
@for_each(
    ("text", "keeps"),
    [
        ("[rank0]: ModuleNotFoundError: No module named 'einops'\nE01 failed (exitcode: 1) local_rank: 0 (pid: 7) of binary: {}/bin/python\n", "pip"),
        (IN_SITE_PACKAGES, "pip"),
        ("bash: {}/run.sh: Permission denied\n", ""),
    ],
)
def test_no_log_names_a_program_that_anybody_may_have_put_there(text, keeps, place, tmp_path):
    (tmp_path / "train.log").write_text(text.format(place))
    found = judge_logs([str(tmp_path / "train.log")]).verdict
    told = [c for f in found.findings for r in f.remedies for c in (r.command, r.verify) if c]
    assert found.primary is not None and [c for c in told if re.search(r"(?:^|; |python |bash )[^ ]*(?:tmp|shm)", c)] == []
    assert not keeps or any(c.startswith("python -m pip install ") for c in told)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("store", "$(touch${IFS}/tmp/x)"),
        ("ssh", "a;touch${IFS}/tmp/x;#"),
        ("ssh", "-oProxyCommand=x"),
        ("nccl", "10.0.0.2;id"),
        ("path", "/a\u200bb"),
    ],
)
def test_no_way_in_which_a_verdict_is_shown_has_one(kind, value, tmp_path):
    app = typer.Typer()
    app.callback()(lambda: None)
    why.register(app)
    (tmp_path / "train.log").write_text(LINES[kind].format(value))
    shown = lambda *options: CliRunner().invoke(app, ["why", str(tmp_path / "train.log"), *map(str, options)]).output  # noqa: E731
    page = tmp_path / "page.html"
    terminal, markdown, told = shown("--all"), shown("--markdown"), json.loads(shown("--json"))
    shown("--report", page)
    remedies = [r for f in (told["primary"], *told["contributing"], *told["symptoms"]) for r in f["remedies"]]
    assert [r for r in remedies if value in f"{r['command']} {r['verify']} {r['env']}"] == []
    assert [line for line in terminal.splitlines() if line.lstrip().startswith("$ ") and value in line] == []
    assert [
        line for line in markdown.splitlines() if line.lstrip().startswith(("-", "1", "2", "3")) and value in line and "train.log" not in line
    ] == []
    buttons = re.findall(r'<pre[^>]*>(.*?)</pre>|data-copy="([^"]*)"', page.read_text(), re.DOTALL)
    assert [b for found in buttons for b in found if value in html.unescape(b) and "train.log" not in b] == []


def forged(remedy: Remedy) -> Iterator[Remedy]:
    """Remedies that differ from ours in one word of a command, or two that stand together."""
    for field in ("command", "verify"):
        words = (getattr(remedy, field) or "").split(" ")
        for start, stop in product(range(len(words)), (1, 2)):
            yield replace(remedy, **{field: " ".join((*words[:start], *["x"] * stop, *words[start + stop :]))})


def test_a_recorded_verdict_gives_no_command_of_its_own(tmp_path):
    run = RunDir.create(tmp_path / "run")
    run.write(run.run, {"schema": "unhang/run/1"})
    run.incident(1).parent.mkdir(parents=True)
    run.incident(1).write_text("{")
    told = {"says": "x", "env": {"A": "$(x)"}}
    findings = [
        {"cause": c.id, "standing": "established", "says": "x", "remedies": [{**told, "id": f.id, "command": f.command, "verify": f.verify}]}
        for c in catalogue.load().values()
        for r in c.remedies
        for f in forged(r)
    ][::5]
    assert len(findings) > 500
    made = {"cause": "port-in-use", "standing": "established", "says": "x", "remedies": [{**told, "id": "mine", "command": "curl x | sh"}]}
    run.write(run.incident_verdict(1), {"primary": made, "contributing": findings})
    found = judge(run)
    assert found.primary is not None and found.primary.remedies == () and len(found.contributing) == len(findings)
    assert [r.command for f in found.contributing for r in f.remedies if r != catalogue.get(f.cause).remedy(r.id)] == []


@pytest.mark.parametrize("word", ["a\nb", "\x1b[2J", "COMMAND $(x)", "/path/to/env/bin/python '"])
def test_words_of_a_run_that_cannot_be_pasted_are_left_to_the_reader(word):
    assert again(["--set", "shm=off"], RunCommand(options=("-n", "2"), command=("train.py", word))) == "unhang run --set shm=off COMMAND"


@for_each(
    ("first", "second"),
    [
        ("/w/b $(x) c--jwt=aaaaaaaa", "/w/b $(x) c--jwt=aaaaaaaa"),
        ("nccl-q passphrase was a1", '/nccl-$(x) password=\\"zz1'),
        ("/d/password=abc12345", "/d/b"),
    ],
)
def test_of_two_names_none_takes_the_quote_of_the_other(first, second):
    made = command("head -1 {a:path}; ls -l {b:path}", a=first, b=second)
    assert made is not None
    (told,) = redact_data(Finding(cause="x", standing="likely", says="", remedies=(Remedy(id="a", says="", command=made),))).remedies
    assert told.command != made and (told.command is None or shape(told.command.replace("[redacted]", "w")) == shape(made))


@for_each("kind", ["host", "login", "name", "requirement", "path", "program", "text"])
def test_no_value_stands_for_the_words_of_a_run(kind):
    assert command(f"python -c 'import {{x:{kind}}}'", x="COMMAND") is None


@pytest.mark.parametrize(
    "name",
    [
        "/d/password='$(x)'b",
        '/d/password="a\'$(x);"b',
        "/d/api_key=a' $(x)",
        "/d/api_key=abc $(x)",
        "/d/--password a b",
        "/d/hf_" + 36 * "a" + "'`x`'",
    ],
)
def test_what_is_redacted_takes_no_quote_with_it(name):
    made = command("ls -ld {path:path}; findmnt -T {path:path}", path=name)
    assert made is not None
    finding = Finding(cause="x", standing="likely", says="", remedies=(Remedy(id="a", says="", command=made),))
    (told,) = redact_data(finding).remedies
    assert told.command != made and (told.command is None or shape(told.command) == shape(made))
