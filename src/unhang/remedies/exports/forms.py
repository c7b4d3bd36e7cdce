"""The forms: for each launcher its file, what it has a place for (`forms.toml`), and what its template is filled with.

Whatever is filled in is quoted for the language that it stands in; a name that a template lacks is an error.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from unhang import data
from unhang.errors import UnhangError, unknown_name
from unhang.knowledge.words import Text, msg
from unhang.model import frozen
from unhang.remedies.exports.form_settings import Carried, Layout
from unhang.settings.setting import typed

if TYPE_CHECKING:
    from jinja2 import Environment

_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
_FIELDS = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "'": "\\'", "\\": "\\\\"}
# A pod of an Indexed Job is called JOB-INDEX, and that is its name in DNS.
_MAX_NAME = 63
_LIGHTNING_PRECISION = {"no": "32-true", "fp16": "16-mixed", "bf16": "bf16-mixed"}

_Values = dict[str, object]


@frozen
class Form:
    """One launcher's file; the fields are those of `forms.toml`."""

    name: str
    file: str
    title: Text
    launcher: str
    native: Collection[str] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    example: Mapping[str, object] = field(default_factory=dict)
    needs_unhang: bool = False
    runs_unhang: bool = True
    reads: Collection[str] = ()
    alone: Collection[str] = ()

    def has_place_for(self, what: str, layout: Layout) -> bool:
        return what in (self.reads if layout.nodes > 1 else self.alone)

    def write(self, layout: Layout, carried: Carried, through: bool) -> tuple[str, Mapping[str, str]]:
        """The file, and texts of those beside it by what is put behind the file's name. `through`: it starts through `unhang run`."""
        values = {"layout": layout, "carried": carried, **_VALUES[self.name](layout, carried, through)}
        beside = {".start.sh": render("deepspeed_start", **values)} if self.name == "deepspeed" else {}
        return render(self.name.replace("-", "_"), **values), beside


def _form(name: str, known: Mapping[str, Any]) -> Form:
    native = (*known.get("native", ()), *known.get("keys", ()))
    return Form(**{**known, "name": name, "title": msg(known["title"]), "native": native})


FORMS = tuple(_form(name, known) for name, known in data.table("remedies/exports/forms").items())
NAMES = tuple(one.name for one in FORMS)


def form(name: str) -> Form:
    """Raises UnhangError that lists all."""
    wanted = name.strip().lower()
    if wanted not in NAMES:
        raise unknown_name(f"there is no form {name!r}", wanted, NAMES, "forms")
    return FORMS[NAMES.index(wanted)]


def with_place_for(what: str, layout: Layout) -> tuple[str, ...]:
    """The forms in whose files "address", "port", "name" or "image" of a layout stands."""
    return tuple(one.name for one in FORMS if one.has_place_for(what, layout))


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


def _launched(layout: Layout, carried: Carried, through: bool) -> _Values:
    """A launcher's command in parts."""
    return {
        "env": _env(carried),
        "start": _through_unhang(carried, through),
        "options": _options(carried),
        "script": (*_script(layout), *carried.arguments),
        "gloo": "backend=gloo" in carried.sets,
    }


def _accelerate(layout: Layout, carried: Carried, through: bool) -> _Values:
    """accelerate: a YAML file of settings for `accelerate launch`. It has no key for variables, nor for a backend: the line that starts it does."""
    # MULTI_CPU leaves all but one process to mpirun: torchrun is started for MULTI_GPU, and this variable keeps GPUs out.
    env = {**({} if layout.gpus else {"ACCELERATE_USE_CPU": "true"}), **carried.env}
    start = (
        *(("env", *(f"{name}={value}" for name, value in env.items())) if env else ()),
        *_through_unhang(carried, through),
        *("accelerate", "launch", "--config_file"),
    )
    return {
        **_launched(layout, carried, through),
        "start": start,
        "precision": carried.native.get("precision", "no"),
        "address": layout.address or "first-host",
    }


