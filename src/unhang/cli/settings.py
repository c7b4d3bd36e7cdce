"""Settings of `unhang run` and `unhang presets`: what was asked for, put to the machine and to what the training would load."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from unhang.attach import protocol
from unhang.cli import training_command
from unhang.errors import UnhangError
from unhang.facts import network, snapshot
from unhang.facts.host import Host
from unhang.knowledge.words import COMMA, NOTHING, Text, joined, msg
from unhang.launch import command as commands
from unhang.launch.command import Command
from unhang.report import screen
from unhang.settings import catalogue, choosing, configuration, support
from unhang.settings import plan as planning
from unhang.settings.choosing import Here
from unhang.settings.configuration import Configuration
from unhang.settings.installed import installed
from unhang.settings.plan import Plan
from unhang.settings.setting import Applied, Installed, Value, worded
from unhang.settings.spellings import AUTO

_NAMED_BY_OPTION = "activate it, or name its Python with --python PATH"
# Nobody tells of a variable that nobody reads.
_BY_HOOK = msg(", it is told where a rank does not take {keys}")
_NOT_LOOKED_AT = snapshot.Snapshot(host="", taken="")


def typed(settings: Sequence[str], timeout: str | None, option: str = planning.SET) -> tuple[tuple[str, Value, str], ...]:
    """--set KEY=VALUE (or another `option`) and --timeout TIME, as key, value and origin. Raises UnhangError for what is none."""
    found: list[tuple[str, Value, str]] = []
    if timeout is not None:
        found.append(("timeout", catalogue.parse("timeout", timeout), "--timeout"))
    for one in settings:
        key, joined, text = one.partition("=")
        if not joined:
            setting = catalogue.named(key)
            raise UnhangError(f"{option} {one}: a value is missing", hint=f"{option} {setting.key}=VALUE; values: {setting.forms}")
        found.append((catalogue.named(key).key, catalogue.parse(key, text), option))
    for i, (key, value, origin) in enumerate(found):
        for before, other, earlier in found[:i]:
            if before == key and other != value:
                said = [f"{o} {worded(v)}" if o == "--timeout" else f"{o} {key}={worded(v)}" for v, o in ((other, earlier), (value, origin))]
                raise UnhangError(f"{said[0]} and {said[1]} contradict each other: {key} has one value")
    return tuple(found)


def here(python: str, *, looks: bool, address: str | None = None, hosts: int | None = None) -> Here:
    """`looks`: the machine is looked at, which only presets need. `address` is where ranks meet, where the command says so."""
    environ = {**os.environ, **({"MASTER_ADDR": address} if address else {})}
    seen = snapshot.take(Host(environ=environ), only=choosing.SUBJECTS) if looks else _NOT_LOOKED_AT
    net = seen.get(network.SUBJECT)
    return Here(snapshot=seen, installed=installed(python), hosts=hosts or (net.job.hosts if net is not None else None))


def plan(
    command: Command,
    configured: Configuration,
    *,
    preset: str | None,
    settings: Sequence[str],
    timeout: str | None,
    environ: Mapping[str, str] = os.environ,
    by_path: str = _NAMED_BY_OPTION,
    option: str = planning.SET,
) -> Plan | None:
    """None where nothing was asked for, and no unhang.toml asks for anything. Raises UnhangError, also for what was typed and would do nothing.

    `by_path` is what to do where the command's own Python has no torch, `option` the one that `settings` were typed with.
    """
    asked = typed(settings, timeout, option)
    if preset is None and not asked and not configured.preset and not configured.settings:
        return None
    address, hosts = commands.master(command)
    machine = here(command.python, looks=bool(preset or configured.preset), address=address, hosts=hosts)
    # Only where it is known which Python runs is it known that torch is missing.
    is_guessed = machine.installed.torch is None and command.python_from == "guess"
    if is_guessed:
        machine = replace(machine, installed=_of_today(machine.installed, commands.launcher(command)))
    found = planning.plan(
        machine,
        configured,
        preset_name=preset or "",
        typed=asked,
        launcher=commands.launcher(command),
        environ=environ,
        option=lambda name: commands.option(command, name),
        word=lambda flag: commands.argument(command, flag),
    )
    if refused := planning.refused_of_typed(found):
        first, *others = refused
        also = msg("; nor {keys}", keys=joined((r.key for r in others), COMMA)) if others else NOTHING
        origin = next(c.origin for c in found.chosen if c.key == first.key)
        # --timeout is the setting's own option.
        named = origin if origin == f"--{first.key}" else f"{origin} {first.key}"
        lacks_torch = first.why == support.no_torch(machine.installed)
        raise UnhangError(
            msg("{named}: {why}{also}", named=named, why=first.why, also=also),
            cause="the environment of the training is not activated" if lacks_torch else None,
            hint=(by_path if command.python_from == "command" else _NAMED_BY_OPTION) if lacks_torch else planning.instead_of(first),
        )
    if is_guessed and found.applied.spelled:
        said = msg(
            "which Python {command} starts is not known here, nor its torch ({python} has none): settings are spelt for current releases{taken}; "
            "--python PATH names it",
            command=Path(command.argv[0]).name,
            python=command.python,
            taken=_taken(found.applied),
        )
        found = replace(found, remarks=(*found.remarks, said))
    return _checked_interfaces(command, found, environ)


def _taken(applied: Applied) -> Text:
    """What is known of settings that a Python which nobody knows is started with."""
    hooked = [key for key, one in applied.spelled.items() if not one.env.keys().isdisjoint(protocol.WISHES)]
    others = [key for key, one in applied.spelled.items() if key not in hooked and one.env]
    return joined(
        (
            said.fill(keys=joined(keys, COMMA))
            for said, keys in ((_BY_HOOK, hooked), (msg(", whether ranks read the variables of {keys} is not known"), others))
            if keys
        ),
        NOTHING,
    )


def _of_today(seen: Installed, launcher: str) -> Installed:
    """What is taken to be installed where that is not known: releases of today, as in files for other machines."""
    from unhang.remedies.exports.form_settings import TODAY

    packages = {name: version for name, version in TODAY.packages.items() if name == launcher}
    return replace(TODAY, nccl=(), packages=packages, gpus=seen.gpus, python=seen.python, is_assumed=True)


def _checked_interfaces(command: Command, found: Plan, environ: Mapping[str, str]) -> Plan:
    """Refuses an interface that was typed and is not there; where ranks run elsewhere, or a file for several machines names it, that is only told."""
    one = next((c for c in found.chosen if c.key == "interface"), None)
    if one is None or one.value == AUTO:
        return found
    here = tuple(name for _, name in socket.if_nameindex())
    missing = [name for name in str(one.value).split(",") if name not in here]
    if not missing:
        return found
    said = msg("{origin} interface: this machine has no {missing}", origin=one.origin, missing=", ".join(missing))
    listed = ", ".join(here)
    if one.is_typed and training_command.several_hosts(command, environ) is None:
        raise UnhangError(
            said,
            cause="the name is misspelt, or another machine's",
            hint=f"interfaces of this machine: {listed}",
        )
    return replace(
        found,
        remarks=(*found.remarks, msg("{said} (it has {listed}): a rank that starts here fails", said=said, listed=listed)),
    )


def configured(start: Path) -> Configuration:
    """Read unhang.toml; if it is ignored, say why. Raises UnhangError."""
    found = configuration.load(start)
    if found.ignored:
        screen.say_once(found.ignored)
    return found
