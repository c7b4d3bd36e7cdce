"""What a cause is: everything that is known of one way in which distributed training fails.

Each cause is one file of TOML in `knowledge/causes`. What has to be judged by code is in the module of its name there: `in_run` judges an incident
of a supervised run, `in_logs` plain logs, `on_host` a machine.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, cast

from unhang import data
from unhang.frames import LOADER, inside, place, user_frame
from unhang.i18n import chinese
from unhang.knowledge import words
from unhang.knowledge.commands import Command, command
from unhang.knowledge.judge import Found, HostView, LogView, Words
from unhang.knowledge.words import NOTHING, Text, msg, ranks
from unhang.logs import Hit, Role, Signature
from unhang.model import Evidence, Finding, HostFinding, Remedy, Severity, Standing, frozen
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot
    from unhang.records.incident_view import IncidentView

__all__ = ["STANDINGS", "Cause", "Command", "LogView", "Signature", "cause", "command", "named", "signature"]

_RANKS = lazily(r"(?<!\d)(\d{1,9})(?:-(\d{1,9}))?(?!\d)")
_REPEATED = lazily(r" \[repeated (\d+)x across cluster\]$")
_WHO = msg("{who}: ")
# A torn line may name any number.
_MOST_NAMED = 65_536
# Patterns bound what they capture: nothing shorter is cut.
_LONG_VALUE = 60
STANDINGS: tuple[Standing, ...] = ("established", "likely", "possible", "not-established")


@frozen
class Cause:
    """One cause. A root can be the primary cause; a symptom says only that somebody else failed or was late.

    `in_run` judges an incident of a supervised run, `in_logs` plain logs; where either is None, signatures that hit make the finding.
    Both return None where this cause is not in evidence. `on_host` judges what is so on a machine (it imports the subjects that it looks at: who
    reads logs does not need them); what a snapshot does not hold is no reason to find anything.
    `instead` names remedies that take the place of others somewhere: environment (`knowledge.environments`) to id to id.
    `leads_to` names other roots that follow from this one: where both are in evidence and this one is not the later, they are its consequences.
    `mistaken_for` tells how to keep other causes apart from this one: id to difference. `hits` are lines that must be recognised, `near_misses` lines
    that must not; each may hold several lines. `explain` is for people, in "en" and "zh".
    """

    id: str
    role: Role
    title: Text
    what: str
    why: str
    signatures: tuple[Signature, ...] = ()
    in_run: Callable[[IncidentView], Finding | None] | None = None
    in_logs: Callable[[LogView], Finding | None] | None = None
    on_host: Callable[[Snapshot], Iterable[HostFinding]] | None = None
    remedies: tuple[Remedy, ...] = ()
    instead: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    leads_to: tuple[str, ...] = ()
    mistaken_for: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    hits: tuple[str, ...] = ()
    near_misses: tuple[str, ...] = ()
    explain: Mapping[str, str]

    def finding(
        self,
        *,
        standing: Standing,
        says: Text,
        remedies: Sequence[str | Remedy] | None = None,
        ranks: tuple[int, ...] = (),
        hosts: tuple[str, ...] = (),
        where: str | None = None,
        evidence: tuple[Evidence, ...] = (),
        commands: Mapping[str, Command | None] | None = None,
    ) -> Finding:
        """A finding of this cause. `remedies` chooses by id (None: all); `commands` maps remedy ids to commands with this run's own values,
        or None to drop it if a value is invalid.
        """
        return Finding(
            cause=self.id,
            standing=standing,
            says=says,
            ranks=ranks,
            hosts=hosts,
            where=where,
            evidence=evidence,
            remedies=self._chosen(remedies, commands),
        )

    def host_finding(
        self,
        *,
        area: str,
        severity: Severity,
        says: Text,
        leads_to: Text,
        remedies: Sequence[str | Remedy] | None = None,
        evidence: tuple[Evidence, ...] = (),
        commands: Mapping[str, Command | None] | None = None,
    ) -> HostFinding:
        """What `on_host` found in an area (the id of a subject); `remedies` and `commands` as in `finding`, for this very host."""
        return HostFinding(
            cause=self.id,
            area=area,
            severity=severity,
            says=says,
            leads_to=leads_to,
            evidence=evidence,
            remedies=self._chosen(remedies, commands),
        )

    def _chosen(self, remedies: Sequence[str | Remedy] | None, commands: Mapping[str, Command | None] | None) -> tuple[Remedy, ...]:
        chosen = self.remedies if remedies is None else tuple(r if isinstance(r, Remedy) else self.remedy(r) for r in remedies)
        return tuple(replace(r, command=commands.get(r.id, r.command)) for r in chosen) if commands else chosen

    def told(self, found: Found) -> Finding:
        """The finding that its key stands for, in the words of the cause's TOML."""
        known, words = self._words(found)
        return self.finding(
            standing=found.standing or known["standing"],
            says=words.text(known["says"]),
            ranks=found.ranks,
            hosts=found.hosts,
            where=found.where,
            **self._beside(found, known, words),
        )

    def told_of_host(self, found: Found, host: HostView) -> HostFinding:
        found.values["host"] = host
        known, words = self._words(found)
        return self.host_finding(
            area=known["area"],
            severity=found.severity or cast(Severity, str(words.text(known["severity"]))),
            says=words.text(known["says"]),
            leads_to=words.text(known["leads-to"]),
            **self._beside(found, known, words),
        )

    def _words(self, found: Found) -> tuple[Mapping[str, Any], Words]:
        findings = data.load()["causes"][self.id]["finding"]
        known = findings[found.key]
        return {**findings.get(known.get("like"), {}), **known}, Words(self.id, found.values)

    def _beside(self, found: Found, known: Mapping[str, Any], words: Words) -> dict[str, Any]:
        return {
            "evidence": (*words.evidence(known.get("evidence", {})), *found.evidence),
            "remedies": known.get("remedies") if found.remedies is None else found.remedies,
            "commands": words.commands(known, found),
        }

    def of_hits(
        self,
        hits: Sequence[Hit],
        view: LogView | IncidentView | None = None,
        found: Found | None = None,
        *,
        standing: Standing | None = None,
        says: Text | None = None,
        who: Text = _WHO,
        remedies: Sequence[str | Remedy] | None = None,
        commands: Mapping[str, Command | None] | None = None,
    ) -> Finding | None:
        """What signatures alone say: the best hit speaks (`Signature.standing`, then one that blames ranks, then the order of `hits`); None without.

        `says`, `standing` and `remedies`, or what `found` has of them, replace what the best hit's signature would give; `who` stands in front of it,
        for whoever printed it.
        """
        if not hits:
            return None
        if found is not None:
            known, said = self._words(found)
            says = said.text(known["says"]) if "says" in known else None
            standing = found.standing or known.get("standing")
            remedies = known.get("remedies") if found.remedies is None else tuple(found.remedies)
            commands = said.commands(known, found)
        ordered = sorted(hits, key=lambda h: (STANDINGS.index(h.signature.standing), "ranks" not in h.groups))
        best = ordered[0]
        alike = [h for h in hits if h.signature == best.signature]
        numbers = tuple(sorted({h.rank for h in alike if h.rank is not None}))
        # Whom the line names, not who prints it.
        told = _RANKS.findall(best.groups.get("ranks", ""))
        named = tuple(sorted({n for a, b in told for n in range(int(a), min(int(b or a), int(a) + _MOST_NAMED) + 1)}))
        back = view.traceback_of(best) if isinstance(view, LogView) else None
        frame = user_frame(back.frames) if back is not None else None
        sentence = says or filled(best) or self.title
        local = {h.local_rank for h in alike if h.local_rank is not None}
        if (more := _REPEATED.search(best.text)) is not None:
            sentence += msg("; Ray has left out {n} more of the kind", n=more[1])
        writer = ranks(numbers) if numbers else msg("local {who}", who=ranks(local)) if local else NOTHING
        return self.finding(
            standing=standing or best.signature.standing,
            says=(who.fill(who=writer) if writer else NOTHING) + sentence,
            ranks=named or numbers,
            hosts=() if named else tuple(dict.fromkeys(h.host for h in alike if h.host is not None)),
            where=place(frame, "") if frame is not None else None,
            evidence=words.hit_evidence(_one_per_text(ordered), at_most=3),
            remedies=remedies if remedies is not None else best.signature.remedies,
            commands=commands,
        )

    def of_raised(self, picture: IncidentView) -> Finding | None:
        """What the exceptions say that ended ranks and carry signatures of this cause."""
        found = self.of_hits([h for r in picture.raised for h in r.raised_hits if h in picture.hits_of(self.id)])
        if found is None or not found.ranks:
            return found
        first = picture.rank(found.ranks[0])
        # That a worker has died torch raises in a signal handler, wherever the rank happens to be.
        by_signal = any(inside(f, f"{LOADER}/_utils/signal_handling") for f in first.frames)
        return replace(found, where=None if by_signal else picture.where(first), hosts=words.hosts(picture, found.ranks))

    def remedy(self, id: str) -> Remedy:
        return next(r for r in self.remedies if r.id == id)

    def named(self, name: str) -> tuple[Signature, ...]:
        return named(self.id, name)

    def signature(self, name: str) -> Signature:
        return signature(self.id, name)


