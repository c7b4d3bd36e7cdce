"""A launch as it was typed, taken apart, and written in another form, which starts the script by itself."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace

from unhang.errors import UnhangError
from unhang.i18n import msg
from unhang.model import frozen
from unhang.remedies.exports.form_settings import TODAY, Layout, carried
from unhang.remedies.exports.forms import Form, form
from unhang.remedies.lint import accelerate, documents
from unhang.remedies.lint.script import ADDRESS, NODES, PORT
from unhang.remedies.lint.starts import Start, host_and_port, read
from unhang.settings.setting import Choice, Installed, Refused

_PYTHON = re.compile(r"(?:.*/)?python[\d.]*")
_PROCESSES = ("--nproc-per-node", "--num-gpus", "--num-processes")
_MODULE = ("-m", "--module")


@frozen
class Typed:
    """`command` is the script, or `-m` and a module, with its arguments; `processes` are those of each host. None is where nothing was said."""

    command: tuple[str, ...] = ()
    nodes: int | None = None
    processes: int | None = None
    address: str | None = None
    port: int | None = None


@frozen
class Exported:
    """`companions` are texts by what is put behind the file's name."""

    text: str
    refused: tuple[Refused, ...] = ()
    companions: Mapping[str, str] = field(default_factory=dict)


def taken_apart(words: Sequence[str]) -> Typed:
    """Raises UnhangError for what a form would have to start by itself, and for options of launchers that none carries."""
    if not words or words[0].endswith(".py"):
        return Typed(command=tuple(words))
    started = read(shlex.join(words)).starts if " " not in words[0] else []
    if started:
        return _of_launcher(started[0])
    program = words[0].rpartition("/")[2]
    if _PYTHON.fullmatch(words[0]):
        rest = tuple(w for i, w in enumerate(words[1:]) if i or w != "-u")
        if not rest or (rest[0].startswith("-") and rest[0] != "-m"):
            raise UnhangError(f"{shlex.join(words[:2])}: name the script, or -m and a module", hint="unhang export FORM -- train.py --lr 1e-4")
        return Typed(command=rest)
    if program in documents.known("scripts")["programs"]:
        raise UnhangError(f"{program} is no script: a form starts the script by itself", hint="unhang export FORM -- train.py --lr 1e-4")
    return Typed(command=tuple(words))


def _of_launcher(start: Start) -> Typed:
    name = start.names[0]
    by_module = len(start.before) == 2 and _PYTHON.fullmatch(start.before[0]) and start.before[1] == "-m"
    if start.before and not by_module:
        raise UnhangError(f"{start.before[0]} in front of {name}: a form starts the script by itself", hint=_given(start))
    if len(start.names) > 1:
        raise UnhangError(f"one launcher inside of another: {' > '.join(start.names)}", hint=_given(start))
    if name not in ("torchrun", "torch.distributed.launch", "accelerate launch", "deepspeed"):
        raise UnhangError(f"{name} starts torchrun by itself", hint="unhang export llamafactory -- dataset=mine")
    known = {*NODES, *_PROCESSES, *ADDRESS, *PORT, *_MODULE, *documents.known("scripts")["of_forms"], "--rdzv-endpoint"}
    for option, value in start.options.items():
        if option not in known:
            raise UnhangError(f"{name} {shlex.join([option, *([value.text] if value.text else [])])}: no form carries that", hint=_given(start))
    if not start.rest:
        raise UnhangError(f"{name} without a script", hint="unhang export FORM -- train.py")
    nodes, processes = _number(start, NODES), _number(start, _PROCESSES)
    if name == "accelerate launch" and processes is not None:
        # It counts those of all hosts.
        if processes % (nodes or 1):
            raise UnhangError(f"accelerate launch --num_processes {processes}: that does not divide by {nodes} hosts", hint=_given(start))
        processes //= nodes or 1
    address, port = start.option(*ADDRESS), start.option(*PORT)
    if (endpoint := start.option("--rdzv-endpoint")) is not None:
        address, port = host_and_port(endpoint)
    return Typed(
        command=(*(("-m",) if start.option(*_MODULE) is not None else ()), *start.rest),
        nodes=nodes,
        processes=processes,
        address=address.text if address is not None and (nodes or 1) > 1 else None,
        port=int(port.text) if port is not None and port.text.isdecimal() and (nodes or 1) > 1 else None,
    )


def _number(start: Start, names: Sequence[str]) -> int | None:
    given = start.option(*names)
    if given is None:
        return None
    if not given.text.isdecimal():
        raise UnhangError(f"{start.names[0]} {names[0]} {given.text}: a form needs a number", hint="unhang export FORM --nodes 2 -n 8 -- train.py")
    return int(given.text)


def _given(start: Start) -> str:
    return f"unhang export FORM --nodes 1 -n 2 -- {shlex.join(start.rest[:3]) or 'train.py'}"


def export(
    name: str,
    choice: Choice,
    layout: Layout,
    *,
    installed: Installed = TODAY,
    arguments: Mapping[str, str] | None = None,
    with_unhang: bool | None = None,
    suggested: Collection[str] = (),
) -> Exported:
    """`with_unhang`: None starts through `unhang run` only where something chosen needs its hook. `suggested`: keys that only a preset of ours chose.

    Raises UnhangError for what the form cannot be.
    """
    found = form(name)
    if found.needs_unhang and with_unhang is False:
        raise UnhangError(f"{name} starts through unhang run: its ways are what unhang's hook does", hint="unhang export torchrun --without-unhang")
    if not found.runs_unhang and with_unhang:
        raise UnhangError(f"{name} starts nothing by itself", hint="start it by unhang run")
    one = carried(
        {key: value for key, value in choice.items() if key != "processes"},
        installed,
        launcher=found.launcher,
        native=found.native,
        arguments=arguments,
        with_unhang=with_unhang,
        runs_unhang=found.runs_unhang,
        suggested=suggested,
    )
    one = replace(one, refused=(*one.refused, *_homeless(found, layout)))
    through = bool(with_unhang or one.sets or found.needs_unhang)
    text, companions = found.write(layout, one, through)
    if found.name == "llamafactory" and layout.command:
        # Raises UnhangError for what LLaMA-Factory would not take of the fields that were given.
        wrong = next(accelerate.check_llamafactory(documents.keys(found.file, text)), None)
        if wrong is not None:
            raise UnhangError(
                wrong.says,
                hint=wrong.instead
                or f"leave it out; a field of another release of LLaMA-Factory than {TODAY.packages['llamafactory']} is added to the file by hand",
            )
    return Exported(text=text, refused=one.refused, companions=companions)


def _homeless(found: Form, layout: Layout) -> Iterator[Refused]:
    """Of where ranks meet, what was named and has no place in the file."""
    given = {"address": layout.address or None, "port": layout.given_port}
    for what, value in given.items():
        if value is not None and not found.has_place_for(what, layout):
            why = msg("{form} names the master's {what} by itself", form=found.name, what=msg("address") if what == "address" else msg("port"))
            if layout.nodes == 1:
                why = msg("one host needs none")
            yield Refused(key=f"master {what}", value=value, why=why)
