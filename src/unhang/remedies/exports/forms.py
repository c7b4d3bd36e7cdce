"""The forms: for each launcher its file, what it has a place for, and how the file is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from unhang.errors import UnhangError, unknown_name
from unhang.knowledge.text import Text, msg
from unhang.remedies.exports.form_settings import Carried, Layout
from unhang.remedies.exports.render import literal, render

_LLAMAFACTORY_KEYS = {
    "backend": "ddp_backend",
    "timeout": "ddp_timeout",
    "batch": "per_device_train_batch_size",
    "accumulation": "gradient_accumulation_steps",
    "loader-workers": "dataloader_num_workers",
    "pin-memory": "dataloader_pin_memory",
    "persistent-workers": "dataloader_persistent_workers",
    "prefetch": "dataloader_prefetch_factor",
}
_LLAMAFACTORY_EXAMPLE: Mapping[str, str | int | float | bool] = {
    "model_name_or_path": "Qwen/Qwen2.5-0.5B-Instruct",
    "stage": "sft",
    "do_train": True,
    "finetuning_type": "lora",
    "template": "qwen",
    "dataset": "identity",
    "cutoff_len": 2048,
    "output_dir": "saves/training",
    "learning_rate": 0.0001,
    "num_train_epochs": 3.0,
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "ddp_timeout": 1800,
}
_LIGHTNING_LOADER = {
    "batch": "batch_size",
    "loader-workers": "num_workers",
    "pin-memory": "pin_memory",
    "persistent-workers": "persistent_workers",
    "prefetch": "prefetch_factor",
}
_LIGHTNING_PRECISION = {"no": "32-true", "fp16": "16-mixed", "bf16": "bf16-mixed"}
# A pod of an Indexed Job is called JOB-INDEX, and that is its name in DNS.
_MAX_NAME = 63

# The file, and texts of those beside it by what is put behind the file's name.
_Written = tuple[str, Mapping[str, str]]


@dataclass(frozen=True, kw_only=True)
class Form:
    """`launcher` is whose options and variables it carries; `native` are the settings that it has keys for, which need no hook.

    `needs_unhang`: it starts through `unhang run` whatever is chosen. `reads` is what of a layout it has a place for: "address", "port", "name",
    "image"; of one host `alone`.
    """

    name: str
    file: str
    title: Text
    launcher: str
    write: Callable[[Layout, Carried, bool], _Written]
    native: Collection[str] = ()
    needs_unhang: bool = False
    runs_unhang: bool = True
    reads: Collection[str] = ()
    alone: Collection[str] = ()

    def has_place_for(self, what: str, layout: Layout) -> bool:
        return what in (self.reads if layout.nodes > 1 else self.alone)


def _script(layout: Layout) -> tuple[str, ...]:
    """The script with its arguments. Raises UnhangError for what torchrun and its like would hand to Python in vain."""
    first, *more = layout.command or ("train.py",)
    if first == "-m":
        if not more or not more[0] or more[0].startswith("-"):
            raise UnhangError("-m without a module: there is nothing to start", hint="unhang export FORM -- -m package.train --lr 1e-4")
    elif first.startswith("-") or not first.endswith(".py"):
        hint = "unhang export FORM -- train.py --lr 1e-4, or -- -m package.train"
        raise UnhangError(f"{first!r} is no script of Python: a form starts a file that ends in .py, or a module", hint=hint)
    return first, *more


def _through_unhang(carried: Carried, through: bool, *options: str) -> tuple[str, ...]:
    """`unhang run --set KEY=VALUE`, with more `options`, or nothing."""
    if not through:
        return ()
    return ("unhang", "run", *options, *(word for one in carried.sets for word in ("--set", one)))


def _options(carried: Carried) -> tuple[str, ...]:
    return tuple(word for option in carried.options for word in option)


def _env(carried: Carried) -> tuple[tuple[str, str, str], ...]:
    """Name, value, and the setting that it is for."""
    return tuple((name, value, carried.why[name]) for name, value in carried.env.items())


def _by_torchrun(template: str) -> Callable[[Layout, Carried, bool], _Written]:
    """What writes a file in which torchrun is started on each host."""

    def write(layout: Layout, carried: Carried, through: bool) -> _Written:
        return render(
            template,
            layout=layout,
            carried=carried,
            env=_env(carried),
            start=_through_unhang(carried, through),
            options=_options(carried),
            script=(*_script(layout), *carried.arguments),
        ), {}

    return write


def _accelerate(layout: Layout, carried: Carried, through: bool) -> _Written:
    """accelerate: a YAML file of settings for `accelerate launch`. It has no key for variables, nor for a backend: the line that starts it does."""
    # MULTI_CPU leaves all but one process to mpirun: torchrun is started for MULTI_GPU, and this variable keeps GPUs out.
    env = {**({} if layout.gpus else {"ACCELERATE_USE_CPU": "true"}), **carried.env}
    start = (
        *(("env", *(f"{name}={value}" for name, value in env.items())) if env else ()),
        *_through_unhang(carried, through),
        *("accelerate", "launch", "--config_file"),
    )
    return render(
        "accelerate",
        layout=layout,
        carried=carried,
        start=start,
        options=_options(carried),
        script=(*_script(layout), *carried.arguments),
        precision=carried.native.get("precision", "no"),
        address=layout.address or "first-host",
        gloo="backend=gloo" in carried.sets,
    ), {}


def _deepspeed(layout: Layout, carried: Carried, through: bool) -> _Written:
    """DeepSpeed: its JSON, and beside it a script that starts it. JSON has no comments, so that the script says what the numbers are."""
    micro = int(carried.native.get("batch", 1))
    accumulation = int(carried.native.get("accumulation", 1))
    precision = carried.native.get("precision", "bf16")
    if precision == "fp8":
        raise UnhangError("DeepSpeed's file has no fp8", hint="--set precision=bf16")
    text = render("deepspeed", layout=layout, micro=micro, accumulation=accumulation, precision=precision)
    start = render(
        "deepspeed_start",
        layout=layout,
        carried=carried,
        env=_env(carried),
        start=_through_unhang(carried, through),
        options=_options(carried),
        script=(*("--module" if i == 0 and word == "-m" else word for i, word in enumerate(_script(layout))), *carried.arguments),
        micro=micro,
        accumulation=accumulation,
        gloo="backend=gloo" in carried.sets,
    )
    return text, {".start.sh": start}


def _llamafactory(layout: Layout, carried: Carried, through: bool) -> _Written:
    """LLaMA-Factory: the YAML of `llamafactory-cli train`. The Trainer that it uses has keys of its own for Gloo, timeouts and loaders."""
    given: dict[str, object] = {}
    for word in layout.command:
        key, joined, value = word.partition("=")
        if not joined or not key.isidentifier():
            raise UnhangError(f"{word!r}: of this form COMMAND is fields of LLaMA-Factory", hint="unhang export llamafactory -- dataset=mine")
        given[key] = _value(value)
    precision = carried.native.get("precision", "bf16" if layout.gpus else "no")
    if precision == "fp8":
        raise UnhangError("LLaMA-Factory's file has no fp8", hint="--set precision=bf16")
    chosen = {_LLAMAFACTORY_KEYS[key]: value for key, value in carried.native.items() if key in _LLAMAFACTORY_KEYS}
    start = (
        "env",
        "FORCE_TORCHRUN=1",
        f"NPROC_PER_NODE={layout.processes}",
        *(f"{name}={value}" for name, value in carried.env.items()),
        *((f"NNODES={layout.nodes}", f"MASTER_ADDR={layout.address or 'first-host'}", f"MASTER_PORT={layout.port}") if layout.nodes > 1 else ()),
    )
    text = render(
        "llamafactory",
        layout=layout,
        carried=carried,
        start=start,
        command=(*_through_unhang(carried, through), "llamafactory-cli", "train"),
        fields={
            **_LLAMAFACTORY_EXAMPLE,
            "bf16": precision == "bf16",
            "fp16": precision == "fp16",
            **({} if layout.gpus else {"use_cpu": True}),
            **chosen,
            **given,
        },
        chosen={_LLAMAFACTORY_KEYS[key]: key for key in carried.native if key in _LLAMAFACTORY_KEYS},
    )
    return text, {}


def _value(word: str) -> object:
    """As in words behind LLaMA-Factory's own file: 5, 1e-4, true, null and [1, 2] are no text. Its reader of files converts nothing."""
    try:
        found: object = json.loads(word.lower() if word.lower() in ("true", "false", "null") else word)
    except ValueError:
        return word
    return found


