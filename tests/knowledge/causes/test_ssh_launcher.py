"""ssh-launcher in plain logs: a program that a shell does not find counts where another host's shell says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unhang.knowledge import catalogue


def judge(logs, text: str, host: str | None = None):
    hits = {cause: tuple(replace(h, host=host) for h in found) for cause, found in logs.lines(text).items()}
    return catalogue.get("ssh-launcher").in_logs(logs.view(hits=hits))


@pytest.mark.parametrize("text", ["bash: line 1: torchrun: command not found", "scripts/train-pt.sh: line 40: torchrun: command not found"])
def test_a_local_shell_is_no_matter_of_ssh(logs, text):
    assert judge(logs, text) is None


def test_a_shell_of_another_host_is(logs):
    assert judge(logs, "bash: line 1: torchrun: command not found", host="node8").standing == "likely"
    assert judge(logs, "bash: /opt/openmpi/bin/orted: command not found").standing == "likely"
