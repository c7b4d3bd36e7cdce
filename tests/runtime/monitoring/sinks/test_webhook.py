"""A real server: what it is sent, what of its answers is told, and that the URL never is."""

import logging
import socket
import traceback

import pytest

from unhang.runtime.monitoring.sinks.delivery import NotDelivered
from unhang.runtime.monitoring.sinks.webhook import Webhook

PLACE = "T0SECRET/B0SECRET/hunter2"
MESSAGE = {"text": "all_reduce of world has failed 失败", "kind": "failure"}


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
