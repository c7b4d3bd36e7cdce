"""Tells people when something happens, at once or not at all: by a webhook, by a command, or both."""

from __future__ import annotations

import os
import socket
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from unhang.diagnosis.redact import redact_data
from unhang.i18n import NOTHING, Text, msg
from unhang.model import frozen
from unhang.runtime.monitoring.counters import Snapshot
from unhang.runtime.monitoring.sinks.alert_sender import Command, Delivery, Sender, Webhook, not_delivered
from unhang.runtime.monitoring.sinks.measures import run_dir

KINDS = ("failure", "evaluation_failure", "restart", "straggler", "silent", "heard_again", "store_lost")
# A rank that others wait for, and for less of the time than this, is nobody's night.
_COSTS_AT_LEAST = 0.05
_NAMED = 8
_LATE = "late"
# A job of a thousand groups that all fail at once is one page of messages.
_AT_ONCE = 5
_CLOSES_WITHIN_S = 3.0


class Alerts:
    """`webhook`: an http or https URL that gets a POST of JSON, with `text` as Slack shows it. `command`: gets the JSON on its standard input.

    Of one kind and subject there is one message in `every_s`; what is left out is counted in the next message of any kind, and never told later.
    `on`: which kinds (all by default): failure, evaluation_failure, restart, straggler, silent, heard_again, store_lost. A straggler is a rank for
    which `straggler_share` of all waiting of a group was done in each of `straggler_snapshots` in a row, for 5 % of the time. `name` is the
    training's, by default that of its run directory, job or script. Delivering never disturbs the training or other sinks. Raises ValueError for
    what makes no sense, without the URL.
    """

    def __init__(
        self,
        webhook: str | None = None,
        command: str | Sequence[str] | None = None,
        *,
        every_s: float = 600.0,
        on: Sequence[str] = KINDS,
        straggler_share: float = 0.5,
        straggler_snapshots: int = 6,
        command_timeout_s: float = 10.0,
        name: str | None = None,
    ) -> None:
        if webhook is None and command is None:
            raise ValueError("alerts need a webhook, a command or both")
        if isinstance(on, str) or not set(on) <= set(KINDS):
            raise ValueError(f"on is a list of {', '.join(KINDS)}, not {on!r}")
        if not 0 <= every_s < float("inf") or not 0 < command_timeout_s < float("inf"):
            raise ValueError(f"every_s and command_timeout_s are numbers of seconds, not {every_s!r} and {command_timeout_s!r}")
        if not 0 < straggler_share <= 1 or straggler_snapshots < 1:
            raise ValueError(
                f"straggler_share is above 0 and at most 1, straggler_snapshots from 1 on, not {straggler_share!r}, {straggler_snapshots!r}"
            )
        self._ways: list[Sender] = []
        if webhook is not None:
            self._ways.append(Webhook(webhook))
        if command is not None:
            self._ways.append(Command(command, timeout_s=command_timeout_s))
        self.where = ", ".join(way.name for way in self._ways)
        self._every_s, self._on, self._name = every_s, frozenset(on), name
        self._watch = Watch(straggler_share=straggler_share, straggler_snapshots=straggler_snapshots)
        self._sent_s: dict[tuple[str, str], float] = {}
        self._left_out = 0
        self._delivery: Delivery | None = None

    def __repr__(self) -> str:
        return f"Alerts({', '.join(map(repr, self._ways))})"

    def write(self, snapshot: Snapshot) -> None:
        if self._delivery is None:
            # Only rank 0 writes; the other ranks made this object as well. A command ends in time, looking a webhook's name up may not.
            self._delivery = Delivery(self._ways[::-1])
            for way in self._ways:
                if isinstance(way, Command) and not way.found:
                    not_delivered(way, "there is no such program", "whatever happens will be told here alone")
        happened = [one for one in self._watch.since(snapshot) if one.kind in self._on]
        due = [one for one in happened if abs(snapshot.time_s - self._sent_s.get((one.kind, one.subject), float("-inf"))) >= self._every_s][:_AT_ONCE]
        self._left_out += len(happened) - len(due)
        for one in due:
            self._sent_s[one.kind, one.subject] = snapshot.time_s
            self._delivery.send(message_of(one, snapshot, left_out=self._left_out, name=self._name or _of_training()))
            self._left_out = 0

    def close(self) -> None:
        if self._delivery is not None:
            self._delivery.close(time.monotonic() + _CLOSES_WITHIN_S)


