"""What a training step of one rank needs, by torch's own memory tracker on fake tensors: nothing is allocated, no rank is started.

Run by path, with the training's own Python; the request is JSON on standard input, the answer lines of JSON, each with all that is known by then:
whoever reads is not bound to wait for the last. The trackers are private
(torch.distributed._tools, since torch 2.5): all that is used of them stands in `_recorded`, `trace` and `trace_fsdp2`. Optimizer steps are not
traced: the trackers count fused and foreach ones wrongly.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import json
import os
import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

MARK = "unhang-plan "
# Sequences of the two traces. A batch of 1 makes some copies needless.
BATCHES = (2, 4)
_ATTENTION_DROPOUT = ("attn_pdrop", "attention_dropout", "attention_probs_dropout_prob")
# What the trackers call parts that grow with the batch.
_GROWING = ("Activation", "Temp", "Inputs")
# Where `architectures` of config.json names no class of transformers.
_CLASSES = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForImageClassification", "AutoModel")


def configured(request: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """The model's configuration, and which attention dropout was set to 0: kernels of GPUs keep no scores for it, that of the processor does."""
    import transformers

    # The precision of the file is that of the checkpoint; releases of transformers name it differently.
    fields = json.loads(json.dumps(request["config"]), object_hook=lambda one: {k: v for k, v in one.items() if k not in ("dtype", "torch_dtype")})
    config = transformers.AutoConfig.for_model(**fields)
    is_fused = request["attention"] != "eager" and request["device"] == "cuda"
    dropped = [name for name in _ATTENTION_DROPOUT if is_fused and getattr(config, name, 0)]
    for name in dropped:
        setattr(config, name, 0.0)
    return config, dropped


def _configured_model(request: Mapping[str, Any]) -> Any:
    """Of the class that config.json names. With the attention that was asked for, or the model's own if it has no other."""
    import transformers

    config = configured(request)[0]
    named: list[Any] = [getattr(transformers, name, None) for name in request["config"].get("architectures") or ()]
    autos = [auto for auto in (getattr(transformers, name) for name in _CLASSES) if type(config) in auto._model_mapping]
    make = next((one._from_config for one in named if hasattr(one, "_from_config")), (autos or [transformers.AutoModel])[0].from_config)
    try:
        model = make(config, attn_implementation="eager" if request["attention"] == "eager" else "sdpa")
    except ValueError:
        model = make(configured(request)[0])
    model.config.use_cache = False
    if request["checkpointing"]:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def _inputs(model: Any, batch: int, sequence: int) -> Any:
    """Tokens, images, or both for a model that compares them; nothing for a model of transformers that takes something else."""
    import torch

    tokens, config = torch.zeros(batch, sequence, dtype=torch.long), getattr(model, "config", model)
    config = getattr(config, "vision_config", config)
    size = getattr(config, "image_size", None) or 224
    sides = size if isinstance(size, (list, tuple)) else (size, size)
    if not hasattr(model, "main_input_name"):
        has_words = any(isinstance(module, torch.nn.Embedding) for module in model.modules())
        first = next((module for module in model.modules() if isinstance(module, torch.nn.Conv2d) and not has_words), None)
        return tokens if first is None else torch.zeros(batch, first.in_channels, *sides)
    found = {"input_ids": tokens} if model.main_input_name == "input_ids" else {}
    if found and model.get_output_embeddings() is not None:
        return {**found, "labels": tokens}
    is_of_images = "pixel_values" in inspect.signature(model.forward).parameters
    return {**found, "pixel_values": torch.zeros(batch, getattr(config, "num_channels", 3), *sides)} if is_of_images else found


