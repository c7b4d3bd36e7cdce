"""Long commands over several lines: what a shell reads stays the same."""

from __future__ import annotations

import re
import subprocess

import pytest

from unhang.knowledge import catalogue
from unhang.report.command_lines import split
from unhang.report.terminal import ran

COMMANDS = sorted({ran(r) for cause in catalogue.load().values() for r in cause.remedies if len(ran(r)) > 60 and "with unhang" not in ran(r)})


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        ("ls a; ls b", ["ls a; ls b"]),
        ("cat /etc/hosts; getent ahosts node1 && ping -c 1 node1", ["cat /etc/hosts", "getent ahosts node1 &&", "  ping -c 1 node1"]),
        ("export FIRST=aaaaaaaaaa SECOND=bbbbbbbbbb THIRD=c", ["export FIRST=aaaaaaaaaa \\", "  SECOND=bbbbbbbbbb THIRD=c"]),
        ("python -c 'import sys; print(sys.version)' | tail -1", ["python -c \\", "  'import sys; print(sys.version)' |", "  tail -1"]),
        ("for h in a b; do ping $h; done; echo done; date", ["for h in a b; do ping $h;", "  done", "echo done", "date"]),
        ("find . -name lock -exec rm {} \\;   # or: rm lock", ["find . -name lock -exec rm \\", "  {} \\;", "# or: rm lock"]),
    ],
)
def test_where_it_is_cut(command, lines):
    assert split(command, 30) == lines


@pytest.mark.parametrize("at_most", [60, 100])
def test_a_shell_reads_the_same(at_most):
    def words(text):
        return re.sub(r"[\s;]+", "", text.replace("\\\n", ""))

    for command in COMMANDS:
        cut = split(command, at_most)
        assert words("\n".join(cut)) == words(command)
        # What is longer has a long word, or ends in an operator.
        long = [line for line in cut if len(line) > at_most + 3 and not line.startswith("#")]
        assert all(max(map(len, line.split())) > at_most // 2 or re.search(r"['\"({]", line) for line in long), cut


def test_bash_takes_all_that_is_cut():
    # What a remedy leaves to be filled in (...) is no syntax error either.
    script = "".join("f() {\n" + "\n".join(split(command, 70)) + "\n}\n" for command in COMMANDS)
    whole = "".join(f"f() {{\n{command}\n}}\n" for command in COMMANDS)
    read = [subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False) for text in (whole, script)]
    assert read[0].returncode == read[1].returncode == 0, read[1].stderr
