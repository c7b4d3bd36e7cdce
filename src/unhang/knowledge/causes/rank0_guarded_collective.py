"""rank0-guarded-collective: a collective that only some ranks can reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.frames import place
from unhang.knowledge import text, words
from unhang.knowledge.cause import Cause, LogView
from unhang.knowledge.rank_guards import Guarded, guard_of_parting, guard_of_wait
from unhang.knowledge.text import NOTHING, Text
from unhang.knowledge.watchdogs import GaveUpIn, collective, evidence_of, first_of_each, guard_in, parted, rank_0_apart, ranks_of, silent
from unhang.model import Evidence, Finding, Remedy

if TYPE_CHECKING:
    from unhang.logs.log_facts import At
    from unhang.records.incident_view import IncidentView


def _in_run(picture: IncidentView) -> Finding | None:
    if (parted := guard_of_parting(picture)) is not None and picture.front is not None and picture.front.parting is not None:
        odd, guard, side = parted
        other = next(s for s in picture.front.parting.sides if s.says != side.says)
        others = [s.rank for s in picture.front.parting.sides if s.says == other.says]
        at = Text(" ({at})", "（{at}）").fill(at=picture.place(other.place)) if other.place else NOTHING
        elsewhere = Text("; {who} issued {op}{at}", "；{who} 发出了 {op}{at}").fill(who=text.ranks(others), op=other.op, at=at)
        under = [s.rank for s in picture.front.parting.sides if s.says == side.says]
        return _finding(picture, odd, under, guard, side.op, elsewhere)
    if (guard_alone := guard_of_wait(picture)) is not None and picture.front is not None:
        waiting = list(picture.front.waiting)
        gone = Text("; {who} left in order without it", "；{who} 没有参加就正常退出").fill(who=text.ranks(picture.front.absent))
        return _finding(picture, tuple(waiting), waiting, guard_alone, picture.waits[waiting[0]].op, gone)
    return None


def _in_logs(view: LogView) -> Finding | None:
    """A test of the rank is in no log. Rank 0 alone in a collective, or in another one than all others, looks like one: likely where lines tell."""
    if (apart := rank_0_apart(view)) is not None:
        return _of_places(*apart)
    if (found := parted(view)) is not None and len(found.sides) == 2:
        alone = next((s for s in found.sides if ranks_of(s) == (0,)), None)
        others = next((s for s in found.sides if 0 not in ranks_of(s)), None)
        if alone is None or others is None or len(others) < 2:
            return None
        told = Text("rank 0 alone gave up {one}, and {who} {other}", "只有 rank 0 放弃了 {one}，而 {who} 放弃的是 {other}").fill(
            one=collective(alone[0]), who=text.ranks(ranks_of(others)), other=collective(others[0])
        )
        places: tuple[At, ...] = (alone[0].at, others[0].at)
    else:
        waited = first_of_each(view)
        missing = silent(view)
        # Of two ranks the silent one may as well be slow or stuck.
        if ranks_of(waited) != (0,) or len(missing) < 2:
            return None
        told = Text("rank 0 alone gave up {one}; {who} printed no timeout", "只有 rank 0 放弃了 {one}；{who} 没有打印超时").fill(
            one=collective(waited[0]), who=text.ranks(missing)
        )
        places = (waited[0].at,)
    return CAUSE.finding(
        standing="possible",
        says=told + _UNDER.fill(test="`if rank == 0`"),
        ranks=(0,),
        evidence=evidence_of(places),
    )


_UNDER = Text(", as happens when a collective stands under {test}", "，集合通信写在 {test} 之下时就会这样")


def _of_places(own: GaveUpIn, others: tuple[GaveUpIn, ...]) -> Finding:
    numbers = [s.rank for s in others]
    guard = guard_in(own)
    test = f"`{guard}`" if guard is not None else "`if rank == 0`"
    return CAUSE.finding(
        standing="likely",
        says=Text(
            "rank 0 alone gave up in {one} at {here}, and {who} in {other} at {there}",
            "只有 rank 0 在 {one} 中放弃（位于 {here}），而 {who} 在 {other} 中放弃（位于 {there}）",
        ).fill(one=own.call, here=place(own.frame, ""), who=text.ranks(numbers), other=others[0].call, there=place(others[0].frame, ""))
        + _UNDER.fill(test=test),
        ranks=(0,),
        where=place(own.frame, ""),
        evidence=tuple(Evidence(source=s.back.source, line=s.back.end, text=s.back.says) for s in (own, others[0])),
    )


def _finding(picture: IncidentView, odd: tuple[int, ...], under: list[int], guard: Guarded, op: str, elsewhere: Text) -> Finding:
    at = picture.place(guard.frame)
    view = picture.rank(guard.rank)
    return CAUSE.finding(
        standing="established",
        says=Text(
            "{who} {are} in {op} at {at}, which only ranks with `{test}` reach{elsewhere}",
            "{who} 在 {op} 中（位于 {at}），只有满足 `{test}` 的 rank 才会到这里{elsewhere}",
        ).fill(who=text.ranks(under), are=words.verb(under, "is", "are"), op=op, at=at, test=guard.test, elsewhere=elsewhere),
        ranks=odd,
        hosts=words.hosts(picture, odd),
        where=at,
        evidence=(
            words.stated(
                view.record.stacks if view.captured and view.record.stacks else picture.incident_source,
                Text("rank {n}: if {test}:  around {frame}", "rank {n}：if {test}:  之下是 {frame}").fill(
                    n=guard.rank, test=guard.test, frame=words.frame(guard.frame)
                ),
            ),
            *words.waiting_evidence(picture),
        ),
    )


CAUSE = Cause(
    id="rank0-guarded-collective",
    role="root",
    title="A collective is called by some ranks only (under a test of the rank)",
    title_zh="集合通信写在判断 rank 的条件里，只有部分进程会调用",
    what="A barrier, a reduction, a gather or a save that communicates stands under `if rank == 0` or the like. The other ranks never join it.",
    why=(
        "Saving, logging or evaluating is done on rank 0 only, and something inside it communicates: a barrier, a metric, state_dict() of a "
        "sharded model, wait_for_everyone()."
    ),
    in_run=_in_run,
    in_logs=_in_logs,
    remedies=(
        Remedy(
            id="move-it-out",
            says="Call the collective on all ranks: move it out of the `if`, and keep only the writing or printing inside.",
            says_zh="让所有进程都调用这个集合通信：把它移到 `if` 外面，里面只保留写文件或打印。",
            command="grep -rnE 'rank *== *0|is_main_process|is_global_zero|local_rank in' -A 12 --include='*.py' .",
        ),
        Remedy(
            id="no-communication-inside",
            says=(
                "Where the branch has to stay, leave nothing in it that communicates: gather before it (state_dict of FSDP and ZeRO-3, metrics, "
                "wait_for_everyone), write inside it. trainer.save_checkpoint() of Lightning and save_model() of sharded trainings communicate."
            ),
            says_zh=(
                "如果分支必须保留，里面不要有任何通信：在它之前收集（FSDP、ZeRO-3 的 state_dict，指标，wait_for_everyone），在里面只写文件。"
                "Lightning 的 trainer.save_checkpoint() 和分片训练的 save_model() 都会通信。"
            ),
        ),
    ),
    leads_to=("premature-exit",),
    mistaken_for={
        "collective-mismatch": "without a test of the rank around either call, the ranks differ for another reason (uneven data, unused parameters)",
        "straggler-timeout": "`if rank != 0: barrier()` before rank 0's work and after it is a correct pattern: rank 0 is slow, not absent",
        "premature-exit": "the other ranks may have finished and left, because nothing made them wait",
    },
    sources=(
        "https://docs.pytorch.org/docs/stable/distributed.html",
        "https://huggingface.co/docs/accelerate/concept_guides/deferring_execution",
    ),
    explain={
        "en": (
            "A collective has to be called by every rank of its group, in the same order. Here it stands inside a branch that only some ranks "
            "take, usually `if rank == 0:`. Those ranks wait in it for the others, who have gone on to another collective and wait there. Move "
            "the collective out of the branch and keep only the writing or printing inside."
        ),
        "zh": (
            "集合通信必须由组内每个进程按同样的顺序调用。这里它写在只有部分进程会进入的分支里，最常见的是 `if rank == 0:`。这些进程在里面等其他进"
            "程，而其他进程已经走到另一个集合通信里等着了。把集合通信移到分支外面，分支里只保留写文件或打印。"
        ),
    },
)
