"""What a training step of one rank needs, by torch's own memory tracker on fake tensors: nothing is allocated, no rank is started.

Run by path, with the training's own Python; the request is JSON on standard input, the answer one line of JSON. The trackers are private
(torch.distributed._tools, since torch 2.5): all that is used of them stands in `activations` and `fsdp2`. Optimizers are built with
`foreach=False`: the trackers count fused and foreach ones wrongly.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

MARK = "unhang-plan "
_OPTIMIZERS = ("adamw", "sgd", "momentum")


def built(request: Mapping[str, Any], runs_on: str = "torch") -> tuple[Any, Callable[[], Any], list[Any]]:
    """The model, what computes its loss, and its blocks.

    Request: `config` (fields of config.json) or `callable` ("module:name": returns a module, or a module and its inputs; is given `batch` and
    `sequence` if it takes them), and fields of `unhang.planning.training.Training`. DeepSpeed keeps weights in half precision, autocast in float32;
    frozen ones below adapters are in half precision with both. Raises whatever the model's own code raises.
    """
    import torch

    batch, sequence = int(request["batch"]), int(request["sequence"])
    inputs: Any = None
    mixed = request["precision"] in ("bf16", "fp16")
    # bfloat16 in place of float16, which has as many bytes: not every kernel of the processor has the latter.
    half = request["precision"] == "pure-bf16" or (mixed and (runs_on == "deepspeed" or bool(request.get("lora"))))
    before, dtype = torch.get_default_dtype(), torch.bfloat16 if half else torch.float32
    torch.set_default_dtype(dtype)
    if "config" in request:
        import transformers

        # The precision of the file is that of the checkpoint; releases of transformers name it differently.
        config = transformers.AutoConfig.for_model(**{key: value for key, value in request["config"].items() if key not in ("dtype", "torch_dtype")})
        attention = "eager" if request["attention"] == "eager" else "sdpa"
        model: Any = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        model.config.use_cache = False
        if request["checkpointing"]:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        tokens = torch.zeros(batch, sequence, dtype=torch.long)
        inputs = {"input_ids": tokens, "labels": tokens}
    else:
        module, _, name = request["callable"].partition(":")
        make = importlib.import_module(module)
        for part in name.split("."):
            make = getattr(make, part)
        known: Any = inspect.signature(make).parameters  # type: ignore[arg-type]
        model = make(**{key: value for key, value in (("batch", batch), ("sequence", sequence)) if key in known})  # type: ignore[operator]
        if isinstance(model, tuple):
            model, inputs = model
        if inputs is None:
            inputs = (torch.zeros(batch, sequence, dtype=torch.long),)
    torch.set_default_dtype(torch.float32 if mixed and runs_on == "torch" else dtype)
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList) and len(module) > 1]
    blocks = list(max(lists, key=_size)) if lists else []
    if request.get("lora"):
        _adapt(model, request["lora"]["rank"], request["lora"]["targets"])
    if request["frozen"]:
        for module in (*blocks[: request["frozen"]], *(m for m in model.modules() if isinstance(m, torch.nn.Embedding))):
            module.requires_grad_(False)
    torch.set_default_dtype(before)
    model.train()

    def loss() -> Any:
        out = model(**inputs) if isinstance(inputs, dict) else model(*(inputs if isinstance(inputs, tuple) else (inputs,)))
        found = getattr(out, "loss", None) if not isinstance(out, torch.Tensor) else out
        if found is None:
            found = next(value for value in (out.values() if isinstance(out, dict) else out) if isinstance(value, torch.Tensor))
        return found if found.dim() == 0 else found.float().sum()

    return model, loss, blocks


def _size(module: Any) -> int:
    return sum(int(p.numel()) for p in module.parameters())


def _adapt(model: Any, rank: int, targets: list[str]) -> None:
    """Low-rank adapters as PEFT adds them (LoRA, arXiv:2106.09685), everything else frozen."""
    import torch

    class Adapted(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, base: Any) -> None:
            super().__init__()
            self.base = base
            self.a, self.b = torch.nn.Linear(base.in_features, rank, bias=False), torch.nn.Linear(rank, base.out_features, bias=False)

        def forward(self, x: Any) -> Any:
            return self.base(x) + self.b(self.a(x))

    model.requires_grad_(False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if name in targets and isinstance(child, torch.nn.Linear):
                setattr(parent, name, Adapted(child))
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError(f"no linear layer of the model is named {', '.join(targets)}")


def computing(precision: str, runs_on: str) -> Any:
    """The context of the forward pass."""
    import torch

    mixed = precision in ("bf16", "fp16") and runs_on == "torch"
    return torch.autocast("cpu", dtype=torch.bfloat16) if mixed else contextlib.nullcontext()


def optimizer(model: Any, name: str) -> Any:
    """One of torch's, which update one tensor after the other. None for an optimizer that torch does not have."""
    import torch

    trained = [p for p in model.parameters() if p.requires_grad]
    if name == "adamw":
        return torch.optim.AdamW(trained, foreach=False)
    return torch.optim.SGD(trained, momentum=0.9 if name == "momentum" else 0, foreach=False) if name in _OPTIMIZERS else None


