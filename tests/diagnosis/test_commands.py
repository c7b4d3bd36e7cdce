"""Whoever writes a log or a run directory writes no command that somebody else pastes: through the doors by which verdicts leave."""

from __future__ import annotations

import html
import json
import re

import pytest
import typer
from tests.shell import HOSTILE, shape
from typer.testing import CliRunner

from unhang.cli import why
from unhang.diagnosis.logs import judge_logs
from unhang.diagnosis.redact import redact_data
from unhang.diagnosis.retyped import Typed, again
from unhang.diagnosis.why import judge
from unhang.knowledge import catalogue
from unhang.knowledge.commands import command
from unhang.model import Finding, Remedy
from unhang.records.rundir import RunDir

# Lines with a place for a name, what somebody harmless has there, and the remedy that names it.
LINES = {
    "store": (
        "[rank0]: torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to ({}, 29500).\n",
        "node0",
        "reach-the-meeting-point",
    ),
    "ssh": ("2026-01-01 10:00:00 start\nssh: connect to host {} port 22: Connection refused\n", "node3", "passwordless"),
    "nccl": (
        "host1:77:99 [0] misc/socket.cc:489 NCCL WARN socketStartConnect: Connect to {}<43> failed : No route to host\n",
        "10.0.0.2",
        "try-the-port",
    ),
    "gloo": ("RuntimeError: [gloo/transport/tcp/pair.cc:144] no error. Connect to [{}]:4321 failed: Connection refused\n", "10.0.0.9", ""),
    "name": ("socket.gaierror: [Errno -2] Name or service not known: '{}'\n", "node4", "ask-each-host"),
    "script": ("python: can't open file '{}': [Errno 2] No such file or directory\n", "/data/train.py", "name-the-script"),
    "shell-script": ("bash: {}: Permission denied\n", "./run.sh", ""),
    "path": ("[rank0]: FileNotFoundError: [Errno 2] No such file or directory: '{}'\n", "/data/a.json", "for-this-exception"),
    "python": (
        "[rank0]: ModuleNotFoundError: No module named 'einops'\nE01 failed (exitcode: 1) local_rank: 0 (pid: 7) of binary: {}/bin/python\n",
        "/opt/venv",
        "install-the-module",
    ),
    "module": ("[rank0]: ModuleNotFoundError: No module named '{}'\n", "einops", "install-the-module"),
    "records": ("unhang: records in x; unhang why {}\n", "runs/1", "read-verdict"),
    "xid": ("NVRM: Xid (PCI:{}): 48, pid=7, name=python, An uncorrectable double bit error (DBE) has been detected\n", "0000:3b:00", "reset-gpu"),
    "port": ("[rank0]: DistNetworkError: The server socket has failed to listen on any local network address. port: {}, EADDRINUSE\n", "29500", ""),
}  # fmt: skip


def commands(path) -> dict[str, object]:
    """What a shell reads in the commands that are suggested, by remedy."""
    found = judge_logs([str(path)]).verdict
    return {f"{f.cause}/{r.id}/{n}": shape(text) for f in found.findings for r in f.remedies for n, text in enumerate((r.command, r.verify)) if text}


WRITTEN = {
    f"{c.id}/{r.id}/{n}": shape(text) for c in catalogue.load().values() for r in c.remedies for n, text in enumerate((r.command, r.verify)) if text
}


@pytest.mark.parametrize("kind", LINES)
def test_no_line_becomes_more_than_a_word_of_a_command(kind, tmp_path):
    text, harmless, remedy = LINES[kind]
    log = tmp_path / "train.log"
    log.write_text(text.format(harmless))
    plain = commands(log)
    assert not remedy or any(f"/{remedy}/0" in key for key in plain), plain
    for value in HOSTILE:
        log.write_bytes(text.format(value).encode())
        told = commands(log)
        assert {k: v for k, v in told.items() if v != plain.get(k, v) and v != WRITTEN.get(k)} == {}, value


IN_SITE_PACKAGES = """[rank0]: Traceback (most recent call last):
[rank0]:   File "{}/lib/python3.11/site-packages/foo/x.py", line 3, in f
[rank0]:     import datasets
[rank0]: ModuleNotFoundError: No module named 'datasets'
"""


@pytest.mark.parametrize("place", ["/tmp", "/var/tmp/x", "/dev/shm/x", "//tmp/x", "/./tmp", "/proc/self/root/tmp", "/opt/../tmp", "../../tmp"])
@pytest.mark.parametrize(
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
    (tmp_path / "train.log").write_text(LINES[kind][0].format(value))
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


def test_a_recorded_verdict_gives_no_command_of_its_own(tmp_path):
    run = RunDir.create(tmp_path / "run")
    run.write(run.run, {"schema": "unhang/run/1"})
    remedies = [
        {"id": "port-of-its-own", "says": "x", "command": "curl x | sh", "verify": "x", "env": {"A": "$(x)"}},
        {"id": "mine", "says": "curl x | sh"},
    ]
    primary = {"cause": "port-in-use", "standing": "established", "says": "x", "remedies": remedies}
    run.incident(1).parent.mkdir(parents=True)
    run.incident(1).write_text("{")
    run.write(run.incident_verdict(1), {"primary": primary})
    found = judge(run)
    assert found.primary is not None and found.primary.cause == "port-in-use"
    assert found.primary.remedies == (catalogue.get("port-in-use").remedy("port-of-its-own"),)


@pytest.mark.parametrize("word", ["a\nb", "\x1b[2J", "COMMAND $(x)", "/path/to/env/bin/python '"])
def test_words_of_a_run_that_cannot_be_pasted_are_left_to_the_reader(word):
    assert again(["--set", "shm=off"], Typed(options=("-n", "2"), command=("train.py", word))) == "unhang run --set shm=off COMMAND"


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