def _lightning(layout: Layout, carried: Carried, through: bool) -> _Written:
    """Lightning: a module with a Trainer and settings of loaders, for the script to import. All of it is Lightning's own, and needs no hook."""
    precision = str(carried.native.get("precision", "no"))
    if precision not in _LIGHTNING_PRECISION:
        raise UnhangError("Lightning has fp8 by a plugin of its own only", hint="--set precision=bf16")
    return render(
        "lightning",
        layout=layout,
        carried=carried,
        env=_env(carried),
        backend=carried.native.get("backend", "nccl" if layout.gpus else "gloo"),
        timeout_s=int(carried.native.get("timeout", 1800)),
        accumulation=int(carried.native.get("accumulation", 1)),
        precision=_LIGHTNING_PRECISION[precision],
        loader={_LIGHTNING_LOADER[key]: value for key, value in carried.native.items() if key in _LIGHTNING_LOADER},
        script=(*_script(layout), *carried.arguments),
    ), {}


def _bash(layout: Layout, carried: Carried, through: bool) -> _Written:
    """A start that asks: Gloo, NCCL without shared memory, or one process; and a diagnoser. It needs no terminal, and begins with the first."""
    if layout.nodes > 1:
        raise UnhangError("the menu is for one host", hint="unhang export torchrun --nodes 2, or slurm, kubernetes, ray, skypilot")
    return render(
        "bash",
        layout=layout,
        carried=carried,
        env=_env(carried),
        sets=tuple(word for one in carried.sets if not one.startswith("backend=") for word in ("--set", one)),
        options=_options(carried),
        script=(*_script(layout), *carried.arguments),
    ), {}


