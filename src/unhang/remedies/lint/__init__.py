"""A launcher's file read back: which form it is, and what is wrong in it, whoever wrote it."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from unhang.errors import UnhangError
from unhang.knowledge.words import NOTHING, msg, same
from unhang.remedies.exports.forms import NAMES, form
from unhang.remedies.lint import accelerate, deepspeed, documents, kubernetes, script, starts
from unhang.remedies.lint.documents import Layout, Problem, known

_SHELL = ("torchrun", "bash", "slurm")
_KUBERNETES = ("kubernetes", "kubernetes-job")
_YAML = ("accelerate", "llamafactory", "skypilot", *_KUBERNETES)
_PYTHON = ("lightning", "ray")
_READ = [name for name in NAMES if name not in _PYTHON]
_OF_SHELLS = (".sh", ".bash")
_LINE_OF_A_SHELL = (
    r"^(?:export +\w+=|set -[a-z]+(?: +pipefail)?[ \t]*$|source +\S|exec +\S|srun +\S"
    r"|(?:(?:env +)?[A-Z_]\w*=\S* +)*(?:\S*/)?python[\d.]*(?: +-\w+)* +(?:\S+\.py\b|-m +\w))"
)
_OF_NO_SHELL = r"^(?:```|\[[\w.\"-]+\][ \t]*$|\w+ = )"
_MARK = "\ufeff"
# Whoever has these has no use for more, and finding the name that was meant takes a while for each.
_MOST_TOLD = 200
_MORE = msg("these are {MOST_TOLD} problems; what else is wrong is not shown", MOST_TOLD=_MOST_TOLD)


def check(
    name: str, text: str, *, form: str | None = None, nodes: int | None = None, processes: int | None = None, options: Mapping[str, str] | None = None
) -> tuple[str, tuple[Problem, ...]]:
    """Its form and what is wrong: faults, then notes, each in the order of lines. Raises UnhangError for what is not understood."""
    marked, text = text.startswith(_MARK), text.removeprefix(_MARK)
    if not text.strip():
        raise UnhangError(f"{name} is empty: there is nothing to check", hint="unhang export FORM -o FILE writes one")
    found = _form(name, form) if form is not None else recognise(name, text)
    layout = Layout(nodes=nodes, processes=processes, options=options)
    problems = dict.fromkeys(
        [*_characters(found, text, marked), *islice(_of_form(found, name, text, layout), _MOST_TOLD), *_variables(found, name, text)]
    )
    told = sorted(problems, key=lambda p: (p.note, p.line))[:_MOST_TOLD]
    return found, (*told, *([Problem(line=told[-1].line, says=_MORE)] if len(problems) >= _MOST_TOLD else []))


def _characters(found: str, text: str, marked: bool) -> Iterator[Problem]:
    """What editors of Windows write, and shells and JSON do not take; YAML and Docker do."""
    is_shell = found in _SHELL or text.startswith("#!")
    if marked and (is_shell or found == "deepspeed"):
        does = msg("hides its first line from the system") if is_shell else msg("is no JSON")
        says = msg("the file begins with a byte order mark, which {does}", does=does)
        yield Problem(
            line=1,
            says=says,
            instead=msg("UTF-8 without it: sed -i '1s/^\\xEF\\xBB\\xBF//' FILE"),
        )
    if is_shell and "\r\n" in text:
        says = msg("lines end as on Windows: the shell takes \\r for a part of the last word")
        yield Problem(line=text.count("\n", 0, text.index("\r\n")) + 1, says=says, instead=same("sed -i 's/\\r$//' FILE"))


def _form(name: str, given: str) -> str:
    found = form(given).name
    if found in _PYTHON:
        raise _of_python(name)
    return found


def _of_python(name: str) -> UnhangError:
    return UnhangError(
        msg("{name} is a Python program, and no file of a launcher", name=name),
        cause="it is the training itself: what starts it can be checked",
        hint="unhang export --check train.sh",
    )


def recognise(name: str, text: str) -> str:
    """By contents. Raises UnhangError where it is none of the forms."""
    if re.search(r"^#SBATCH", text, re.MULTILINE):
        return "slurm"
    if re.match(r"#!.*\b(?:ba|z|k|da)?sh\b", text) or name.endswith(_OF_SHELLS):
        return _of_shell(text)
    if _is_python(name, text):
        raise _of_python(name)
    if re.match(r"(?:[ \t\r]*(?:#.*|ARG[ \t].*)?\n)*FROM[ \t]+\S+(?=\s|$)(?![^\n]*\bimport\b)", text, re.IGNORECASE):
        return "dockerfile"
    if text.lstrip().startswith("{") and _is_deepspeed(documents.parse_json(name, text)):
        return "deepspeed"
    try:
        keys = documents.keys(name, text)
        top = {str(k.path[0]) for k in keys if len(k.path) == 1}
    except UnhangError:
        # Where it looks like YAML, what is wrong with it is the answer.
        if name.endswith((".yaml", ".yml")) or re.search(r"^[A-Za-z_]\w*:(?:[ \t]|$)", text, re.MULTILINE):
            raise
        keys, top = (), set()
    if "apiVersion" in top:
        return "kubernetes-job" if any(k.path == ("kind",) and k.value == "Job" for k in keys) else "kubernetes"
    for one, marks in (
        ("skypilot", {"num_nodes", "workdir", "setup"}),
        ("llamafactory", {"model_name_or_path", "finetuning_type", "stage"}),
        ("accelerate", {"compute_environment", "distributed_type", "num_machines", "main_process_port", "num_processes"}),
    ):
        if marks & top:
            return one
    if re.search(r"^[^#\n]*\b(?:torchrun|accelerate launch|deepspeed|llamafactory-cli|torch\.distributed)\b", text, re.MULTILINE):
        return _of_shell(text)
    # A compose file has commands as well, and so have documents and logs.
    if not top and not re.search(_OF_NO_SHELL, text, re.MULTILINE) and re.search(_LINE_OF_A_SHELL, text, re.MULTILINE):
        return _of_shell(text)
    raise UnhangError(
        f"{name}: that is no form known here",
        cause="it has neither #SBATCH, #!, a line for a shell, nor keys of a launcher's file",
        hint=f"--form torchrun for a script of a shell, else --form FORM; forms: {', '.join(_READ)}",
    )


def _of_shell(text: str) -> str:
    launchers = {one.names[0] for one in starts.read(text).starts}
    others = launchers and not any(name.startswith("torch") for name in launchers)
    return "bash" if others or re.search(r"^case ", text, re.MULTILINE) else "torchrun"


def named_by(text: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The files that commands of accelerate read, each with the command's own options."""
    for one in starts.read(text).starts if "--config" in text else ():
        if one.names[0] == "accelerate launch" and (file := one.option("--config-file")) is not None:
            yield one.filled(file).text, {name: one.filled(value).text for name, value in one.options.items()}