def _deepspeed(layout: Layout, carried: Carried, through: bool) -> _Values:
    """DeepSpeed: its JSON, and beside it a script that starts it. JSON has no comments, so that the script says what the numbers are."""
    precision = carried.native.get("precision", "bf16")
    if precision == "fp8":
        raise UnhangError("DeepSpeed's file has no fp8", hint="--set precision=bf16")
    return {
        **_launched(layout, carried, through),
        "script": (*("--module" if i == 0 and word == "-m" else word for i, word in enumerate(_script(layout))), *carried.arguments),
        "micro": int(carried.native.get("batch", 1)),
        "accumulation": int(carried.native.get("accumulation", 1)),
        "precision": precision,
    }


def _llamafactory(layout: Layout, carried: Carried, through: bool) -> _Values:
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
    keys, example = form("llamafactory").keys, form("llamafactory").example
    chosen = {keys[key]: value for key, value in carried.native.items() if key in keys}
    start = (
        "env",
        "FORCE_TORCHRUN=1",
        f"NPROC_PER_NODE={layout.processes}",
        *(f"{name}={value}" for name, value in carried.env.items()),
        *((f"NNODES={layout.nodes}", f"MASTER_ADDR={layout.address or 'first-host'}", f"MASTER_PORT={layout.port}") if layout.nodes > 1 else ()),
    )
    fields = {
        **example,
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        **({} if layout.gpus else {"use_cpu": True}),
        **chosen,
        **given,
    }
    command = (*_through_unhang(carried, through), "llamafactory-cli", "train")
    return {"start": start, "command": command, "fields": fields, "chosen": {keys[key]: key for key in carried.native if key in keys}}


def _value(word: str) -> object:
    """As in words behind LLaMA-Factory's own file: 5, 1e-4, true, null and [1, 2] are no text. Its reader of files converts nothing."""
    try:
        found: object = json.loads(word.lower() if word.lower() in ("true", "false", "null") else word)
    except ValueError:
        return word
    return found


def _lightning(layout: Layout, carried: Carried, through: bool) -> _Values:
    """Lightning: a module with a Trainer and settings of loaders, for the script to import. All of it is Lightning's own, and needs no hook."""
    precision = str(carried.native.get("precision", "no"))
    if precision not in _LIGHTNING_PRECISION:
        raise UnhangError("Lightning has fp8 by a plugin of its own only", hint="--set precision=bf16")
    keys = form("lightning").keys
    return {
        **_launched(layout, carried, through),
        "backend": carried.native.get("backend", "nccl" if layout.gpus else "gloo"),
        "timeout_s": int(carried.native.get("timeout", 1800)),
        "accumulation": int(carried.native.get("accumulation", 1)),
        "precision": _LIGHTNING_PRECISION[precision],
        "loader": {keys[key]: value for key, value in carried.native.items() if key in keys},
    }


def _bash(layout: Layout, carried: Carried, through: bool) -> _Values:
    """A start that asks: Gloo, NCCL without shared memory, or one process; and a diagnoser. It needs no terminal, and begins with the first."""
    if layout.nodes > 1:
        raise UnhangError("the menu is for one host", hint="unhang export torchrun --nodes 2, or slurm, kubernetes, ray, skypilot")
    sets = tuple(word for one in carried.sets if not one.startswith("backend=") for word in ("--set", one))
    return {**_launched(layout, carried, through), "sets": sets}


def _kubernetes(layout: Layout, carried: Carried, through: bool) -> _Values:
    """Kubernetes: a runtime and a job for Kubeflow Trainer, with a /dev/shm that is large enough."""
    return {"env": _env(carried), "command": _of_pod(layout, carried, through), "start": through}


def _of_pod(layout: Layout, carried: Carried, through: bool, *meeting: str) -> tuple[str, ...]:
    return (
        *map(literal, _through_unhang(carried, through, "--pod")),
        "torchrun",
        *meeting,
        *map(literal, (*_options(carried), *_script(layout), *carried.arguments)),
    )


