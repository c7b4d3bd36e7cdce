"""unhandled-generic: NCCL failed and names no cause."""

from __future__ import annotations

from unhang.knowledge.cause import Cause, Signature


def _said(words: str) -> str:
    """The words as NCCL, torch and what else calls NCCL print them, and not as prose about them has them."""
    return (
        rf"(?:NCCL error in: |NCCL Error \d+|NCCL failure|NCCL WARN |NCCL_ERROR|(?:nccl|NCCL)\w* failed|Error: ).{{0,300}}?{words}"
        rf"|'{words}'|{words} ?(?:\(run with NCCL_DEBUG|, ?NCCL version)"
    )


CAUSE = Cause(
    id="unhandled-generic",
    role="symptom",
    title="NCCL failed and names no cause",
    title_zh="NCCL 出错，但没有给出原因",
    what="torch or another caller reports an NCCL error whose text says only that something in the system, in CUDA or inside NCCL failed.",
    why="The line that names the cause is printed by NCCL itself, and only at NCCL_DEBUG=WARN or above.",
    signatures=(
        Signature(needle="unhandled system error", pattern=_said("unhandled system error"), role="symptom"),
        Signature(needle="unhandled cuda error", pattern=_said("unhandled cuda error"), role="symptom"),
        Signature(needle="internal error - please report this issue to the NCCL developers", role="symptom"),
        Signature(needle="internal error", pattern=r"NCCL (?:error|Error \d+|failure)\b.{0,200}internal error", role="symptom"),
        Signature(needle="invalid usage", pattern=r"NCCL (?:error|Error \d+|failure)\b.{0,200}invalid usage", role="symptom"),
        Signature(needle="invalid argument", pattern=r"NCCL (?:error|Error \d+|failure)\b.{0,200}invalid argument", role="symptom"),
        Signature(needle="ncclSystemError: ", role="symptom"),
        Signature(needle="ncclInternalError: ", role="symptom"),
        Signature(needle="ncclUnhandledCudaError: ", role="symptom"),
        Signature(needle="ncclInvalidUsage: ", role="symptom"),
        Signature(needle="ncclInvalidArgument: ", role="symptom"),
    ),
    mistaken_for={"peer-lost": "ncclRemoteError says that the other side ended; these say only that something failed here"},
    sources=("https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",),
    hits=(
        (
            "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, unhandled system error (run "
            "with NCCL_DEBUG=INFO for details), NCCL version 2.25.1"
        ),
        (
            "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2395, unhandled cuda error "
            "(run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3"
        ),
        (
            "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1269, internal error - please report this issue to the NCCL developers, NCCL "
            "version 2.18.5"
        ),
        "RuntimeError: NCCL error in: ../torch/lib/c10d/ProcessGroupNCCL.cpp:859, internal error, NCCL version 2.7.8",
        "node7: Test NCCL failure common.cu:777 'unhandled system error'",
        "(RayWorkerWrapper pid=812) RuntimeError: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)",
        "RuntimeError: NCCL Error 4: invalid argument",
        "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "horovod.common.exceptions.HorovodInternalError: ncclCommInitRank failed: unhandled cuda error",
        "RuntimeError: NCCL Error 1: unhandled cuda error",
        "cupy_backends.cuda.libs.nccl.NcclError: NCCL_ERROR_SYSTEM_ERROR: unhandled system error",
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
        "ncclInternalError: Internal check failed.",
        "ncclUnhandledCudaError: Call to CUDA function failed.",
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
        "ncclInvalidArgument: Invalid value for an argument.",
    ),
    near_misses=(
        "RuntimeError: CUDA error: out of memory",
        "An unhandled exception reached the event loop",
        "OSError: [Errno 22] Invalid argument",
        "XFAIL test_ranks.py::test_on_a_gpu - NCCL error: unhandled system error, needs a GPU",
        "[INFO] nccl errors are raised asynchronously; unhandled system error messages: see docs/troubleshooting.md",
        "test_ranks.py::test_on_a_gpu XFAIL (NCCL error: unhandled cuda error) [ 80%]",
        "HTTP 500: internal error while contacting the NCCL dashboard",
    ),
    explain={
        "en": (
            "The message says that a system call, CUDA or NCCL itself failed, and no more. Run again with NCCL_DEBUG=WARN: NCCL then prints the "
            "line that names the cause. From torch 2.0 on the text behind 'Last error:' is that line."
        ),
        "zh": (
            "这条信息只说系统调用、CUDA 或 NCCL 自身出了错，没有更多内容。加上 NCCL_DEBUG=WARN 再运行一次，NCCL 会打印出说明原因的那一行。torch "
            "2.0 起，“Last error:” 后面的文字就是那一行。"
        ),
    },
)
