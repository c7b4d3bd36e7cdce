"""What a cause is: everything that is known of one way in which distributed training fails.

Each cause is one file in `knowledge/causes`, which ends in `CAUSE = Cause(...)`; the catalogue finds it there. The fields stand in the
order in which they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from unhang.model import Evidence, Finding, Remedy, Standing
from unhang.records.logs import Hit, Role, Signature, Traceback
from unhang.records.picture import Picture

__all__ = ["Cause", "LogView", "Signature"]


@dataclass(frozen=True, kw_only=True)
class LogView:
    """What plain logs hold, where no supervisor wrote anything down. `hits` are keyed by cause id."""

    hits: Mapping[str, tuple[Hit, ...]] = field(default_factory=dict)
    tracebacks: tuple[Traceback, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One cause. A root can be the primary cause; a symptom says only that somebody else failed or was late.

    `in_run` judges an incident of a supervised run, `in_logs` plain logs; where either is None, signatures that hit make the finding.
    Both return None where this cause is not in evidence. `mistaken_for` tells how to keep other causes apart from this one: id to
    difference. `hits` are lines that must be recognised, `near_misses` lines that must not. `explain` is for people, in "en" and "zh".
    """

    id: str
    role: Role
    title: str
    title_zh: str
    what: str
    why: str
    signatures: tuple[Signature, ...] = ()
    in_run: Callable[[Picture], Finding | None] | None = None
    in_logs: Callable[[LogView], Finding | None] | None = None
    remedies: tuple[Remedy, ...] = ()
    mistaken_for: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    hits: tuple[str, ...] = ()
    near_misses: tuple[str, ...] = ()
    explain: Mapping[str, str]

    def finding(
        self,
        *,
        standing: Standing,
        says: str,
        remedies: tuple[str, ...] | None = None,
        ranks: tuple[int, ...] = (),
        hosts: tuple[str, ...] = (),
        where: str | None = None,
        evidence: tuple[Evidence, ...] = (),
        commands: Mapping[str, str] | None = None,
    ) -> Finding:
        """A finding of this cause. `remedies` chooses by id (None: all); `commands` puts a command with this run's own values into a remedy."""
        chosen = self.remedies if remedies is None else tuple(self.remedy(r) for r in remedies)
        if commands:
            chosen = tuple(replace(r, command=commands.get(r.id, r.command)) for r in chosen)
        return Finding(
            cause=self.id,
            standing=standing,
            says=says,
            ranks=ranks,
            hosts=hosts,
            where=where,
            evidence=evidence,
            remedies=chosen,
        )

    def remedy(self, id: str) -> Remedy:
        return next(r for r in self.remedies if r.id == id)
