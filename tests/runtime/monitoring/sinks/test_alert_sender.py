"""What is on its way holds nobody up, is tried a few times, and is told in the log when it does not arrive: by real commands and a real server."""

import contextlib
import json
import logging
import socket
import sys
import threading
import time
import traceback

import pytest

from unhang.runtime.monitoring.sinks.alert_sender import Command, Delivery, NotDelivered, Webhook


class Way:
    """Does what it was given for each attempt, then nothing."""

    name = "pigeon"

    def __init__(self, *does):
        self.does, self.got, self.arrived = list(does), [], threading.Condition()

    def deliver(self, message):
        with self.arrived:
            self.got.append(message["says"])
            self.arrived.notify_all()
        if self.does and (one := self.does.pop(0)) is not None:
            one()

    def wait_for(self, count):
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.got) >= count, timeout=20)


def fails(says="it answered 503", again=True):
    def raises():
        raise NotDelivered(says, again=again)

    return raises


def deliver(way, *says, pause_s=0.0, within_s=20.0):
    delivery = Delivery([way], pause_s=pause_s)
    for one in says:
        delivery.send({"says": one})
    delivery.close(time.monotonic() + within_s)


def test_what_fails_is_tried_three_times(caplog):
    way = Way(fails(), fails())
    deliver(way, "a", "b")
    assert way.got == ["a", "a", "a", "b"] and caplog.text == ""
    way = Way(*[fails()] * 3)
    deliver(way, "a", "b")
    assert way.got == ["a", "a", "a", "b"]
    assert [one.getMessage() for one in caplog.records] == ["an alert was not delivered by the pigeon (it answered 503): a"]


def test_what_will_never_pass_is_tried_once(caplog):
    way = Way(fails("it answered 404", again=False))
    deliver(way, "a", "b")
    assert way.got == ["a", "b"] and "(it answered 404): a" in caplog.text


def test_credentials_in_a_reason_are_not_logged(caplog):
    deliver(Way(fails("curl ended with 22: Authorization: Bearer abcdefghijklmnopqrstuvwxyz", again=False)), "a")
    assert "curl ended with 22" in caplog.text and "abcdefghijkl" not in caplog.text


def test_a_fault_of_ours_is_told_without_its_text(caplog):
    def faults():
        raise KeyError("http://host/SECRET")

    deliver(Way(faults), "a", "b")
    assert "(KeyError): a" in caplog.text and "SECRET" not in caplog.text


def test_whoever_sends_never_waits_and_what_is_lost_is_told(caplog):
    go_on = threading.Event()
    way = Way(lambda: go_on.wait(30))
    delivery = Delivery([way])
    began = time.monotonic()
    delivery.send({"says": "first"})
    way.wait_for(1)
    for i in range(34):
        delivery.send({"says": f"no. {i}"})
    delivery.close(time.monotonic() + 0.1)
    assert time.monotonic() - began < 5
    said = [one.getMessage() for one in caplog.records]
    assert sum("32 others wait before it" in one for one in said) == 2
    assert sum("the training has ended first" in one for one in said) == 32
    go_on.set()


def test_at_the_end_nobody_pauses_between_attempts():
    way = Way(fails())
    began = time.monotonic()
    deliver(way, "a", pause_s=60.0)
    assert way.got == ["a", "a"] and time.monotonic() - began < 10


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
    argv = script(tmp_path, "import sys; print('x' * 1_000_000); print('no such channel', file=sys.stderr); sys.exit(4)")
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


PLACE = "T0SECRET/B0SECRET/hunter2"


def hidden(caught):
    """The failure in every way in which it could be shown."""
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert "T0SECRET" not in shown and "hunter2" not in shown
    return str(caught.value)


def test_it_is_a_post_of_json(server):
    hook = Webhook(f"{server.url}/services/{PLACE}")
    hook.deliver(MESSAGE)
    assert server.messages == [MESSAGE] and server.paths == [f"/services/{PLACE}"]
    assert "T0SECRET" not in repr(hook) + str(hook)


@pytest.mark.parametrize(
    ("answer", "says", "again"),
    [
        (404, "it answered 404 Not Found", False),
        (403, "it answered 403 Forbidden", False),
        (429, "it answered 429 Too Many Requests", True),
        (503, "it answered 503 Service Unavailable", True),
        (599, "it answered 599", True),
    ],
)
def test_answers_that_are_no_success(server, answer, says, again):
    server.answers = [answer]
    with pytest.raises(NotDelivered) as caught:
        Webhook(f"{server.url}/{PLACE}").deliver(MESSAGE)
    assert hidden(caught) == says and caught.value.again is again


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_nothing_is_sent_elsewhere(server, code):
    server.answers = [code, 200]
    with pytest.raises(NotDelivered) as caught:
        Webhook(f"{server.url}/{PLACE}").deliver(MESSAGE)
    assert hidden(caught).endswith("redirects are not followed")
    assert server.paths == [f"/{PLACE}"]


def test_nobody_listens():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(NotDelivered) as caught:
            Webhook(f"http://127.0.0.1:{taken.getsockname()[1]}/{PLACE}").deliver(MESSAGE)
    assert hidden(caught) == "ConnectionRefusedError: Connection refused" and caught.value.again


def test_no_certificate_and_no_http(server):
    with pytest.raises(NotDelivered) as caught:
        Webhook(f"{server.url.replace('http', 'https')}/{PLACE}").deliver(MESSAGE)
    assert "SSL" in hidden(caught)
    server.answers = [lambda handler: handler.wfile.write(b"nonsense " + PLACE.encode() + b"\r\n\r\n")]
    with pytest.raises(NotDelivered) as caught:
        Webhook(f"{server.url}/{PLACE}").deliver(MESSAGE)
    assert hidden(caught) == "BadStatusLine"


@pytest.mark.parametrize(
    "url",
    [
        f"ftp://host/{PLACE}",
        f"host/{PLACE}",
        f"http:///{PLACE}",
        f"https://me:hunter2@host/{PLACE}",
        f"http://[{PLACE}",
        f"http://host:99999/{PLACE}",
        f"http://host/a b{PLACE}",
        "",
        7,
        b"x",
    ],
)
def test_what_is_no_url_is_refused_and_not_shown(url):
    with pytest.raises(ValueError, match="http or https URL") as caught:
        Webhook(url)
    hidden(caught)
    assert caught.value.__context__ is None


def test_nothing_is_logged(server, caplog):
    with caplog.at_level(logging.DEBUG):
        Webhook(f"{server.url}/{PLACE}").deliver(MESSAGE)
    assert "T0SECRET" not in caplog.text
