"""framework-bug: a known bug of torch or of a framework on top of it, not of the training."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge import text, words
from unhang.knowledge.cause import Cause, LogView, Signature, command
from unhang.knowledge.causes import crash_at_exit
from unhang.knowledge.text import Text
from unhang.model import Evidence, Finding, HostFinding, Remedy
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot
    from unhang.records.incident_view import IncidentView

_SIGSEGV = -11
_AT_DDP = Text(
    "torch crashed while DDP was built, as torch 2.13 does on Gloo with TORCH_DISTRIBUTED_DEBUG=DETAIL",
    "torch 在构建 DDP 时崩溃，torch 2.13 在 Gloo 上设 TORCH_DISTRIBUTED_DEBUG=DETAIL 时会这样",
)


# What the threads of a Python process are called: by the interpreter, by torch, by NCCL, by what starts them.
_PYTHON = lazily(r"python|pt_|ray|torch|vllm|sglang|deepspeed|accelerate|nccl|cuda", re.IGNORECASE)
_LIBRARY = lazily(r" in (?P<name>[\w.+-]{1,120}?)\[")


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    """Python processes that crashed in native code. In a container they are those of the whole host."""
    from unhang.facts import container, kernel_log

    log = host.get(kernel_log.SUBJECT)
    crashed = [e for e in (log.events if log is not None else ()) if e.kind == "segfault" and _PYTHON.match(e.process or "")]
    if not crashed:
        return
    last = crashed[-1]
    count = sum(e.count for e in crashed)
    library = found["name"] if (found := _LIBRARY.search(last.text)) else None
    ours = container.kind(host) in ("bare", "systemd", "slurm")
    yield CAUSE.host_finding(
        area="kernel",
        severity="warning" if ours and kernel_log.recent(last) else "note",
        says=Text(
            "a Python process crashed in native code (segmentation fault{inside}): {process} ({pid}) {ago}{more}",
            "一个 Python 进程在原生代码里崩溃（段错误{inside}）：{process}（{pid}），{ago}{more}",
        ).fill(
            inside=Text(" in {library}", "，位于 {library}").fill(library=library) if library else "",
            process=str(last.process),
            pid=str(last.pid),
            ago=Text(kernel_log.ago(last.last_age_s), kernel_log.ago_zh(last.last_age_s)),
            more=Text("; {n} crashes since the machine started", "；开机以来共崩溃 {n} 次").fill(n=count) if count > 1 else "",
        ),
        leads_to=Text(
            "a rank that crashes leaves no traceback, and the others only notice that a peer is gone",
            "崩溃的 rank 不留下 traceback，其他 rank 只发现同伴不见了",
        ),
        evidence=tuple(Evidence(source="kernel log", text=e.text) for e in crashed[-3:]),
        remedies=("see-the-crash", "upgrade-torch"),
        commands={"see-the-crash": command("coredumpctl info {pid:pid}; PYTHONFAULTHANDLER=1 COMMAND", pid=last.pid)},
    )


def _at_ddp(picture: IncidentView) -> Finding | None:
    """The stack stands in what the signal handler wrote, which is no log. Over NCCL nobody has seen this."""
    crashed = [r for r in picture.gone if r.ended and r.ended.exitcode == _SIGSEGV and r.fatal is not None and "nccl" not in (r.record.backend or "")]
    crashed = [r for r in crashed if r.frames and r.frames[-1].name == "_ddp_init_helper"]
    if not crashed:
        return None
    numbers = [r.number for r in crashed]
    return CAUSE.finding(
        standing="likely",
        says=Text("{who} {were} ended by SIGSEGV: {why}", "{who} 被 SIGSEGV 结束：{why}").fill(
            who=text.ranks(numbers), were=words.verb(numbers, "was", "were"), why=_AT_DDP
        ),
        ranks=tuple(numbers),
        hosts=words.hosts(picture, numbers),
        evidence=words.stack_evidence(picture, crashed[0]),
        remedies=("detail-off", "upgrade-torch"),
    )


def _in_logs(view: LogView) -> Finding | None:
    """That a process was aborted without an exception says nothing where something was raised, or a peer was lost: Gloo's threads die of that too."""
    hits = view.hits_of(CAUSE.id)
    raised = any(not t.ignored and t.type.rpartition(".")[2] != "ChildFailedError" for t in view.tracebacks)
    spawned = any("spawn.Process" in h.text for h in view.hits_of("launcher-teardown"))
    if raised or spawned or view.hits_of("peer-lost"):
        hits = tuple(h for h in hits if h.signature != _ABORTED)
    return CAUSE.of_hits(hits, view)


