"""What is said of a process whose stacks py-spy cannot read."""

from __future__ import annotations

import asyncio
import subprocess

import pytest

from unhang.launch import outside_view as children


def test_the_reason_is_not_the_end_of_its_backtrace(monkeypatch):
    tool = children.find_py_spy()
    assert tool is not None
    monkeypatch.setenv("RUST_BACKTRACE", "1")
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            with pytest.raises(ChildProcessError, match=r"^py-spy: .*Failed to find python"):
                asyncio.run(children.dump_by_py_spy(tool, process.pid, "--nonblocking"))
        finally:
            process.kill()
