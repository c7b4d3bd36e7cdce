"""launcher-wrong-env: the launcher or the Python that answers belongs to another environment."""

from __future__ import annotations

from unhang.facts.python_env import Program, PythonEnv, Shadow
from unhang.knowledge.judge import Findings, Found, HostView
from unhang.patterns import lazily

_MODULES = {
    "torchrun": ("torch", "torch.distributed.run"),
    "accelerate": ("accelerate", "accelerate.commands.launch"),
    "deepspeed": ("deepspeed", "deepspeed.launcher.runner"),
    "llamafactory-cli": ("llamafactory", "llamafactory.cli"),
}
# Made to stand apart: what they hold is meant to be used from beside any environment.
_ISOLATED = lazily(r"/(?:pipx/venvs|uv/tools)/")


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
            yield Found(
                "shadowed-by-path" if place in seen.python_path else "shadowed-by-user-site",
                place=place,
                env=env,
                first=sorted(shadows, key=lambda s: s.name != "torch")[:4],
                names=[f"{s.name}-{s.version}" for s in shadows[:8]],
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
