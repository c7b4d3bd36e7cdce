"""Examinations and verdicts in narrow terminals and behind pipes: lines fit, and what is there to be copied is whole."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from tests.chinese import zh
from tests.tables import for_each

from unhang.diagnosis.doctor import examine
from unhang.facts import snapshot
from unhang.facts.host import Space
from unhang.knowledge import catalogue
from unhang.model import Finding, Verdict
from unhang.report import doctor, terminal
from unhang.report.console import Console


def shown(machine, width, lang="en"):
    host = machine({"/proc/mounts": "tmpfs /dev/shm tmpfs rw 0 0\n", "/dev/shm": None, "/.dockerenv": ""})
    host.spaces["/dev/shm"] = Space(total_bytes=64 << 20, free_bytes=64 << 20, inodes=0, free_inodes=0)
    out = io.StringIO()
    examination = examine(snapshot.take(host))
    doctor.render(examination, Console(out, width=width, color_system=None, force_terminal=True), lang=lang)
    return examination, out.getvalue().splitlines()


@for_each("lang", ["en", "zh"])
@for_each("width", [40, 50, 60, 80, 140])
def test_an_examination_fits_and_its_commands_are_whole(machine, monkeypatch, width, lang):
    monkeypatch.setenv("COLUMNS", str(width))
    examination, rows = shown(machine, width, lang)
    commands = [terminal.ran(r) for f in examination.findings if f.severity != "note" for r in f.remedies if terminal.ran(r)]
    assert commands and all(any(row.strip().removeprefix("$ ") == c for row in rows) for c in commands)
    others = [row for row in rows if row.strip().removeprefix("$ ") not in commands]
    assert all(cell_len(row) <= width for row in others)
    # No column of a word or two beside the titles.
    titles = {zh(s.title) if lang == "zh" else s.title for s in snapshot.subjects().values()}
    assert {row[2:].partition("  ")[0].strip() for row in rows} >= titles
    assert not any(row.startswith(" " * (width // 2 + 1)) for row in others)


@pytest.mark.parametrize("whole", [True, False])
def test_behind_a_pipe_no_word_of_a_command_is_broken(whole):
    cause = catalogue.get("nic-hardware")
    verdict = Verdict(primary=Finding(cause=cause.id, standing="likely", says="s", remedies=cause.remedies))
    out = io.StringIO()
    terminal.render(verdict, Console(out, width=60, color_system=None), lang="en", whole=whole)
    rows = [row.strip().removeprefix("$ ") for row in out.getvalue().splitlines()]
    shown = cause.remedies if whole else cause.remedies[: terminal.MAX_REMEDIES]
    commands = [terminal.ran(r) for r in shown if terminal.ran(r)]
    assert max(map(len, commands)) > 80 and all(command in rows for command in commands)
