"""loader-worker-died in plain logs: a worker that is gone leaves a connection that was reset, and no word of its own."""

from __future__ import annotations

from unhang.knowledge import catalogue
from unhang.knowledge.cause import LogView
from unhang.logs import Needles, match, read

CAUSE = catalogue.load()["loader-worker-died"]

GONE = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/srv/job/train.py", line 12, in main
[rank1]:     for batch in loader:
[rank1]:   File "/srv/env/lib/python3.11/site-packages/torch/multiprocessing/reductions.py", line 541, in rebuild_storage_fd
[rank1]:     fd = df.detach()
[rank1]:   File "/usr/lib/python3.11/multiprocessing/resource_sharer.py", line 57, in detach
[rank1]:     with _resource_sharer.get_connection(self._id) as conn:
[rank1]:   File "/usr/lib/python3.11/multiprocessing/connection.py", line 395, in _recv
[rank1]:     chunk = read(handle, remaining)
[rank1]: ConnectionResetError: [Errno 104] Connection reset by peer
"""


def judged(tmp_path, text: str = GONE, **parts: object):
    path = tmp_path / "train.log"
    path.write_text(text, "utf-8")
    backs = read(path, Needles(CAUSE.signatures)).tracebacks
    assert len(backs) == 1
    assert CAUSE.in_logs is not None
    return CAUSE.in_logs(LogView(tracebacks=tuple(backs), **parts))  # type: ignore[arg-type]


def test_a_worker_that_is_gone_is_likely(tmp_path):
    found = judged(tmp_path)
    assert (found.standing, found.ranks) == ("likely", (1,)) and "a worker of a data loader was gone" in found.says


def test_a_worker_of_a_rank_that_was_ended_is_possible(tmp_path, logs):
    assert judged(tmp_path, exits=(logs.ended(-15),)).standing == "possible"
    assert judged(tmp_path, timeouts=(logs.timeout(2, 9),)).standing == "possible"


def test_a_connection_of_anything_else_is_not_a_worker(tmp_path):
    assert judged(tmp_path, GONE.replace("rebuild_storage_fd", "fetch_rows")) is None


def test_a_worker_that_ended_without_a_word_is_possible():
    """Shared memory, the memory of the host, or an exception that it printed elsewhere: the line tells none of them."""
    lines = match("RuntimeError: DataLoader worker (pid(s) 372, 373) exited unexpectedly", CAUSE.signatures, source="a.log", line=1)
    assert CAUSE.in_logs is not None
    assert CAUSE.in_logs(LogView(hits={CAUSE.id: tuple(lines)})).standing == "possible"
