"""What a judge looks at, and what it yields: the key of a finding whose words, severity and remedies stand in the cause's TOML, and the values."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from unhang import data
from unhang.i18n import AND, COMMA, NOTHING, THEN, Text, chinese, joined, msg, same
from unhang.knowledge import words
from unhang.knowledge.commands import Command, command
from unhang.logs import Hit, Traceback
from unhang.logs.log_facts import Exit, NcclSaid, Stack, Status, Timeout
from unhang.model import Evidence, Finding, Remedy, Severity, Standing, frozen
from unhang.text import filled

if TYPE_CHECKING:
    from unhang.facts.clock import Clock
    from unhang.facts.container import Container, Kind
    from unhang.facts.firewall import Firewall
    from unhang.facts.gpu import Gpus
    from unhang.facts.host import Subject
    from unhang.facts.infiniband import Infiniband
    from unhang.facts.kernel_log import Event, KernelLog
    from unhang.facts.libraries import Libraries
    from unhang.facts.limits import Limits
    from unhang.facts.memory import Memory
    from unhang.facts.names import Names
    from unhang.facts.network import Network
    from unhang.facts.numa import Numa
    from unhang.facts.pcie import Pcie
    from unhang.facts.ports import Ports
    from unhang.facts.python_env import PythonEnv
    from unhang.facts.shm import Shm
    from unhang.facts.snapshot import Snapshot
    from unhang.facts.speed import Speed
    from unhang.facts.storage import Storage
    from unhang.facts.variables import Variables
    from unhang.records.incident_view import IncidentView

T = TypeVar("T")
RunView: TypeAlias = "IncidentView"


class Line(Protocol):
    """A line or traceback of a log."""

    @property
    def rank(self) -> int | None: ...
    @property
    def host(self) -> str | None: ...
    def evidence(self) -> Evidence: ...


class Found:
    """One finding: `key` names the [finding.KEY] of the cause's TOML, `values` are what its sentences, evidence and commands name.

    What is given here takes the place of what stands there; `evidence` is put behind it. Lines of logs may stand for the ranks and hosts of which
    they are, and for themselves as evidence. `hosts` are those of `ranks` where the values name a `picture`. `each` are those
    whose evidence is told one by one.
    `host` is the machine. Severity and `by`, which chooses among commands that are a table, may be templates.
    Templates reach into values ({port.rate}) and may say how they are shown ({size:size}, see `_FORMS`; {frame:place} needs a `picture`). Of notes,
    {why:note} is the one whose key is the value of `why`, several, or none (of {why:known} it may be no such key, and is then shown itself);
    {index:?asked} is the note "asked" where there is an index, {seen:?here/gone} one of two; {sides:*did} is the note "did" of {each} of them
    ({sides:*did,} with commas, {sides:*did&} with "and").
    """

    def __init__(
        self,
        key: str,
        /,
        *,
        ranks: Iterable[int | Line] = (),
        hosts: Iterable[str | Line] | None = None,
        where: str | None = None,
        evidence: Iterable[Evidence | Line] = (),
        remedies: Sequence[str | Remedy] | None = None,
        severity: Severity | None = None,
        standing: Standing | None = None,
        commands: Mapping[str, Command | None] | None = None,
        **values: Any,
    ) -> None:
        known = tuple(ranks)
        self.ranks = tuple(n for n in known if isinstance(n, int)) or tuple(
            sorted({n.rank for n in known if not isinstance(n, int) and n.rank is not None})
        )
        told = words.hosts(values["picture"], self.ranks) if hosts is None and "picture" in values else hosts or ()
        self.hosts = tuple(dict.fromkeys(h for one in told if (h := one if isinstance(one, str) else one.host) is not None))
        self.where = where
        self.key, self.values = key, {"ranks": self.ranks, "hosts": self.hosts, "where": where, **values}
        self.evidence = tuple(e if isinstance(e, Evidence) else e.evidence() for e in evidence)
        self.remedies, self.commands, self.severity, self.standing = remedies, commands or {}, severity, standing


@frozen
class LogView:
    """What plain logs hold, where no supervisor wrote anything down; of one attempt.

    `hits` are keyed by cause id, in time where the lines carry one and in the order of the files otherwise. `timeouts` and `statuses` are the
    watchdogs' own words, `exits` the launchers', `nccl` NCCL's. `work` are lines that tell of slow work outside collectives (tokenising, saving,
    downloading). `printed` are the ranks that wrote anything, `world_size` is None where nothing tells it. `lines` is the number of lines of each
    source: what stands long before the end of its log ended nothing by itself. `finished`: that the training says it is through; `ends` are the
    lines that tell of its end, and behind which nothing counts on; `crashed` those that a crashing process prints itself. `stacks` are the main
    threads as faulthandler or py-spy saw them, one of each rank in each log.
    """

    hits: Mapping[str, tuple[Hit, ...]] = field(default_factory=dict)
    tracebacks: tuple[Traceback, ...] = ()
    timeouts: tuple[Timeout, ...] = ()
    statuses: tuple[Status, ...] = ()
    exits: tuple[Exit, ...] = ()
    nccl: NcclSaid = field(default_factory=NcclSaid)
    work: tuple[Hit, ...] = ()
    printed: frozenset[int] = frozenset()
    world_size: int | None = None
    lines: Mapping[str, int] = field(default_factory=dict)
    finished: bool = False
    ends: tuple[Hit, ...] = ()
    crashed: tuple[Hit, ...] = ()
    stacks: tuple[Stack, ...] = ()

    def hits_of(self, cause: str) -> tuple[Hit, ...]:
        return self.hits.get(cause, ())

    @property
    def frames(self) -> bool:
        """Whether any traceback has more than its last line."""
        return any(t.frames for t in self.tracebacks)

    def traceback_of(self, hit: Hit) -> Traceback | None:
        """The traceback whose exception line this hit is; None where that line is all that there is of it."""
        return next(
            (t for t in self.tracebacks if t.frames and t.source == hit.source and hit.line is not None and t.line <= hit.line <= t.end), None
        )


# What a judge of a run or of logs answers, None where its cause is not in evidence, and what one of a machine yields.
Answer: TypeAlias = "Found | Finding | None"
Findings: TypeAlias = "Iterable[Found]"


class NotRead(AttributeError):
    """The subject was not read, so there is nothing to judge."""


class HostView:
    """A machine: each subject of its snapshot is an attribute. Who asks for one that was not read judges no further (`getattr` has a default)."""

    clock: Clock
    container: Container
    firewall: Firewall
    gpu: Gpus
    infiniband: Infiniband
    kernel: KernelLog
    libraries: Libraries
    limits: Limits
    memory: Memory
    names: Names
    network: Network
    numa: Numa
    pcie: Pcie
    ports: Ports
    python_env: PythonEnv
    shm: Shm
    speed: Speed
    storage: Storage
    variables: Variables

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def get(self, subject: Subject[T]) -> T | None:
        return self.snapshot.get(subject)

    def __getattr__(self, subject: str) -> Any:
        if subject not in HostView.__annotations__:
            raise AttributeError(subject)
        part = self.snapshot.parts.get(subject)
        if part is None or part.facts is None:
            raise NotRead(subject)
        return part.facts

    @property
    def kind(self) -> Kind:
        """What remedies are told for: docker, slurm, bare, ..."""
        from unhang.facts import container

        return container.kind(self.snapshot)

    @property
    def several(self) -> bool:
        """Whether something says that the job runs on more hosts than this."""
        from unhang.facts import network

        return network.several_hosts(self.snapshot)

    @property
    def events(self) -> Sequence[Event]:
        """What the kernel log tells; nothing where it was not read."""
        log = getattr(self, "kernel", None)
        return log.events if log is not None else ()


def _times(event: Any) -> Text:
    from unhang.facts import kernel_log

    return kernel_log.times(event)


def _when(event: Any) -> Severity:
    """Of what the kernel said: a note once it is hours old."""
    from unhang.facts import kernel_log

    return "warning" if kernel_log.recent(event) else "note"


def _ago(event: Any) -> Text:
    from unhang.facts import kernel_log

    return kernel_log.ago(event.last_age_s)


def _size(count: float | None) -> str:
    from unhang.text import size

    return size(count or 0)


def _word(n: int) -> Text:
    return {2: msg("two"), 3: msg("three"), 4: msg("four")}.get(n, same(str(n)))


def _label(found: Any) -> str:
    from unhang.facts import gpu

    return gpu.label(found)


def _gpus(found: Iterable[Any]) -> Text:
    from unhang.facts import gpu

    return gpu.named(g.index for g in found)


def _list(between: Text) -> Callable[[Iterable[Any]], Text]:
    return lambda found: joined((one if isinstance(one, Text) else same(str(one)) for one in found), between)


# How a template may have a value shown.
_FORMS: Mapping[str, Callable[[Any], Text | str]] = {
    "size": _size,
    "ranks": words.ranks,
    "times": _times,
    "when": _when,
    "ago": _ago,
    "label": _label,
    "gpus": _gpus,
    "list": _list(same(", ")),
    "comma": _list(COMMA),
    "and": _list(AND),
    "then": _list(THEN),
    "repr": repr,
    "count": lambda found: str(len(found)),
    "unlimited": lambda limit: "unlimited" if limit is None else str(limit),
    "word": _word,
    "seconds": words.seconds,
    "frame": words.frame,
}


class Words(string.Formatter):
    """The sentences of one cause, with values in them."""

    def __init__(self, cause: str, values: Mapping[str, Any]) -> None:
        self.cause, self.values = cause, values
        self.known = data.load()["causes"][cause]

    def text(self, english: str) -> Text:
        values = {}
        for template in dict.fromkeys((english, chinese(english, self.cause))):
            for _, name, form, conversion in self.parse(template):
                if name is not None:
                    value = self.convert_field(self.get_field(name, (), self.values)[0], conversion)
                    values[f"{name}:{form}" if form else name] = self._shown(value, self.vformat(form or "", (), self.values))
        return Text(filled(english, values), english, self.cause, values)

    def _shown(self, value: Any, form: str) -> Any:
        if form == "known":
            form = "note" if value in self.known["note"] else ""
        if form[:1] == "*":
            known = self.known["note"][form[1:].rstrip(",&")]
            parts = (Words(self.cause, {**self.values, "each": each}).text(known) for each in value)
            return joined(parts, {",": COMMA, "&": AND}.get(form[-1], THEN))
        if form == "place":
            return str(self.values["picture"].place(value))
        if form[:1] == "?":
            value, form = form[1:].partition("/")[0 if value or (value == 0 and value is not False) else 2], "note"
        if form == "note":
            return joined((self.text(self.known["note"][key]) for key in _keys(value)), NOTHING)
        if "|" in form:
            return form.split("|")[(value if isinstance(value, int) else len(value)) != 1]
        return _FORMS[form](value) if form in _FORMS else value if isinstance(value, Text) else format(value, form)

    def evidence(self, templates: Mapping[str, str]) -> Iterable[Evidence]:
        for source, text in templates.items():
            for each in self.values.get("each", ()) if "{each" in source + text else (None,):
                words = Words(self.cause, {**self.values, "each": each})
                yield Evidence(source=str(words.text(source)), text=words.text(text))

    def commands(self, known: Mapping[str, Any], found: Found) -> dict[str, Command | None]:
        """Of a table the one that `by` names, else "else"."""
        by = str(self.text(known["by"])) if "by" in known else self.values.get("by")
        chosen = {id: t if isinstance(t, str) else t.get(by, t.get("else")) for id, t in known.get("command", {}).items()}
        return {id: command(t, **self.values) for id, t in chosen.items() if t is not None} | {**found.commands}


def _keys(value: Any) -> Iterable[str]:
    return (value,) if isinstance(value, str) and value else value or ()
