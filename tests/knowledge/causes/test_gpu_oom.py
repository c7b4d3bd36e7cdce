"""gpu-oom: the numbers of the message decide what is said and what is offered."""

from __future__ import annotations

import pytest

from unhang.knowledge.cause import LogView
from unhang.knowledge.causes.gpu_oom import CAUSE
from unhang.records.logs import match


def found(*lines: str):
    hits = [
        h for n, line in enumerate(lines, 1) for h in match(line, CAUSE.signatures, source="job.log", line=n, rank=n - 1, around="\n".join(lines))
    ]
    assert CAUSE.in_logs is not None
    return CAUSE.in_logs(LogView(hits={CAUSE.id: tuple(hits)}))


def remedies(finding) -> list[str]:
    return [r.id for r in finding.remedies]


FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.15 GiB of which 1.10 GiB is free. "
    "Including non-PyTorch memory, this process has 78.04 GiB memory in use. Of the allocated memory 76.20 GiB is allocated by PyTorch, and "
    "300.00 MiB is reserved by PyTorch but unallocated."
)
FRAGMENTED = FULL.replace("76.20 GiB", "61.20 GiB").replace("300.00 MiB is reserved", "15.30 GiB is reserved")
SHARED = FULL.replace("Including", "Process 4711 has 30.00 GiB memory in use. Including").replace("78.04 GiB", "48.04 GiB").replace("76.20", "46.20")


def test_the_numbers_are_said():
    finding = found(FULL)
    assert finding.says == (
        "rank 0: GPU 3 ran out of memory: 2.00 GiB wanted, 1.10 GiB of 79.15 GiB free, 76.20 GiB allocated by PyTorch, 300 MiB reserved but unused"
    )
    assert finding.standing == "established"


def test_a_full_gpu_wants_a_smaller_step():
    assert remedies(found(FULL)) == ["smaller-step", "shard"]


def test_fragmentation_wants_expandable_segments_first():
    assert remedies(found(FRAGMENTED))[0] == "expandable-segments"


def test_another_process_is_named_and_comes_first():
    finding = found(SHARED)
    assert "process 4711 holds 30.00 GiB" in finding.says
    assert remedies(finding)[0] == "free-the-gpu"


def test_others_that_hold_too_little_are_named_and_not_blamed():
    small = FRAGMENTED.replace("2.00 GiB. GPU", "4.35 GiB. GPU").replace("Including", "Process 4711 has 1.20 GiB memory in use. Including")
    finding = found(small)
    assert "process 4711 holds 1.20 GiB" in finding.says
    assert remedies(finding)[0] == "expandable-segments"


def test_in_a_container_the_only_process_listed_is_the_rank_itself():
    alone = FULL.replace("Including non-PyTorch memory, this process has", "Process 4711 has").replace("78.04", "77.90")
    finding = found(alone)
    assert "holds" not in finding.says
    assert "free-the-gpu" not in remedies(finding)


@pytest.mark.parametrize(
    ("text", "first", "says"),
    [
        (
            (
                "RuntimeError: CUDA out of memory. Tried to allocate 1.00 GiB (GPU 1; 31.74 GiB total capacity; 12.00 GiB already allocated; 400.00 "
                "MiB free; 12.50 GiB reserved in total by PyTorch)"
            ),
            "free-the-gpu",
            "about 18.85 GiB held outside of PyTorch",
        ),
        (
            (
                "RuntimeError: CUDA out of memory. Tried to allocate 1.00 GiB (GPU 1; 31.74 GiB total capacity; 20.00 GiB already allocated; 400.00 "
                "MiB free; 30.00 GiB reserved in total by PyTorch)"
            ),
            "expandable-segments",
            "10.00 GiB reserved but unused",
        ),
        (
            (
                "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.76 GiB total capacity; 9.70 GiB already allocated; 12.69 "
                "MiB free; 9.80 GiB cached)"
            ),
            "smaller-step",
            "GPU 0 ran out of memory: 20 MiB wanted",
        ),
    ],
)
def test_the_wordings_up_to_2_0(text, first, says):
    finding = found(text)
    assert remedies(finding)[0] == first
    assert says in finding.says


def test_numbers_speak_before_lines_without_any():
    finding = found("node7:1:2 [3] alloc.h:178 NCCL WARN Cuda failure 'out of memory'", FULL)
    assert "2.00 GiB wanted" in finding.says
    assert finding.ranks == (1,)


def test_nccl_alone_asks_for_room():
    finding = found("node7:1:2 [3] alloc.h:178 NCCL WARN Cuda failure 2 'out of memory'")
    assert "room-for-nccl" in remedies(finding)


def test_nothing_is_found_without_hits():
    assert found("all is well") is None


def test_one_that_was_caught_is_possible_at_most(logs):
    hits = {CAUSE.id: tuple(match(FULL, CAUSE.signatures, source="job.log", line=10))}
    assert CAUSE.in_logs(LogView(hits=hits, lines={"job.log": 400})).standing == "possible"
    assert CAUSE.in_logs(LogView(hits=hits, lines={"job.log": 30})).standing == "established"
    assert CAUSE.in_logs(LogView(hits=hits)).standing == "established"
    assert CAUSE.in_logs(LogView(hits=hits, lines={"job.log": 400}, exits=(logs.ended(1),))).standing == "established"
    assert CAUSE.in_logs(LogView(hits=hits, lines={"job.log": 400}, timeouts=(logs.timeout(1, 5),))).standing == "established"