def built(request: Mapping[str, Any], runs_on: str = "torch") -> tuple[Any, functools.partial[Any], list[Any]]:
    """The model, what computes its loss (its arguments: the model and its inputs), and its blocks.

    Request: `config` (fields of config.json) or `callable` ("module:name": returns a module, or a module and its inputs; is given `batch` and
    `sequence` if it takes them), and fields of `unhang.plan.training.Training`. DeepSpeed keeps weights in half precision, autocast in float32;
    frozen ones below adapters are in half precision with both. Raises whatever the model's own code raises.
    """
    import torch

    batch, sequence = int(request["batch"]), int(request["sequence"])
    mixed = request["precision"] in ("bf16", "fp16")
    # bfloat16 in place of float16, which has as many bytes: not every kernel of the processor has the latter.
    half = request["precision"] == "pure-bf16" or (mixed and (runs_on == "deepspeed" or bool(request.get("lora"))))
    before, dtype = torch.get_default_dtype(), torch.bfloat16 if half else torch.float32
    torch.set_default_dtype(dtype)
    if "config" in request:
        model: Any = _configured_model(request)
        inputs: Any = None
    else:
        module, _, name = request["callable"].partition(":")
        make = importlib.import_module(module)
        for part in name.split("."):
            make = getattr(make, part)
        known: Any = inspect.signature(make).parameters  # type: ignore[arg-type]
        model = make(**{key: value for key, value in (("batch", batch), ("sequence", sequence)) if key in known})  # type: ignore[operator]
        model, inputs = model if isinstance(model, tuple) else (model, None)
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"{request['callable']} returned {type(model).__name__}, and no torch.nn.Module")
    inputs = _inputs(model, batch, sequence) if inputs is None else inputs
    torch.set_default_dtype(torch.float32 if mixed and runs_on == "torch" else dtype)
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList) and len(module) > 1]
    blocks = list(max(lists, key=_size)) if lists else []
    if request.get("lora"):
        _adapt(model, request["lora"]["rank"], request["lora"]["targets"])
    if request["frozen"]:
        if request["frozen"] > len(blocks):
            raise ValueError(f"--frozen {request['frozen']}: the model has {len(blocks)} blocks")
        for module in (*blocks[: request["frozen"]], *(m for m in model.modules() if isinstance(m, torch.nn.Embedding))):
            module.requires_grad_(False)
    torch.set_default_dtype(before)
    model.train()
    return model, functools.partial(_loss, model, inputs), blocks


def _loss(model: Any, inputs: Any) -> Any:
    import torch

    if not isinstance(inputs, torch.Tensor) and not inputs:
        raise ValueError(f"what {type(model).__name__} takes as {model.main_input_name} is not known here")
    out = model(**inputs) if isinstance(inputs, dict) else model(*(inputs if isinstance(inputs, tuple) else (inputs,)))
    found = getattr(out, "loss", None) if not isinstance(out, torch.Tensor) else out
    if found is None:
        found = next(value for value in (out.values() if isinstance(out, dict) else out) if isinstance(value, torch.Tensor))
    return found if found.dim() == 0 else found.float().sum()


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


@contextlib.contextmanager
def _faked() -> Iterator[None]:
    """FakeTensorMode. Truncated normal weights would be drawn until they fit, and one of transformers' kernels of experts takes bfloat16 alone."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.nn.init, "_no_grad_trunc_normal_", lambda tensor, *_, **__: tensor, create=True))
        with contextlib.suppress(ImportError):
            moe = importlib.import_module("transformers.integrations.moe")
            stack.enter_context(mock.patch.object(moe, "_can_use_grouped_mm", lambda *_, **__: False, create=True))
        stack.enter_context(FakeTensorMode())
        yield


def described(request: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers of parameters as built, what a sample is (kind and shape of each input), its bytes, and the attention that the model really has."""
    import torch

    with _faked():
        model, loss, blocks = built(request)
    everything, given, config = _size(model), loss.args[1], getattr(model, "config", None)
    named = given.items() if isinstance(given, dict) else enumerate(given if isinstance(given, tuple) else (given,))
    inputs = [one for name, one in named if isinstance(one, torch.Tensor) and name != "labels"]
    kinds = {(False, 2): "tokens", (True, 4): "image"}
    return {
        "counts": {
            "parameters": everything,
            "trained": sum(int(p.numel()) for p in model.parameters() if p.requires_grad),
            "largest_tensor": max(int(p.numel()) for p in model.parameters()),
            "layer": max(map(_size, blocks), default=everything),
            "outside": everything - sum(map(_size, blocks)),
            "layers": max(len(blocks), 1),
        },
        "sample": [(kinds.get((one.is_floating_point(), one.dim()), "numbers"), list(one.shape[1:])) for one in inputs],
        "sample_bytes": sum(one.numel() * one.element_size() for one in inputs) / request["batch"],
        "attention": getattr(config, "_attn_implementation", None) if getattr(config, "num_attention_heads", 0) else None,
    }