def cause(id: str, *, signatures: tuple[Signature, ...] = ()) -> Cause:
    """The cause whose data is `knowledge/causes/ID.toml`, without its judges. `signatures` follow those of the data."""
    return from_data(id, data.load()["causes"][id], signatures)


def from_data(id: str, known: Mapping[str, Any], signatures: tuple[Signature, ...] = ()) -> Cause:
    """What a file holds, without judges."""
    return Cause(
        id=id,
        role=known["role"],
        title=msg(known["title"]),
        what=known["what"],
        why=known["why"],
        signatures=(*(_signature(s, known["role"]) for s in known["signature"]), *signatures),
        remedies=tuple(Remedy(id=id, **dict(r, says=msg(r["says"]))) for id, r in known["remedy"].items()),
        instead=known["instead"],
        leads_to=known.get("leads-to", ()),
        mistaken_for=known["mistaken-for"],
        sources=known["sources"],
        hits=known["tests"].get("hits", ()),
        near_misses=known["tests"].get("near-misses", ()),
        explain={"en": known["explain"], "zh": chinese(known["explain"]) or known["explain"]},
    )


def named(cause: str, name: str) -> tuple[Signature, ...]:
    """The signatures of a cause that have this name in its data."""
    known = data.load()["causes"][cause]
    return tuple(_signature(known["signature"][n], known["role"]) for n in known["names"][name])


