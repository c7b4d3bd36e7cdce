"""Settings, one by one: who reads each here, what it does, whether its value is one, and what it brings about."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any, Literal

from unhang.facts.variable_readers import PLUGINS
from unhang.facts.variables import kept, touches
from unhang.i18n import NOTHING, msg, same
from unhang.model import Severity, frozen
from unhang.variables import value_parsers
from unhang.variables.known import Text, Variable, entries, foreign, nearest, owned
from unhang.variables.readers import Reader, Scan, is_early, release, table

# "not-here": the library that reads it is not installed. "foreign": a program reads it that no list covers.
State = Literal["read", "in-binary", "logged", "not-read", "not-here", "foreign", "unknown"]
# "host": the host has not what it names.
Kind = Literal["not-read", "typo", "renamed", "not-exported", "value", "effect", "contradiction", "host"]


@frozen
class Setting:
    """One assignment. `value` is None where it is secret, or only known when the program runs; `line` counts from 1. `exported`: programs get it.
    `only_in_build`: it holds while an image is built.
    """

    name: str
    value: str | None
    source: str
    line: int | None = None
    exported: bool = True
    only_in_build: bool = False


@frozen
class Place:
    """Where the settings hold. None: not known. `libraries` are versions by library, "" where a release is not known; all others are those of
    the host, as the facts call them.
    """

    libraries: Mapping[str, str] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()
    interfaces: tuple[str, ...] | None = None
    running: tuple[str, ...] | None = None
    adapters: tuple[str, ...] | None = None
    gpus: int | None = None
    installed: int | None = None
    missing: str = ""
    is_this_host: bool = True


@frozen
class Remark:
    """Something that is to be said of a setting. `instead`: what to write or to do in its place, where `says` tells that."""

    kind: Kind
    severity: Severity = "warning"
    says: Text
    instead: Text | None = None


@frozen
class Judged:
    """One setting and all that is to be said of it. `now` is the name to write instead, "" where there is none."""

    name: str
    value: str | None
    source: str
    line: int | None
    state: State
    readers: tuple[Reader, ...] = ()
    unseen: tuple[str, ...] = ()
    what: Text | None = None
    default: str = ""
    values: str = ""
    since: str = ""
    removed: str = ""
    now: str = ""
    remarks: tuple[Remark, ...] = ()

    def with_remark(self, remark: Remark) -> Judged:
        return replace(self, remarks=(*self.remarks, remark))


def judge(settings: Iterable[Setting], place: Place, scan: Scan, options: Iterable[tuple[str, str]] = ()) -> tuple[Judged, ...]:
    """Each setting in its order, and then what several of them say together. `options` are names and values (`files.found.Said`)."""
    from unhang.variables.combinations import compare

    return compare([_judged(s, place, scan) for s in settings], place, tuple(options))


def _judged(setting: Setting, place: Place, scan: Scan) -> Judged:
    variable = entries().get(setting.name)
    readers, unseen = _readers(setting.name, place.libraries, scan)
    state = _state(setting.name, variable, readers, unseen, place.libraries)
    if state in ("not-read", "unknown", "foreign") and (variable is None or variable.owner in ("nccl", "nobody")):
        state, readers = _with_plugins(setting.name, state, readers, place, scan)
    if variable is not None and variable.owner not in (*_LISTED, "nobody"):
        readers = (Reader(library=variable.owner, version="", how="documentation", answer="reads"), *readers)
    remarks: list[Remark] = []
    now = ""
    if state in ("not-read", "unknown") and variable is None and not touches(setting.name):
        meant = nearest(setting.name)
        state = "not-read" if meant is not None and owned(setting.name) and not _OF_NCCL.match(setting.name) else "unknown"
        remarks += [] if meant is None else [_typo(setting.name, meant)]
    elif state == "unknown" and variable is None and owned(setting.name) and (meant := nearest(setting.name)) is not None:
        remarks.append(_typo(setting.name, meant))
    elif state == "unknown" and variable is None and _OF_NCCL.match(setting.name) and not unseen and place.libraries.get("nccl"):
        remarks.append(_by_a_plugin(place.libraries["nccl"]))
    elif state == "not-read":
        remarks.append(_not_read(setting.name, variable, place))
    elif variable is not None and variable.now and (renamed := _renamed(variable, setting.value, readers, place.libraries)):
        now, remark = renamed
        remarks.append(remark)
    if setting.only_in_build and state != "not-read":
        remarks.append(_ONLY_IN_BUILD)
    elif not setting.exported and state != "not-read":
        remarks.append(_NOT_EXPORTED)
    if variable is not None and setting.value is not None and _is_held_against(variable, state, readers, place.libraries):
        # What a value does is nothing where no program gets it.
        gets_it = remarks[-1:] not in ([_NOT_EXPORTED], [_ONLY_IN_BUILD])
        said = value_parsers.judge(variable, setting.value)
        remarks += [Remark(kind=kind, severity=severity, says=text) for kind, severity, text in said if kind == "value" or gets_it]
    entry: dict[str, Any] = {}
    if variable is not None:
        last = (table().span(variable.owner, setting.name) or ("", ""))[1]
        removed = variable.removed or (f"after {last}" if last else "")
        values = variable.kind.text() if variable.owner != "nobody" else ""
        entry = {"what": variable.what, "default": variable.default, "values": values, "since": variable.since, "removed": removed}
    return Judged(
        name=setting.name,
        value=None if variable is not None and variable.secret else setting.value,
        source=setting.source,
        line=setting.line,
        state=state,
        readers=readers,
        unseen=unseen,
        now=now,
        remarks=tuple(remarks),
        **entry,
    )


def _readers(name: str, libraries: Mapping[str, str], scan: Scan) -> tuple[tuple[Reader, ...], tuple[str, ...]]:
    readers, unseen = [], []
    for library, version in libraries.items():
        found = table().decide(library, version, name, scan)
        if isinstance(found, Reader):
            readers.append(found)
        elif found is None:
            unseen.append(library)
    return tuple(readers), tuple(unseen)


def _state(name: str, variable: Variable | None, readers: tuple[Reader, ...], unseen: tuple[str, ...], libraries: Mapping[str, str]) -> State:
    answers = {r.answer for r in readers}
    if "reads" in answers:
        return "read"
    if variable is not None and variable.owner == "nobody":
        return "in-binary" if any(r.library in ("nccl", "rccl") for r in readers) else "not-read"
    if variable is not None and variable.owner not in _LISTED:
        return "read"
    if "in-binary" in answers:
        # torch names some of NCCL's only to log them; a name that only torch's files hold says nothing while NCCL is not there.
        if variable is not None and variable.owner == "nccl" and not any(r.library in ("nccl", "rccl") for r in readers) and "nccl" not in libraries:
            return "unknown" if "rccl" in unseen else "not-here"
        return "in-binary"
    if variable is None and foreign(name):
        return "foreign"
    if variable is not None and variable.owner == "nccl" and "rccl" in unseen:
        return "unknown"
    if variable is not None and variable.owner not in libraries:
        return "not-here"
    if variable is None and (others := table().readers(name) - libraries.keys()):
        return "unknown" if "nccl" in others and "rccl" in unseen else "not-here"
    if variable is None and _OF_NCCL.match(name) and ("nccl" not in libraries or not table().ever(name)):
        # Whatever plugin or build of NCCL it is written for may read it.
        return "not-here" if table().ever(name) and "rccl" not in unseen else "unknown"
    if unseen or not libraries:
        return "not-here" if table().ever(name) and not unseen else "unknown"
    return "logged" if "logs" in answers else "not-read"


def _with_plugins(name: str, state: State, readers: tuple[Reader, ...], place: Place, scan: Scan) -> tuple[State, tuple[Reader, ...]]:
    """What the plugins that NCCL may load here make of a name that NCCL itself is not known to read."""
    if not _OF_NCCL.match(name):
        return state, readers
    where = scan(PLUGINS, name)
    if where:
        return "in-binary", (*readers, Reader(library="plugin", version="", how="scan", answer="in-binary", where=where))
    could_be = where is None and place.plugins and not (name in entries() and entries()[name].owner == "nobody")
    return "unknown" if state == "not-read" and could_be else state, readers


def _is_held_against(variable: Variable, state: State, readers: tuple[Reader, ...], libraries: Mapping[str, str]) -> bool:
    """Whether a value is held against how its owner reads it: not where another program does. Where the owner is not here, its own names are."""
    if state == "not-read":
        return False
    if variable.owner not in _LISTED or any(r.library == variable.owner for r in readers):
        return True
    if variable.owner == "nccl" and "rccl" in libraries:
        return False
    return variable.owner in libraries or variable.owner == "torch" or variable.name.startswith(variable.owner.upper())


_NOT_EXPORTED = Remark(
    kind="not-exported",
    says=msg("set without export: programs that the script starts do not get it"),
)
_ONLY_IN_BUILD = Remark(
    kind="not-exported",
    says=msg("RUN and ARG set it while the image is built, and its containers do not get it: ENV does"),
)
_LISTED = ("nccl", "torch", "accelerate", "deepspeed", "lightning", "llamafactory")


# Plugins, and builds of NCCL by others, read further names of this kind: what is in no table may be one of those.
_OF_NCCL = re.compile(r"(?:OFI_)?[NR]CCL_")


def _has_new_name(variable: Variable, libraries: Mapping[str, str]) -> bool | None:
    """Whether the release that is used has the new name; None where that is not known."""
    version = libraries.get(variable.owner)
    if not version:
        return None
    since = release(variable.now_since)
    return release(version)[: len(since)] > since if is_early(version) else release(version) >= since


def _renamed(variable: Variable, value: str | None, readers: tuple[Reader, ...], libraries: Mapping[str, str]) -> tuple[str, Remark] | None:
    """The name to write instead, "" where the value would be none of its values or the release is not known, and what is to be said."""
    has_it = _has_new_name(variable, libraries)
    is_read = any(r.library == variable.owner for r in readers)
    if has_it is False or (has_it and not is_read) or (variable.owner == "nccl" and "rccl" in libraries):
        return None
    both = variable.both or msg("the new name wins")
    says = msg(
        "the old name of {now} (since {owner} {since}); where both are set {both}",
        now=variable.now,
        owner=variable.owner,
        since=variable.now_since,
        both=both,
    )
    kind = entries()[variable.now].kind
    fits = value is None or kind == variable.kind or value_parsers.is_legal(kind, value)
    if not fits and value_parsers.is_known(value):
        says += msg("; the new name takes {kind}, and not {value!r}", kind=kind.text(), value=value)
    now = variable.now if has_it and fits else ""
    return now, Remark(kind="renamed", severity="warning" if has_it else "note", says=says, instead=same(now) if now else None)


def _not_read(name: str, variable: Variable | None, place: Place) -> Remark:
    if variable is not None and variable.owner == "nobody":
        return Remark(
            kind="not-read",
            says=msg(
                "neither NCCL, torch nor the frameworks that were looked at read it (a training script may, on its own account); instead: {instead}",
                instead=variable.instead or NOTHING,
            ),
            instead=variable.instead,
        )
    if variable is not None:
        version = place.libraries.get(variable.owner, "")
        meant = variable.instead or (same(variable.now) if variable.now else None)
        instead = NOTHING if meant is None else msg("; instead: {name}", name=meant)
        span = table().span(variable.owner, name)
        gone = (
            msg(": removed in {release}", release=variable.removed)
            if variable.removed
            else msg(": it has it since {release}", release=variable.since)
            if variable.since
            else msg(": seen from {since} to {last}", since=span[0], last=span[1] or msg("today"))
            if span is not None
            else NOTHING
        )
        here = f"{variable.owner} {version}".strip()
        return Remark(
            kind="not-read",
            says=msg("{here} does not read it{gone}{instead}", here=here, gone=gone, instead=instead),
            instead=meant,
        )
    if (span := table().span("nccl", name)) is not None:
        here = f"nccl {place.libraries.get('nccl', '')}".strip()
        last = span[1] or msg("today")
        return Remark(
            kind="not-read",
            says=msg("{here} does not read it: seen from {span} to {last}", here=here, span=span[0], last=last),
        )
    if (near := nearest(name)) is not None:
        return Remark(
            kind="typo",
            says=msg("nothing installed here reads it; the nearest real name is {near}", near=near),
            instead=same(near),
        )
    return Remark(kind="not-read", says=msg("nothing installed here reads it"))


def _by_a_plugin(version: str) -> Remark:
    """Of a name that is in no table: a note, for it is not known that nothing reads it."""
    return Remark(
        kind="not-read",
        severity="note",
        says=msg("nccl {version} does not read it, a plugin or another build of NCCL may", version=version),
    )


def typo_outside(setting: Setting) -> Judged | None:
    """A name that is not about communication and a slip away from one that is."""
    meant = nearest(setting.name)
    if meant is None:
        return None
    entry = entries().get(meant)
    return Judged(
        name=setting.name,
        value=None if entry is not None and entry.secret else kept(meant, setting.value),
        source=setting.source,
        line=setting.line,
        state="not-read" if owned(setting.name) and not _OF_NCCL.match(setting.name) else "unknown",
        remarks=(_typo(setting.name, meant),),
    )


def _typo(name: str, meant: str) -> Remark:
    if owned(name):
        says = msg("no such variable is known; the nearest real name is {meant}", meant=meant)
        return Remark(kind="typo", says=says, instead=same(meant))
    return Remark(kind="typo", severity="note", says=msg("a program of your own may read it; if {meant} was meant, it is misspelt", meant=meant))
