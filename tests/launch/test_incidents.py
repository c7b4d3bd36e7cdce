"""What an incident tells of the machine: how long it is up, and whether our pids are those of its kernel log."""

from __future__ import annotations

import pytest

from unhang.facts.host import Host
from unhang.launch.incidents import _host_pids, _uptime


@pytest.mark.parametrize(("namespace", "ours"), [("pid:[4026531836]", True), ("pid:[4026532741]", False), (None, None)])
def test_whether_pids_are_the_hosts(tmp_path, namespace, ours):
    place = tmp_path / "proc/self/ns"
    place.mkdir(parents=True)
    if namespace is not None:
        (place / "pid").symlink_to(namespace)
    assert _host_pids(Host(root=tmp_path)) is ours


@pytest.mark.parametrize(("text", "uptime_s"), [("90000.25 719000.10\n", 90000.25), ("", None), ("up\n", None), (None, None)])
def test_how_long_the_machine_is_up(tmp_path, text, uptime_s):
    (tmp_path / "proc").mkdir()
    if text is not None:
        (tmp_path / "proc/uptime").write_text(text)
    assert _uptime(Host(root=tmp_path)) == uptime_s