def starts_nothing(found: str, text: str) -> bool:
    """Whether no launcher was seen in a script of a shell, and no training in pods: only syntax and variables were looked at then."""
    return (found in _SHELL and not starts.read(text).starts) or (found in _KUBERNETES and not kubernetes.TRAINS.search(text))


def _is_python(name: str, text: str) -> bool:
    """Comments of a training often say how it is started, and it imports torch.distributed."""
    if name.endswith((".py", ".pyw")):
        return True
    if re.search(r"^(?:import|from)[ \t]+[\w.]+", text, re.MULTILINE) is None:
        return False
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _is_deepspeed(read: object) -> bool:
    """Names with a slip of the finger count, too: they are what a check is for."""
    if not isinstance(read, dict):
        return False
    marks = ("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu")
    return len(known("deepspeed")["top"] & set(read)) > 1 or any(difflib.get_close_matches(str(key), marks, 1, 0.85) for key in read)


def _of_form(found: str, name: str, text: str, layout: Layout) -> Iterator[Problem]:
    if found == "deepspeed":
        if text.lstrip().startswith("#!"):
            yield from script.check_syntax(name, text)
            yield from script.check(text)
            return
        documents.parse_json(name, text)
        keys = documents.keys(name, text)
        yield from documents.twice(keys)
        yield from deepspeed.check(keys, layout)
    elif found in _YAML:
        keys = documents.keys(name, text)
        if not any(len(k.path) == 1 for k in keys):
            raise UnhangError(f"{name}: there are no keys in it")
        yield from documents.twice(keys)
        if found == "accelerate":
            yield from accelerate.check(keys, layout)
        elif found == "llamafactory":
            yield from accelerate.check_llamafactory(keys)
        elif found in _KUBERNETES:
            yield from kubernetes.check(keys, text)
        elif found == "skypilot":
            given = [str(k.path[1]) for k in keys if k.path[0] == "envs" and len(k.path) == 2]
            for key in keys:
                if key.path in (("run",), ("setup",)) and isinstance(key.value, str):
                    yield from script.check(key.value, first=key.line + ("\n" in key.value), given=given)
    elif found == "dockerfile":
        yield from kubernetes.check_dockerfile(text)
    elif found in _SHELL:
        yield from script.check_syntax(name, text)
        yield from script.check(text)


_TOLD = ("not-read", "typo", "value", "not-exported", "renamed")
_RELEASES = {
    "torch": "2.13.0",
    "nccl": "2.27.5",
    "accelerate": "1.15.0",
    "deepspeed": "0.19.8",
    "lightning": "2.6.6",
    "llamafactory": "0.9.5",
}


def _variables(found: str, name: str, text: str) -> Sequence[Problem]:
    """What is wrong with variables, by what is known of current releases."""
    from unhang.files import opening
    from unhang.variables.examine import nothing_to_scan, settings_of
    from unhang.variables.judge import Place, judge

    if text.lstrip().startswith("{"):
        # DeepSpeed's JSON sets none.
        return ()
    suffix = {"dockerfile": ".dockerfile", **dict.fromkeys(_YAML, ".yaml")}.get(found, ".sh")
    parsed = opening.parse(name if name.endswith((suffix, *opening.OTHER_SHELLS)) else f"{name}{suffix}", text)
    opening.check_number(len(parsed.settings))
    options = [(o.name, o.value) for o in parsed.options]
    judged = judge(settings_of(parsed, name), Place(libraries=_RELEASES, is_this_host=False), nothing_to_scan, options)
    return [
        Problem(
            line=one.line or 1,
            says=msg("{name}: {says}", name=one.name, says=r.says),
            instead=r.instead or NOTHING,
            note=r.severity == "note",
        )
        for one in judged
        for r in one.remarks
        if r.kind == "contradiction" or (r.severity != "note" and r.kind in _TOLD)
    ]
