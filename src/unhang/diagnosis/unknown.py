"""What to say where nothing names a cause: what is certain, which causes remain possible, and what to collect next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from unhang.knowledge import words
from unhang.model import Evidence, Finding, Remedy

if TYPE_CHECKING:
    from unhang.records.picture import Picture, RankView

# Every rank came, and the data did not: the fault lies below the code.
TRANSPORT = ("network-blocked", "network-mtu", "interface-selection", "ib-transport-retry", "p2p-broken", "gpu-hardware", "nccl-bug")
# Nobody knows who was missing.
WAITING = (
    "straggler-timeout",
    "process-stuck",
    "collective-mismatch",
    "rank0-guarded-collective",
    "premature-exit",
    "network-blocked",
    "network-mtu",
)
CRASH = ("illegal-memory-access", "library-link", "version-mismatch", "gpu-hardware", "framework-bug")

_SIGNALS_TELL = {
    4: "an instruction that this CPU does not have: a library built for another one",
    7: "memory that could not be backed: usually /dev/shm is full, or a mapped file was cut short",
    11: "an invalid memory access in native code",
    6: "a library gave up by itself; its last words stand in the log",
}

NCCL_DEBUG = Remedy(
    id="say-more",
    says="Run again with NCCL's own messages on, and keep the whole log.",
    says_zh="打开 NCCL 自己的日志再运行一次，并保留完整日志。",
    env={"NCCL_DEBUG": "INFO", "TORCH_DISTRIBUTED_DEBUG": "INFO"},
)
TORCH_DEBUG = Remedy(
    id="say-more",
    says="Run again with torch's own messages on, and keep the whole log.",
    says_zh="打开 torch 自己的日志再运行一次，并保留完整日志。",
    env={"TORCH_CPP_LOG_LEVEL": "INFO", "TORCH_DISTRIBUTED_DEBUG": "INFO"},
)
SUPERVISE = Remedy(
    id="supervise",
    says="Run it under unhang: stacks and flight-recorder dumps of all ranks are taken before anything is ended.",
    says_zh="用 unhang 来运行：在结束任何进程之前，先采集所有 rank 的调用栈和 flight recorder 转储。",
    command="unhang run -- COMMAND",
)
TRACE = Remedy(
    id="flight-recorder",
    says="Run again with the flight recorder on: at the next timeout every rank writes down which collectives it issued, and from which line.",
    says_zh="打开 flight recorder 再运行一次：下次超时时，每个 rank 都会写下自己发起了哪些集合通信、来自哪一行代码。",
    env={"TORCH_FR_BUFFER_SIZE": "20000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "20000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"},
)
NATIVE_STACK = Remedy(
    id="native-stack",
    says="Get the native stack of the crash: let it write a core file and open it.",
    says_zh="获取崩溃时的本地调用栈：让它写出 core 文件再打开查看。",
    command="ulimit -c unlimited; gdb --batch -ex 'thread apply all bt' python CORE",
)
READ_LOG = Remedy(
    id="read-log",
    says="Read the end of the log: whatever ended the process may have said why.",
    says_zh="看日志的末尾：结束进程的原因可能就写在那里。",
)


def unknown_in_run(picture: Picture, symptoms: Sequence[Finding]) -> Finding | None:
    """The primary finding of an incident in which no root cause is in evidence."""
    kind = picture.incident.kind
    own = [r for r in picture.gone if not (r.ended and r.ended.announced and r.ended.exitcode == 0)]
    for rank in own:
        if rank.ended and rank.ended.exitcode is not None and rank.ended.exitcode < 0:
            return _signalled(picture, rank)
    for rank in own:
        if rank.raised is None and rank.ended and rank.ended.exitcode != 0:
            return _left(picture, rank)
    if kind in ("hang", "straggler") and picture.front is not None and not picture.front.absent:
        return _all_joined(picture)
    if symptoms:
        return only_symptoms(symptoms, remains=WAITING, remedies=(_say_more(picture),))
    if kind in ("hang", "straggler"):
        return _silent(picture)
    return _command_failed(picture)


def _say_more(picture: Picture) -> Remedy:
    return NCCL_DEBUG if picture.on_nccl else TORCH_DEBUG


def only_symptoms(symptoms: Sequence[Finding], *, remains: Sequence[str], remedies: tuple[Remedy, ...]) -> Finding:
    """A symptom in the place of a cause: somebody else failed or was late, and nothing says who."""
    first = symptoms[0]
    return replace(
        first,
        standing="not-established",
        says=f"{first.says}; this is a consequence, and its cause is not in evidence (possible: {', '.join(remains)})",
        remedies=remedies,
    )


def _signalled(picture: Picture, rank: RankView) -> Finding:
    assert rank.ended is not None and rank.ended.exitcode is not None
    number = -rank.ended.exitcode
    tells = f": {_SIGNALS_TELL[number]}" if number in _SIGNALS_TELL else ""
    evidence = [Evidence(source=picture.incident_source, text=f"rank {rank.number} (pid {rank.record.pid}) ended with exit code {-number}")]
    if rank.fatal_source is not None and rank.fatal_signal:
        evidence.append(Evidence(source=rank.fatal_source, line=1, text=rank.fatal_signal))
    crash = next((e for e in picture.kernel or () if e.kind == "segfault" and e.pid == rank.record.pid), None)
    if crash is not None and picture.kernel_source is not None:
        evidence.append(Evidence(source=picture.kernel_source, line=crash.line, text=crash.text))
    return _finding(
        picture,
        rank,
        says=f"rank {rank.number} was ended by {words.signal_name(number)}{words.at(picture, rank)}{tells}; why is not in evidence"
        f" (possible: {', '.join(CRASH)})",
        evidence=(*evidence, *words.stack_evidence(picture, rank)),
        remedies=(NATIVE_STACK,),
    )


def _left(picture: Picture, rank: RankView) -> Finding:
    assert rank.ended is not None
    code = rank.ended.exitcode
    how = f"ended itself with exit code {code}" if code is not None else "ended (its exit code is not known)"
    log = next((r.path for r in picture.incident.logs if r.rank == rank.number and r.path.endswith(".err")), None)
    return _finding(
        picture,
        rank,
        says=f"rank {rank.number} {how} without an exception that anything saw{words.at(picture, rank)}",
        evidence=(
            Evidence(source=picture.incident_source, text=f"rank {rank.number} (pid {rank.record.pid}) {how} at {words.seconds(rank.ended.at_s)}"),
            *words.stack_evidence(picture, rank, innermost=False),
            *_last_words(picture, rank.number),
        ),
        remedies=(
            READ_LOG
            if log is None
            else replace(
                READ_LOG,
                says=f"Read the end of {log}: what ended the process may have said why.",
                says_zh=f"看 {log} 的末尾：结束进程的原因可能就写在那里。",
            ),
        ),
    )


def _all_joined(picture: Picture) -> Finding:
    assert picture.front is not None
    waiting = picture.front.waiting
    first = picture.waits[waiting[0]]
    return Finding(
        cause="unknown",
        standing="not-established",
        says=f"{words.waiting(picture)}{words.stall(picture)} and nobody is missing: the code agrees, the data does not arrive"
        f" (possible: {', '.join(TRANSPORT)})",
        ranks=waiting,
        hosts=words.hosts(picture, waiting),
        where=picture.place(first.place) if first.place is not None else None,
        evidence=words.waiting_evidence(picture, at_most=3),
        remedies=(_say_more(picture),),
    )


def _silent(picture: Picture) -> Finding:
    numbers = [r.number for r in picture.ranks]
    waiting = words.waiting(picture)
    return Finding(
        cause="unknown",
        standing="not-established",
        says=f"no progress{words.stall(picture)}{f'; {waiting}' if waiting else ''}; what the ranks are doing is not in evidence"
        f" (possible: {', '.join(WAITING)})",
        ranks=tuple(numbers),
        evidence=(
            *words.waiting_evidence(picture),
            *(e for r in picture.ranks[:2] for e in (*words.activity_evidence(picture, r), *words.stack_evidence(picture, r))),
        ),
        remedies=(_say_more(picture),),
    )


def _command_failed(picture: Picture) -> Finding:
    code = picture.incident.exitcode
    how = "failed" if code is None else f"ended by {words.signal_name(code)}" if code < 0 else f"ended with exit code {code}"
    joined = "" if picture.ranks else "; no process of it initialised torch.distributed"
    return Finding(
        cause="unknown",
        standing="not-established",
        says=f"the command {how}{joined}, and nothing recognised says why",
        ranks=tuple(r.number for r in picture.ranks),
        evidence=(*_last_words(picture, None), Evidence(source=picture.incident_source, text=f"{' '.join(picture.incident.command)}: {how}")),
        remedies=(READ_LOG,),
    )


def _last_words(picture: Picture, rank: int | None) -> tuple[Evidence, ...]:
    """The end of a rank's error log; of the launcher's where the rank is None or said nothing."""
    for owner in dict.fromkeys((rank, None)):
        for log in picture.incident.logs:
            if log.rank == owner and log.path.endswith(".err") and (lines := picture.last_lines.get(log.path)):
                return tuple(Evidence(source=log.path, line=line.number, text=line.text.strip()) for line in lines[-2:])
    return ()


def _finding(picture: Picture, rank: RankView, *, says: str, evidence: tuple[Evidence, ...], remedies: tuple[Remedy, ...]) -> Finding:
    return Finding(
        cause="unknown",
        standing="not-established",
        says=says,
        ranks=(rank.number,),
        hosts=words.hosts(picture, (rank.number,)),
        where=picture.where(rank),
        evidence=evidence,
        remedies=remedies,
    )
