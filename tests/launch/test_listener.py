import asyncio
import contextlib
import os
import re
import socket
import stat

import pytest

from unhang.attach import protocol
from unhang.launch.listener import Listener


class Handler:
    def __init__(self) -> None:
        self.seen: list[tuple[str, object]] = []
        self.changed = asyncio.Event()

    def note(self, what: str, value: object) -> None:
        self.seen.append((what, value))
        self.changed.set()

    def arrived(self, peer):
        self.peer = peer
        self.note("arrived", peer.pid)

    def message(self, peer, message):
        if message["m"] == "bad":
            raise KeyError("field")
        self.note("message", message["m"])

    def gone(self, peer):
        self.note("gone", peer.pid)

    async def until(self, what: str) -> None:
        while what not in [w for w, _ in self.seen]:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 100)


def serve(scenario, handler=None):
    async def main():
        refused = []
        async with Listener(handler, refused.append) as listener:
            await asyncio.wait_for(scenario(listener, handler, refused), 100)
        return handler, refused, listener

    handler = handler or Handler()
    return asyncio.run(main())


async def connect(listener) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_unix_connection(listener.environment[protocol.ENV_SOCKET])


def hello(listener, **fields) -> bytes:
    return protocol.encode("hello", **{"v": protocol.VERSION, "token": listener.environment[protocol.ENV_TOKEN], **fields})


def test_a_process_of_the_run():
    async def scenario(listener, handler, refused):
        _, writer = await connect(listener)
        writer.write(hello(listener, rank=1) + protocol.encode("beat"))
        await handler.until("message")
        writer.close()
        await handler.until("gone")

    handler, refused, listener = serve(scenario)
    assert handler.seen == [("arrived", os.getpid()), ("message", "beat"), ("gone", os.getpid())]
    assert refused == []
    assert not os.path.exists(listener.environment[protocol.ENV_SOCKET])


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (b'{"m":"hello","v":1,"token":"guess"}\n', "does not belong"),
        ('{"m":"hello","v":1,"token":"g\u00fcess"}\n'.encode(), "does not belong"),
        (b'{"m":"hello","v":1,"token":"\\ud800"}\n', "does not belong"),
        (b"[" * 100_000 + b"\n", "nested too deeply"),
        (b"\x80\x04garbage\n", "garbage|utf-8|Expecting|decode"),
        (b"[1,2]\n", "not a message"),
        (b'{"m":"beat"}\n', "does not belong"),
        (b"x" * (protocol.MAX_MESSAGE_BYTES + (1 << 17)), "more than"),
    ],
)
def test_strangers_are_refused_and_reported(first, why):
    async def scenario(listener, handler, refused):
        reader, writer = await connect(listener)
        writer.write(first)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    handler, refused, _ = serve(scenario)
    assert handler.seen == []
    assert len(refused) == 1
    assert re.search(why, refused[0])


def test_another_version_is_refused():
    async def scenario(listener, handler, refused):
        reader, writer = await connect(listener)
        writer.write(hello(listener, v=99))
        await reader.read()
        writer.close()

    handler, refused, _ = serve(scenario)
    assert handler.seen == []
    assert "version 99" in refused[0]


def test_malformed_messages_of_a_known_process_do_not_end_it():
    async def scenario(listener, handler, refused):
        _, writer = await connect(listener)
        writer.write(hello(listener) + b"{nonsense\n" + protocol.encode("bad") + protocol.encode("beat"))
        await handler.until("message")
        writer.close()
        await handler.until("gone")

    handler, refused, _ = serve(scenario)
    assert [what for what, _ in handler.seen] == ["arrived", "message", "gone"]
    assert len(refused) == 2


def test_a_hello_that_cannot_be_taken_in():
    class Strict(Handler):
        def arrived(self, peer):
            int(peer.hello["rank"])

    async def scenario(listener, handler, refused):
        reader, writer = await connect(listener)
        writer.write(hello(listener, rank=[]))
        assert await reader.read() == b""
        writer.close()

    _, refused, _ = serve(scenario, Strict())
    assert len(refused) == 1 and "TypeError" in refused[0]


def test_what_no_encoder_takes_is_replaced():
    texts = []

    class Keeping(Handler):
        def message(self, peer, message):
            texts.append(message)
            super().message(peer, message)

    async def scenario(listener, handler, refused):
        _, writer = await connect(listener)
        writer.write(
            hello(listener) + protocol.encode("raised", text="\udcff \u00e9\U0001f600", frames=[["\udc80.py", 1]], groups={"\udc80": [1, 2]})
        )
        await handler.until("message")
        writer.close()

    _, refused, _ = serve(scenario, Keeping())
    assert refused == []
    assert texts == [{"m": "raised", "text": "? \u00e9\U0001f600", "frames": [["?.py", 1]], "groups": {"?": [1, 2]}}]


def test_only_its_user_can_open_the_socket():
    async def scenario(listener, handler, refused):
        path = listener.environment[protocol.ENV_SOCKET]
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700

    serve(scenario)


def test_file_descriptors_are_handed_over():
    async def scenario(listener, handler, refused):
        loop = asyncio.get_running_loop()
        ours = socket.socket(socket.AF_UNIX)
        ours.setblocking(False)
        await loop.sock_connect(ours, listener.environment[protocol.ENV_SOCKET])
        await loop.sock_sendall(ours, hello(listener))
        await handler.until("arrived")
        read, write = os.pipe()
        handler.peer.send_stdio(write, write)
        message, fds, _, _ = socket.recv_fds(ours, 1000, 2)
        assert protocol.decode(message)["m"] == "stdio"
        os.write(fds[0], b"x")
        assert os.read(read, 1) == b"x"
        for fd in (read, write, *fds):
            os.close(fd)
        ours.close()

    serve(scenario)
