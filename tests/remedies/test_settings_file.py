from __future__ import annotations

import os
import subprocess

import pytest

from unhang.model import HostFinding, Remedy
from unhang.remedies import settings_file


def finding(env, *, cause="a", severity="error", before=()):
    remedies = (*before, Remedy(id="r", says="s", env=env))
    return HostFinding(cause=cause, area="x", severity=severity, says="", leads_to="", remedies=remedies)


def test_first_remedies_of_what_matters():
    found = settings_file.proposed(
        [
            finding({"A": "1"}),
            finding({"B": "2"}, severity="note"),
            finding({"C": "3"}, before=(Remedy(id="first", says="s", command="x"),)),
            finding({"D": "IFNAME"}),
            finding({"E": "<subnet>"}),
            finding({"F": "mlx5_0:1,mlx5_1:1"}, severity="warning"),
        ]
    )
    assert [(s.name, s.value) for s in found] == [("A", "1"), ("F", "mlx5_0:1,mlx5_1:1")]


def test_two_that_disagree_are_not_guessed_at():
    assert [s.name for s in settings_file.proposed([finding({"A": "1", "B": "1"}), finding({"A": "0"}, cause="b"), finding({"B": "1"})])] == ["B"]


def test_a_shell_reads_it(tmp_path):
    path = tmp_path / "unhang.env"
    settings_file.write(path, settings_file.proposed([finding({"A": "it's; #1"}), finding({"B": "2"})]), overwrite=False)
    done = subprocess.run(["sh", "-ec", '. "$1"; printf %s "$A|$B"', "sh", str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "it's; #1|2"
    (tmp_path / "unset.env").write_text(settings_file.text([settings_file.Setting(name="A", value="", cause="c")]))
    done = subprocess.run(
        ["sh", "-ec", 'A=1; . "$1"; printf %s "${A-none}"', "sh", str(tmp_path / "unset.env")], capture_output=True, text=True, check=True
    )
    assert done.stdout == "none"
    assert os.stat(path).st_mode & 0o111 == 0


def test_what_is_there_is_overwritten_only_where_somebody_said_so(tmp_path):
    path = tmp_path / "unhang.env"
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        settings_file.write(path, settings_file.proposed([finding({"A": "1"})]), overwrite=False)
    assert path.read_text() == "mine"
    settings_file.write(path, settings_file.proposed([finding({"A": "1"})]), overwrite=True)
    assert path.read_text() == "export A=1  # a\n"
