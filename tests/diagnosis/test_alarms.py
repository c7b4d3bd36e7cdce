"""Failures that no signature names: exceptions without their tracebacks, alarms, and messages of several lines, through the public door."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chinese import zh
from tests.tables import for_each

from unhang.diagnosis.logs import judge_logs
from unhang.model import Verdict


def verdict_on(text: str, folder: Path) -> Verdict:
    (folder / "job.log").write_text(text, "utf-8")
    return judge_logs([str(folder / "job.log")]).verdict


PYDANTIC = (
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for DeepSpeedZeroConfig\n"
    "{0}stage3_prefetch_bucket_size\n"
    "{0}  Input should be a valid integer, got a number with a fractional part [type=int_from_float, input_value=7549747.2, input_type=float]\n"
)
UCX = (
    "[node7:3301:0:3388] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x48)\n==== backtrace (tid:   3388) ====\n"
    " 0  /usr/lib/libucs.so.0(ucs_handle_error+0x2d4) [0x7f11a2b1c274]\n"
)
STEPS = "".join(f"step {n} loss {2 - n / 100:.2f}\n" for n in range(11, 15))


@for_each(
    ("text", "ranks", "says"),
    [
        ("[rank0]: RuntimeError: shape '[2, 3]' is invalid for input of size 5\n", (0,), "rank 0 raised RuntimeError: shape '[2, 3]' is"),
        ("3: ValueError: need at least one array to stack\n", (3,), "rank 3 raised ValueError: need at least"),
        ("[1,5]<stderr>:KeyError: 'labels'\n", (5,), "rank 5 raised KeyError: 'labels'"),
        ("(TrainWorker pid=77, ip=10.0.0.12) AttributeError: no 'shape'\n", (), "a process raised AttributeError: no 'shape'"),
        ("[rank2]: Traceback (most recent call last):\n[rank2]: AssertionError: norm is nan\n", (2,), "rank 2 raised AssertionError: norm is nan"),
        ("[rank1]:       ^^^^^^^^\n[rank1]: TypeError: forward() lacks 'mask'\n", (1,), "rank 1 raised TypeError: forward() lacks 'mask'"),
        ("2026-01-08 11:02:13,441 - hub - CRITICAL - Uncaught HfHubHTTPError: 429 Client Error\n", (), "a process raised HfHubHTTPError: 429 Client"),
        (
            "[rank4]: torch._dynamo.exc.TorchRuntimeError: Failed running call_function mm:\n[rank4]: a and b must have same reduction dim\n",
            (4,),
            "rank 4 raised torch._dynamo.exc.TorchRuntimeError: Failed running call_function mm: a and b must have same reduction dim",
        ),
        ("ray.exceptions.RayTaskError(IndexError): ray::Worker.generate() (pid=7714)\n", (), "a process raised IndexError: ray::Worker.generate()"),
        # Lines of other ranks, and an older error that was caught.
        (f"[rank0]: OSError: upload again\n{STEPS}[rank1]: RuntimeError: x is not y\n", (1,), "rank 1 raised RuntimeError: x is not y"),
    ],
)
def test_an_exception_without_its_traceback(text: str, ranks: tuple[int, ...], says: str, tmp_path: Path):
    verdict = verdict_on(text, tmp_path)
    found = verdict.primary
    assert found is not None and (found.cause, found.standing, found.ranks, found.where) == ("rank-exception", "likely", ranks, None)
    assert found.says.startswith(says)
    assert any(n.what.startswith("the traceback of ") for n in verdict.not_examined)


@pytest.mark.parametrize(
    "text",
    [
        f"step 10 loss 2.00\nOSError: [Errno 5] the upload is tried later\n{STEPS}",
        f"step 10 loss 2.00\nERROR uploader: retry 1 of 5\n{STEPS}",
        "WARNING 11-08 11:02:13 [loader.py:88] RuntimeError: no fused kernel, the slow one is used\nstep 1 loss 2.0\n",
        "node4:7712:7790 [0] misc/socket.cc:484 NCCL WARN socketStartAccept: accept failed: Resource temporarily unavailable\n",
        "[rank0]:[W108 11:02:13.441302911 ProcessGroupNCCL.cpp:1538] Warning: destroy_process_group() was not called before program exit\n",
        "eval error: 0.113\nError: 0.12\nlog_level=ERROR\nTORCH_NCCL_ASYNC_ERROR_HANDLING=1\n",
        "ERROR 03-07 06:00:03 [registry.py:347] Plugin acme was not loaded\nINFO:     Application startup complete.\n",
        "INFO 01-08 11:02:13 [launch.py:77] waiting for 3 of 4 workers\n" * 3 + STEPS,
    ],
)
def test_what_a_job_went_on_after_is_no_failure(text: str, tmp_path: Path):
    assert verdict_on(text, tmp_path).primary is None


@for_each(
    ("text", "says", "remedy"),
    [
        ("node4:7712:7790 [0] graph/topo.h:234 NCCL WARN NET/Kite : lane 3 is gone\n", ": NCCL: NET/Kite : lane 3 is gone", "say-more"),
        ("Last error:\nNET/Kite : credit pool of peer 4 is exhausted\n", ": NCCL: NET/Kite : credit pool of peer 4 is exhausted", "say-more"),
        ("2026:01:08-11:02:13:( 4711) |CCL_ERROR| exec.cpp:218 event 31 was never signalled\n", "event 31 was never signalled", "say-more"),
        ("[rank6]:[E108 11:02:13.441302911 Utils.hpp:88] [c10d] queue of group 5 is full\n", "queue of group 5 is full", "supervise"),
        ("[rank6]:[W108 11:02:13.441302911 TCPStore.cpp:4] [c10d] session 12 aborted\n", "session 12 aborted", "supervise"),
        ("[ERROR] HCCL(4711,python):2026-01-08 [comm.cc:22]call trace: hcclRet -> 9\n", "call trace: hcclRet -> 9", "supervise"),
        ("2026-01-08 11:02:13 node3 ERROR shard server: shard 14 never came\n", "shard 14 never came", "supervise"),
        ("terminate called after throwing an instance of 'std::out_of_range'\n  what():  at(8)\n", ": C++ exception: at(8)", "native-stack"),
        ("step 9 loss 1.3\ncorrupted size vs. prev_size while consolidating\n", "corrupted size vs. prev_size", "native-stack"),
        (UCX + " 1  /srv/ext/libsampler.so(+0x57) [0x7f11b4511057]\n", ": the process crashed inside libsampler.so", "native-stack"),
        (
            (
                "[node7:04711] *** Process received signal ***\n[node7:04711] Signal: Segmentation fault (11)\n"
                "[node7:04711] [ 0] /lib/libc.so.6(+0x42520)[0x7f5b2a042520]\n[node7:04711] [ 1] /opt/ucx/lib/libuct.so.0(+0x31)[0x7f5b2b0a2031]\n"
            ),
            ": the process crashed inside libuct.so.0",
            "native-stack",
        ),
    ],
)
def test_what_nobody_recognised_is_no_healthy_log(text: str, says: str, remedy: str, tmp_path: Path):
    found = verdict_on(text, tmp_path).primary
    assert found is not None and (found.cause, found.standing, found.ranks) == ("unknown", "not-established", ())
    assert says in found.says and found.remedies[0].id == remedy
    assert zh(found.says).startswith("有失败")


def test_a_crash_inside_nccl(tmp_path: Path):
    found = verdict_on(UCX + " 1  /opt/nccl/lib/libnccl.so.2(+0x120057) [0x7f11b4511057]\n", tmp_path).primary
    assert found is not None and (found.cause, found.standing) == ("nccl-bug", "possible") and "libnccl.so.2" in found.says


def test_the_rarest_and_newest_alarms_stand_first(tmp_path: Path):
    many = "".join(f"node4:77:78 [0] net.cc:9 NCCL WARN NET/Kite : lane {n} is slow\n" for n in range(9))
    once = "node4:77:78 [0] net.cc:9 NCCL WARN NET/Kite : switch lost\n"
    found = verdict_on(f"{many}{once}{many}", tmp_path).primary
    assert found is not None and [e.text.partition("WARN ")[2] for e in found.evidence] == ["NET/Kite : switch lost", "NET/Kite : lane 8 is slow"]


def test_nccl_messages_are_not_asked_for_where_they_are_on(tmp_path: Path):
    text = "node4:77:78 [0] NCCL INFO net.cc:12 -> 2\nnode4:77:78 [0] net.cc:9 NCCL WARN NET/Kite : switch lost\n"
    found = verdict_on(text, tmp_path).primary
    assert found is not None and "say-more" not in [r.id for r in found.remedies]


def test_a_traceback_without_its_exception(tmp_path: Path):
    text = (
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/srv/job/train.py", line 96, in main\n[rank1]:     out = model(batch)\n'
        '[rank1]:   File "/opt/pytorch/torch/nn/modules/module.py", line 1751, in _call_impl\n'
    )
    found = verdict_on(text, tmp_path).primary
    assert found is not None and (found.cause, found.where) == ("unknown", "/srv/job/train.py:96 in main")
    assert "a traceback is cut off before its exception" in found.says and found.remedies[0].id == "whole-log"


@pytest.mark.parametrize("prefix", ["", "[rank2]: "])
def test_the_option_that_pydantic_refused(prefix: str, tmp_path: Path):
    found = verdict_on(prefix + PYDANTIC.format(prefix), tmp_path).primary
    assert found is not None and (found.cause, found.ranks) == ("config-error", (2,) if prefix else ())
    assert "stage3_prefetch_bucket_size=7549747.2: Input should be a valid integer" in found.says


@pytest.mark.parametrize(
    ("text", "cause", "says"),
    [
        (
            "usage: t.py [-h] [--mode {fast,slow}]\nt.py: error: argument --mode: invalid choice: 'quick' (choose from\n'fast', 'slow')\n",
            "config-error",
            "t.py refused --mode: invalid choice: 'quick' (choose from 'fast', 'slow')",
        ),
        (
            (
                "[rank1]: accelerate.utils.operations.DistributedOperationException: Cannot apply desired operation due to shape mismatches. "
                "All shapes across devices must be valid.\n\n[rank1]: Operation: `accelerate.utils.operations.gather`\n[rank1]: Input shapes:\n"
                "[rank1]:   - Process 0: [4, 128]\n[rank1]:   - Process 1: [3, 128]\n"
            ),
            "collective-mismatch",
            "rank 1: accelerate: in gather rank 0 had a tensor of shape [4, 128], rank 1 one of [3, 128]",
        ),
        (
            (
                "[rank0]: RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the following reasons: 1) Use "
                "of a module parameter outside the `forward` function.\n[rank0]: Parameter at index 211 with name layers.13.lora_A.weight has "
                "been marked as ready twice.\n"
            ),
            "rank-exception",
            "Expected to mark a variable ready only once. Parameter at index 211 with name layers.13.lora_A.weight has been marked as ready twice",
        ),
        (
            (
                "[rank3]: pydantic_core._pydantic_core.ValidationError: 1 validation error for Sample\n[rank3]: prompt\n[rank3]:   Field required "
                "[type=missing, input_value={'text': 'a'}, input_type=dict]\n"
            ),
            "rank-exception",
            "1 validation error for Sample prompt Field required",
        ),
    ],
)
def test_a_message_of_several_lines_keeps_what_decides(text: str, cause: str, says: str, tmp_path: Path):
    found = verdict_on(text, tmp_path).primary
    assert found is not None and found.cause == cause and says in found.says


OOM = (
    "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.37 GiB. GPU 1 has a total capacity of 79.15 GiB of which 1.02 GiB is "
    "free. Including non-PyTorch memory, this process has 78.12 GiB memory in use. Of the allocated memory 75.01 GiB is allocated by PyTorch, and "
    "1.88 GiB is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("width", [80, 100, 117, 132])
def test_a_message_that_a_terminal_wrapped(width: int, padded: bool, tmp_path: Path):
    pieces = ['[rank1]:   File "/srv/job/train.py", line 88, in step', *(OOM[i : i + width] for i in range(0, len(OOM), width))]
    found = verdict_on("".join(f"{p.ljust(width) if padded else p}\n" for p in pieces), tmp_path).primary
    assert found is not None and (found.cause, found.ranks) == ("gpu-oom", (1,))
    assert "1.02 GiB of 79.15 GiB free, 75.01 GiB allocated by PyTorch, 1.88 GiB reserved but unused" in found.says


def test_evidence_is_the_line_as_it_stands(tmp_path: Path):
    wrapped = [OOM[i : i + 100] for i in range(0, len(OOM), 100)]
    found = verdict_on("\n".join(wrapped), tmp_path).primary
    assert found is not None and [e.text for e in found.evidence] == [wrapped[0].removeprefix("[rank1]: ")]


@pytest.mark.parametrize("width", [80, 100, 120, 132])
def test_a_line_that_is_as_wide_as_a_terminal_may_end_there(width: int, tmp_path: Path):
    """It is one with the next only where they say together what neither says alone."""
    line = "train.py: error: argument --lr: " + "x" * (width - 32)
    found = verdict_on(f"{line}\nsaving the state of the loader\n", tmp_path).primary
    assert found is not None and found.cause == "config-error" and "saving" not in found.says and found.evidence[0].text == line
    text = f"{'x' * (width - 42)} The client socket has timed out after 60s\n while trying to connect to (10.3.0.5, 29500).\n"
    found = verdict_on(text, tmp_path).primary
    assert found is not None and "10.3.0.5 port 29500" in found.says


def test_the_shapes_of_sixteen_processes(tmp_path: Path):
    text = "accelerate.utils.operations.DistributedOperationException: Cannot apply desired operation due to shape mismatches. All shapes across "
    text += "devices must be valid.\n\nOperation: `accelerate.utils.operations.gather`\nInput shapes:\n"
    text += "".join(f"  - Process {n}: [{3 if n == 13 else 4}, 128]\n" for n in range(16))
    found = verdict_on(text, tmp_path).primary
    assert found is not None and "in gather rank 0 had a tensor of shape [4, 128], rank 13 one of [3, 128]" in found.says


def test_equal_lines_of_two_processes_are_not_one(tmp_path: Path):
    line = OOM.removeprefix("[rank1]: ")[:100]
    found = verdict_on(f"{line}\n{line}\n", tmp_path).primary
    assert found is not None and found.evidence[0].text == line


def test_a_bound_cuts_between_words(tmp_path: Path):
    reason = "the value is refused because " + "of reasons " * 30
    found = verdict_on(f"train.py: error: argument --lr: {reason}\n", tmp_path).primary
    assert found is not None and found.says.endswith(" …") and set(found.says.split(": ", 1)[1].split()) <= {*reason.split(), "…"}


@pytest.mark.parametrize("torch", ["/opt/pytorch", "/usr/local/lib/python3.12/dist-packages", "/srv/src/pytorch-main", "/srv/job/env.zip"])
def test_the_line_is_the_users_wherever_torch_lies(torch: str, tmp_path: Path):
    text = (
        'Traceback (most recent call last):\n  File "/srv/job/train.py", line 88, in step\n    out = model(x)\n'
        f'  File "{torch}/torch/nn/modules/module.py", line 1751, in _call_impl\n    return forward_call(*args)\nValueError: x\n'
    )
    found = verdict_on(text, tmp_path).primary
    assert found is not None and found.where == "/srv/job/train.py:88 in step"


NATIVE = "".join(f"frame #{n}: <unknown function> + 0x{n:x}1f0 (0x7f2{n:03x} in /opt/pytorch/torch/lib/libtorch_cuda.so)\n" for n in range(40))
RAISED = "RuntimeError: plan 7 cannot be built\nException raised from run_plan at Conv_v8.cpp:612 (most recent call first):\n" + NATIVE


@pytest.mark.parametrize("head", ["", 'Traceback (most recent call last):\n  File "/srv/job/train.py", line 88, in step\n    loss.backward()\n'])
def test_a_native_stack_after_an_exception_is_no_log_that_goes_on(head: str, tmp_path: Path):
    found = verdict_on(head + RAISED, tmp_path).primary
    assert found is not None and (found.cause, found.where) == ("rank-exception", "/srv/job/train.py:88 in step" if head else None)


def test_a_native_stack_alone_is_no_healthy_log(tmp_path: Path):
    found = verdict_on(NATIVE, tmp_path).primary
    assert found is not None and found.cause == "unknown"
    assert verdict_on("[W108 11:02:13.441302911 x.cpp:4] a stack was asked for\n" + NATIVE[:200], tmp_path).primary is None


def test_what_python_prints_at_the_end_of_a_script_ended_it(tmp_path: Path):
    """NCCL and the launcher print on for longer than anything after an error that was caught."""
    text = 'Traceback (most recent call last):\n  File "/srv/job/train.py", line 88, in <module>\n    main()\nValueError: x\n'
    later = "".join(f"node4:77:{n} [0] NCCL INFO [Service thread] Connection closed by localRank {n}\n" for n in range(40))
    found = verdict_on(text + later, tmp_path).primary
    assert found is not None and (found.cause, found.standing) == ("rank-exception", "likely")
    assert verdict_on(text + STEPS + later, tmp_path).primary is None


@for_each(
    "text",
    [
        "/srv/nvshmem/src/host/init/init.cu:1001: non-zero status: 7\n",
        "[2025-11-06T18:14:50.402] [22.0] error: pyxis: couldn't start container\n",
        "2025:04:02-01:15:22:(3902110) |CCL_WARN| rank: 0, port issue: { status: failed, details: training }\n",
        "Failed, UB error userbuffers-host.cpp:223 ''\n",
        "srun: error: Unable to contact slurm controller (connect failure)\n",
        "F0108 11:02:13.441302  4711 executor.cc:77] Check failed: ok\n",
        "".join(
            f"quorum: 2026-01-08T11:02:{n}Z - INFO tick: New quorum not ready, only have 3 participants, need min_replicas 4\n" for n in (13, 14, 15)
        ),
        "INFO 01-08 11:02:13 [launch.py:77] waiting for 3 of 4 workers\n" * 3,
        "EI0004: [PID: 4711] 2026-01-08-11:02:13.441.302 The rank table is not valid.\n",
        "EE9999: [PID: 4711] 2026-01-08-11:02:13.441.302 The kernel ended with an aivec exception.\n",
    ],
)
def test_alarms_of_other_programs(text: str, tmp_path: Path):
    found = verdict_on(text, tmp_path).primary
    assert found is not None and (found.cause, found.standing) == ("unknown", "not-established")
