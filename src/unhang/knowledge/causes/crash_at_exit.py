"""crash-at-exit: a process died while it was shutting down, after its script had run to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.knowledge import text, words
from unhang.knowledge.cause import Cause
from unhang.knowledge.text import Text
from unhang.model import Finding, Remedy

if TYPE_CHECKING:
    from unhang.records.picture import Picture

# Whatever tells that the training was over, a supervisor's word or a log's: after that a failure is one of the shutdown.
SAFE = Text("the training script had finished on all ranks; results are safe", "训练脚本在所有 rank 上都已运行完毕，结果是安全的")


def _in_run(picture: Picture) -> Finding | None:
    crashed = [r for r in picture.gone if r.ended is not None and r.ended.crashed_at_exit]
    if not crashed:
        return None
    first, numbers = crashed[0], [r.number for r in crashed]
    unfinished = [r.number for r in picture.ranks if r.ended is None or not r.ended.finished]
    code = first.ended.exitcode if first.ended is not None else None
    how = words.signal_name(code) if code is not None and code < 0 else f"exit code {code}"
    others = Text("the training script had not finished on {who}", "训练脚本在{who} 上还没有运行完").fill(who=text.ranks(unfinished))
    return CAUSE.finding(
        standing="established",
        says=Text("{who} crashed with {how} while shutting down; {so}", "{who} 在进程退出过程中崩溃（{how}）；{so}").fill(
            who=text.ranks(numbers), how=how, so=others if unfinished else SAFE
        ),
        ranks=tuple(numbers),
        hosts=words.hosts(picture, numbers),
        evidence=(
            words.stated(
                picture.incident_source,
                Text(
                    "rank {n} (pid {pid}) reported the end of its script, then ended with {how}",
                    "rank {n}（pid {pid}）报告脚本已运行完毕，随后以 {how} 结束",
                ).fill(n=first.number, pid=first.record.pid, how=how),
            ),
            *words.hit_evidence([h for h in picture.hits_of("framework-bug") if h.rank is None or h.rank in numbers], at_most=1),
        ),
    )


CAUSE = Cause(
    id="crash-at-exit",
    role="root",
    title="A process crashed while shutting down, after its script had finished",
    title_zh="脚本运行完毕后，进程在退出过程中崩溃",
    what="The script had run to its end. The process then died while the interpreter was being torn down, and the launcher reported a failed job.",
    why=(
        "Threads of torch, NCCL or another native library still run when the interpreter goes: one that asks for its lock is ended in the middle of "
        "C++, and the process with it. Handlers at exit of loggers and data loaders may fail as well."
    ),
    in_run=_in_run,
    remedies=(
        Remedy(
            id="end-in-order",
            says=(
                "End the script of every rank with torch.distributed.destroy_process_group(), after dropping what holds the group "
                "(del model, optimizer; gc.collect())."
            ),
            says_zh=(
                "在每个 rank 的脚本末尾调用 torch.distributed.destroy_process_group()，此前先释放持有进程组的对象"
                "（del model, optimizer；gc.collect()）。"
            ),
            verify="PYTHONFAULTHANDLER=1 COMMAND; echo $?",
        ),
        Remedy(
            id="skip-the-teardown",
            says="If it still crashes and everything is saved, leave without the interpreter's teardown: sys.stdout.flush(); os._exit(0).",
            says_zh="如果仍然崩溃而一切都已保存，跳过解释器的收尾直接退出：sys.stdout.flush(); os._exit(0)。",
        ),
    ),
    mistaken_for={
        "premature-exit": "there the others still needed the rank that left",
        "framework-bug": "there a log tells of an abort; whether the script had finished is not known",
        "host-oom-or-killed": "there something outside ended the process in the middle of its work",
    },
    sources=(
        "https://docs.python.org/3/c-api/init.html#cautions-regarding-runtime-finalization",
        "https://docs.pytorch.org/docs/stable/distributed.html#shutdown",
    ),
    explain={
        "en": (
            "A process that has done its work still has to shut down: exit handlers run, modules are cleared, native threads end. When one of these "
            "steps crashes, the launcher sees a process that died of a signal and reports the whole job as failed, though nothing of the training "
            "is lost. unhang run knows the difference, because each rank reports the end of its script before the shutdown begins. If all ranks "
            "have reported it, the training is not started again. If some have not, the launcher has ended them in the middle of their work, and "
            "it is a failure like any other."
        ),
        "zh": (
            "完成工作的进程还要退出：运行退出处理函数，清理模块，结束原生线程。其中任何一步崩溃时，启动器看到的是一个被信号终止的进程，于是报告整个作业失败，"
            "尽管训练没有丢失任何东西。unhang run 能区分这种情况，因为每个 rank 在退出之前都会报告脚本已运行完毕。如果所有 rank 都已报告，"
            "训练就不会再次启动；如果有的还没有，启动器就是在它们工作到一半时终止了它们，这与其他失败没有区别。"
        ),
    },
)
