"""out-of-sync: the ranks no longer train the same model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.knowledge import guarded
from unhang.knowledge.cause import Cause, LogView
from unhang.knowledge.text import NOTHING, Text, same
from unhang.model import Remedy
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.model import Finding
    from unhang.records.picture import Picture

_WHO = lazily(r" (?:Ranks? (?P<ranks>[\d, ]+) differs? from most|There is no (?:most|majority: which rank is right cannot be told from this))\.?$")


def _found(seen: LogView | Picture) -> Finding | None:
    hits = seen.hits_of(CAUSE.id)
    if not hits:
        return None
    told = hits[0].groups["what"]
    named = _WHO.search(told)
    odd = guarded.numbers(named["ranks"]) if named is not None else ()
    what = _WHO.sub("", told).rstrip(".")
    line = guarded.line_of(hits, seen)
    who = (
        guarded.differs(odd) + Text(" from most", "（与多数相比）")
        if odd
        else Text("there is no majority, which rank is right is not known", "没有占多数的一方，无法得知哪个 rank 正确")
        if named
        else NOTHING
    )
    who += Text(" ({what})", "（{what}）").fill(what=what) if who else same(what)
    at = hits[0].groups["step"]
    says = Text("at step{s} {step} the ranks do not train the same model: {who}{at}", "第 {step} 步时各 rank 训练的模型不一致：{who}{at}")
    return guarded.finding(
        CAUSE,
        hits,
        says.fill(s="s" if "-" in at[1:] else "", step=at, who=who, at=guarded.at_line(line) if line else NOTHING),
        standing="established",
        ranks=odd or guarded.raisers(hits),
        where=line,
    )


CAUSE = Cause(
    id="out-of-sync",
    role="root",
    title="The ranks train different models",
    title_zh="各进程训练的模型不一致",
    what="Parameters, step or loss of a rank are not those of the others, found by unhang.sync_check.",
    why="A rank loaded another checkpoint, skipped or repeated a step, drew other random weights, changed parameters outside of the optimizer, or "
    "its GPU computes wrongly.",
    signatures=(
        guarded.signature(
            "OutOfSync", "the ranks are out of sync at step ", r"the ranks are out of sync at step (?P<step>\S{1,40})\. (?P<what>.{1,4000})"
        ),
    ),
    in_run=_found,
    in_logs=_found,
    remedies=(
        Remedy(
            id="go-back",
            says="Start again from the newest checkpoint at which the check passed: what was saved since is of models that have parted.",
            says_zh="从检查仍然通过的最新 checkpoint 重新开始：此后保存的是已经分叉的模型。",
        ),
        Remedy(
            id="find-the-step",
            says="Check every step (every=1) from there on: the first one that fails is the one whose code to read, for whatever only some ranks do.",
            says_zh="从那里起每一步都检查（every=1）：第一个失败的步骤就是要读的代码，找只有部分 rank 执行的部分。",
        ),
        Remedy(
            id="same-start",
            says="If it fails at the first step: load the same checkpoint on all ranks, or broadcast the parameters of rank 0 behind loading.",
            says_zh="如果第一步就失败：让所有 rank 加载同一个 checkpoint，或在加载后广播 rank 0 的参数。",
        ),
        Remedy(
            id="examine-the-gpu",
            says="If one rank differs again and again on one host, let its GPU be examined: a device may compute wrongly without any error.",
            says_zh="如果同一台主机上的同一个 rank 反复不同，检查它的 GPU：设备可能计算出错而不报任何错误。",
            command="dcgmi diag -r 3",
        ),
    ),
    mistaken_for={"rank-exception": "all ranks raise it alike, and one process alone has nobody to differ from"},
    sources=("https://docs.pytorch.org/docs/stable/notes/ddp.html", "https://arxiv.org/abs/2102.11245"),
    hits=(
        "unhang.errors.OutOfSync: the ranks are out of sync at step 300. parameters: layer.0.weight (rank 2) differs. Rank 2 differs from most",
        (
            "[rank1]: unhang.errors.OutOfSync: the ranks are out of sync at step 7-8. steps: rank 0 is at 7; rank 1 is at 8. "
            "There is no majority: which rank is right cannot be told from this"
        ),
    ),
    near_misses=(
        "slurmd: error: Check for out of sync clocks",
        "the check says: OutOfSync: the ranks are out of sync at step 300. loss: rank 1 has nan",
    ),
    explain={
        "en": (
            "Data-parallel ranks hold the same parameters at every step. Here unhang.sync_check found that they do not: it compares a number for "
            "each parameter, bit for bit, and names the ranks that differ from most. Gradients of models that have parted are averaged without any "
            "error, and the loss may even look right. All ranks raise the same error, but only those that are named differ; one process alone "
            "cannot show it."
        ),
        "zh": (
            "数据并行的各个 rank 在每一步都持有同样的参数。unhang.sync_check 发现这里并非如此：它逐位比较每个参数的校验数，并点名与多数不同的 "
            "rank。已经分叉的模型的梯度会被平均而不报错，loss 甚至看起来正常。所有 rank 都抛出同样的错误，但只有被点名的才真的不同；单独运行一个"
            "进程无法重现。"
        ),
    },
)
