"""launcher-wrong-env: the launcher or the Python that answers belongs to another environment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Command, LogView, cause, command
from unhang.knowledge.text import COMMA, NOTHING, Text, joined, same
from unhang.model import Evidence, Finding, HostFinding
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.python_env import Program, PythonEnv, Shadow
    from unhang.facts.snapshot import Snapshot

_LAUNCHERS = r"torchrun|accelerate|deepspeed|llamafactory-cli|swift|xtuner|colossalai|composer|horovodrun|ray|vllm|torchx"

_MISSING = lazily(r"No module named '?(?P<module>[\w.]+)")
_PACKAGES = lazily(r"^(?P<prefix>/.{1,160}?)/lib(?:64)?/python3(?:\.\d+)?/(?:site|dist)-packages/")
_SCRIPT = lazily(rf"^(?P<prefix>/.{{1,160}}?)/bin/(?:{_LAUNCHERS})$")
_BINARY = lazily(r"of binary: (?P<binary>/\S+)")
_MODULES = {
    "torchrun": ("torch", "torch.distributed.run"),
    "accelerate": ("accelerate", "accelerate.commands.launch"),
    "deepspeed": ("deepspeed", "deepspeed.launcher.runner"),
    "llamafactory-cli": ("llamafactory", "llamafactory.cli"),
}
# Made to stand apart: what they hold is meant to be used from beside any environment.
_ISOLATED = lazily(r"/(?:pipx/venvs|uv/tools)/")


def _in_logs(view: LogView) -> Finding | None:
    """A module is missing, and the frames of the log come from two environments: one started what the other holds."""
    own = view.hits_of(CAUSE.id)
    missing = next((t for t in view.tracebacks if _MISSING.search(t.says)), None)
    found = _MISSING.search(missing.says) if missing is not None else None
    if missing is None or found is None or any(h.signature.standing == "established" for h in own):
        return CAUSE.of_hits(own, view)
    script = next((f for t in view.tracebacks for f in t.frames if (m := _SCRIPT.match(f.file)) and m["prefix"].endswith("/.local")), None)
    prefixes = sorted({m["prefix"] for f in missing.frames if (m := _PACKAGES.match(f.file))})
    if script is not None:
        says = Text(
            "{module} is missing because {script}, a launcher of the user site, was run instead of the one of the environment",
            "缺少 {module}，因为运行的是用户目录（user site）里的启动器 {script}，而不是环境里的那个",
        ).fill(module=found["module"], script=script.file)
    elif len(prefixes) > 1 and any(p.endswith("/.local") for p in prefixes):
        says = Text("{module} is missing, and packages come from two places at once: {places}", "缺少 {module}，而软件包同时来自两处：{places}")
        says = says.fill(module=found["module"], places=joined(map(same, prefixes), Text(" and ", " 和 ")))
    else:
        return CAUSE.of_hits(own, view)
    binary = next((m["binary"] for e in view.exits if (m := _BINARY.search(e.at.text))), None)
    return CAUSE.finding(
        standing="likely",
        says=says + (Text("; the ranks ran {binary}", "；各 rank 运行的是 {binary}").fill(binary=binary) if binary else NOTHING),
        ranks=tuple(sorted({t.rank for t in view.tracebacks if t.rank is not None and t.says == missing.says})),
        evidence=(missing.evidence(),),
        remedies=("through-the-interpreter", "no-user-site"),
    )


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import python_env

    seen = host.get(python_env.SUBJECT)
    if seen is None:
        return
    python = next((p for p in seen.programs if p.name in ("python", "python3") and p.prefix is not None), None)
    if python is not None:
        yield from _not_activated(seen, python)
        for program in seen.programs:
            yield from _elsewhere(seen, python, program)
    for env in seen.environments:
        places: dict[str, list[Shadow]] = {}
        for shadow in env.shadows:
            places.setdefault(shadow.place, []).append(shadow)
        for place, shadows in places.items():
            first = sorted(shadows, key=lambda s: s.name != "torch")[:4]
            told = joined((Text(f"{s.name} {s.version} before {s.hidden}", f"{s.name} {s.version} 遮住 {s.hidden}") for s in first), COMMA)
            by_path = place in seen.python_path
            yield CAUSE.host_finding(
                area="python_env",
                severity="warning",
                says=Text("{which} {place} comes before the packages of {prefix}: {told}", "{which} {place} 排在 {prefix} 的软件包之前：{told}").fill(
                    which="PYTHONPATH" if by_path else Text("the user site", "用户 site 目录"), place=place, prefix=env.prefix, told=told
                ),
                leads_to=Text(
                    "a mixture of two sets of packages: missing modules, undefined symbols, or another release than the other hosts run",
                    "两套软件包混用：缺少模块、未定义符号，或与其他主机的版本不同",
                ),
                evidence=(Evidence(source=place, text=", ".join(f"{s.name}-{s.version}" for s in shadows[:8])),),
                remedies=("no-python-path",) if by_path else ("no-user-site",),
            )
    torch = seen.training.packages.get("torch")
    if torch and seen.own is not None and "torch" in seen.own.packages:
        yield CAUSE.host_finding(
            area="python_env",
            severity="note",
            says=Text(
                "unhang lives in {prefix} with torch {own}, and the training's Python is {python} with torch {torch}",
                "unhang 位于 {prefix}，带有 torch {own}；训练的 Python 是 {python}，带有 torch {torch}",
            ).fill(prefix=seen.own.prefix, own=seen.own.packages["torch"], python=seen.training.python, torch=torch),
            leads_to=Text("unhang run train.py trains with the torch beside unhang", "unhang run train.py 使用 unhang 旁边的 torch 训练"),
            remedies=("through-the-interpreter",),
            commands={"through-the-interpreter": command("unhang run --python {python:program} train.py", python=seen.training.python)},
        )


def _not_activated(seen: PythonEnv, python: Program) -> Iterable[HostFinding]:
    name, prefix = ("VIRTUAL_ENV", seen.virtual_env) if seen.virtual_env else ("CONDA_PREFIX", seen.conda_prefix)
    if prefix is not None and prefix != python.prefix and not seen.training.python_gone:
        yield CAUSE.host_finding(
            area="python_env",
            severity="warning",
            says=Text(
                f"{name} is {prefix}, and {python.name} on the PATH is {python.path}",
                f"{name} 为 {prefix}，而 PATH 上的 {python.name} 是 {python.path}",
            ),
            leads_to=Text(
                "the training starts under a Python that lacks the packages of the environment that seems to be active",
                "训练在另一个 Python 下启动，它缺少看似已激活的环境里的软件包",
            ),
            evidence=(Evidence(source="the environment", text=f"{name}={prefix}"), Evidence(source="PATH", text=python.path)),
            remedies=("through-the-interpreter", "activate-everywhere"),
            commands=_through(f"{prefix}/bin/python"),
        )


def _through(python: str) -> dict[str, Command | None]:
    return {"through-the-interpreter": command("{python:program} -m torch.distributed.run --nproc-per-node auto train.py", python=python)}


def _elsewhere(seen: PythonEnv, python: Program, program: Program) -> Iterable[HostFinding]:
    """A launcher that another environment answers for, although python's has it too or is the one that holds torch."""
    env = seen.training
    if program.prefix is None or program.prefix == python.prefix or env.python_gone:
        return
    # A launcher of the environment itself that runs elsewhere: a copied environment, env-relocation's.
    if any(s.path.rpartition("/")[2] == program.name and s.prefix == program.prefix for s in env.foreign_scripts):
        return
    if program.name in _MODULES:
        package, module = _MODULES[program.name]
        if package not in env.packages and ("torch" not in env.packages or _ISOLATED.search(program.prefix)):
            return
        yield CAUSE.host_finding(
            area="python_env",
            severity="warning",
            says=Text(
                f"{program.name} on the PATH is {program.path} and runs {program.interpreter}; {python.name} is {python.path}",
                f"PATH 上的 {program.name} 是 {program.path}，运行的是 {program.interpreter}；{python.name} 却是 {python.path}",
            ),
            leads_to=Text(
                f"what {program.name} starts runs with the packages of {program.prefix}, not with those of {env.prefix}",
                f"{program.name} 启动的程序使用 {program.prefix} 的软件包，而不是 {env.prefix} 的",
            ),
            evidence=(Evidence(source=program.path, text=f"#!{program.interpreter}"), Evidence(source="PATH", text=python.path)),
            remedies=("through-the-interpreter", "activate-everywhere", "no-user-site"),
            commands={"through-the-interpreter": command("{python:program} -m {module:name} ARGS train.py", python=env.python, module=module)},
        )
    elif "pip" in env.packages if program.name == "pip" else "torch" in env.packages:
        yield CAUSE.host_finding(
            area="python_env",
            severity="note",
            says=Text(
                f"{program.name} on the PATH is {program.path}, of another environment than {python.name}, {python.path}",
                f"PATH 上的 {program.name} 是 {program.path}，与 {python.name}（{python.path}）不属于同一环境",
            ),
            leads_to=Text(f"pip installs into {program.prefix}", f"pip 会安装到 {program.prefix}")
            if program.name == "pip"
            else Text(f"scripts that ask for {program.name} find no torch, or another one", f"使用 {program.name} 的脚本找不到 torch，或找到另一个"),
            evidence=(Evidence(source="PATH", text=program.path),),
            remedies=("activate-everywhere",),
        )


CAUSE = cause("launcher-wrong-env", in_logs=_in_logs, on_host=_on_host)
