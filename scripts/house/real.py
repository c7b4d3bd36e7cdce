"""Real inputs of the corpus: `real.py NAME=PATH...`, with HARVEST as in harvest.py. PATH is a directory of logs, launcher files and run directories.

What unhang makes by itself is always among them: each cause explained, each form exported, plans.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import harvest

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = (
    [],
    ["--preset", "conservative"],
    ["--preset", "debug"],
    ["--set", "shm=off"],
    ["--set", "ib=off", "--timeout", "30m"],
    ["--set", "p2p=off", "--cpu"],
)
SIZES = {1: ["-n", "4"], 2: ["--nodes", "2", "-n", "8"]}
PLACES = {"address": ["--master", "node1:29500"], "name": ["--name", "job"]}
MODELS = (["--params", "350M"], ["--params", "7e9", "--layers", "32", "--hidden", "4096"], ["--params", "70B"])
MACHINES = (["24GiB", "2"], ["40GiB", "8"], ["80GiB", "64"])
HOW = ([], ["--checkpointing", "--sequence", "4096"], ["--lora", "16:all", "--precision", "fp16"], ["--optimizer", "adamw-8bit", "--offload", "all"])


def kept(label: str, argv: list[str], cwd: Path = Path("/nonexistent")) -> None:
    harvest.current = label
    try:
        harvest.command(argv, cwd, {}) if argv[0] != "explain" else harvest.keep(argv, {})
    except harvest.Unfit as e:
        print(label, argv, e)


def own() -> None:
    from unhang.knowledge import catalogue
    from unhang.remedies.exports.form_settings import Layout
    from unhang.remedies.exports.forms import FORMS

    for id, cause in catalogue.load().items():
        kept("explain", ["explain", id])
        # Which of two signatures speaks shows only where it speaks alone; a near miss shows by any cause in the timeline.
        harvest.current = f"tests/knowledge: hits of {id}"
        for hit in cause.hits:
            harvest.keep(["why", "train.log"], {"train.log": f"{hit}\n".encode()})
        harvest.current = f"tests/knowledge: near misses of {id}"
        harvest.keep(["why", "train.log"], {"train.log": "".join(f"{near}\n" for near in cause.near_misses).encode()})
    for form, settings, (nodes, size) in itertools.product(FORMS, SETTINGS, SIZES.items()):
        # A form refuses an option that its file has no place for.
        options = [w for what, words in PLACES.items() if form.has_place_for(what, Layout(nodes=nodes)) for w in words]
        command = ["learning_rate=1e-4"] if form.name == "llamafactory" else ["train.py", "--lr", "1e-4"]
        label = "export (one host only: refused)" if form.name == "bash" and nodes > 1 else "export"
        kept(label, ["export", form.name, *settings, *size, *options, "--", *command])
    for model, (memory, world), how in itertools.product(MODELS, MACHINES, HOW):
        machine = [
            "--gpu-memory",
            memory,
            "--world-size",
            world,
            "--per-node",
            "8" if world != "2" else "2",
            "--host-memory",
            "900GiB",
            "--cpus",
            "64",
        ]
        kept("plan", ["plan", *model, *machine, *how, "--closed-form"])


def found(label: str, folder: Path) -> None:
    runs = [p.parent for p in sorted(folder.rglob("run.json"))]
    for run in runs:
        kept(f"{label}/{run.relative_to(folder)}", ["why", str(run.relative_to(folder))], folder)
        kept(f"{label}/{run.relative_to(folder)} (top)", ["top", str(run.relative_to(folder)), "--json"], folder)
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and not any(run in p.parents for run in runs)):
        name = str(path.relative_to(folder))
        if path.suffix in (".log", ".txt", ".out"):
            kept(f"{label}/{name}{'' if path.stat().st_size else ' (empty: refused)'}", ["why", name], folder)
        elif path.suffix in (".sh", ".sbatch", ".json", ".yaml", ".yml"):
            kept(f"{label}/{name}", ["export", "--check", name], folder)
            data = {name: path.read_bytes(), **harvest.SITE}
            harvest.keep(["vars", "--libs", "site", name], data)


if __name__ == "__main__":
    own()
    for argument in sys.argv[1:]:
        name, _, path = argument.partition("=")
        found(name, Path(path).absolute())
    print(dict(harvest.counts))
