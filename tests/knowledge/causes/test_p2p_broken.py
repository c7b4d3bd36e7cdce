"""p2p-broken: a first collective that all ranks entered over P2P and none left."""

from __future__ import annotations

from dataclasses import replace

from unhang.knowledge import catalogue
from unhang.knowledge.cause import LogView
from unhang.logs import match
from unhang.logs.log_facts import At, Init, NcclSaid, Timeout

CAUSE = catalogue.load()["p2p-broken"]


def at(text: str, rank: int | None = None) -> At:
    return At(source="job.log", line=1, text=text, rank=rank)


def timeout(rank: int, seq: int = 1, op: str = "ALLREDUCE") -> Timeout:
    return Timeout(
        at=at(f"[Rank {rank}] Watchdog caught", rank), group="0", seq=seq, op=op, numel_in=1, numel_out=1, timeout_ms=600_000, ran_ms=600_010
    )


INITS = tuple(Init(at=at("Init COMPLETE", r), comm="0x1", rank=r, nranks=2, completed=True) for r in range(2))
HUNG = LogView(
    timeouts=(timeout(0), timeout(1)),
    nccl=NcclSaid(inits=INITS, transports={"P2P/CUMEM": (at("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", 0),)}),
)


def found(view: LogView):
    assert CAUSE.in_logs is not None
    return CAUSE.in_logs(view)


def test_a_rank_that_never_came_is_another_cause():
    assert found(replace(HUNG, timeouts=(timeout(0),))) is None


def test_a_hang_in_the_middle_of_training_is_another_cause():
    assert found(replace(HUNG, timeouts=(timeout(0, 4711), timeout(1, 4711)))) is None


def test_ranks_in_different_collectives_are_another_cause():
    assert found(replace(HUNG, timeouts=(timeout(0), timeout(1, op="BROADCAST")))) is None


def test_other_transports_are_other_causes():
    assert found(replace(HUNG, nccl=replace(HUNG.nccl, transports={"SHM/direct": (at("via SHM/direct"),)}))) is None
    both = {**HUNG.nccl.transports, "NET/Socket/0": (at("via NET/Socket/0"),)}
    assert found(replace(HUNG, nccl=replace(HUNG.nccl, transports=both))) is None


def test_what_cuda_refuses_speaks_before_a_guess():
    line = "node7:1:2 [0] transport/p2p.cc:238 NCCL WARN failed to open CUDA IPC handle : 711 peer access is not supported between these two devices"
    hits = tuple(match(line, CAUSE.signatures, source="job.log", line=3))
    finding = found(replace(HUNG, hits={CAUSE.id: hits}))
    assert finding.standing == "established"


def test_the_advice_that_rccl_always_prints_counts_only_where_something_hung():
    line = 'node7:5:6 [0] init.cc:213 NCCL WARN Missing "iommu=pt" from kernel command line which can lead to system instablity or hang!'
    known = catalogue.signatures()
    hits = tuple(h for h in match(line, known, source="job.log", line=1) if known[h.signature] == CAUSE.id)
    assert len(hits) == 1
    assert found(LogView(hits={CAUSE.id: hits})) is None
    later = replace(HUNG, hits={CAUSE.id: hits}, timeouts=tuple(replace(t, seq=900) for t in HUNG.timeouts))
    finding = found(later)
    assert finding.standing == "possible" and "iommu=pt" in finding.says
