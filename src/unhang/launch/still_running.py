"""Where ranks were by their last heartbeats, for whoever ends a training whose ranks nobody asks any more, and which of them had to be killed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from unhang.frames import Frame
from unhang.launch import events
from unhang.launch.watch import RankState
from unhang.records.incident import Raised
from unhang.records.status import MOST_CHARACTERS, Place, Seen, together


def placed(at: Frame | None) -> Place | None:
    """A heartbeat's place, as it is written down."""
    return None if at is None else Place(file=at.file[-MOST_CHARACTERS:], line=at.line, name=at.name[:MOST_CHARACTERS])


def seen(states: Iterable[RankState], now: float) -> tuple[Seen, ...]:
    """Those that have not ended."""
    return together(_one(s, now) for s in states if s.ended is None)


def _one(state: RankState, now: float) -> Seen:
    return Seen(
        ranks=(state.rank,),
        place=placed(state.place),
        call=state.inside if state.wait(now) is not None else None,
        least_step=state.step or None,
        step=state.step or None,
        silent_s=None if state.last_beat_s is None else round(max(now - state.last_beat_s, 0.0), 3),
    )


def at_signal(name: str, states: Iterable[RankState], now: float) -> events.LastSeen | None:
    """As the signal of this name comes; None where no rank lives."""
    living = [s for s in states if s.ended is None]
    acted = [s.acted_s for s in living if s.acted_s is not None]
    return events.LastSeen(signal=name, seen=seen(living, now), still_s=round(max(now - max(acted), 0.0), 3) if acted else None) if living else None


@dataclass
class _Noted:
    state: RankState
    seen: Seen
    after_s: float
    by_us: bool
    raised: Raised | None

    @property
    def unheard(self) -> bool:
        """Whether nothing told of its end. Of one that had raised before and was there still when we ended it, that was no end."""
        return not self.state.announced and (self.state.raised is None or (self.by_us and self.state.raised is self.raised))


class StillRunning:
    """Ranks that live though their time is over: `note` them before anything is killed, ask for the events once all have ended."""

    def __init__(self) -> None:
        self._noted: dict[int, _Noted] = {}

    def note(self, states: Iterable[RankState], *, now: float, since_s: float, exists: Callable[[int], bool], by_us: bool) -> None:
        """They had from `since_s` on. `by_us`: we end them now; else their launcher may. Where they were first stays."""
        for state in states:
            if state.ended is None and exists(state.pid):
                noted = self._noted.setdefault(state.pid, _Noted(state, _one(state, now), now - since_s, by_us, state.raised))
                if by_us and not noted.by_us:
                    noted.by_us, noted.after_s, noted.raised = True, now - since_s, state.raised

    def killed(self) -> list[events.Forced]:
        """Of those that neither came to an orderly end after all nor raised what ended them."""
        forced: dict[bool, list[_Noted]] = {}
        for noted in self._noted.values():
            if noted.unheard:
                forced.setdefault(noted.by_us, []).append(noted)
        return [
            events.Forced(seen=together(n.seen for n in found), after_s=round(min(n.after_s for n in found), 1), by_us=by_us)
            for by_us, found in forced.items()
        ]