def message_of(happening: AlertEvent, snapshot: Snapshot, *, left_out: int, name: str) -> dict[str, Any]:
    """As it is sent. `text` is all of it, for a chat; `says` and what follows is for programs. Without credentials."""
    host = socket.gethostname()
    time_s = snapshot.time_s if happening.time_s is None else happening.time_s
    step = snapshot.step if happening.step is None else happening.step
    at = msg(" at step {step}", step=step) if step is not None else NOTHING
    more = msg(" (and {n} more since the last message)", n=left_out) if left_out else NOTHING
    text = msg("{name} on {host}{at}: {says}{more}", name=name, host=host, at=at, says=happening.says, more=more)
    clean: dict[str, Any] = redact_data(
        {
            "text": str(text),
            "text_zh": text.of("zh"),
            "kind": happening.kind,
            "subject": happening.subject,
            "says": str(happening.says),
            "says_zh": happening.says.of("zh"),
            "left_out": left_out,
            "fields": dict(happening.fields),
            "name": name,
            "host": host,
            "step": step,
            "world_size": snapshot.world_size,
            "time": datetime.fromtimestamp(time_s, timezone.utc).isoformat(timespec="seconds"),
            "version": 1,
        }
    )
    # Slack takes <...> for a link or a mention of everybody.
    return clean | {field: clean[field].replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for field in ("text", "text_zh")}


def _of_training() -> str:
    run = run_dir()
    if run is not None:
        return run.name
    job = os.environ.get("SLURM_JOB_NAME") or os.environ.get("TORCHELASTIC_RUN_ID", "none")
    script = Path(sys.argv[0])
    named = job != "none" and not _is_random(job)
    return job if named else (script.parent.name if script.stem == "__main__" else script.name) or "training"


def _is_random(job: str) -> bool:
    """As the one of `torchrun --standalone`, which tells nobody anything."""
    try:
        uuid.UUID(job)
    except ValueError:
        return False
    return True


@frozen
class AlertEvent:
    """`subject`: what of the kind it is about; the same subject is the same trouble. `fields` are plain data.

    `time_s` and `step`: when it was, None where the snapshot's are the best that is known.
    """

    kind: str
    subject: str
    says: Text
    fields: Mapping[str, Any] = field(default_factory=dict)
    time_s: float | None = None
    step: int | None = None