def _kubernetes(layout: Layout, carried: Carried, through: bool) -> _Written:
    """Kubernetes: a runtime and a job for Kubeflow Trainer, with a /dev/shm that is large enough."""
    command = (
        *map(literal, _through_unhang(carried, through, "--pod")),
        "torchrun",
        *map(literal, (*_options(carried), *_script(layout), *carried.arguments)),
    )
    return render("kubernetes", layout=layout, carried=carried, env=_env(carried), command=command, start=through), {}


def _kubernetes_job(layout: Layout, carried: Carried, through: bool) -> _Written:
    """Kubernetes without an operator: an Indexed Job with a Service that gives its pods names, and a /dev/shm that is large enough."""
    last = f"{layout.name}-{layout.nodes - 1}"
    if len(last) > _MAX_NAME:
        raise UnhangError(f"name {layout.name!r}: its last pod is {last}, which is longer than {_MAX_NAME} letters", hint="--name training")
    meeting = (
        ("--standalone",)
        if layout.nodes == 1
        else (f"--nnodes={layout.nodes}", "--node-rank=$(NODE_RANK)", "--master-addr=$(MASTER_ADDR)", "--master-port=$(MASTER_PORT)")
    )
    command = (
        *map(literal, _through_unhang(carried, through, "--pod")),
        "torchrun",
        *meeting,
        f"--nproc-per-node={layout.processes}",
        *map(literal, (*_options(carried), *_script(layout), *carried.arguments)),
    )
    master = layout.address or f"{layout.name}-0.{layout.name}"
    return render("kubernetes_job", layout=layout, carried=carried, env=_env(carried), command=command, start=through, master=master), {}


def _ray(layout: Layout, carried: Carried, through: bool) -> _Written:
    """Ray Train: a program that runs a script in Ray's workers, in a group that Ray makes."""
    if layout.command[:1] == ("-m",):
        raise UnhangError("Ray's program runs a file, not a module", hint="unhang export ray -- train.py")
    return render(
        "ray",
        layout=layout,
        carried=carried,
        env=dict(carried.env),
        backend=carried.native.get("backend", "nccl" if layout.gpus else "gloo"),
        timeout_s=int(carried.native.get("timeout", 1800)),
        script=[*_script(layout), *carried.arguments],
    ), {}


