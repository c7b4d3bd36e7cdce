"""launcher-wrong-env: the launcher or the Python that answers belongs to another environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, Findings, Found, HostView, LogView
from unhang.knowledge.text import COMMA, joined, msg
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.python_env import Program, PythonEnv, Shadow

CAUSE = cause("launcher-wrong-env")

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


def in_logs(view: LogView) -> Answer:
    """A module is missing, and the frames of the log come from two environments: one started what the other holds."""
    own = view.hits_of(CAUSE.id)
    missing = next((t for t in view.tracebacks if _MISSING.search(t.says)), None)
    found = _MISSING.search(missing.says) if missing is not None else None
    if missing is None or found is None or any(h.signature.standing == "established" for h in own):
        return CAUSE.of_hits(own, view)
    script = next((f for t in view.tracebacks for f in t.frames if (m := _SCRIPT.match(f.file)) and m["prefix"].endswith("/.local")), None)
    prefixes = sorted({m["prefix"] for f in missing.frames if (m := _PACKAGES.match(f.file))})
    if script is None and not (len(prefixes) > 1 and any(p.endswith("/.local") for p in prefixes)):
        return CAUSE.of_hits(own, view)
    return Found(
        "user-site" if script else "two-places",
        ranks=[t for t in view.tracebacks if t.says == missing.says],
        evidence=(missing,),
        module=found["module"],
        script=script,
        places=joined(prefixes, msg(" and ", "launcher_wrong_env")),
        binary=next((m["binary"] for e in view.exits if (m := _BINARY.search(e.at.text))), None),
    )


def on_host(host: HostView) -> Findings:

    seen = host.python_env
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
            told = joined((msg("{name} {version} before {hidden}", name=s.name, version=s.version, hidden=s.hidden) for s in first), COMMA)
            yield Found(
                "shadowed-by-path" if place in seen.python_path else "shadowed-by-user-site",
                place=place,
                env=env,
                told=told,
                names=", ".join(f"{s.name}-{s.version}" for s in shadows[:8]),
            )
    torch = seen.training.packages.get("torch")
    if torch and seen.own is not None and "torch" in seen.own.packages:
        yield Found("two-torches", seen=seen, own=seen.own.packages["torch"], torch=torch)


def _not_activated(seen: PythonEnv, python: Program) -> Findings:
    name, prefix = ("VIRTUAL_ENV", seen.virtual_env) if seen.virtual_env else ("CONDA_PREFIX", seen.conda_prefix)
    if prefix is not None and prefix != python.prefix and not seen.training.python_gone:
        yield Found("not-activated", its_python=f"{prefix}/bin/python", name=name, prefix=prefix, python=python)


def _elsewhere(seen: PythonEnv, python: Program, program: Program) -> Findings:
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
        yield Found("other-launcher", program=program, python=python, env=env, module=module)
    elif "pip" in env.packages if program.name == "pip" else "torch" in env.packages:
        yield Found("other-program", program=program, python=python, leads="pip" if program.name == "pip" else "scripts")
