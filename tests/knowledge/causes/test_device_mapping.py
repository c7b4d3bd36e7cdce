"""device-mapping in plain logs: torch's guess counts only where something hung."""

from __future__ import annotations

from unhang.knowledge import catalogue
from unhang.knowledge.cause import LogView
from unhang.logs import Hit, match
from unhang.logs.log_facts import At, Init, NcclSaid

CAUSE = catalogue.load()["device-mapping"]

GUESS = "[PG ID 0 PG GUID 0 Rank 3]  using GPU 0 to perform barrier as devices used by this process are currently unknown. This can potentially hang"
ORDINAL = "RuntimeError: CUDA error: invalid device ordinal"


def hits(*texts: str) -> dict[str, tuple[Hit, ...]]:
    return {CAUSE.id: tuple(h for n, t in enumerate(texts) for h in match(t, CAUSE.signatures, source="a.log", line=n + 1))}


def judge(view: LogView):
    assert CAUSE.in_logs is not None
    return CAUSE.in_logs(view)


def test_a_guess_in_a_healthy_job_is_nothing():
    assert hits(GUESS)[CAUSE.id]
    assert judge(LogView(hits=hits(GUESS))) is None


def test_a_guess_beside_another_hang_is_nothing(logs):
    barrier = (logs.timeout(2, 1, numel=1), logs.timeout(3, 1, numel=1))
    assert judge(LogView(hits=hits(GUESS), timeouts=barrier[:1])) is None
    assert judge(LogView(hits=hits(GUESS), timeouts=(logs.timeout(2, 90), logs.timeout(3, 90)))) is None
    assert judge(LogView(hits=hits(GUESS), timeouts=(barrier[0], logs.timeout(3, 1, "BROADCAST", 1)))) is None
    assert judge(LogView(hits=hits(GUESS), timeouts=(barrier[0], logs.timeout(3, 2, numel=1)))) is None
    assert judge(LogView(hits=hits(GUESS), timeouts=barrier, tracebacks=(logs.raised("KeyError", "'x'"),))) is None
    other = logs.lines("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert judge(LogView(hits={**hits(GUESS), **other}, timeouts=barrier)) is None


def test_an_ordinal_outweighs_the_guess():
    found = judge(LogView(hits=hits(GUESS, ORDINAL)))
    assert found.standing == "established"
    assert [r.id for r in found.remedies] == ["fewer-ranks", "set-the-device"]


def test_nccl_that_cannot_see_the_peer_asks_for_all_gpus():
    found = judge(LogView(hits=hits("node7:51:60 [0] transport/p2p.cc:275 NCCL WARN Cuda failure 101 'invalid device ordinal'")))
    assert [r.id for r in found.remedies] == ["see-all-gpus", "set-the-device"]


def test_a_guess_counts_where_several_ranks_hang_in_that_barrier(logs):
    hung = tuple(Init(at=At(source="a.log", line=2, text="Init START"), comm="0x1", rank=r, nranks=4, completed=False) for r in (2, 3))
    found = judge(LogView(hits=hits(GUESS), nccl=NcclSaid(inits=hung)))
    assert found.standing == "possible"
    assert "rank 3 has not said which GPU is its own, and torch guesses 0" in found.says
    assert judge(LogView(hits=hits(GUESS), timeouts=(logs.timeout(2, 1, numel=1), logs.timeout(3, 1, numel=1)))).standing == "possible"
