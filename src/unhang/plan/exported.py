"""A plan in the form of a launcher: DeepSpeed's JSON, accelerate's and LLaMA-Factory's YAML by `remedies/exports`, and arguments of the Trainer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unhang.errors import UnhangError
from unhang.i18n import msg
from unhang.plan.recommend import Plan, Row, recommend
from unhang.plan.training import Strategy, Training
from unhang.remedies.exports.form_settings import Layout
from unhang.remedies.exports.launch_command import Exported, export

FORMS = ("deepspeed", "accelerate", "llamafactory", "trainer")
# What goes beside FILE where the form has DeepSpeed read a file of its own.
COMPANION = ".deepspeed.json"
_OPTIM = {"adamw": "adamw_torch", "adamw-8bit": "adamw_bnb_8bit", "adafactor": "adafactor", "momentum": "sgd", "sgd": "sgd"}


def _has_place(form: str, strategy: Strategy) -> bool:
    is_refused = (form == "deepspeed" and strategy.runs_on != "deepspeed") or (form == "llamafactory" and strategy.name == "fsdp2")
    return strategy.name != "zero-redundancy" and not is_refused


def best(form: str, made: Plan) -> Row | None:
    """The strategy to take of those that the form has a place for; None if none of them fits."""
    rows = [row for row in made.rows if _has_place(form, row.strategy)]
    name = recommend(rows, made.machine)[0] if rows else None
    return made.row(name) if name is not None else None


def write(form: str, made: Plan, row: Row, *, name: str) -> Exported:
    """The text for a file called `name`, with what goes beside it. Raises UnhangError if the form cannot express the strategy."""
    strategy, training = row.strategy, made.training
    if not _has_place(form, strategy):
        raise UnhangError(msg("{form} has no place for {name}", form=form, name=strategy.name), hint="--strategy zero-2, or --form accelerate")
    is_deepspeed = strategy.runs_on == "deepspeed"
    layout = Layout(nodes=training.world_size // training.ranks_here, processes=training.ranks_here, gpus=training.device == "cuda")
    # Only DeepSpeed and LLaMA-Factory cast the weights themselves; elsewhere bf16 is autocast on the weights as the script has loaded them.
    pure = "bf16" if is_deepspeed or form == "llamafactory" else "no"
    half = {"fp32": "no", "pure-bf16": pure}.get(training.precision, training.precision)
    choice: dict[str, Any] = {"batch": training.batch, "accumulation": training.accumulation, "precision": half}
    beside = {COMPANION: json.dumps(_deepspeed(choice, layout, strategy), indent=2) + "\n"} if is_deepspeed else {}
    if form == "deepspeed":
        return Exported(text=beside[COMPANION], companions=export(form, choice, layout).companions)
    if form == "accelerate":
        return Exported(text=_accelerate(export(form, {"precision": half}, layout).text, strategy, training))
    fields = {**_fields(made, training), **({"deepspeed": f"{name}{COMPANION}"} if is_deepspeed else {})}
    if form == "trainer":
        if strategy.name == "fsdp2":
            fields |= {"fsdp": "full_shard auto_wrap", "fsdp_config": {"version": 2, "reshard_after_forward": True}}
        fields |= {"per_device_train_batch_size": training.batch, "gradient_accumulation_steps": training.accumulation}
        fields |= {"bf16": half == "bf16", "fp16": half == "fp16", "gradient_checkpointing": training.checkpointing}
        return Exported(text=json.dumps(fields, indent=2) + "\n", companions=beside)
    at = Path(made.name).resolve()
    # No other model than the planned one. Without a template LLaMA-Factory takes the tokenizer's (data/template.py).
    fields |= {"model_name_or_path": at if at.is_dir() else at.parent if at.is_file() else "null", "template": "null"}
    if made.preparation.processes is not None:
        fields["preprocessing_num_workers"] = made.preparation.processes
    fields["cutoff_len"] = training.sequence
    fields |= {"disable_gradient_checkpointing": not training.checkpointing, "pure_bf16": training.precision == "pure-bf16"}
    fields |= {"flash_attn": {"flash": "fa2", "eager": "disabled"}.get(training.attention, training.attention)}
    fields["finetuning_type"] = "lora" if training.lora is not None else "freeze" if training.frozen else "full"
    if training.lora is not None:
        fields |= {"lora_rank": training.lora.rank, "lora_target": ",".join(training.lora.targets)}
    if training.frozen:
        fields["freeze_trainable_layers"] = max(1, made.counts.layers - training.frozen)
    words = tuple(f"{key}={json.dumps(value) if isinstance(value, bool) else value}" for key, value in fields.items())
    where = Layout(nodes=layout.nodes, processes=layout.processes, gpus=layout.gpus, command=words)
    return Exported(text=export(form, choice, where).text, companions=beside)


def _fields(made: Plan, training: Training) -> dict[str, Any]:
    """Arguments of the Trainer that LLaMA-Factory takes as well."""
    return {"optim": _OPTIM[training.optimizer], "dataloader_num_workers": made.preparation.loader_workers, "ddp_timeout": made.preparation.timeout_s}


def _deepspeed(choice: Mapping[str, Any], layout: Layout, strategy: Strategy) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(export("deepspeed", choice, layout).text)
    zero = found["zero_optimization"]
    zero["stage"] = strategy.stage
    if strategy.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if strategy.offload == "all":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    if strategy.stage == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    return found


def _accelerate(text: str, strategy: Strategy, training: Training) -> str:
    if strategy.name == "ddp":
        return text
    if strategy.name == "fsdp2":
        kind, section = "FSDP", {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": True,
            "fsdp_activation_checkpointing": training.checkpointing,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }  # fmt: skip
    else:
        kind, section = "DEEPSPEED", {
            "zero_stage": strategy.stage,
            "gradient_accumulation_steps": training.accumulation,
            "offload_optimizer_device": "cpu" if strategy.offload else "none",
            "offload_param_device": "cpu" if strategy.offload == "all" else "none",
            "zero3_init_flag": strategy.stage == 3,
        }  # fmt: skip
    text = text.replace("distributed_type: MULTI_GPU", f"distributed_type: {kind}").replace('distributed_type: "NO"', f"distributed_type: {kind}")
    return text + f"{kind.lower()}_config:\n" + "".join(f"  {key}: {json.dumps(value)}\n" for key, value in section.items())
