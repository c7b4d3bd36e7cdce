"""env-relocation: an environment was moved, copied or half deleted, and its recorded paths lead nowhere."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from unhang.facts.python_env import LAUNCHERS, TRAINING, Environment, Script
from unhang.knowledge.cause import Command, command
from unhang.knowledge.judge import Findings, Found, HostView

_FAULTS = ("gone", "too-long", "carriage-return")
# What stands below these is not of one environment.
_SYSTEM = ("", "/", "/usr", "/usr/local", "/opt", "/opt/local", "/home", "/root", "/srv", "/mnt", "/var", "/tmp")
# Part of a name that goes on.
_NAME = "[:alnum:]._-"


def on_host(host: HostView) -> Findings:

    seen = host.python_env
    for env in seen.environments:
        yield from _interpreter(env)
        yield from _scripts(env)
        yield from _leads(env)
    # Launchers on the PATH that cannot start and are not of the environment that was looked at.
    inside = {(s.path.rpartition("/")[2], s.interpreter) for env in seen.environments for s in env.broken_scripts}
    for p in seen.programs:
        if p.name not in LAUNCHERS or p.fault is None or (p.name, p.interpreter) in inside or p.dead_links:
            continue
        yield Found("bad-launcher", p=p, seen=seen)
    if seen.python_home_wrong:
        yield Found("bad-python-home", seen=seen)


def _interpreter(env: Environment) -> Findings:
    if env.python_gone:
        yield Found("no-interpreter", commands={"rebuild-here": _rebuild(env)}, env=env)
    elif env.left_behind:
        yield Found("other-python", commands={"rebuild-here": _rebuild(env)}, env=env)


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
    for fault in _FAULTS:
        broken = [s for s in env.broken_scripts if s.fault == fault]
        if broken:
            yield _of_scripts("bad-first-lines", env, broken, what=fault, n=len(broken), moved=env.recorded if fault == "gone" else None)
    if env.foreign_scripts:
        others = sorted({s.prefix for s in env.foreign_scripts if s.prefix})
        names = [s.path.rpartition("/")[2] for s in env.foreign_scripts]
        yield _of_scripts("foreign-python", env, env.foreign_scripts, names=names, others=others, moved=env.recorded)
    elif env.recorded is not None and not env.broken_scripts:
        yield Found("moved", env=env, **_repaired(env, env.recorded))


def _of_scripts(key: str, env: Environment, scripts: Sequence[Script], **values: Any) -> Found:
    launchers_first = sorted(scripts, key=lambda s: s.path.rpartition("/")[2] not in LAUNCHERS)
    old = env.recorded or Counter(s.interpreter.rpartition("/bin/")[0] for s in scripts).most_common(1)[0][0]
    return Found(
        key,
        severity="error" if launchers_first[0].path.rpartition("/")[2] in LAUNCHERS else "warning",
        env=env,
        each=launchers_first[:3],
        **_repaired(env, old, "through-the-interpreter"),
        **values,
    )


def _repaired(env: Environment, old: str, *more: str) -> dict[str, Any]:
    """What helps an environment that stood elsewhere; its paths are rewritten only where that hits nothing else."""
    rewrite = _rewrite(old, env.prefix)
    commands = {"rebuild-here": _rebuild(env)} | ({"rewrite-the-paths": rewrite} if rewrite else {})
    return {"remedies": (*commands, *more), "commands": commands}


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


def _leads(env: Environment) -> Findings:
    if env.editables_gone:
        named = [f"{e.name or e.file.rpartition('/')[2]} ({e.target})" for e in env.editables_gone[:4]]
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