def signature(cause: str, name: str) -> Signature:
    (found,) = named(cause, name)
    return found


def _signature(known: Mapping[str, Any], role: Role) -> Signature:
    return Signature(role=role, **known)


def filled(hit: Hit) -> Text:
    """The signature's sentence with what it captured, in whole words; NOTHING where it has none or lacks a value."""
    says = hit.signature.says
    names = [name for _, name, _, _ in string.Formatter().parse(says) if name]
    if any(n not in hit.groups for n in names):
        return NOTHING
    template = says if isinstance(says, Text) else msg(says)
    return template.fill(**{n: _in_whole_words(hit.groups[n], hit.whole) for n in names})


def _in_whole_words(value: str, text: str) -> str:
    """A long value without the word that the bound of its pattern cut through."""
    behind = text.partition(value)[2] if len(value) >= _LONG_VALUE else ""
    return f"{value.rpartition(' ')[0]} …" if behind[:1].isalnum() and value[-1:].isalnum() and " " in value else value


def _one_per_text(hits: Iterable[Hit]) -> list[Hit]:
    """One hit of each signature first, each text once: two ranks that print the same are one line of evidence."""
    texts: dict[str, Hit] = {}
    for h in hits:
        texts.setdefault(h.text, h)
    firsts: dict[object, Hit] = {}
    for h in texts.values():
        firsts.setdefault(h.signature, h)
    return [*firsts.values(), *(h for h in texts.values() if h not in firsts.values())]
