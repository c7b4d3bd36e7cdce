"""`unhang vars` as one answer: settings of the environment, of files, or of names alone, judged for what is installed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from unhang.facts import variables
from unhang.facts.variable_readers import Library, Reader
from unhang.files.found import Parsed
from unhang.model import NotExamined, frozen
from unhang.variables import value_parsers
from unhang.variables.judge import Judged, Place, Setting, judge, typo_outside
from unhang.variables.known import entries, is_known
from unhang.variables.readers import Scan, table

VARS_SCHEMA = "unhang/vars/1"


@frozen
class Examined:
    """`libraries` are the releases that were looked at; what could not be is in `not_examined`."""

    schema: str = VARS_SCHEMA
    libraries: Mapping[str, str]
    variables: tuple[Judged, ...]
    not_examined: tuple[NotExamined, ...] = ()

    @property
    def something_is_wrong(self) -> bool:
        return any(r.severity != "note" for v in self.variables for r in v.remarks)


def scanner(libraries: Iterable[Library], reader: Reader) -> Scan:
    """Looks into a library's files the first time that the table does not know."""
    by_id = {library.id: library for library in libraries}

    def scan(id: str, name: str) -> str | None:
        found = reader.names(by_id[id]) if id in by_id else None
        return None if found is None else found.find(name)

    return scan


def nothing_to_scan(id: str, name: str) -> str | None:
    """Where only a snapshot is there."""
    return None


def place(seen: variables.Variables, *, is_this_host: bool = True) -> Place:
    return Place(
        libraries=seen.libraries,
        plugins=seen.plugins,
        interfaces=seen.interfaces,
        running=seen.running,
        # A script that names adapters is not for a host without any.
        adapters=seen.adapters if is_this_host else seen.adapters or None,
        gpus=seen.gpus,
        installed=seen.installed,
        missing=seen.missing if is_this_host else "",
        is_this_host=is_this_host,
    )


def of_environment(seen: variables.Variables, scan: Scan) -> tuple[Judged, ...]:
    """All that is set here, and names outside the known families that look like a slip of the finger."""
    settings = [Setting(name=s.name, value=s.value, source=s.source, line=s.line) for s in seen.settings]
    slips = (typo_outside(Setting(name=name, value=seen.plain.get(name), source="environment")) for name in seen.names)
    return (*judge(settings, place(seen), scan), *(s for s in slips if s is not None))


def settings_of(parsed: Parsed, source: str) -> list[Setting]:
    """What a file sets, without values of secrets."""
    return [
        Setting(
            name=s.name, value=variables.kept(s.name, s.value), source=source, line=s.line + 1, exported=s.exported, only_in_build=s.only_in_build
        )
        for s in parsed.settings
    ]


def in_file(parsed: Parsed, name: str, seen: variables.Variables, scan: Scan) -> tuple[Judged, ...]:
    """What a file sets that touches communication, in its order there."""
    every = settings_of(parsed, name)
    chosen = [i for i, s in enumerate(every) if is_known(s.name)]
    settings = [every[i] for i in chosen]
    options = [(o.name, o.value) for o in parsed.options]
    where = place(seen, is_this_host=False)
    # Whether a file puts an NCCL in front of the one that is installed, or something that it does not show.
    front = (s.value for s in parsed.settings if s.name in ("LD_PRELOAD", "LD_AUDIT"))
    if any(value is None or not value_parsers.is_known(value) or re.search("[nr]ccl", value) for value in front):
        where = replace(where, libraries={id: "" if id in _NCCL else version for id, version in where.libraries.items()})
        judged = judge(settings, where, lambda id, of: None if id in _NCCL else scan(id, of), options)
    else:
        judged = judge(settings, where, scan, options)
    known = frozenset(chosen)
    slips = [
        (i, found)
        for i, s in enumerate(parsed.settings)
        if i not in known and (found := typo_outside(replace(every[i], value=variables.plain(s.name, s.value)))) is not None
    ]
    return tuple(one for _, one in sorted([*zip(chosen, judged, strict=True), *slips], key=lambda pair: pair[0]))


_NCCL = ("nccl", "rccl")


def of_names(names: Iterable[str], seen: variables.Variables, scan: Scan) -> tuple[Judged, ...]:
    return judge([Setting(name=name, value=None, source="") for name in names], Place(libraries=seen.libraries, plugins=seen.plugins), scan)


_WHY = "this release is in no table, and its files could not be searched"
_WHICH = "which release a training would load is not known, and no file of it could be searched"


def all_names() -> tuple[str, ...]:
    return tuple(sorted(entries().keys() | {n for n in table().names() if variables.touches(n)}))


def unseen(judged: Iterable[Judged], seen: variables.Variables) -> tuple[NotExamined, ...]:
    """Libraries whose release no table knows and whose files are not there, and facts that could not be had."""
    blind = {library for one in judged if one.state == "unknown" for library in one.unseen}
    return (
        *(NotExamined(what=f"{b} {seen.libraries[b]}".strip(), why=_WHY if seen.libraries[b] else _WHICH) for b in sorted(blind)),
        *(NotExamined(what=what, why="it could not be read") for what in seen.unread),
    )
