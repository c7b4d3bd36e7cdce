"""unhandled-generic: NCCL failed, and what it says of it, if anything, is the mark of no cause known here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Cause, LogView, Signature
from unhang.knowledge.text import Text
from unhang.logs.log_facts import At
from unhang.model import Evidence, Finding
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.records.incident_view import IncidentView

_LAST_ERROR = lazily(r"Last [Ee]rror:\s*(?P<said>\S[^\n]{0,500})")


def words(view: LogView) -> tuple[str, At] | None:
    """NCCL's own words about the first failure, and where they stand: behind "Last error:", else in the last warning before it."""
    first = next(iter(view.hits_of(CAUSE.id)), None)
    if first is None:
        return None
    quoted = [(said, at) for said, places in view.nccl.last_errors.items() for at in places]
    if quoted:
        return next(((said, at) for said, at in quoted if at.rank == first.rank), quoted[0])
    warned = [(said, at) for said, places in view.nccl.warnings.items() for at in places]
    before = [w for w in warned if w[1].source == first.source and (w[1].line or 0) < (first.line or 0)]
    return max(before, key=lambda w: w[1].line or 0, default=None)


_NONE = Text("NCCL failed and names no cause", "NCCL 出错，但没有给出原因")


def _quoted(said: str | None) -> Text:
    return _NONE if said is None else Text("NCCL: {said}", "NCCL：{said}").fill(said=said)


def _in_run(picture: IncidentView) -> Finding | None:
    # What a rank raised is one text, with all its lines.
    hits = picture.hits_of(CAUSE.id)
    return CAUSE.of_hits(hits, says=_quoted(next((m["said"] for h in hits if (m := _LAST_ERROR.search(h.text)) is not None), None)))


def _in_logs(view: LogView) -> Finding | None:
    hits = view.hits_of(CAUSE.id)
    said = words(view)
    if said is None:
        return CAUSE.of_hits(hits, view, says=_NONE)
    # Ranks of which other words are quoted did not meet this.
    others = {at.rank for words, places in view.nccl.last_errors.items() if words != said[0] for at in places} - {None, said[1].rank}
    found = CAUSE.of_hits([h for h in hits if h.rank not in others], view, says=_quoted(said[0]))
    if found is None:
        return None
    # torch puts the words on the line behind "Last error:"; NCCL's own warning says more of whom they are.
    at = view.nccl.warnings.get(said[0], (said[1],))[0]
    stands_there = said[0] in at.text
    quoted = Evidence(source=at.source, line=at.line if stands_there or at.line is None else at.line + 1, text=at.text if stands_there else said[0])
    return replace(found, evidence=(quoted, *found.evidence[:2]))


def _said(words: str) -> str:
    """The words as NCCL, torch and what else calls NCCL print them, and not as prose about them has them."""
    return (
        rf"(?:NCCL error in: |NCCL [Ee]rror \d+|NCCL failure|NCCL WARN |NCCL_ERROR|(?:nccl|NCCL)\w* failed|Error: ).{{0,300}}?{words}"
        rf"|'{words}'|{words} ?(?:\(run with NCCL_DEBUG|, ?NCCL version)"
    )


CAUSE = Cause(
    id="unhandled-generic",
    role="symptom",
    title="NCCL failed for a reason that is not known here",
    title_zh="NCCL 出错，原因未知",
    what="torch or another caller reports an NCCL error whose text says only that something in the system, in CUDA or inside NCCL failed.",
    why="The line that names the cause is printed by NCCL itself, and only at NCCL_DEBUG=WARN or above.",
    signatures=(
        Signature(needle="unhandled system error", pattern=_said("unhandled system error"), role="symptom"),
        Signature(needle="unhandled cuda error", pattern=_said("unhandled cuda error"), role="symptom"),
        Signature(needle="internal error - please report this issue to the NCCL developers", role="symptom"),
        *(
            Signature(needle=words, pattern=rf"NCCL (?:error|Error \d+|failure)\b.{{0,200}}{words}", role="symptom")
            for words in ("internal error", "invalid usage", "invalid argument")
        ),
        # nccl2.
        Signature(needle="Aborting process on rank ", pattern=r"Aborting process on rank \d{1,7} due to error\b", role="symptom"),
        *(
            Signature(needle=f"nccl{kind}: ", role="symptom")
            for kind in ("SystemError", "InternalError", "UnhandledCudaError", "InvalidUsage", "InvalidArgument")
        ),
    ),
    in_run=_in_run,
    in_logs=_in_logs,
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
        "NCCL error 4: unhandled cuda error",
        "cupy_backends.cuda.libs.nccl.NcclError: NCCL_ERROR_SYSTEM_ERROR: unhandled system error",
        "[TC][rank=2][name=0] Aborting process on rank 2 due to error - timeout watchdog detected operation error",
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