def _kubernetes_job(layout: Layout, carried: Carried, through: bool) -> _Values:
    """Kubernetes without an operator: an Indexed Job with a Service that gives its pods names, and a /dev/shm that is large enough."""
    last = f"{layout.name}-{layout.nodes - 1}"
    if len(last) > _MAX_NAME:
        raise UnhangError(f"name {layout.name!r}: its last pod is {last}, which is longer than {_MAX_NAME} letters", hint="--name training")
    meeting = (
        ("--standalone",)
        if layout.nodes == 1
        else (f"--nnodes={layout.nodes}", "--node-rank=$(NODE_RANK)", "--master-addr=$(MASTER_ADDR)", "--master-port=$(MASTER_PORT)")
    )
    command = _of_pod(layout, carried, through, *meeting, f"--nproc-per-node={layout.processes}")
    master = layout.address or f"{layout.name}-0.{layout.name}"
    return {"env": _env(carried), "command": command, "start": through, "master": master}


def _ray(layout: Layout, carried: Carried, through: bool) -> _Values:
    """Ray Train: a program that runs a script in Ray's workers, in a group that Ray makes."""
    if layout.command[:1] == ("-m",):
        raise UnhangError("Ray's program runs a file, not a module", hint="unhang export ray -- train.py")
    return {
        "env": dict(carried.env),
        "backend": carried.native.get("backend", "nccl" if layout.gpus else "gloo"),
        "timeout_s": int(carried.native.get("timeout", 1800)),
        "script": [*_script(layout), *carried.arguments],
    }


def _dockerfile(layout: Layout, carried: Carried, through: bool) -> _Values:
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
    return {"env": _env(carried), "command": command, "start": through}


_VALUES: Mapping[str, Callable[[Layout, Carried, bool], _Values]] = {
    "accelerate": _accelerate,
    "bash": _bash,
    "deepspeed": _deepspeed,
    "dockerfile": _dockerfile,
    "kubernetes": _kubernetes,
    "kubernetes-job": _kubernetes_job,
    "lightning": _lightning,
    "llamafactory": _llamafactory,
    "ray": _ray,
    "skypilot": _launched,
    "slurm": _launched,
    "torchrun": _launched,
}


def render(template: str, **values: object) -> str:
    return _environment().get_template(f"{template}.j2").render(**values).rstrip("\n") + "\n"


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("unhang.remedies.exports", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # Each form quotes for its own language; HTML is none of them.
        autoescape=False,
    )
    made.filters |= {
        "sh": shell,
        "words": words,
        "yaml": yaml,
        "py": python,
        "js": json.dumps,
        "comment": comment,
        "docker": docker,
        "literal": literal,
        "said": typed,
    }
    return made


def shell(value: Any) -> str:
    """One word of bash, on one line: a newline in quotes would end a comment that the word stands in."""
    text = str(value)
    if not _CONTROL.search(text):
        # Right behind an assignment a second = is no error, and looks like one.
        return f"'{text}'" if text.startswith("=") and shlex.quote(text) == text else shlex.quote(text)
    return "$'" + "".join(_FIELDS.get(c) or (f"\\u{ord(c):04x}" if _CONTROL.match(c) else c) for c in text) + "'"


def words(values: Iterable[object]) -> str:
    return " ".join(shell(v) for v in values)


def yaml(value: Any) -> str:
    """A scalar or a list as flow YAML on one line; JSON's strings are YAML's double-quoted ones."""
    text = json.dumps(value, ensure_ascii=True)
    # 1e-05 is a word in YAML 1.1, 1.0e-05 a number.
    return text.replace("e", ".0e") if isinstance(value, float) and "." not in text else text


def python(value: Any) -> str:
    return repr(value) if not isinstance(value, str) else json.dumps(value, ensure_ascii=True)


def comment(value: Any) -> str:
    """Something that stays on the line of its comment."""
    return _CONTROL.sub(" ", str(value))


def docker(value: Any) -> str:
    """A value of ENV, in whose quotes $ is still a variable's."""
    return '"' + "".join(f"\\{c}" if c in '\\"$' else c for c in comment(value)) + '"'


def literal(value: Any) -> str:
    """A word or value of a Kubernetes container, where $(NAME) is a variable and $$ is one $."""
    return str(value).replace("$", "$$")
