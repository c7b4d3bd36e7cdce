"""Small files read whole: no pipe keeps anybody waiting, and none is read empty."""

import errno
import os

import pytest

from unhang import fsio


@pytest.mark.timeout(20)
def test_a_file_is_read_up_to_a_bound_and_nothing_else_is(tmp_path):
    file, pipe = tmp_path / "file", tmp_path / "pipe"
    file.write_bytes(b"12345")
    os.mkfifo(pipe)
    assert fsio.bounded_read(file, 9) == b"12345" and fsio.bounded_read(str(file), 3) == b"123"
    for path, number, says in (
        (pipe, errno.EINVAL, "it is no regular file"),
        ("/dev/zero", errno.EINVAL, "it is no regular file"),
        (tmp_path, errno.EISDIR, "Is a directory"),
        (tmp_path / "none", errno.ENOENT, "No such file or directory"),
    ):
        with pytest.raises(OSError, match=says) as e:
            fsio.bounded_read(path, 9)
        assert e.value.errno == number and e.value.strerror == says


def test_what_a_pipe_holds_stays_in_it():
    reader, writer = os.pipe()
    os.write(writer, b"another's")
    with pytest.raises(OSError, match="no regular file"):
        fsio.bounded_read(f"/dev/fd/{reader}", 9)
    assert os.read(reader, 99) == b"another's"
    os.close(reader)
    os.close(writer)
