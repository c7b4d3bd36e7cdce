"""crash-at-exit: a process failed while it was shutting down, after its work was done."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from unhang.knowledge import text, words
from unhang.knowledge.cause import LogView, cause
from unhang.knowledge.causes.store_disconnect import AT_THE_END
from unhang.knowledge.text import Text
from unhang.knowledge.watchdogs import collective
from unhang.logs.slow_work import DONE, FULL, LEAVING, SAVED
from unhang.model import Finding, Standing

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


CAUSE = cause("crash-at-exit", in_run=_in_run, in_logs=_in_logs)
