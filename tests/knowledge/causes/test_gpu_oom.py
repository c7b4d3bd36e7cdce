"""gpu-oom: the numbers of the message decide what is said and what is offered."""

from __future__ import annotations

import pytest

from unhang.diagnosis.why import judge
from unhang.frames import Frame
from unhang.knowledge import catalogue
from unhang.knowledge.cause import LogView
from unhang.logs import Traceback, match
from unhang.records.incident import Ended, Incident, Raised, RankRecord
from unhang.records.rundir import RunDir

CAUSE = catalogue.load()["gpu-oom"]


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


VLLM = "/opt/venv/lib/python3.12/site-packages/vllm/v1/worker/gpu_model_runner.py"
LOAD = "Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization to free memory for weights. (original error: "


def raised_in(text: str, *names: str, file: str = VLLM):
    hits = tuple(match(text, CAUSE.signatures, source="job.log", line=9))
    back = Traceback(source="job.log", line=2, end=9, type="x", text=text, frames=tuple(Frame(file=file, line=7, name=n) for n in names))
    return CAUSE.in_logs(LogView(hits={CAUSE.id: hits}, tracebacks=(back,)))


@pytest.mark.parametrize(
    ("finding", "first"),
    [
        (raised_in(FULL, "init_device", "load_model", "make_layers"), "split-the-model"),
        (raised_in(FULL, "determine_available_memory", "profile_run", "forward"), "fewer-requests"),
        (raised_in(FULL, "execute_model", "forward"), "smaller-share"),
        (raised_in(SHARED, "execute_model", "forward"), "free-the-gpu"),
        (raised_in(FULL, "generate", file="/opt/venv/lib/python3.12/site-packages/sglang/srt/managers/scheduler.py"), "smaller-share"),
        (found(LOAD + FULL + ")"), "split-the-model"),
        # Names alone are no engine, nor is a directory that is called so.
        (raised_in(FULL, "load_model", file="/srv/vllm/train.py"), "smaller-step"),
    ],
)
def test_what_an_engine_is_told_depends_on_where_it_ran_out(finding, first):
    assert remedies(finding)[0] == first
    assert ("smaller-step" in remedies(finding)) == (first == "smaller-step")


NEEDED = "To serve at least one request with the model's max seq len (65536), {} GiB KV cache is needed, which is larger than the available KV cache "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # What vLLM estimates is better than a proportion.
        (
            NEEDED.format(8.5) + "memory (5.2 GiB). Based on the available memory, the estimated maximum model length is 40080.",
            [("shorter-context", "--max-model-len 40080"), ("split-the-model", "--tensor-parallel-size 2")],
        ),
        (
            NEEDED.format(32.0) + "memory (8.0 GiB).",
            [("shorter-context", "--max-model-len 16384"), ("split-the-model", "--tensor-parallel-size 4")],
        ),
        (NEEDED.format(8.5) + "memory (8.1 GiB).", [("larger-share", "0.95"), ("shorter-context", "--max-model-len 62451")]),
        (NEEDED.format(8.5) + "memory (0.0 GiB).", [("shorter-context", ""), ("split-the-model", "")]),
        (
            "The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV cache (4096).",
            [("shorter-context", "--max-model-len 4096")],
        ),
        (
            "Free memory on device cuda:0 (21.4/23.5 GiB) on startup is less than desired GPU memory utilization (0.92, 21.62 GiB).",
            [("smaller-share", "--gpu-memory-utilization 0.89"), ("free-the-gpu", "nvidia-smi")],
        ),
        (
            "Free memory on device (5.1/79.15 GiB) on startup is less than desired GPU memory utilization (0.9, 71.24 GiB).",
            [("free-the-gpu", "nvidia-smi")],
        ),
        (
            "Free memory on device (40.1/79.15 GiB) on startup is less than desired GPU memory utilization (0.9, 71.24 GiB).",
            [("free-the-gpu", "nvidia-smi"), ("smaller-share", "--gpu-memory-utilization 0.48")],
        ),
    ],
)
def test_the_numbers_of_an_engine_choose_the_setting(text, expected):
    finding = found("ValueError: " + text)
    assert finding.standing == "established"
    assert remedies(finding)[:2] == [id for id, _ in expected]
    for remedy, (_, command) in zip(finding.remedies, expected, strict=False):
        assert command in (remedy.command or "")


@pytest.mark.parametrize(
    ("function", "first"), [("evaluate", "smaller-evaluation"), ("validation_step", "smaller-evaluation"), ("step", "smaller-step")]
)
def test_an_exception_is_told_with_its_line_host_and_what_it_was_doing(tmp_path, function, first):
    """No log of the rank holds a traceback: the frames that it told are all there is."""
    frames = (
        Frame(file="/job/train.py", line=40, name="<module>", code="main()"),
        Frame(file="/job/train.py", line=23, name=function, code="y = m(x)"),
    )
    kind, _, text = FULL.partition(": ")
    raised = Raised(type=kind, text=text, frames=frames, at_s=9.0)
    rundir = RunDir(tmp_path)
    ranks = (
        RankRecord(rank=0, pid=7, host="node1"),
        RankRecord(rank=1, pid=8, host="node2", raised=raised, ended=Ended(at_s=9.5, exitcode=1)),
    )
    rundir.write(rundir.incident(1), Incident(number=1, attempt=0, kind="failure", at_s=9.6, at="", cwd="/job", command=(), ranks=ranks))
    found = judge(rundir, number=1).primary
    assert found is not None
    assert (found.cause, found.ranks, found.hosts, found.where) == ("gpu-oom", (1,), ("node2",), f"train.py:23 in {function}")
    assert remedies(found)[0] == first
    assert any("train.py" in e.text and "line 23" in e.text for e in found.evidence)
