import asyncio
import fcntl
import os
import select
import struct
import termios

import pytest

from unhang.launch.output import Channel


def through(tmp_path, scenario, *, log=None, terminal=False):
    """What came out of a channel: (bytes passed on, bytes in the log, troubles)."""
    passed, troubles = [], []
    path = log or tmp_path / "logs" / "rank3.out"

    async def main():
        channel = Channel(
            rank=3, stream="out", log=path, sink=lambda rank, stream, data: passed.append(data), trouble=troubles.append, terminal=terminal
        )
        await asyncio.wait_for(scenario(channel), 100)
        channel.close()

    asyncio.run(main())
    return b"".join(passed), path.read_bytes() if path.is_file() else None, troubles


@pytest.mark.parametrize("terminal", [False, True])
def test_bytes_pass_unchanged(tmp_path, terminal):
    data = b"10%\r20%\r\n\x1b[31mred\x00\xff\n no end"

    async def scenario(channel):
        os.write(channel.write_fd, data)
        channel.release()
        await channel.closed.wait()

    assert through(tmp_path, scenario, terminal=terminal) == (data, data, [])


def test_a_terminal_is_a_terminal(tmp_path):
    async def scenario(channel):
        assert os.isatty(channel.write_fd)

    through(tmp_path, scenario, terminal=True)


def test_a_terminal_has_the_size_of_ours(tmp_path):
    ours, theirs = os.openpty()
    isolated = os.dup(1)
    try:
        os.dup2(theirs, 1)

        async def scenario(channel):
            assert os.get_terminal_size(channel.write_fd) == (100, 30)
            fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("4H", 50, 120, 0, 0))
            channel.resize()
            assert os.get_terminal_size(channel.write_fd) == (120, 50)
            channel.close()
            channel.resize()

        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("4H", 30, 100, 0, 0))
        through(tmp_path, scenario, terminal=True)
    finally:
        os.dup2(isolated, 1)
        for fd in (ours, theirs, isolated):
            os.close(fd)


def test_what_is_left_is_read_at_the_end(tmp_path):
    async def scenario(channel):
        other = os.dup(channel.write_fd)
        os.write(other, b"x" * 5000)
        os.close(other)

    assert through(tmp_path, scenario)[0] == b"x" * 5000


def test_a_process_that_keeps_the_stream_open_does_not_hold_us(tmp_path):
    kept = []

    async def scenario(channel):
        kept.append(os.dup(channel.write_fd))
        os.write(kept[0], b"y")

    assert through(tmp_path, scenario)[0] == b"y"
    os.close(kept[0])


def test_a_log_that_cannot_be_opened(tmp_path):
    (tmp_path / "file").write_text("")

    async def scenario(channel):
        os.write(channel.write_fd, b"z")

    passed, _, troubles = through(tmp_path, scenario, log=tmp_path / "file" / "rank3.out")
    assert passed == b"z"
    assert len(troubles) == 1
    assert "not kept" in troubles[0]


def test_a_log_on_a_full_disk(tmp_path):
    async def scenario(channel):
        for _ in range(3):
            os.write(channel.write_fd, b"more\n")
            await asyncio.sleep(0)

    passed, _, troubles = through(tmp_path, scenario, log=type(tmp_path)("/dev/full"))
    assert passed == b"more\n" * 3
    assert len(troubles) == 1
    assert "No space left" in troubles[0]


def test_identity_is_that_of_the_writing_end(tmp_path):
    async def scenario(channel):
        status = os.fstat(channel.write_fd)
        assert channel.identity == f"{status.st_dev}:{status.st_ino}"

    through(tmp_path, scenario)


def test_lines_of_two_ranks_do_not_tear_each_other(tmp_path):
    """As Python writes `print("rank", 1, "done")` under `-u`: every argument by itself."""
    passed = []

    async def main():
        channels = [
            Channel(
                rank=rank,
                stream="out",
                log=tmp_path / f"rank{rank}.out",
                sink=lambda rank, stream, data: passed.append((rank, data)),
                trouble=pytest.fail,
                terminal=False,
            )
            for rank in (0, 1)
        ]
        for piece in (b"rank", b" done", b"\n"):
            for channel in channels:
                os.write(channel.write_fd, piece)
                while select.select([channel._read_fd], [], [], 0)[0]:
                    await asyncio.sleep(0)
        for channel in channels:
            channel.close()

    asyncio.run(main())
    assert passed == [(0, b"rank done\n"), (1, b"rank done\n")]


def test_a_prompt_is_passed_on_without_its_end(tmp_path):
    async def scenario(channel):
        os.write(channel.write_fd, b"one\npassword: ")
        while b"".join(passed) != b"one\npassword: ":
            await asyncio.sleep(0.01)

    passed = []

    async def main():
        channel = Channel(rank=0, stream="out", log=tmp_path / "log", sink=lambda *a: passed.append(a[2]), trouble=pytest.fail, terminal=False)
        await asyncio.wait_for(scenario(channel), 100)
        channel.close()

    asyncio.run(main())
    assert passed == [b"one\n", b"password: "]


def test_without_pseudo_terminals_the_training_has_pipes(tmp_path, monkeypatch):
    def none_left():
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "openpty", none_left)

    async def scenario(channel):
        assert not os.isatty(channel.write_fd)
        os.write(channel.write_fd, b"step 1\n")
        channel.resize()
        channel.release()
        await channel.closed.wait()

    passed, kept, troubles = through(tmp_path, scenario, terminal=True)
    assert (passed, kept, len(troubles)) == (b"step 1\n", b"step 1\n", 1) and "no pseudo-terminal" in troubles[0]


def test_where_there_is_no_pipe_no_log_is_left_open(tmp_path, monkeypatch):
    def none_left():
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pipe", none_left)
    with pytest.raises(OSError, match="Too many open files"):
        Channel(rank=3, stream="out", log=tmp_path / "rank3.out", sink=print, trouble=print, terminal=False)
    assert not (tmp_path / "rank3.out").exists()


def test_a_log_that_is_a_link_is_not_written(tmp_path):
    (tmp_path / "victim").write_bytes(b"as it was")
    (tmp_path / "rank0.out").symlink_to("victim")
    passed, troubles = [], []

    async def main():
        channel = Channel(
            rank=0, stream="out", log=tmp_path / "rank0.out", sink=lambda *a: passed.append(a[2]), trouble=troubles.append, terminal=False
        )
        os.write(channel.write_fd, b"step 1\n")
        channel.close()

    asyncio.run(main())
    assert (b"".join(passed), len(troubles), (tmp_path / "victim").read_bytes()) == (b"step 1\n", 1, b"as it was")