def activations(request: Mapping[str, Any], runs_on: str) -> tuple[int, dict[str, int]]:
    """Bytes beside weights at the worst moment of forward and backward if no gradient stays; and numbers of parameters."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    def drop(parameter: Any) -> None:
        parameter.grad = None

    with FakeTensorMode():
        model, loss, blocks = built(request, runs_on)
        trained = [p for p in model.parameters() if p.requires_grad]
        everything, inside = _size(model), sum(map(_size, blocks))
        counts = {
            "parameters": everything,
            "trained": sum(int(p.numel()) for p in trained),
            "largest_tensor": max(int(p.numel()) for p in model.parameters()),
            "layer": max(map(_size, blocks), default=everything),
            "outside": everything - inside,
            "layers": max(len(blocks), 1),
        }
        for p in trained:
            p.register_post_accumulate_grad_hook(drop)
        # The tracker hooks every parameter's gradient, and torch refuses that for frozen ones.
        for module in model.modules():
            for name, p in list(module.named_parameters(recurse=False)):
                if not p.requires_grad:
                    delattr(module, name)
                    module.register_buffer(name, p.data)
        tracker = MemTracker()
        tracker.track_external(model)
        with tracker:
            with computing(request["precision"], runs_on):
                found = loss()
            found.backward()
        (peak,) = tracker.get_tracker_snapshot("peak").values()
    parts = {str(name).rpartition(".")[2]: int(value) for name, value in peak.items()}
    return parts["Total"] - parts["PARAM"] - parts["BUFFER"], counts


def fsdp2(request: Mapping[str, Any]) -> dict[str, int] | None:
    """The peak of a step after the first under `fully_shard` of each block and the whole, by what torch's tracker calls its parts.

    None for optimizers that torch does not have.
    """
    import torch
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if request["optimizer"] not in _OPTIMIZERS:
        return None
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=request["world_size"])
    mesh = init_device_mesh("cpu", (request["world_size"],))
    mixed = request["precision"] in ("bf16", "fp16")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if mixed else MixedPrecisionPolicy()
    with FakeTensorMode():
        model, loss, blocks = built(request)
        for block in blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        steps = optimizer(model, request["optimizer"])
        tracker = FSDPMemTracker(model, steps)
        with tracker:
            for _ in range(2):
                # The first step has no optimizer state yet.
                tracker.reset_mod_stats()
                loss().backward()
                steps.step()
                steps.zero_grad()
        (peak,) = tracker.get_tracker_snapshot("peak").values()
    dist.destroy_process_group()
    return {str(getattr(name, "value", name)): int(value) for name, value in peak.items() if value}


def main() -> None:
    """Answers one request. What fails is said in `failed`, with what could be counted beside it."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    warnings.simplefilter("ignore")
    request, told = json.loads(sys.stdin.read()), dict[str, Any]()
    sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        # Whatever a model prints.
        with contextlib.redirect_stdout(sys.stderr):
            import torch

            told["torch"] = torch.__version__
            told["activations"] = {}
            differs = request.get("deepspeed") and request["precision"] in ("bf16", "fp16")
            for runs_on in ("torch", "deepspeed") if differs else ("torch",):
                told["activations"][runs_on], counts = activations(request, runs_on)
                told.setdefault("counts", counts)
            if request["fsdp2"]:
                told["fsdp2"] = fsdp2(request)
    except Exception as e:
        told["failed"] = f"{type(e).__name__}: {' '.join(str(e).split())[:300]}"
    print(MARK + json.dumps(told), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
