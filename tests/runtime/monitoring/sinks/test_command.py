"""Real commands: what they get, how they end, and that nothing of them is left."""

import contextlib
import sys
import time

import pytest

from unhang.runtime.monitoring.sinks.command import Command
from unhang.runtime.monitoring.sinks.delivery import NotDelivered

MESSAGE = {"text": "all_reduce of world has failed 失败", "kind": "failure"}


def script(tmp_path, text):
    path = tmp_path / "notify.py"
    path.write_text(text)
    return [sys.executable, str(path)]


def ended(pid):
    """Its number is free, or it waits for its new parent."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as f:
        return f.read().rpartition(")")[2].split()[0] == "Z"
    return True


def test_it_gets_the_message_on_its_standard_input(tmp_path):
    Command(script(tmp_path, f"import sys; open({str(tmp_path / 'got')!r}, 'w').write(sys.stdin.read())"), timeout_s=30).deliver(MESSAGE)
    import json

    assert json.loads((tmp_path / "got").read_text()) == MESSAGE


def test_a_line_is_split_and_no_shell_sees_it(tmp_path):
    Command(f"/usr/bin/touch '{tmp_path}/a b' {tmp_path}/$(id) '{tmp_path}/;x'", timeout_s=30).deliver(MESSAGE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["$(id)", ";x", "a b"]


def test_it_is_no_rank_of_the_training(tmp_path, monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "UNHANG_SOCKET", "UNHANG_RANK_PID", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("CHANNEL", "#night")
    got = tmp_path / "got"
    Command(["/bin/sh", "-c", f"env > {got}"], timeout_s=30).deliver(MESSAGE)
    names = {line.partition("=")[0] for line in got.read_text().splitlines()}
    assert "CHANNEL" in names and not {name for name in names if "RANK" in name or name.startswith(("UNHANG", "TORCHELASTIC"))}


def test_what_takes_too_long_is_ended_with_what_it_has_started(tmp_path):
    pids = tmp_path / "pids"
    command = Command(["/bin/sh", "-c", f"sleep 600 & echo $! $$ > {pids}; wait"], timeout_s=1)
    began = time.monotonic()
    with pytest.raises(NotDelivered, match="it was ended after 1 s") as caught:
        command.deliver(MESSAGE)
    assert 1 <= time.monotonic() - began < 10 and not caught.value.again
    until = time.monotonic() + 10
    found = [int(text) for text in pids.read_text().split()]
    while not all(map(ended, found)) and time.monotonic() < until:
        time.sleep(0.01)
    assert len(found) == 2 and all(map(ended, found))


def test_what_a_command_leaves_behind_holds_nobody_up(tmp_path):
    pids = tmp_path / "pids"
    began = time.monotonic()
    Command(["/bin/sh", "-c", f"sleep 600 & echo $! > {pids}"], timeout_s=60).deliver(MESSAGE)
    assert time.monotonic() - began < 10
    until = time.monotonic() + 10
    while not ended(int(pids.read_text())) and time.monotonic() < until:
        time.sleep(0.01)
    assert ended(int(pids.read_text()))


def test_a_failure_is_told_with_the_last_that_it_said(tmp_path):
    argv = script(tmp_path, "import sys; print('x' * 10_000_000); print('no such channel', file=sys.stderr); sys.exit(4)")
    with pytest.raises(NotDelivered) as caught:
        Command(argv, timeout_s=60).deliver(MESSAGE)
    said = str(caught.value)
    assert said.startswith("it ended with 4: x") and said.endswith("x no such channel") and len(said) < 500


def test_what_does_not_read_and_what_is_not_there():
    Command(["/bin/true"], timeout_s=30).deliver({"text": "x" * 30_000})
    missing = Command(["/nowhere/notify", "--token", "hunter2"], timeout_s=30)
    assert not missing.found and Command("sh -c true", timeout_s=1).found
    with pytest.raises(NotDelivered, match=r"^No such file or directory$") as caught:
        missing.deliver(MESSAGE)
    assert not caught.value.again and missing.name == "command notify" and "hunter2" not in f"{missing!r} {caught.value}"


@pytest.mark.parametrize("argv", ["", "   ", [], [""], "unfinished 'quote", 7])
def test_what_has_no_words_is_refused(argv):
    with pytest.raises(ValueError, match="list of words"):
        Command(argv, timeout_s=1)
