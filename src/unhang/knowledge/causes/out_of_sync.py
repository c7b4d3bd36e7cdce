"""out-of-sync: the ranks do not train the same model, or no longer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.knowledge import unhang_errors
from unhang.knowledge.cause import Cause, LogView, Signature
from unhang.knowledge.text import NOTHING, Text, same
from unhang.model import Remedy
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.model import Finding
    from unhang.records.incident_view import IncidentView

_WHO = lazily(r" (?:Ranks? (?P<ranks>[\d, ]+) differs? from most|There is no (?:most|majority: which rank is right cannot be told from this))\.?$")


def _found(seen: LogView | IncidentView) -> Finding | None:
    hits = [h for h in seen.hits_of(CAUSE.id) if "what" in h.groups and "step" in h.groups]
    if not hits:
        return CAUSE.of_hits(seen.hits_of(CAUSE.id), seen if isinstance(seen, LogView) else None)
    told = hits[0].groups["what"]
    named = _WHO.search(told)
    odd = unhang_errors.numbers(named["ranks"]) if named is not None else ()
    what = _WHO.sub("", told).rstrip(".")
    line = unhang_errors.line_of(hits, seen)
    who = (
        unhang_errors.differs(odd) + Text(" from most", "（与多数相比）")
        if odd
        else Text("there is no majority, which rank is right is not known", "没有占多数的一方，无法得知哪个 rank 正确")
        if named
        else NOTHING
    )
    who += Text(" ({what})", "（{what}）").fill(what=what) if who else same(what)
    at = hits[0].groups["step"]
    says = Text("at step{s} {step} the ranks do not train the same model: {who}{at}", "第 {step} 步时各 rank 训练的模型不一致：{who}{at}")
    return unhang_errors.finding(
        CAUSE,
        hits,
        says.fill(s="s" if "-" in at[1:] else "", step=at, who=who, at=unhang_errors.at_line(line) if line else NOTHING),
        standing="established",
        ranks=odd or unhang_errors.raisers(hits),
        where=line,
        remedies=("go-back", "find-the-step", "same-start", "examine-the-gpu"),
    )


CAUSE = Cause(
    id="out-of-sync",
    role="root",
    title="The ranks train different models",
    title_zh="各进程训练的模型不一致",
    what="Parameters, step or loss of a rank are not those of the others, found by unhang.sync_check, or by DDP when it was built.",
    why="A rank built another model or loaded another checkpoint, skipped or repeated a step, drew other random weights, changed parameters outside "
    "of the optimizer, or its GPU computes wrongly.",
    signatures=(
        unhang_errors.signature(
            "OutOfSync", "the ranks are out of sync at step ", r"the ranks are out of sync at step (?P<step>\S{1,40})\. (?P<what>.{1,4000})"
        ),
        Signature(
            needle="DDP expects same model across all ranks",
            pattern=r"Rank (?P<one>\d+) has (?P<mine_params>\d+) params, while rank (?P<two>\d+) has inconsistent (?P<their_params>[1-9]\d*) params",
            says="DDP: rank {one} has {mine_params} parameters and rank {two} has {their_params}",
            says_zh="DDP：rank {one} 有 {mine_params} 个参数，rank {two} 有 {their_params} 个",
            remedies=("same-model",),
        ),
        # 0 parameters is what the other ranks' answer looks like when the comparison itself was broken off or damaged.
        Signature(
            needle="has inconsistent 0 params",
            pattern=r"Rank (?P<one>\d+) has (?P<mine_params>\d+) params, while rank (?P<two>\d+) has inconsistent 0 params",
            standing="possible",
            says=(
                "DDP: rank {one} has {mine_params} parameters and read 0 for rank {two}: either the models differ, or the exchange itself did "
                "not work (a timeout before it, or broken GPU-to-GPU copies)"
            ),
            says_zh=(
                "DDP：rank {one} 有 {mine_params} 个参数，而为 rank {two} 读到的是 0：要么模型不同，"
                "要么交换本身没有成功（此前已超时，或 GPU 之间的拷贝不正常）"
            ),
            remedies=("same-model", "test-the-exchange"),
        ),
        Signature(
            needle="appears not to match ",
            pattern=r"(?:params|replicas)\[(?P<index>\d+)\].* in this process with (?:sizes|strides) (?P<mine_shape>\[[\d, ]*\]) appears "
            r"not to match (?!strides)",
            says="DDP: parameter {index} has sizes {mine_shape} on one rank and others on rank 0",
            says_zh="DDP：参数 {index} 的 sizes 在某个 rank 上是 {mine_shape}，在 rank 0 上则不同",
            remedies=("same-model",),
        ),
        # The sizes stand in this line, and are those of all ranks.
        Signature(
            needle="appears not to match strides ",
            pattern=r"(?:params|replicas)\[(?P<index>\d+)\].* in this process with sizes \[[\d, ]*\] appears not to match strides",
            says="DDP: parameter {index} lies in another order of memory (strides) than on rank 0, with the same sizes",
            says_zh="DDP：参数 {index} 的内存布局（strides）与 rank 0 不同，大小相同",
            remedies=("same-strides",),
        ),
    ),
    in_run=_found,
    in_logs=_found,
    remedies=(
        Remedy(
            id="same-model",
            says=(
                "Build the same model on every rank: same configuration, same checkpoint, same frozen layers; print its number of parameters on each."
            ),
            says_zh="在每个进程上构造完全相同的模型：同样的配置、同样的检查点、同样的冻结层；在每个进程上打印参数个数来核对。",
        ),
        Remedy(
            id="same-strides",
            says="Lay the parameters out alike on all ranks before DDP: channels_last and .contiguous() everywhere or nowhere.",
            says_zh="在构造 DDP 之前让所有 rank 的参数布局一致：channels_last 和 .contiguous() 要么都用，要么都不用。",
        ),
        Remedy(
            id="test-the-exchange",
            says="See whether the exchange itself works: the same run without GPU-to-GPU copies.",
            says_zh="先确认通信本身是否正常：关闭 GPU 之间的直接拷贝再运行一次。",
            env={"NCCL_P2P_DISABLE": "1"},
            verify="NCCL_DEBUG=INFO COMMAND 2>&1 | grep 'NCCL_P2P_DISABLE set by environment to 1'",
        ),
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
        "RuntimeError: [2]: params[7] in this process with sizes [256, 256, 1, 1] appears not to match strides of the same param in process 0.",
        "unhang.errors.OutOfSync: the ranks are out of sync at step 300. parameters: layer.0.weight (rank 2) differs. Rank 2 differs from most",
        (
            "[rank1]: unhang.errors.OutOfSync: the ranks are out of sync at step 7-8. steps: rank 0 is at 7; rank 1 is at 8. "
            "There is no majority: which rank is right cannot be told from this"
        ),
        "RuntimeError: DDP expects same model across all ranks, but Rank 1 has 338 params, while rank 0 has inconsistent 336 params.",
        "RuntimeError: DDP expects same model across all ranks, but Rank 1 has 338 params, while rank 0 has inconsistent 0 params.",
        "RuntimeError: [1]: params[0] in this process with sizes [64, 32] appears not to match sizes of the same param in process 0.",
        "RuntimeError: replicas[0][3] in this process with sizes [64] appears not to match sizes of the same param in process 0.",
    ),
    near_misses=(
        "slurmd: error: Check for out of sync clocks",
        "the check says: OutOfSync: the ranks are out of sync at step 300. loss: rank 1 has nan",
    ),
    explain={
        "en": (
            "Data-parallel ranks hold the same parameters at every step. Here they do not. DDP compares the number and the shapes of parameters "
            "when it is built; unhang.sync_check compares a number for each parameter, bit for bit, and names the ranks that differ from most. "
            "Gradients of models that have parted are averaged without any error, and the loss may even look right. All ranks raise the same "
            "error, but only those that are named differ; one process alone cannot show it."
        ),
        "zh": (
            "数据并行的各个 rank 在每一步都持有同样的参数。这里并非如此。DDP 在构造时比较参数的个数和形状；unhang.sync_check "
            "逐位比较每个参数的校验数，并点名与多数不同的 rank。已经分叉的模型的梯度会被平均而不报错，loss 甚至看起来正常。所有 rank "
            "都抛出同样的错误，但只有被点名的才真的不同；单独运行一个进程无法重现。"
        ),
    },
)
