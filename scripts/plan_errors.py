"""Plans against measured peaks of real training steps: two ranks with Gloo on this machine's processors. Writes the table of docs/plan.md.

What is measured is the most memory that a rank's process held in its third step (VmHWM, reset before the step) less what it held before the model was
built (VmRSS, after a step of a tiny model, so that libraries and buffers of Gloo are there already). Blocks of 64 KiB and more are mapped by
themselves (MALLOC_MMAP_THRESHOLD_), so that what is freed leaves the process, as the peak of tensors supposes.
"""

from __future__ import annotations

import json
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from unhang.plan import tracked
from unhang.plan.memory_model import estimate, total
from unhang.plan.model_shape import from_config
from unhang.plan.training import STRATEGIES, Lora, Training
from unhang.probes import memory

PAGE = Path(__file__).resolve().parent.parent / "docs" / "plan.md"
RANKS = 2
_TABLE = re.compile(r"(<!-- errors -->\n).*(?=<!-- /errors -->)", re.DOTALL)


def _llama(hidden: int, layers: int, vocab: int, **more: Any) -> dict[str, Any]:
    heads = hidden // 64
    return {"model_type": "llama", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads,
            "intermediate_size": hidden * 8 // 3, "vocab_size": vocab, "tie_word_embeddings": False, **more}  # fmt: skip


GPT2: Mapping[str, Any] = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024,
                           "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # fmt: skip
QWEN: Mapping[str, Any] = {**_llama(512, 12, 32000), "model_type": "qwen2", "num_key_value_heads": 2, "tie_word_embeddings": True}
LLAMA = _llama(512, 8, 16000)
# Name of the model, fields of its config.json, the strategy, and what differs from 4 x 128 tokens in fp32.
CASES: tuple[tuple[str, Mapping[str, Any], str, Mapping[str, Any]], ...] = (
    ("LLaMA", LLAMA, "ddp", {"batch": 8}),
    ("LLaMA", LLAMA, "fsdp2", {}),
    ("Qwen2", QWEN, "zero-redundancy", {}),
    ("LLaMA", LLAMA, "ddp", {"lora": Lora(rank=16)}),
    ("LLaMA", LLAMA, "ddp", {"frozen": 6}),
    ("LLaMA", LLAMA, "ddp", {"checkpointing": True, "batch": 16}),
    ("GPT-2", GPT2, "ddp", {"batch": 2}),
    ("LLaMA", LLAMA, "ddp", {"attention": "eager", "batch": 8}),
    ("GPT-2", GPT2, "fsdp2", {"batch": 2}),
    ("GPT-2", GPT2, "ddp", {"batch": 2, "accumulation": 2}),
    ("LLaMA", _llama(768, 12, 32000), "zero-redundancy", {}),
    ("LLaMA", _llama(768, 12, 32000), "fsdp2", {"checkpointing": True}),
)


def request(config: Mapping[str, Any], training: Training) -> dict[str, Any]:
    return {"config": dict(config), **asdict(training)}


def rank(number: int, case: int, port: int) -> None:
    """One rank of a case: prints its bytes."""
    import torch
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    _, config, strategy, options = CASES[case]
    training = training_of(options)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=RANKS)
    tiny = request(_llama(64, 2, 128), replace(training, batch=1, sequence=8, frozen=0))

    def steps(asked: Mapping[str, Any], count: int) -> int:
        model, _, blocks = memory.built(asked)
        if strategy == "fsdp2":
            from torch.distributed.fsdp import fully_shard

            for block in blocks:
                fully_shard(block)
            fully_shard(model)
        else:
            parallel = DistributedDataParallel(model)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer: Any = (
            ZeroRedundancyOptimizer(trained, torch.optim.AdamW, foreach=False)
            if strategy == "zero-redundancy"
            else torch.optim.AdamW(trained, foreach=False)
        )
        whole = model if strategy == "fsdp2" else parallel
        tokens = torch.zeros(asked["batch"], asked["sequence"], dtype=torch.long)
        for step in range(count):
            if step == count - 1:
                # 5 resets the peak (proc(5), clear_refs).
                Path("/proc/self/clear_refs").write_text("5")
            for _ in range(training.accumulation):
                whole(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return kib("VmHWM") * 1024

    steps(tiny, 2)
    before = kib("VmRSS") * 1024
    found = [0] * RANKS
    dist.all_gather_object(found, steps(request(config, training), 3) - before)
    if number == 0:
        sys.stdout.write(json.dumps(max(found)) + "\n")
    dist.destroy_process_group()


def kib(name: str) -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1])


