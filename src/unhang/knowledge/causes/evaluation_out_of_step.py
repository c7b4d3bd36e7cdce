"""evaluation-out-of-step: an evaluation left a group of torch's with more calls on some ranks than on others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.knowledge import text, unhang_errors
from unhang.knowledge.cause import Cause, LogView
from unhang.knowledge.text import Text, same
from unhang.model import Remedy
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.model import Finding
    from unhang.records.incident_view import IncidentView

_OF_GROUP = lazily(
    r"(?:^|; )(?P<group>[^;]{1,400}?) (?:is|(?P<unsure>may be)) out of step: in this evaluation "
    r"(?:its ranks made different numbers of collectives|it was used, and how many collectives some of its ranks made is not known)"
    r"(?: \((?P<counts>[^)]*)\))?"
)
# Who did not come to its end, and where such a one stands.
_SILENT = lazily(
    r"\b[Rr]anks? (?P<ranks>[\d, ]+)"
    r"(?: did not answer within [\d.e+-]+ s(?: \((?:\d+: )?at (?P<at>[^(),]{1,300}))?|: (?:its process has|their processes have) ended)"
)
_COUNT = lazily(r"rank (?P<rank>\d+) (?P<count>\d+)")
_UNLIKE = Text("{group} saw different numbers of collectives ({counts})", "{group} 的集合通信次数不一致（{counts}）")
_UNSURE = Text(
    "{group} was used, and how many collectives some of its ranks made is not known (known: {counts})",
    "{group} 被使用过，其部分 rank 发出了多少次集合通信不得而知（已知：{counts}）",
)


def _found(seen: LogView | IncidentView) -> Finding | None:
    hits = seen.hits_of(CAUSE.id)
    groups = list(_OF_GROUP.finditer(hits[0].groups["what"])) if hits else []
    if not groups:
        return None
    line = unhang_errors.line_of(hits, seen)
    told, odd = [], set[int]()
    silent = list(_SILENT.finditer(hits[0].groups["what"]))
    missing = tuple(n for one in silent for n in unhang_errors.numbers(one["ranks"]))
    stood = next((one["at"] for one in silent if one["at"]), None)
    for found in groups[:3]:
        counts = {int(one["rank"]): int(one["count"]) for one in _COUNT.finditer(found["counts"] or "")}
        odd |= set(unhang_errors.fewest(counts)) if len(counts) > 1 and not found["unsure"] else set()
        calls = text.joined((same(f"rank {rank}: {count}") for rank, count in list(counts.items())[:8]), text.COMMA)
        told.append((_UNSURE if found["unsure"] else _UNLIKE).fill(group=found["group"], counts=calls))
    what = text.joined(told)
    if missing:
        at = Text(" (at {at})", "（停在 {at}）").fill(at=stood) if stood else text.NOTHING
        what += Text("; {who} did not come to its end{at}", "；{who} 没有来到评估结尾{at}").fill(who=text.ranks(missing), at=at)
    return unhang_errors.finding(
        CAUSE,
        hits,
        Text("in an evaluation {what}{at}", "一次评估中，{what}{at}").fill(what=what, at=unhang_errors.at_line(line)),
        standing="likely" if all(found["unsure"] for found in groups) else "established",
        ranks=tuple(sorted(odd)) or missing or unhang_errors.raisers(hits),
        where=stood or line,
    )


CAUSE = Cause(
    id="evaluation-out-of-step",
    role="root",
    title="An evaluation left a group out of step",
    title_zh="评估使进程组的调用次数错位",
    what="In an evaluation some ranks of a group made more of torch's collectives than others, found by unhang.evaluate.",
    why="A rank stopped (an error, too little memory, fewer batches) between collectives that the others made, or some ranks alone call one.",
    signatures=(
        unhang_errors.signature(
            "EvaluationFailed", " out of step: in this evaluation ", r"(?P<what>.{1,400} (?:is|may be) out of step: in this evaluation it.{1,2000})"
        ),
    ),
    in_run=_found,
    in_logs=_found,
    remedies=(
        Remedy(
            id="start-again",
            says="Start again from the newest checkpoint; unhang run does so by itself. Going on would add a metric to a gradient.",
            says_zh="从最新的 checkpoint 重新开始；unhang run 会自动这样做。继续训练会把指标混进梯度。",
            command="unhang run -- COMMAND",
        ),
        Remedy(
            id="guarded-collectives",
            says=(
                "Inside of evaluations call unhang.all_reduce, all_gather or reduce_metrics instead of torch's: what a rank leaves behind there ends "
                "with the attempt, and metrics that are yielded need no collective at all."
            ),
            says_zh="在评估里用 unhang.all_reduce、all_gather 或 reduce_metrics 代替 torch 的集合通信：某个 rank 中途停下时它们随本次尝试一起结束；"
            "用 yield 返回的指标根本不需要集合通信。",
        ),
        Remedy(
            id="same-batches",
            says="If every rank has to make the same calls, give all ranks the same number of batches (drop_last, or padded samples).",
            says_zh="如果每个 rank 都必须发出同样的调用，让所有 rank 的批次数相同（drop_last 或补齐样本）。",
        ),
    ),
    mistaken_for={"collective-mismatch": "there two ranks stand in one call; here none hangs yet, and the next call of the training would"},
    sources=("https://docs.pytorch.org/docs/stable/distributed.html", "https://docs.pytorch.org/docs/stable/distributed.algorithms.join.html"),
    hits=(
        (
            "unhang.errors.EvaluationFailed: the training's own group is out of step: in this evaluation its ranks made different numbers of "
            "collectives (rank 0 3, rank 1 2). To go on would mix results of the evaluation into the training."
        ),
        (
            "unhang.errors.EvaluationFailed: group '3' (mesh_tp) of ranks 0-1 may be out of step: in this evaluation it was used, and how many "
            "collectives some of its ranks made is not known (rank 0 3). Rank 1 did not answer within 60 s (at train.py:33 in test). To go on would"
        ),
    ),
    near_misses=(
        "unhang.errors.EvaluationFailed: the result is there once the block has been left",
        "the clock of node7 is out of step: in this evaluation it is left out",
    ),
    explain={
        "en": (
            "All ranks of a group have to make the same collectives in the same order. In an evaluation that some ranks left earlier than others, "
            "those that went on made calls which the others never made. Nothing hangs at that moment: the next call of the training would meet the "
            "one that is left over, and add a metric to a gradient without any error. That is why unhang.evaluate raises on all ranks."
        ),
        "zh": (
            "一个组里的所有 rank 必须按同样的顺序发出同样的集合通信。评估中有的 rank 提前退出，继续的 rank 发出了别人从未发出的调用。此刻没有任何挂"
            "起：训练的下一次调用会与剩下的那次配对，把指标加进梯度而不报错。因此 unhang.evaluate 在所有 rank 上抛出异常。"
        ),
    },
)
