"""transformers' Trainer (or TRL's SFTTrainer) on a tiny model with random weights, after datasets.map in several processes; no download."""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import os

import datasets
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

parser = argparse.ArgumentParser()
parser.add_argument("--kind", choices=("trainer", "sft"), default="trainer")
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--resume", action="store_true")
parser.add_argument("--lora", action="store_true")
parser.add_argument("--deepspeed")
parser.add_argument("--local_rank", type=int)
options = parser.parse_args()

transformers.logging.set_verbosity_info()
texts = [f"question {i}: what is {i} plus {i}? answer: {2 * i}" for i in range(400)]
tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=["<unk>", "<pad>", "<eos>"]))
fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>")
data = datasets.Dataset.from_dict({"text": texts})
model = transformers.LlamaForCausalLM(
    transformers.LlamaConfig(
        vocab_size=len(fast), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        pad_token_id=1, eos_token_id=2, bos_token_id=2, max_position_embeddings=128,
    )
)  # fmt: skip
common = dict(  # noqa: C408
    output_dir="out", max_steps=options.steps, per_device_train_batch_size=8, logging_steps=5, save_steps=10, eval_strategy="steps", eval_steps=10,
    report_to="none", use_cpu=True, dataloader_num_workers=1, ddp_timeout=1800, gradient_checkpointing=False, deepspeed=options.deepspeed,
)  # fmt: skip
if options.kind == "sft":
    import peft
    import trl

    trainer = trl.SFTTrainer(
        model=model,
        args=trl.SFTConfig(**common, bf16=False, max_length=64, dataset_num_proc=2),
        train_dataset=data,
        eval_dataset=data.select(range(40)),
        processing_class=fast,
        peft_config=peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM") if options.lora else None,
    )
else:
    tokens = data.map(lambda rows: fast(rows["text"], truncation=True, max_length=64), batched=True, num_proc=2, remove_columns=["text"])
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(**common),
        train_dataset=tokens,
        eval_dataset=tokens.select(range(40)),
        data_collator=transformers.DataCollatorForLanguageModeling(fast, mlm=False),
    )
trainer.train(resume_from_checkpoint=options.resume or None)
print("rank", os.environ.get("RANK", "0"), "metrics", {k: v for k, v in trainer.evaluate().items() if "loss" in k}, flush=True)
if trainer.is_world_process_zero():
    trainer.save_model("out/final")