def _recorded(tracker: Any) -> list[dict[str, int]]:
    """Filled with the bytes of each part after each operation. Replaces the tracker's search for each module's peak, which takes most of its time."""
    states: list[dict[str, int]] = []
    tracker._update_peak_stats = lambda _: states.extend(
        {name.value: int(size) for name, size in parts.items() if name != "Total"} for parts in tracker._curr_mem_snap.values()
    )
    return states


def worst_states(trace: Callable[[Mapping[str, Any]], list[dict[str, int]]], request: Mapping[str, Any]) -> list[dict[str, tuple[float, float]]]:
    """States that need most for some batch. By part: bytes that are always there, and of each sequence (the same operations with 2 batches)."""
    first, second = BATCHES
    few, many = (trace({**request, "batch": batch}) for batch in BATCHES)
    if few == many:
        # The model brings inputs of its own: those are the batch.
        first, second, few = 0, request["batch"], [{name: 0 if name in _GROWING else size for name, size in state.items()} for state in few]
    if len(few) != len(many):
        few, many = ([max(states, key=lambda state: sum(state.values()))] for states in (few, many))
    found = []
    for a, b in zip(few, many, strict=True):
        each = {name: (b[name] - a[name]) / (second - first) for name in a}
        found.append({name: (a[name] - each[name] * first, each[name]) for name in a})
    totals = [[sum(part[i] for part in state.values()) for i in (0, 1)] for state in found]
    worst = {max(range(len(found)), key=lambda i: totals[i][0] + totals[i][1] * 2**n) for n in range(13)}
    return [{name: part for name, part in found[i].items() if any(part)} for i in sorted(worst)]


def trace(request: Mapping[str, Any], runs_on: str) -> list[dict[str, int]]:
    """Bytes beside weights after each operation of forward and backward if no gradient stays."""
    from torch.distributed._tools.mem_tracker import MemTracker

    def drop(parameter: Any) -> None:
        parameter.grad = None

    with _faked():
        model, loss, _ = built(request, runs_on)
        trained = [p for p in model.parameters() if p.requires_grad]
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
        states = _recorded(tracker)
        with tracker:
            with computing(request["precision"], runs_on):
                found = loss()
            found.backward()
    return [{"Activation": sum(size for name, size in parts.items() if name not in ("Parameter", "Buffer"))} for parts in states]


def trace_fsdp2(request: Mapping[str, Any]) -> list[dict[str, int]]:
    """Bytes by what torch's tracker calls their parts, under `fully_shard` of each block and the whole, without optimizer states."""
    import torch
    import torch.distributed as dist
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=request["world_size"])
    mesh = init_device_mesh("cpu", (request["world_size"],))
    mixed = request["precision"] in ("bf16", "fp16")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if mixed else MixedPrecisionPolicy()
    with _faked():
        model, loss, blocks = built(request)
        for block in blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        tracker = FSDPMemTracker(model)
        states = _recorded(tracker)
        with tracker:
            loss().backward()
    dist.destroy_process_group()
    return states


def _place(e: Exception) -> str:
    """The line of the model's own code that raised it, or where a missing module was looked for."""
    others = (__file__, os.path.dirname(os.__file__), "<")  # noqa: PTH120
    frames = [f for f in traceback.extract_tb(e.__traceback__) if not f.filename.startswith(others) and "site-packages" not in f.filename]
    if not frames and isinstance(e, ModuleNotFoundError):
        return f" (looked for in {sys.path[0]} and in the packages of {sys.executable})"
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def main() -> None:
    """Answers one request: first what was built, then more with each kind that was counted. What fails is said in `failed`."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    warnings.simplefilter("ignore")
    request, told, out = json.loads(sys.stdin.read()), dict[str, Any](), sys.stdout
    # A configuration is no code: nothing that lies beside it is imported.
    if "config" not in request:
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        # Whatever a model prints.
        with contextlib.redirect_stdout(sys.stderr):
            told |= {"dropped": configured(request)[1] if "config" in request else [], "states": {}, **described(request)}
            for kind in request["kinds"]:
                way = trace_fsdp2 if kind == "FSDP2" else functools.partial(trace, runs_on=kind)
                print(MARK + json.dumps(told), file=out, flush=True)
                told["states"][kind] = worst_states(way, request)
    except Exception as e:
        told["failed"] = f"{textwrap.shorten(f'{type(e).__name__}: {e}', 300, placeholder=' ...')}{_place(e)}"
    print(MARK + json.dumps(told), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
