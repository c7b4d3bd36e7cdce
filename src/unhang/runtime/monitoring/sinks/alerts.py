"""Tells people when something happens, at once or not at all: by a webhook, by a command, or both."""

from __future__ import annotations

import os
import socket
import sys
import time
import uuid
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from unhang.diagnosis.redact import redact_data
from unhang.i18n import NOTHING, msg
from unhang.runtime.monitoring.counters import Snapshot
from unhang.runtime.monitoring.job_environment import run_dir
from unhang.runtime.monitoring.sinks.alert_events import KINDS, AlertEvent, Watch
from unhang.runtime.monitoring.sinks.alert_sender import Command, Delivery, Sender, Webhook, not_delivered

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