def _dockerfile(layout: Layout, carried: Carried, through: bool) -> _Written:
    """A Dockerfile: variables, and torchrun as what a container starts."""
    command = (
        *_through_unhang(carried, through),
        "torchrun",
        f"--nnodes={layout.nodes}",
        f"--nproc-per-node={layout.processes}",
        *(("--standalone",) if layout.nodes == 1 else ()),
        *_options(carried),
        *_script(layout),
        *carried.arguments,
    )
    return render("dockerfile", layout=layout, carried=carried, env=_env(carried), command=command, start=through), {}


FORMS = (
    Form(
        name="accelerate",
        file="accelerate.yaml",
        title=msg("settings for accelerate launch --config_file"),
        launcher="accelerate",
        write=_accelerate,
        native=("precision",),
        reads=("address", "port"),
        alone=("port",),
    ),
    Form(
        name="deepspeed",
        file="deepspeed.json",
        title=msg("DeepSpeed's JSON (ZeRO-2), and the script that starts it"),
        launcher="deepspeed",
        write=_deepspeed,
        native=("batch", "accumulation", "precision"),
        reads=("address", "port"),
    ),
    Form(
        name="llamafactory",
        file="llamafactory.yaml",
        title=msg("fields for llamafactory-cli train"),
        launcher="llamafactory",
        write=_llamafactory,
        native=(*_LLAMAFACTORY_KEYS, "precision"),
        reads=("address", "port"),
    ),
    Form(
        name="lightning",
        file="unhang_lightning.py",
        title=msg("a Python module with a Trainer for Lightning"),
        launcher="python",
        write=_lightning,
        native=("backend", "timeout", "accumulation", "precision", *_LIGHTNING_LOADER),
        runs_unhang=False,
        reads=("address", "port"),
    ),
    Form(
        name="torchrun",
        file="train.sh",
        title=msg("a script of bash that starts torchrun, the same on every host"),
        launcher="torchrun",
        write=_by_torchrun("torchrun"),
        reads=("address", "port"),
    ),
    Form(
        name="bash",
        file="start.sh",
        title=msg("a quick start with a menu of three ways, and a diagnoser"),
        launcher="torchrun",
        write=_bash,
        needs_unhang=True,
    ),
    Form(
        name="slurm",
        file="train.sbatch",
        title=msg("a batch script for sbatch, one torchrun on each host"),
        launcher="torchrun",
        write=_by_torchrun("slurm"),
        reads=("address", "port", "name"),
        alone=("address", "port", "name"),
    ),
    Form(
        name="kubernetes",
        file="trainjob.yaml",
        title=msg("a TrainingRuntime and a TrainJob for Kubeflow Trainer"),
        launcher="torchrun",
        write=_kubernetes,
        reads=("name", "image"),
        alone=("name", "image"),
    ),
    Form(
        name="kubernetes-job",
        file="job.yaml",
        title=msg("an Indexed Job and a headless Service, for Kubernetes without an operator"),
        launcher="torchrun",
        write=_kubernetes_job,
        reads=("address", "port", "name", "image"),
        alone=("name", "image"),
    ),
    Form(
        name="ray",
        file="ray_train.py",
        title=msg("a Python program for Ray Train"),
        launcher="python",
        write=_ray,
        native=("backend", "timeout"),
        runs_unhang=False,
        reads=("name",),
        alone=("name",),
    ),
    Form(
        name="skypilot",
        file="task.yaml",
        title=msg("a task for sky launch"),
        launcher="torchrun",
        write=_by_torchrun("skypilot"),
        reads=("port", "name"),
        alone=("name",),
    ),
    Form(
        name="dockerfile",
        file="Dockerfile",
        title=msg("a Dockerfile whose containers train"),
        launcher="torchrun",
        write=_dockerfile,
        reads=("address", "port", "name", "image"),
        alone=("name", "image"),
    ),
)
NAMES = tuple(one.name for one in FORMS)
_BY_NAME = {one.name: one for one in FORMS}


def form(name: str) -> Form:
    """Raises UnhangError that lists all."""
    wanted = name.strip().lower()
    if wanted not in NAMES:
        raise unknown_name(f"there is no form {name!r}", wanted, NAMES, "forms")
    return _BY_NAME[wanted]


def with_place_for(what: str, layout: Layout) -> tuple[str, ...]:
    """The forms in whose files "address", "port", "name" or "image" of a layout stands."""
    return tuple(one.name for one in FORMS if one.has_place_for(what, layout))
