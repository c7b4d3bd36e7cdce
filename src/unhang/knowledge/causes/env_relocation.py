"""env-relocation: an environment was moved, copied or half deleted, and its recorded paths lead nowhere."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from unhang.facts.python_env import Environment, Script
from unhang.knowledge.cause import Command, command
from unhang.knowledge.judge import Findings, Found, HostView
from unhang.knowledge.text import NOTHING, Text, joined, msg

_FAULTS = {
    "gone": msg("an interpreter that is not there"),
    "too-long": msg("a path that is longer than this kernel takes"),
    "carriage-return": msg("an interpreter whose name ends in a carriage return"),
}
# What stands below these is not of one environment.
_SYSTEM = ("", "/", "/usr", "/usr/local", "/opt", "/opt/local", "/home", "/root", "/srv", "/mnt", "/var", "/tmp")
_TORCHRUN = "{python:program} -m torch.distributed.run ARGS train.py"
# Part of a name that goes on.
_NAME = "[:alnum:]._-"


def on_host(host: HostView) -> Findings:

    seen = host.python_env
    for env in seen.environments:
        yield from _interpreter(env)
        yield from _scripts(env)
        yield from _leads(env)
    # Launchers on the PATH that cannot start and are not of the environment that was looked at.
    from unhang.facts.python_env import LAUNCHERS

    inside = {(s.path.rpartition("/")[2], s.interpreter) for env in seen.environments for s in env.broken_scripts}
    for p in seen.programs:
        if p.name not in LAUNCHERS or p.fault is None or (p.name, p.interpreter) in inside or p.dead_links:
            continue
        yield Found("bad-launcher", by="torchrun" if p.name == "torchrun" else "", p=p, what=_FAULTS[p.fault], seen=seen)
    if seen.python_home_wrong:
        yield Found("bad-python-home", seen=seen)


def _interpreter(env: Environment) -> Findings:
    if env.python_gone:
        says = (
            msg("{python} leads to {python_target}, which is not there", python=env.python, python_target=env.python_target)
            if env.python_target
            else msg("there is no {python}", python=env.python)
        )
        leads_to = msg("nothing in this environment starts; a shell goes on to the next python on the PATH, which lacks its packages")
    elif env.left_behind:
        says = msg(
            "{prefix} holds packages for Python {old}, and its python is {new} now",
            prefix=env.prefix,
            old=", ".join(env.left_behind),
            new=str(env.version),
        )
        leads_to = msg("Python starts and finds none of them: No module named 'torch'")
    else:
        return
    yield Found(
        "no-interpreter",
        commands={"rebuild-here": _rebuild(env)},
        says=says,
        leads_to=leads_to,
        env=env,
        python_target=f"-> {env.python_target}" if env.python_target else "",
    )


def _rebuild(env: Environment) -> Command | None:
    """Beside it, and without its own interpreter: what is installed is told by the names of the records.

    What PyPI does not have is left to be done by hand: packages of another index (`+cu121`), and those that came from a directory or a repository
    (direct_url.json, which conda's own packages have, too).
    """
    conda = env.kind == "conda"
    by_hand = [f"{n} {v}" for n, v in sorted(env.packages.items()) if "+" in v] + [e.name for e in env.editables_gone if e.name]
    records = "{prefix:program}/lib/python" + ("{old:name}" if env.left_behind else "3*") + "/site-packages/*.dist-info"
    of_elsewhere = '[ -e "$i/direct_url.json" ]' + (' && ! grep -qsx conda "$i/INSTALLER"' if conda else "")
    listed = "for i in " + records + "; do if " + of_elsewhere + '; then echo "# by hand: ${{i##*/}}"; else echo "${{i##*/}}"; fi; done'
    pinned = r"sed -E '/^#/b; s/^(.+)-([^-+]+)\.dist-info$/\1==\2/; t; s/^/# by hand: /'"
    made = "conda create -y -p {new:path} python={version:name}" if conda else "python3 -m venv {new:path}"
    install = "{new:path}/bin/python -m pip install --no-deps -r {kept:path}" + ("   # by hand: {by_hand:name*}" if by_hand else "")
    return command(
        listed + " | " + pinned + " > {kept:path} && " + made + " && " + install,
        prefix=env.prefix,
        old=env.left_behind[-1] if env.left_behind else None,
        kept=f"{env.prefix}.packages.txt",
        new=f"{env.prefix}.new",
        version=env.version or 3,
        by_hand=", ".join(dict.fromkeys(by_hand)).split(" "),
    )


def _scripts(env: Environment) -> Findings:
    moved = msg("; its activate script names {recorded}", recorded=env.recorded) if env.recorded is not None else NOTHING
    for fault, what in _FAULTS.items():
        broken = [s for s in env.broken_scripts if s.fault == fault]
        if broken:
            begin = msg("{n} of {all} scripts in {prefix}/bin begin with {what}{moved}")
            yield _of_scripts(
                env,
                broken,
                begin.fill(n=len(broken), all=env.scripts, prefix=env.prefix, what=what, moved=moved if fault == "gone" else NOTHING),
            )
    if env.foreign_scripts:
        others = joined(sorted({s.prefix for s in env.foreign_scripts if s.prefix}), msg(" and ", "env_relocation"))
        run = msg("{names} in {prefix}/bin {run} the Python of {others}{moved}")
        verb = "runs" if len(env.foreign_scripts) == 1 else "run"
        yield _of_scripts(
            env, env.foreign_scripts, run.fill(names=_names(env.foreign_scripts), prefix=env.prefix, run=verb, others=others, moved=moved)
        )
    elif env.recorded is not None and not env.broken_scripts:
        rewrite = _rewrite(env.recorded, env.prefix)
        yield Found(
            "moved",
            remedies=("rebuild-here", *(("rewrite-the-paths",) if rewrite else ())),
            commands={"rebuild-here": _rebuild(env)} | ({"rewrite-the-paths": rewrite} if rewrite else {}),
            env=env,
        )


def _of_scripts(env: Environment, scripts: Iterable[Script], says: Text) -> Found:
    from unhang.facts.python_env import LAUNCHERS

    scripts = tuple(scripts)
    old = env.recorded or Counter(s.interpreter.rpartition("/bin/")[0] for s in scripts).most_common(1)[0][0]
    rewrite = _rewrite(old, env.prefix)
    commands = {"rebuild-here": _rebuild(env), "through-the-interpreter": command(_TORCHRUN, python=env.python)}
    return Found(
        "bad-first-lines",
        severity="error" if any(s.path.rpartition("/")[2] in LAUNCHERS for s in scripts) else "warning",
        remedies=("rebuild-here", *(("rewrite-the-paths",) if rewrite else ()), "through-the-interpreter"),
        commands=commands | ({"rewrite-the-paths": rewrite} if rewrite else {}),
        says=says,
        each=_launchers_first(scripts)[:3],
    )


def _rewrite(old: str, new: str) -> Command | None:
    """First lines, the second ones that stand in for them where a path is too long, and what activates; None where that could hit something else."""
    old = old.rstrip("/")
    # The first line of a script has no way to hold a space; the comma parts sed's commands.
    if old in _SYSTEM or re.search(r"[\s,]", old + new):
        return None
    was, is_now, now = _literal(old), _literal(new), new.replace("&", r"\&")
    steps = (
        # Where the new place is inside of the old one, a second run would find the old one again.
        *((f"\\,{is_now},b",) if new.startswith(f"{old}/") else ()),
        f"1s,^(#! ?){was}/,\\1{now}/,",
        f"2s,^(...exec. [^/]?){was}/,\\1{now}/,",
        f"/VIRTUAL_ENV/I s,(^|[^/{_NAME}]){was}([^{_NAME}]|$),\\1{now}\\2,g",
    )
    return command("grep -rIlZF {old:path} {bin:path} | xargs -0r sed -i -E {steps:text}", old=old, bin=f"{new}/bin", steps="; ".join(steps))


def _literal(path: str) -> str:
    """For sed -E."""
    return re.sub(r"[][{}()*+?^$|.\\]", r"\\\g<0>", path)


def _launchers_first(scripts: Iterable[Script]) -> list[Script]:
    from unhang.facts.python_env import LAUNCHERS

    return sorted(scripts, key=lambda s: s.path.rpartition("/")[2] not in LAUNCHERS)


def _names(scripts: Iterable[Script]) -> str:
    return ", ".join(s.path.rpartition("/")[2] for s in scripts)


def _leads(env: Environment) -> Findings:
    from unhang.facts.python_env import TRAINING

    if env.editables_gone:
        named = ", ".join(f"{e.name or e.file.rpartition('/')[2]} ({e.target})" for e in env.editables_gone[:4])
        yield Found(
            "editables-gone",
            severity="error" if any(e.name in TRAINING for e in env.editables_gone) else "warning",
            named=named,
            each=env.editables_gone[:3],
            env=env,
        )
    if env.lines_gone:
        yield Found(
            "lines-gone",
            target=env.lines_gone[0].target,
            gone=env.lines_gone,
            each=env.lines_gone[:3],
        )
