"""crash-at-exit: a process failed while it was shutting down, after its work was done."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from unhang.knowledge import text, words
from unhang.knowledge.cause import Cause, LogView
from unhang.knowledge.causes.store_disconnect import AT_THE_END
from unhang.knowledge.text import Text
from unhang.knowledge.watchdogs import collective
from unhang.logs.slow_work import DONE, FULL, LEAVING, SAVED
from unhang.model import Finding, Remedy, Standing

if TYPE_CHECKING:
    from unhang.logs import Hit
    from unhang.logs.log_facts import At
    from unhang.records.incident_view import IncidentView

# Whatever tells that the training was over, a supervisor's word or a log's: after that a failure is one of the shutdown.
SAFE = Text("the training script had finished on all ranks; results are safe", "训练脚本在所有 rank 上都已运行完毕，结果是安全的")


def _in_run(picture: IncidentView) -> Finding | None:
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


# SIGABRT, SIGBUS, SIGFPE, SIGSEGV.
_CRASHES = (-6, -7, -8, -11)
_OVER = Text("after the training was over; results are safe if they had been saved", "此时训练已经结束；在此之前保存的结果是安全的")


def _in_logs(view: LogView) -> Finding | None:
    """The first of all failures stands behind lines that tell of the end of the training."""
    lost = [h for c in ("peer-lost", "store-disconnect", "collective-timeout") for h in view.hits_of(c) if not AT_THE_END.search(h.text)]
    ended = [e for e in view.exits if e.code in _CRASHES]
    # A line may tell of thousands of tasks.
    crashes: list[Hit | At] = [*view.crashed, *{(e.at.source, e.at.line, e.at.at_s): e.at for e in ended}.values()]
    failures: list[Hit | At] = [*crashes, *lost, *(t.at for t in view.timeouts)]
    if not failures:
        return None
    standings = [_standing(view, f, crash=n < len(crashes)) for n, f in enumerate(failures)]
    worst: Standing | None = None if None in standings else "possible" if "possible" in standings else "likely"
    first = min(failures, key=lambda f: f.line or 0)
    if worst is None or _has_a_name(view, first):
        return None
    speaking: list[Hit | At] = [t.at for t in view.timeouts] or [*view.crashed, *(e.at for e in ended)] or [*lost]
    numbers = {f.rank for f in speaking if f.rank is not None}
    # Who waited or lost another rank has not failed itself: its watchdog aborts it.
    died = not view.timeouts and bool(view.crashed or ended)
    if died:
        # Who leaves without ending its group says so right before.
        leaving = {h.rank for h in view.ends if h.signature == LEAVING and h.rank is not None}
        numbers = numbers or (leaving if len(leaving) == 1 else set())
        what = next((h.groups["what"] for h in view.crashed if "what" in h.groups), "")
        did = Text("crashed while shutting down{what}", "在退出过程中崩溃{what}").fill(what=what and Text(" ({what})", "（{what}）").fill(what=what))
    elif view.timeouts:
        waited = view.timeouts[0]
        did = Text("waited {s} in {call}", "在 {call} 中等待了 {s}").fill(s=words.seconds(waited.timeout_ms / 1000), call=collective(waited))
    else:
        did = Text("lost the store or another rank", "失去了 store 或其他 rank 的连接")
    who = text.ranks(numbers) if numbers else Text("a process", "某个进程")
    over = [h for h in _before(view, first) if h.signature != LEAVING]
    return CAUSE.finding(
        standing=worst,
        says=Text("{who} {did}, {over}", "{who} {did}，{over}").fill(who=who, did=did, over=_OVER),
        ranks=tuple(sorted(numbers)) if died else (),
        hosts=tuple(dict.fromkeys(f.host for f in speaking if f.host is not None)) if died else (),
        evidence=tuple(f.evidence() for f in (*over[-1:], *speaking[:2])),
    )


def _has_a_name(view: LogView, failure: Hit | At) -> bool:
    """Whether a root of another cause stands between the end and what is in the logs after it: that is what failed."""
    over = {h.source: h.line or 0 for h in _before(view, failure)}
    roots = [h for cause, hits in view.hits.items() if cause not in (CAUSE.id, "framework-bug") for h in hits if h.signature.role == "root"]
    return any((h.line or 0) > over[h.source] if h.source in over else True for h in roots)


def _before(view: LogView, failure: Hit | At) -> list[Hit]:
    """The lines that tell of the end before a failure, in its own log or by time."""
    own = [h for h in view.ends if h.source == failure.source and (h.line or 0) < (failure.line or 0)]
    return own or [h for h in view.ends if h.at_s is not None and failure.at_s is not None and h.at_s <= failure.at_s]


def _standing(view: LogView, failure: Hit | At, *, crash: bool) -> Standing | None:
    """What the lines before a failure prove; a full bar may be that of an evaluation, and something may be saved in between."""
    over = _before(view, failure)
    told = {h.signature for h in over}
    full, saved, leaving = FULL in told and not _of_epochs(over), not told.isdisjoint(SAVED), LEAVING in told
    if not told.isdisjoint(DONE) or (leaving and (full or saved)):
        return "likely"
    return "possible" if full and (saved or crash) else None


def _of_epochs(over: Sequence[Hit]) -> bool:
    """Whether bars of one length were full twice, with something saved in between: one for each epoch."""
    bars = [h for h in over if h.signature == FULL]
    saved = [h.place for h in over if h.signature in SAVED]
    return any(a.groups["total"] == b.groups["total"] and any(a.place < s < b.place for s in saved) for a, b in pairwise(bars))


CAUSE = Cause(
    id="crash-at-exit",
    role="root",
    title="A process failed while shutting down, after its work was done",
    title_zh="工作完成后，进程在退出过程中失败",
    what="The script had run to its end. The process then died or waited while it was being torn down, and the launcher reported a failed job.",
    why=(
        "Threads of torch, NCCL or another native library still run when the interpreter goes: one that asks for its lock is ended in the middle of "
        "C++, and the process with it. Handlers at exit of loggers and data loaders may fail as well."
    ),
    in_run=_in_run,
    in_logs=_in_logs,
    remedies=(
        Remedy(
            id="end-in-order",
            says=(
                "End the script of every rank with destroy_process_group(), after dropping what holds the group (del model, optimizer; gc.collect());"
                " call no barrier or other collective that some ranks have already left behind. More time to wait does not help."
            ),
            says_zh=(
                "在每个 rank 的脚本末尾调用 destroy_process_group()，此前先释放持有进程组的对象（del model, optimizer；gc.collect()），"
                "不要再调用有的 rank 已经离开的 barrier 或其他集合通信。延长等待时间没有用。"
            ),
            verify="PYTHONFAULTHANDLER=1 COMMAND; echo $?",
        ),
        Remedy(
            id="skip-the-teardown",
            says="If it still crashes and everything is saved, leave without the interpreter's teardown: sys.stdout.flush(); os._exit(0).",
            says_zh="如果仍然崩溃而一切都已保存，跳过解释器的收尾直接退出：sys.stdout.flush(); os._exit(0)。",
        ),
    ),
    leads_to=("straggler-timeout", "framework-bug", "premature-exit"),
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
            "it is a failure like any other. In plain logs a full progress bar, a saved model or the training's own word before the failure tell it."
        ),
        "zh": (
            "完成工作的进程还要退出：运行退出处理函数，清理模块，结束原生线程。其中任何一步崩溃时，启动器看到的是一个被信号终止的进程，于是报告整个作业失败，"
            "尽管训练没有丢失任何东西。unhang run 能区分这种情况，因为每个 rank 在退出之前都会报告脚本已运行完毕。如果所有 rank 都已报告，"
            "训练就不会再次启动；如果有的还没有，启动器就是在它们工作到一半时终止了它们，这与其他失败没有区别。在普通日志中，"
            "故障之前的进度条已满、模型已保存或训练自己的话说明了这一点。"
        ),
    },
)