class Watch:
    """Compares each snapshot with the one before it. Before the first there is nothing: what it holds already has happened since the start."""

    def __init__(self, *, straggler_share: float, straggler_snapshots: int) -> None:
        self._share, self._snapshots = straggler_share, straggler_snapshots
        self._failed: dict[str, int] = {}
        self._evaluation_failures = 0
        self._restarts = 0
        self._silent: set[int] = set()
        self._store_lost = False
        self._time_s: float | None = None
        # For each rank that was waited for most in every snapshot of late: in how many, for how long, and since when.
        self._slow: dict[tuple[str, int], tuple[int, float, float]] = {}

    def since(self, now: Snapshot) -> list[AlertEvent]:
        found = [*self._restarted(now), *self._failures(now), *self._evaluations(now), *self._store(now), *self._silence(now), *self._stragglers(now)]
        self._time_s = now.time_s
        return found

    def _restarted(self, now: Snapshot) -> Iterator[AlertEvent]:
        before, self._restarts = self._restarts, now.restarts
        if now.restarts > before:
            yield AlertEvent(
                kind="restart",
                subject="",
                says=msg("the training has been started again (restart {restarts})", restarts=now.restarts),
                fields={"restarts": now.restarts},
            )

    def _failures(self, now: Snapshot) -> Iterator[AlertEvent]:
        given_up = {(one.group, one.collective) for one in now.failures if one.cause != _LATE}
        for one in now.failures:
            subject = f"{one.group}|{one.collective}|{one.cause}"
            before = self._failed.get(subject, 0)
            self._failed[subject] = one.count
            # Of a late rank the others tell, who gave the call up and name it.
            if one.count > before and not (one.cause == _LATE and (one.group, one.collective) in given_up):
                again = msg(", {n} times by now", n=one.count) if one.count > 1 else NOTHING
                says = msg(
                    "{call} of {group} has failed ({cause}{again})", call=one.collective, group=_group(one.group), cause=msg(one.cause), again=again
                )
                yield AlertEvent(
                    kind="failure",
                    subject=subject,
                    says=says + _error(one.says),
                    fields={"group": one.group, "collective": one.collective, "cause": one.cause, "count": one.count, "error": one.says},
                    time_s=one.time_s,
                    step=one.step,
                )

    def _evaluations(self, now: Snapshot) -> Iterator[AlertEvent]:
        before, self._evaluation_failures = self._evaluation_failures, now.evaluation_failures
        if now.evaluation_failures > before:
            why = now.evaluation_says
            yield AlertEvent(
                kind="evaluation_failure",
                subject="",
                says=msg("an evaluation has failed, the training goes on ({failed} of {all})", failed=now.evaluation_failures, all=now.evaluations)
                + _error(why),
                fields={"evaluations": now.evaluations, "evaluation_failures": now.evaluation_failures, "error": why},
                time_s=now.evaluation_time_s,
                step=now.evaluation_step,
            )

    def _silence(self, now: Snapshot) -> Iterator[AlertEvent]:
        silent = {one.rank: one.for_s for one in now.silent}
        before, self._silent = self._silent, set(silent)
        if new := sorted(set(silent) - before):
            yield _silent(new, now)
        if back := sorted(before - set(silent)):
            yield _heard_again(back)

    def _store(self, now: Snapshot) -> Iterator[AlertEvent]:
        before, self._store_lost = self._store_lost, now.store_lost is not None
        if self._store_lost and not before:
            yield AlertEvent(
                kind="store_lost",
                subject="",
                says=msg("the monitor has lost the store, and hears nothing of the other {n} ranks any more", n=now.world_size - 1)
                + _error(now.store_lost),
                fields={"error": now.store_lost},
            )

    def _stragglers(self, now: Snapshot) -> Iterator[AlertEvent]:
        """By what was waited since the snapshot before: shares since the start would name a rank for hours after it has recovered."""
        if self._time_s is None or now.interval_s is None:
            return
        slow: dict[tuple[str, int], tuple[int, float, float]] = {}
        for one in now.interval_stragglers:
            if one.share >= self._share:
                times, cost_s, began_s = self._slow.get((one.group, one.rank), (0, 0.0, self._time_s))
                slow[one.group, one.rank] = (times + 1, cost_s + one.waited_s, began_s)
        self._slow = slow
        for (group, rank), (times, cost_s, began_s) in list(slow.items()):
            for_s = max(now.time_s - began_s, 1e-9)
            if times < self._snapshots:
                continue
            # The next one is of what comes now.
            del self._slow[group, rank]
            if cost_s < _COSTS_AT_LEAST * for_s:
                continue
            yield AlertEvent(
                kind="straggler",
                subject=f"{group}|{rank}",
                says=msg(
                    "rank {rank} holds up {group}: in the last {for_s:.0f} s others have waited {cost_s:.1f} s for it",
                    rank=rank,
                    group=_group(group),
                    for_s=for_s,
                    cost_s=cost_s,
                ),
                fields={"group": group, "rank": rank, "waited_s": round(cost_s, 3), "for_s": round(for_s, 3)},
            )


def _silent(ranks: list[int], now: Snapshot) -> AlertEvent:
    for_s = max(one.for_s for one in now.silent if one.rank in ranks)
    return AlertEvent(
        kind="silent",
        subject=_ranks(ranks),
        says=msg(
            "{ranks} of {world_size} {have} not been heard from for {for_s:.0f} s: ended, stopped or cut off",
            ranks=_ranks(ranks),
            world_size=now.world_size,
            have=_have(ranks),
            for_s=for_s,
        ),
        fields={"ranks": ranks, "for_s": for_s},
    )


def _heard_again(ranks: list[int]) -> AlertEvent:
    return AlertEvent(
        kind="heard_again",
        subject=_ranks(ranks),
        says=msg("{ranks} {have} been heard from again, or {have} come to an orderly end", ranks=_ranks(ranks), have=_have(ranks)),
        fields={"ranks": ranks},
    )


def _group(group: str) -> Text:
    return msg("world", "group") if group == "world" else msg("{group}", "group", group=group)


def _error(says: str | None) -> Text:
    """An error has its words from where it was raised, as they stand in the log."""
    return msg(": {says}", "error", says=says) if says else NOTHING


def _ranks(ranks: list[int]) -> str:
    named = ", ".join(map(str, ranks[:_NAMED]))
    return f"rank{'s' if len(ranks) > 1 else ''} {named}" + (f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else "")


def _have(ranks: list[int]) -> str:
    return "have" if len(ranks) > 1 else "has"
