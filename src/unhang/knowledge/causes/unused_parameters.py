"""unused-parameters: DDP waits for gradients of parameters that took no part in the loss."""

from __future__ import annotations

from unhang.knowledge.cause import Cause, LogView, Signature
from unhang.knowledge.text import Text
from unhang.model import Finding, Remedy

_LEFT_OUT = Text("parameters took no part in the loss of rank {rank}: {params}", "有参数没有参与 rank {rank} 的 loss：{params}")


def _in_logs(view: LogView) -> Finding | None:
    """DDP prints which parameters were left out in a line of its own."""
    hits = view.hits_of(CAUSE.id)
    named = next((h for h in hits if "params" in h.groups), None)
    says = None if named is None else _LEFT_OUT.fill(rank=named.groups["of"], params=named.groups["params"].strip())
    return CAUSE.of_hits(hits, view, says=says)


CAUSE = Cause(
    id="unused-parameters",
    role="root",
    title="Parameters took no part in the loss (DDP)",
    title_zh="有参数没有参与 loss 的计算（DDP）",
    what="In some iteration parameters received no gradient, and DistributedDataParallel waited for it.",
    why="A branch or a head that this batch or rank does not use, a frozen part that DDP does not know of, an output that the loss leaves out.",
    signatures=(
        Signature(
            needle="Expected to have finished reduction in the prior iteration",
            says="DDP: parameters took no part in computing the loss of an iteration, so that ranks reduce different gradients",
            says_zh="DDP：某次迭代中有参数没有参与 loss 的计算，因此各 rank 归约的梯度不同",
            remedies=("use-all-parameters", "find-unused"),
        ),
        # Lightning's own words in place of torch's.
        Signature(
            needle="has parameters that were not used in producing the loss",
            says="DDP: parameters took no part in computing the loss that training_step returned",
            says_zh="DDP：有参数没有参与 training_step 所返回 loss 的计算",
            remedies=("use-all-parameters", "find-unused"),
        ),
        Signature(
            needle="which did not receive grad for rank ",
            pattern=r"did not receive grad for rank (?P<of>\d+): (?P<params>.{1,300})",
            says="parameters took no part in the loss of rank {of}: {params}",
            says_zh="有参数没有参与 rank {of} 的 loss：{params}",
            remedies=("use-all-parameters", "find-unused"),
        ),
    ),
    in_logs=_in_logs,
    remedies=(
        Remedy(
            id="use-all-parameters",
            says=(
                "Use every parameter in every iteration, or freeze the ones that are not used (requires_grad=False) before DDP is built; add 0.0 "
                "* p.sum() for a branch that only some batches take."
            ),
            says_zh=(
                "让每个参数在每次迭代中都参与计算，或在构造 DDP 之前冻结不用的参数（requires_grad=False）；只有部分批次走的分支，可在损失里加上 "
                "0.0 * p.sum()。"
            ),
        ),
        Remedy(
            id="find-unused",
            says=(
                "If branches must differ, DistributedDataParallel(..., find_unused_parameters=True) (ddp_find_unused_parameters in "
                "transformers); DETAIL names the parameters (not on Gloo, where torch 2.13 ends DDP with a segmentation fault)."
            ),
            says_zh=(
                "如果分支必须不同，使用 DistributedDataParallel(..., find_unused_parameters=True)（transformers 中为 ddp_find_unused_parameters）；"
                "设为 DETAIL 会打印参数名（Gloo 上不要用：torch 2.13 的 DDP 会因此段错误）。"
            ),
            env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
            verify="python -c 'import torch.distributed as d; print(d.get_debug_level())'",
        ),
    ),
    leads_to=("rank-exception",),
    mistaken_for={
        "collective-mismatch": "there the ranks call different operations; here the same model leaves parameters out, mostly on all ranks alike"
    },
    sources=("https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",),
    hits=(
        "RuntimeError: It looks like your LightningModule has parameters that were not used in producing the loss returned by training_step. If",
        (
            "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that your "
            "module has parameters that were not used in producing loss."
        ),
        "Parameter indices which did not receive grad for rank 1: 12 13 14",
        "Parameters which did not receive grad for rank 0: head.proj.weight, head.proj.bias",
    ),
    near_misses=(
        (
            "RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the following reasons: 1) Use of a module "
            "parameter"
        ),
        "Warning: find_unused_parameters=True was specified in DDP constructor, but did not find any unused parameters in the forward pass.",
    ),
    explain={
        "en": (
            "DDP averages the gradient of every parameter in every iteration. Some parameters took no part in the loss, so their gradients never "
            "came, and DDP noticed at the next forward pass. Use them all, freeze what is not used before DDP is built, or pass "
            "find_unused_parameters=True."
        ),
        "zh": (
            "DDP 在每次迭代中对每个参数的梯度求平均。有些参数没有参与 loss 的计算，它们的梯度永远不会到来，DDP 在下一次前向时发现了这一点。"
            "请让所有参数都参与计算，在构造 DDP 之前冻结不用的参数，或传入 find_unused_parameters=True。"
        ),
    },
)
