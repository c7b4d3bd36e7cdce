"""LLaMA-Factory's YAML. Its fields are hundreds (all of the Trainer's, too): only a slip of the finger is told, no unknown name as such."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from unhang.knowledge.text import Text, same
from unhang.remedies.exports.checking.documents import Key
from unhang.remedies.exports.checking.problem import Layout, Problem

_KNOWN = frozenset(
    {
        "model_name_or_path",
        "adapter_name_or_path",
        "stage",
        "do_train",
        "do_eval",
        "do_predict",
        "finetuning_type",
        "dataset",
        "eval_dataset",
        "dataset_dir",
        "media_dir",
        "template",
        "cutoff_len",
        "max_samples",
        "overwrite_cache",
        "preprocessing_num_workers",
        "dataloader_num_workers",
        "dataloader_pin_memory",
        "dataloader_persistent_workers",
        "dataloader_prefetch_factor",
        "dataloader_drop_last",
        "output_dir",
        "overwrite_output_dir",
        "logging_steps",
        "save_steps",
        "eval_steps",
        "plot_loss",
        "save_only_model",
        "report_to",
        "per_device_train_batch_size",
        "per_device_eval_batch_size",
        "gradient_accumulation_steps",
        "learning_rate",
        "num_train_epochs",
        "max_steps",
        "lr_scheduler_type",
        "warmup_ratio",
        "warmup_steps",
        "bf16",
        "fp16",
        "pure_bf16",
        "ddp_timeout",
        "ddp_backend",
        "ddp_find_unused_parameters",
        "deepspeed",
        "fsdp",
        "fsdp_config",
        "resume_from_checkpoint",
        "val_size",
        "eval_strategy",
        "save_strategy",
        "lora_rank",
        "lora_alpha",
        "lora_dropout",
        "lora_target",
        "trust_remote_code",
        "flash_attn",
        "use_cpu",
        "seed",
        "data_seed",
        "tokenized_path",
        "streaming",
        "packing",
        "neat_packing",
        "run_name",
        "save_total_limit",
        "weight_decay",
        "max_grad_norm",
        "gradient_checkpointing",
    }
)
# Written in many a file, and a field of none.
_OTHERS = {"backend": "ddp_backend", "dist_backend": "ddp_backend", "batch_size": "per_device_train_batch_size", "timeout": "ddp_timeout"}


def check(keys: tuple[Key, ...], layout: Layout) -> Iterator[Problem]:
    for key in keys:
        name = str(key.path[0])
        if len(key.path) > 1 or name in _KNOWN:
            continue
        meant = _OTHERS.get(name) or next(iter(difflib.get_close_matches(name, _KNOWN, 1, 0.92)), None)
        if meant is not None:
            yield Problem(line=key.line, says=Text(f"LLaMA-Factory has no field `{name}`", f"LLaMA-Factory 没有字段 {name}"), instead=same(meant))
    top = {str(k.path[0]): k for k in keys if len(k.path) == 1}
    if (both := top.get("fp16")) is not None and both.value is True and "bf16" in top and top["bf16"].value is True:
        yield Problem(line=both.line, says=Text("bf16 and fp16 are both on: the Trainer refuses that", "bf16 与 fp16 同时开启：Trainer 会拒绝"))
    workers = top.get("dataloader_num_workers")
    for name in ("dataloader_prefetch_factor", "dataloader_persistent_workers"):
        if name in top and top[name].value and (workers is None or not workers.value):
            says = Text(f"{name} without workers: DataLoader raises ValueError", f"没有工作进程却设置 {name}：DataLoader 会抛出 ValueError")
            yield Problem(line=top[name].line, says=says, instead=same("dataloader_num_workers: 2"))
