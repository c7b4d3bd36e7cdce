"""How long a stall may last before the training is ended for it.

A stall is named within seconds; that harms nobody. It is ended at once only if nothing can end the wait any more. Whatever something outside may
still end gets minutes: more where this script survived longer pauses, four times as much each time a place was ended and met again, and never more
than the collective's own timeout allows, so that the evidence is complete and the restart is ours.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from unhang import encoding, fsio
from unhang.frames import Frame
from unhang.knowledge import waits
from unhang.launch.step_rate import STARTUP_S
from unhang.model import Wait
from unhang.records.incident import Activity

# "stuck" cannot come back; "stopped" by a signal; "waits" for something outside the process; "repeats" the same few lines; "works"; "user": at a
# terminal or in a debugger; "joined": in the same collective as all others; "remote": all ranks of this host wait for another host.
Kind = Literal["stuck", "stopped", "waits", "repeats", "works", "user", "joined", "remote"]

LIMIT_S = 300.0
# Before the first steps, ranks download, preprocess and compile.
STARTUP_FACTOR = 3.0
STOPPED_S = 60.0
SURVIVED_FACTOR = 2.0
# However long a pause was that a script survived.
LEARNED_MOST_S = 1800.0
RAISED_FACTOR = 4.0
RAISED_MOST = 2
FILE = "pauses.json"
_SCRIPTS_KEPT = 200


def kind_of(activity: Activity, wait: Wait | None, *, busy: bool) -> Kind:
    """What keeps a rank from the collective that others wait in."""
    if activity.stopped:
        # "t": a tracer holds it, which is somebody's debugger.
        return "user" if activity.state == "t" else "stopped"
    if wait is not None and wait.kind == "terminal":
        return "user"
    if busy:
        return "repeats" if activity.repeats else "works"
    return "stuck" if wait is not None and not wait.ends else "waits"


def place_of(at: Frame | None) -> str | None:
    """A line of the user's code as pauses are remembered by it."""
    return None if at is None else f"{at.file}:{at.line}"


@dataclass
class Pauses:
    """What is known of the pauses of one script: how long it survived, by place, and how often it was ended where."""

    survived_s: dict[str, float] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)


class Patience:
    """Limits in seconds since the others began to wait. What earlier runs of the same script survived is read from `path`, and kept there."""

    def __init__(
        self,
        *,
        hang_after_s: float | None = None,
        startup_s: float = STARTUP_S,
        script: str = "",
        path: Path | None = None,
        trouble: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._fixed = hang_after_s
        self._startup = startup_s
        self._script = script
        self._path = path
        self._trouble = trouble
        self._writing = threading.Lock()
        self.pauses = self._read().get(script) or Pauses()

    def limit_s(self, kind: Kind, place: str | None, *, starting: bool, timeout_s: float | None) -> float:
        """How long the others wait for a rank of this kind; infinite if only the collective's timeout, which is unknown, bounds it."""
        if kind == "stuck":
            return 0.0
        if self._fixed is not None:
            # Who still executes at the start may be downloading, preprocessing or compiling.
            return max(self._fixed, self._startup) if starting and kind in ("works", "repeats", "user") else self._fixed
        most = waits.most_s(timeout_s)
        if kind in ("works", "user", "remote"):
            return most
        limit = STOPPED_S if kind == "stopped" else LIMIT_S * (STARTUP_FACTOR if starting else 1.0)
        limit = max(limit, min(SURVIVED_FACTOR * max(self.pauses.survived_s.values(), default=0.0), LEARNED_MOST_S))
        return min(limit * RAISED_FACTOR ** min(self.pauses.ended.get(place or "", 0), RAISED_MOST), most)

    def usual_s(self, place: str | None) -> float:
        """How long a pause at this place was survived before."""
        return self.pauses.survived_s.get(place or "", 0.0)

    def survived(self, place: str | None, for_s: float) -> None:
        """The training went on after a stall."""
        if place is None:
            return
        known = self.pauses.ended.pop(place, None)
        if for_s > self.usual_s(place) or known is not None:
            self.pauses.survived_s[place] = round(max(for_s, self.usual_s(place)), 1)
            self._keep()

    def ended(self, place: str | None) -> None:
        """The training was ended for a stall that might have passed."""
        if place is not None:
            self.pauses.ended[place] = self.pauses.ended.get(place, 0) + 1
            self._keep()

    def _read(self) -> dict[str, Pauses]:
        if self._path is None:
            return {}
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, Pauses])
        except FileNotFoundError:
            return {}
        except (OSError, *encoding.NOT_JSON) as e:
            self._trouble(f"the pauses of earlier runs are not used: {self._path}: {e}")
            return {}

    def _keep(self) -> None:
        if self._path is None:
            return
        # A home directory may lie on a file server that hangs; the training is watched from this thread.
        threading.Thread(target=self._write, args=(self._path,), daemon=True).start()

    def _write(self, path: Path) -> None:
        with self._writing:
            own = copy.deepcopy(self.pauses)
            # The newest last: of many scripts the oldest are forgotten.
            kept = {name: pauses for name, pauses in self._read().items() if name != self._script} | {self._script: own}
            try:
                fsio.make_directory(path.parent)
                fsio.write_atomically(path, encoding.encode(dict(list(kept.items())[-_SCRIPTS_KEPT:])))
            except (OSError, UnicodeError) as e:
                self._trouble(f"the pauses of this run are not remembered: {path}: {e}")
