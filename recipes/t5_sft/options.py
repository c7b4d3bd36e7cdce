"""The command line: options, and presets that fill in what was not given."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

# What each preset is for stands in its help text. An option given on the command line wins.
PRESETS: dict[str, dict[str, Any]] = {
    "gpu16": {
        "size": "base",
        "guarded": True,
        "batch_size": 8,
        "accumulate": 8,
        "max_steps": 2000,
        "eval_every": 200,
        "save_every": 200,
        "log_every": 10,
        "rows": 100_000,
        "eval_rows": 2000,
        "vocab": 16_384,
        "source_tokens": 128,
        "target_tokens": 256,
        "lr": 3e-4,
        "warmup": 100,
    },
    "small": {
        "size": "small",
        "guarded": True,
        "batch_size": 4,
        "accumulate": 2,
        "max_steps": 150,
        "eval_every": 30,
        "save_every": 30,
        "log_every": 5,
        "rows": 4000,
        "eval_rows": 64,
        "vocab": 4096,
        "source_tokens": 64,
        "target_tokens": 128,
        "lr": 2e-3,
        "warmup": 10,
    },
    "demo": {
        "size": "tiny",
        # What `unhang demo` shows befalls a plain training.
        "guarded": False,
        "batch_size": 4,
        "accumulate": 2,
        "max_steps": 24,
        "eval_every": 8,
        "save_every": 6,
        "log_every": 1,
        "rows": 800,
        "eval_rows": 32,
        "vocab": 2048,
        "source_tokens": 64,
        "target_tokens": 96,
        "lr": 2e-3,
        "warmup": 4,
    },
}


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description="Supervised fine-tuning of a small T5 on questions about failing trainings, in English and Chinese.")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="{prepare,train}")

    prepare = verbs.add_parser("prepare", help="make the data set and the tokenizer, and stop")
    prepare.add_argument("--out", type=Path, required=True, help="directory to make; must not exist")
    prepare.add_argument("--eval-rows", type=int, default=500, help="rows kept for evaluation (%(default)s)")
    prepare.add_argument("--rows", type=int, default=4000, help="rows to train on (%(default)s)")
    prepare.add_argument("--vocab", type=int, default=4096, help="upper limit of the tokenizer's vocabulary (%(default)s)")
    prepare.add_argument("--seed", type=int, default=0)

    train = verbs.add_parser("train", help="train; goes on from the newest checkpoint in --output")
    where = train.add_argument_group("where")
    where.add_argument("--output", type=Path, default=Path("t5_sft_output"), help="checkpoints, metrics and the trained model (%(default)s)")
    where.add_argument("--data", type=Path, help="prepared data; made there if missing (OUTPUT/data)")
    where.add_argument("--fresh", action="store_true", help="remove the checkpoints in --output and start over")
    what = train.add_argument_group("what is trained")
    _flag(what, "is-finetune", "freeze embedding and encoder, train the decoder only")
    _flag(what, "use-small-config", "a model and batches for a few CPU cores; the same as --preset small")
    what.add_argument("--preset", choices=PRESETS, help="gpu16 (default): GPUs of 16 GB; small: a minute on 2 CPU cores; demo: seconds")
    what.add_argument("--pretrained", type=Path, help="start from the model that an earlier training left here (OUTPUT/model)")
    what.add_argument("--size", choices=("tiny", "small", "base"), help="the model")
    how = train.add_argument_group("how (defaults come from the preset)")
    for name, says in (
        ("batch-size", "rows in a micro-batch of one rank"),
        ("accumulate", "micro-batches in a step"),
        ("max-steps", "optimizer steps"),
        ("eval-every", "steps between evaluations"),
        ("save-every", "steps between checkpoints"),
        ("log-every", "steps between log lines"),
        ("warmup", "steps until the learning rate has its peak"),
        ("rows", "training rows to make where the data is missing"),
        ("eval-rows", "evaluation rows to make where the data is missing"),
        ("vocab", "upper limit of the vocabulary where the data is missing"),
        ("source-tokens", "tokens of a question; more are cut"),
        ("target-tokens", "tokens of an answer; more are cut"),
    ):
        how.add_argument(f"--{name}", type=int, help=says)
    how.add_argument("--lr", type=float, help="peak learning rate")
    how.add_argument("--weight-decay", type=float, default=0.01, help="(%(default)s)")
    how.add_argument("--dropout", type=float, default=0.1, help="(%(default)s)")
    how.add_argument("--clip", type=float, default=1.0, help="largest norm of the gradient (%(default)s)")
    how.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    how.add_argument("--bf16", choices=("auto", "on", "off"), default="auto", help="auto: on GPUs that can (%(default)s)")
    run = train.add_argument_group("running")
    run.add_argument("--keep", type=int, default=3, help="checkpoints that stay (%(default)s)")
    run.add_argument("--workers", type=int, help="loader processes of each rank (0 on a CPU, 1 on a GPU)")
    run.add_argument("--timeout", type=float, default=1800.0, help="seconds until a collective gives up (%(default)s)")
    _flag(
        run,
        "guarded",
        "evaluate with unhang: what fails or stands still there does not end the training (True; False in the preset demo)",
        default=None,
    )
    _flag(run, "monitored", "what collectives take, who is waited for and what fails, to OUTPUT/monitor.jsonl")
    run.add_argument("--data-wait", type=float, default=900.0, help="seconds that other ranks wait for the data to be made (%(default)s)")
    return top


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options, presets filled in."""
    top = parser()
    options = top.parse_args(argv)
    if options.verb == "train":
        if options.use_small_config and options.preset not in (None, "small", "demo"):
            top.error(f"--use_small_config contradicts --preset {options.preset}")
        options.preset = options.preset or ("small" if options.use_small_config else "gpu16")
        for name, value in PRESETS[options.preset].items():
            if getattr(options, name) is None:
                setattr(options, name, value)
        options.data = options.data or options.output / "data"
        for name in ("batch_size", "accumulate", "max_steps", "eval_every", "save_every", "log_every", "rows", "eval_rows", "keep"):
            if getattr(options, name) < 1:
                top.error(f"--{name.replace('_', '-')} must be at least 1")
    return options


def _flag(group: argparse._ArgumentGroup, name: str, says: str, *, default: bool | None = False) -> None:
    """A switch that also takes a value, as in --is_finetune=True, and is spelled with - or _."""
    names = dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}"))
    group.add_argument(*names, type=_truth, nargs="?", const=True, default=default, metavar="True|False", help=says)


def _truth(text: str) -> bool:
    if text.lower() in ("true", "1", "yes", "on"):
        return True
    if text.lower() in ("false", "0", "no", "off"):
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")
