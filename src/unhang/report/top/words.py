"""The words of `unhang top`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from unhang.i18n import Words, chinese, in_language, msg
from unhang.knowledge import seen
from unhang.records.run_snapshot import Phase, State
from unhang.records.run_so_far import Happened
from unhang.records.status import Seen
from unhang.report.language import Language, refusal

# What is not known; never an empty place, which might be read as nothing being wrong.
UNKNOWN = "?"

STATES = Words("top-states")
STYLES: Mapping[State, str] = {
    "failed": "bold red",
    "stuck": "bold red",
    "silent": "bold magenta",
    "late": "yellow",
    "slow": "yellow",
    "waiting": "cyan",
    "unknown": "bold yellow",
    "starting": "blue",
    "running": "green",
    "left": "dim",
    "stopped": "dim",
    "done": "dim",
}
# A sign beside the word and the colour, for whoever runs an eye down the column.
MARKS: Mapping[State, str] = {"failed": "✗", "stuck": "✗", "silent": "!", "late": "!", "slow": "!", "unknown": "?"}

PHASES = Words("top-phases", "top")
PHASE_STYLES: Mapping[Phase, str] = {
    "running": "bold green",
    "standing": "bold yellow",
    "wrong": "bold red",
    "gone": "bold red",
    "unknown": "bold yellow",
}

LABELS = Words("top")

SORTS = ("interest", "rank", "step", "beat", "waiting")
SORT_WORDS = Words("top-sorts")
KINDS = Words("top-incidents")

HELP = msg("""\
q, Ctrl-C  quit; the training does not notice
↑ ↓ PgUp PgDn Home End   another rank; all of it is told in the line below
s  sort by interest (what is wrong first), rank, step, heartbeat, waiting
/  filter: 7, 0-15, a state, host, file, call; of several words all; Esc
a  show all ranks, or fold those that nothing is to be said of
v  below: events, or collectives                p, space  pause, and go on

failed    raised, was killed, or ended with another exit code than 0
stuck     others wait for it, for longer than a hang takes
late      others wait for it, for longer than is usual
slow      others wait for it, and it executes
silent    no heartbeat for 5 s: it is stopped, or the GIL is held
waiting   inside a collective for longer than is usual
unknown   nothing new is known of it
left      out of its group, or it reports no longer; it lives
stopped   ended by its launcher, or by unhang run
?         not known            -  nothing there""")


def duration(seconds: float | None) -> str:
    """0.4 s, 12 s, 3:05, 2:03:11."""
    if seconds is None:
        return UNKNOWN
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def small(seconds: float | None) -> str:
    """850 µs, 12 ms, 1.3 s."""
    if seconds is None:
        return UNKNOWN
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if seconds * factor < 999.5:
            return f"{seconds * factor:.3g} {unit}"
    return duration(seconds)


def gibibytes(size: int) -> str:
    return f"{size / 2**30:.1f}"


def gigabytes(per_s: float | None) -> str:
    """12.5, 0.0031, 1.2e-05, 340: seven characters at most, none of which may be cut off."""
    if per_s is None:
        return UNKNOWN
    if 99.95 <= per_s < 999_999.5:
        return f"{per_s:.0f}"
    return f"{per_s:.3g}" if per_s == 0 or 0.001 <= per_s < 99.95 else f"{per_s:.1e}"


def happened(event: Happened, lang: Language) -> str:
    """One event in words; one that is not known here by its name."""
    told = _EVENTS[lang].get(event.event)
    if told is None:
        return event.event
    fields = {name: _plain(value, lang) for name, value in event.fields.items()}
    if lang == "zh":
        fields |= _in_chinese(event, fields)
    verdict = event.fields.get("verdict")
    if event.event == "Drawn":
        says = in_language(verdict.get("says", ""), lang) if isinstance(verdict, dict) else ""
        fields["told"] = f"{verdict.get('cause')}: {says}" if isinstance(verdict, dict) else LABELS[lang]["none"]
    if event.event == "Started":
        fields["n"] = str(n + 1) if isinstance(n := event.fields.get("attempt"), int) else UNKNOWN
    if event.event == "Opened":
        fields["told"] = KINDS[lang].get(str(event.fields.get("kind")), str(event.fields.get("kind")))
    if event.event == "LastSeen":
        fields["told"] = _seen(event.fields.get("seen"), lang)
    if event.event == "Forced":
        fields["told"] = _forced(event.fields, lang)
    return told.format_map(_Unknown(fields))


def _seen(told: Any, lang: Language) -> str:
    try:
        return seen.told(msgspec.convert(told, tuple[Seen, ...])).of(lang)
    except msgspec.ValidationError:
        return UNKNOWN


class _Forced(msgspec.Struct):
    seen: tuple[Seen, ...]
    after_s: float
    by_us: bool = True


def _forced(fields: Mapping[str, Any], lang: Language) -> str:
    try:
        told = msgspec.convert(dict(fields), _Forced)
    except msgspec.ValidationError:
        return msg("ended by force, by whom or where is not known").of(lang)
    return seen.by_force(told.seen, told.after_s, by_us=told.by_us).of(lang)


def _in_chinese(event: Happened, fields: Mapping[str, str]) -> dict[str, str]:
    """What an event brings in Chinese, and what the table of sentences has of what it brings in English."""
    told = {name: in_language(value, "zh") for name in ("title", "says", "text") if isinstance(value := event.fields.get(name), str)}
    if event.event in ("GaveUp", "Note"):
        told |= {name: refusal(value) for name, value in event.fields.items() if name in ("why", "text") and isinstance(value, str)}
    if event.event == "RungTried":
        outcome = fields.get("outcome", UNKNOWN)
        told["outcome"] = chinese(outcome) or outcome
    return told


class _Unknown(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return UNKNOWN


def _plain(value: Any, lang: Language) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(str(v) for v in value[:8]) + (" ..." if len(value) > 8 else "")
    return UNKNOWN if value is None else f"{value:g}" if isinstance(value, float) else str(value)


_EVENTS = Words("top-events")