def training_of(options: Mapping[str, Any]) -> Training:
    common = {"world_size": RANKS, "per_node": RANKS, "batch": 4, "sequence": 128, "precision": "fp32", "device": "cpu"}
    return Training(**{**common, **options})  # type: ignore[arg-type]


def measure(case: int) -> int:
    """Bytes of the rank that needed most."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    environ = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1", "HF_HUB_OFFLINE": "1"}
    words = [sys.executable, __file__, "--rank"]
    ranks = [subprocess.Popen([*words, str(i), str(case), str(port)], env=environ, stdout=subprocess.PIPE, text=True) for i in range(RANKS)]
    try:
        out = [process.communicate(timeout=600)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    if any(process.returncode for process in ranks):
        raise SystemExit(f"case {case}: a rank ended with {[p.returncode for p in ranks]}")
    return int(out[0])


def row(case: int, measured: int | None) -> tuple[str, list[float]]:
    """A line of the table, and the errors of both ways."""
    name, config, strategy, options = CASES[case]
    training, chosen = training_of(options), next(s for s in STRATEGIES if s.name == strategy)
    shape = from_config(name, config)
    counted = tracked.ask({"config": dict(config)}, training, python=sys.executable, fsdp2=strategy == "fsdp2", deepspeed=False)
    measured = measured or measure(case)
    said = ", ".join(f"{key} {value.rank if isinstance(value, Lora) else value}" if value is not True else key for key, value in options.items())
    line = f"| {name}, {shape.parameters / 1e6:.0f} M | {strategy}{', ' + said if said else ''} | {measured / 2**20:.0f} |"
    errors = []
    for made in (estimate(shape, training, chosen), estimate(shape, training, chosen, tracked=counted)):
        # Measured without what malloc keeps.
        found = total(chosen, [term for term in made.terms if term.id != "malloc"])
        errors.append((found.low + found.high) / 2 / measured - 1)
        line += f" {found.low / 2**20:.0f} to {found.high / 2**20:.0f} | {errors[-1] * 100:+.1f} % |"
    return line, errors


def write(rows: list[tuple[str, list[float]]]) -> None:
    """The table, after each case: it holds what was measured so far."""
    import torch
    import transformers

    head = "| model | strategy and what differs | measured, MiB | closed form, MiB | error | tracker, MiB | error |\n|---|---|---|---|---|---|---|\n"
    worst = [max(abs(errors[i]) for _, errors in rows) for i in range(2)]
    said = (
        f"\nTwo ranks with Gloo, {platform.machine()}, torch {torch.__version__}, transformers {transformers.__version__}; 4 x 128 tokens a "
        "rank, float32, AdamW, unless said otherwise. Errors are of the middle of the range; the largest are "
        f"{worst[0]:.1%} (closed form) and {worst[1]:.1%} (tracker).\n"
    )
    text = head + "".join(line + "\n" for line, _ in rows) + said
    PAGE.write_text(_TABLE.sub(lambda found: found[1] + text, PAGE.read_text("utf-8")), "utf-8")


def main(words: list[str]) -> None:
    if words[:1] == ["--rank"]:
        rank(*map(int, words[1:]))
        return
    # --plans: only the plans anew, against what the table holds as measured (in MiB).
    kept = [int(found) * 2**20 for found in re.findall(r"^\| [^|]+ M \|[^|]+\| (\d+) \|", PAGE.read_text("utf-8"), re.MULTILINE)]
    rows = []
    for case in range(len(CASES)):
        rows.append(row(case, kept[case] if words == ["--plans"] else None))
        sys.stdout.write(rows[-1][0] + "\n")
        sys.stdout.flush()
        write(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