_ABORTED = Signature(
    needle="terminate called without an active exception",
    pattern=r"^terminate called without an active exception",
    standing="possible",
    says="a process was aborted by its own C++ runtime without an exception, as happens when a Gloo thread outlives Python",
    says_zh="有进程在没有异常的情况下被自己的 C++ 运行时中止，Python 退出后 Gloo 线程仍在运行时会这样",
    remedies=("let-go-first", "skip-the-teardown"),
)

CAUSE = Cause(
    id="framework-bug",
    role="root",
    title="A known bug of torch or a framework",
    title_zh="torch 或框架自身的已知缺陷",
    what="The training did nothing wrong: torch or a framework on top of it has a known defect that a newer release mends, or that can be avoided.",
    why=(
        "For example: a thread of torch's Gloo backend outlives the interpreter; a wheel defaults to a store that it was built without; an old "
        "release calls NCCL in a way that newer NCCL refuses."
    ),
    signatures=(
        _ABORTED,
        # torch 2.13: DETAIL wraps the group, and DDP's constructor casts the wrapper to what it is not.
        Signature(
            needle=" in _ddp_init_helper",
            pattern=r"torch/nn/parallel/distributed\.py\", line \d+ in _ddp_init_helper",
            near=r"Fatal Python error: Segmentation fault",
            standing="likely",
            says=_AT_DDP.en,
            says_zh=_AT_DDP.zh,
            remedies=("detail-off", "upgrade-torch"),
        ),
        # NVSHMEM up to 3.4.5 (NVIDIA/nvshmem issue 21).
        Signature(
            needle="NULL value Unable to create ah",
            standing="likely",
            says="NVSHMEM handed an address handle over that it had not filled in, as up to 3.4.5 on RoCE: newer adapter drivers refuse that",
            says_zh="NVSHMEM（3.4.5 及以下，RoCE）传出了未初始化的 address handle，新的网卡驱动会拒绝它",
            remedies=("newer-nvshmem",),
        ),
        # Triton's compiler.
        Signature(
            needle="Assertion `",
            pattern=r"\b(?:mlir|llvm)::.{0,400}Assertion `(?P<condition>.{1,200}?)' failed",
            standing="likely",
            says="the compiler of Triton failed a check of its own: {condition}",
            says_zh="Triton 的编译器自身检查失败：{condition}",
            remedies=("other-triton",),
        ),
        Signature(
            needle="Ptx assembly aborted due to errors",
            standing="likely",
            says="ptxas refused the code that Triton wrote for this GPU",
            says_zh="ptxas 拒绝了 Triton 为该 GPU 生成的代码",
            remedies=("other-triton",),
        ),
        Signature(
            needle="LLVM ERROR: ",
            pattern=r"LLVM ERROR: (?P<said>.{1,200})",
            standing="likely",
            says="LLVM, which compiles Triton's kernels, gave up: {said}",
            says_zh="编译 Triton 内核的 LLVM 失败：{said}",
            remedies=("other-triton",),
        ),
        # torch 2.4 and later on Windows; "build" up to 2.6, "built" later.
        Signature(
            needle="use_libuv was requested but PyTorch was buil",
            says="this torch asks for a libuv store by default and was built without one (Windows wheels from 2.4 on)",
            says_zh="这个 torch 默认要用 libuv store，编译时却没有包含它（2.4 起的 Windows wheel）",
            remedies=("no-libuv",),
        ),
        Signature(
            needle="unsupported gloo device",
            pattern=r"makeDeviceFor(?:Hostname|Interface)\(\): unsupported gloo device",
            standing="likely",
            says="this torch was built without a transport for Gloo (Windows wheels from 2.7 on that lack libuv)",
            says_zh="这个 torch 编译时没有包含 Gloo 的传输层（2.7 起缺少 libuv 的 Windows wheel）",
            remedies=("other-wheel",),
        ),
        # torch up to 1.11 on Python 3.10, when torchrun's agents meet.
        Signature(
            needle="torch/distributed/elastic/utils/store.py",
            pattern=r"elastic/utils/store\.py\", line \d+ in get_all",
            near=r"Fatal Python error: Segmentation fault",
            standing="likely",
            says="torchrun's agent crashed in its store, as torch up to 1.11 does on Python 3.10",
            says_zh="torchrun 的 agent 在其 store 中崩溃，torch 1.11 及以下在 Python 3.10 上会这样",
            remedies=("upgrade-torch",),
        ),
        # torch up to 1.3 put communicator creation and collectives into one NCCL group; NCCL 2.5 and later refuse that.
        Signature(
            needle="NCCL Error 4: invalid argument",
            near=r"torch/nn/parallel/(?:replicate|data_parallel)\.py|broadcast_coalesced",
            standing="likely",
            says="DataParallel of torch 1.3 or older fails on NCCL 2.5 and later",
            says_zh="torch 1.3 及以下的 DataParallel 在 NCCL 2.5 及以上会失败",
            remedies=("upgrade-torch",),
        ),
        # torch 2.1 to 2.8: DETAIL numbers barriers with device_ids differently on each rank.
        Signature(
            needle="Detected mismatch between collectives on ranks",
            pattern=r"SequenceNumber=(?P<mine>\d+),? ?OpType=BARRIER\), but Rank \d+ is running collective: "
            r"CollectiveFingerPrint\(SequenceNumber=(?P<theirs>\d+),? "
            r"?OpType=BARRIER\)",
            standing="possible",
            says="torch's DETAIL check complains of two barriers whose numbers alone differ ({mine} and {theirs}), as it does without a fault",
            says_zh="torch 的 DETAIL 检查报告两个仅编号不同的 barrier（{mine} 和 {theirs}）不一致，没有故障时它也会这样报告",
            remedies=("no-detail",),
        ),
    ),
    in_run=_at_ddp,
    in_logs=_in_logs,
    on_host=_on_host,
    remedies=(
        Remedy(
            id="see-the-crash",
            says="See where it crashed: the native stack of its core dump where the system keeps them, else Python's own stack of the next crash.",
            says_zh="查看崩溃位置：如果系统保留了 core dump，就看其中的本地调用栈；否则让 Python 在下次崩溃时打印自己的调用栈。",
            command="coredumpctl info PID; PYTHONFAULTHANDLER=1 COMMAND",
        ),
        Remedy(
            id="detail-off",
            says="Take TORCH_DISTRIBUTED_DEBUG down to INFO (or unset it) where DDP runs on Gloo.",
            says_zh="在 Gloo 上使用 DDP 时，把 TORCH_DISTRIBUTED_DEBUG 降为 INFO，或直接取消该变量。",
            env={"TORCH_DISTRIBUTED_DEBUG": "INFO"},
            verify="python -c 'import torch.distributed as d; print(d.get_debug_level())'",
        ),
        Remedy(
            id="let-go-first",
            says="Before destroy_process_group(), drop what holds the group (del model, del optimizer) and collect: import gc; gc.collect().",
            says_zh="在 destroy_process_group() 之前释放持有进程组的对象（del model、del optimizer）并回收：import gc; gc.collect()。",
        ),
        crash_at_exit.CAUSE.remedy("skip-the-teardown"),
        Remedy(
            id="no-libuv",
            says="Tell torch not to use libuv (or pass use_libuv=False to TCPStore); on Windows several ranks are best run under WSL2.",
            says_zh="让 torch 不使用 libuv（或给 TCPStore 传 use_libuv=False）；在 Windows 上多进程训练最好在 WSL2 里运行。",
            env={"USE_LIBUV": "0"},
            verify="python -c 'from torch.distributed.rendezvous import _get_use_libuv_from_query_dict as f; print(f({}))'",
        ),
        Remedy(
            id="upgrade-torch",
            says="Upgrade torch (with the NCCL that it brings), and take other NCCL libraries off the path.",
            says_zh="升级 torch（连同它自带的 NCCL），并把其他 NCCL 库从搜索路径中去掉。",
            command="python -c 'import torch; print(torch.__version__, torch.cuda.nccl.version())'",
        ),
        Remedy(
            id="newer-nvshmem",
            says="Take an NVSHMEM after 3.4.5 and build DeepEP against it; if the call still fails, compare the ports (ibv_devinfo -v).",
            says_zh="使用 3.4.5 之后的 NVSHMEM，并用它重新编译 DeepEP；如果仍然失败，再对比各端口（ibv_devinfo -v）。",
            command="python -m pip list | grep -i nvshmem; nvshmem-info -v",
        ),
        Remedy(
            id="other-triton",
            says="Take the Triton that belongs to the installed torch, or a newer pair; until then choose another attention backend.",
            says_zh="使用与已安装 torch 配套的 Triton，或同时升级两者；在此之前关闭该内核（换用别的 attention 后端）。",
            command="python -m pip list | grep -iE '^(torch|triton|pytorch-triton)'",
        ),
        Remedy(
            id="other-wheel",
            says="Take a torch whose Gloo works on Windows (another release, or one built with libuv), or run the job on Linux or in WSL2.",
            says_zh="换用 Gloo 能在 Windows 上工作的 torch（其他版本，或带 libuv 编译的版本），或者在 Linux、WSL2 里运行。",
            command='python -c "import torch, torch.distributed as d; print(torch.__version__, d.is_gloo_available())"',
        ),
        Remedy(
            id="no-detail",
            says="Look for the mismatch without this check first: unset TORCH_DISTRIBUTED_DEBUG, and take flight-recorder dumps instead.",
            says_zh="先不用这项检查来找不一致之处：取消 TORCH_DISTRIBUTED_DEBUG，改用 flight recorder 转储。",
            command="env -u TORCH_DISTRIBUTED_DEBUG unhang run -- COMMAND",
        ),
    ),
    leads_to=("rank-exception",),
    mistaken_for={
        "collective-mismatch": "there the abort names an exception (gloo::EnforceNotMet) and strikes in the middle of the training",
        "premature-exit": "there the others still needed the rank; here all had finished",
        "crash-at-exit": "there the supervisor knows that the script had run to its end; here a log alone tells of an abort",
        "nccl-bug": "there NCCL itself has the defect",
    },
    sources=(
        "https://docs.python.org/3/c-api/init.html#cautions-regarding-runtime-finalization",
        "https://docs.pytorch.org/docs/stable/distributed.html#shutdown",
        "https://github.com/pytorch/pytorch/issues/139990",
        "https://github.com/NVIDIA/nccl/issues/276",
        "https://github.com/pytorch/pytorch/issues/148976",
    ),
    hits=(
        "ptxas fatal   : Ptx assembly aborted due to errors",
        "LLVM ERROR: Cannot select: t12: f16 = fp_round t11",
        "python: /project/lib/Analysis/Allocation.cpp:43: mlir::triton::getCvtOrder(mlir::Attribute): Assertion `src.isAmpere()' failed.",
        (
            "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f4ebf9d3740 (most recent call first):\n"
            '  File "/srv/env/lib/python3.10/site-packages/torch/distributed/elastic/utils/store.py", line 31 in get_all'
        ),
        (
            "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007fc6aa1f1b80 (most recent call first):\n"
            '  File "/srv/env/lib/python3.11/site-packages/torch/nn/parallel/distributed.py", line 1473 in _ddp_init_helper\n'
            '  File "/srv/env/lib/python3.11/site-packages/torch/nn/parallel/distributed.py", line 1079 in __init__'
        ),
        "terminate called without an active exception",
        "RuntimeError: use_libuv was requested but PyTorch was build without libuv support",
        "RuntimeError: makeDeviceForHostname(): unsupported gloo device",
        "RuntimeError: use_libuv was requested but PyTorch was built without libuv support, run with USE_LIBUV=0 to disable it.",
        (
            '  File "/srv/env/lib/python3.7/site-packages/torch/nn/parallel/replicate.py", line 71, in _broadcast_coalesced_reshape\n'
            "RuntimeError: NCCL Error 4: invalid argument"
        ),
        (
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
            "CollectiveFingerPrint(SequenceNumber=1OpType=BARRIER), but Rank 2 is running collective: "
            "CollectiveFingerPrint(SequenceNumber=0OpType=BARRIER).Collectives differ in the following aspects:"
        ),
        "/dvs/p4/main_nvshmem/src/modules/transport/ibgda/ibgda.cpp:2234: NULL value Unable to create ah.",
    ),
    near_misses=(
        '  File "/srv/env/lib/python3.10/site-packages/torch/distributed/elastic/utils/store.py", line 31, in get_all',
        "RuntimeError: NCCL Error 4: invalid argument",
        '  File "/srv/env/lib/python3.11/site-packages/torch/nn/parallel/distributed.py", line 1473, in _ddp_init_helper',
        (
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=7, "
            "OpType=BARRIER), but Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=7, OpType=ALLREDUCE)."
        ),
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
        "terminate called after throwing an instance of 'c10::Error'",
    ),
    explain={
        "en": (
            "The fault lies in torch or in a framework, and is known. Most often the training was over: the rank had reached the end of its "
            "script. While the interpreter was being taken down, a background thread of torch asked it for the lock that no longer exists, and "
            "the C++ runtime aborted the process. torchrun then reports the whole job as failed. What was saved is good. Let go of everything "
            "that holds the process group before destroy_process_group(), so that its threads end in time."
        ),
        "zh": (
            "问题出在 torch 或框架本身，而且是已知的。最常见的情况是训练其实已经结束：该进程已经走到脚本末尾。解释器退出的过程中，torch 的一个后"
            "台线程还去申请已经不存在的锁，C++ 运行时于是中止了进程，torchrun 便把整个作业报告为失败。已保存的结果是好的。在 "
            "destroy_process_group() 之前释放所有持有进程组的对象，让它的线程及时结束即可。"
        ),
    },
)
