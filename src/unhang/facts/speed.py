"""Speeds of this machine against its baseline, as the last `unhang bench check` found them. Nothing is measured here."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import urllib.parse
from collections.abc import Mapping

from unhang import fsio
from unhang.facts.host import Host, NotHere, Subject
from unhang.i18n import Text, msg
from unhang.model import frozen

FILE = "bench.sqlite"


@frozen
class Check:
    """One check (`checked` in ISO 8601): how much more time each of the slower ones takes (0.5: half as much again), how many others there are."""

    checked: str
    slower: Mapping[str, float]
    same: int
    undecided: int


@frozen
class Speed:
    check: Check
    unread: tuple[str, ...] = ()


def collect(host: Host) -> Speed:
    """Raises NotHere where nothing was checked, OSError and ValueError where that cannot be read."""
    cache = host.environ.get("XDG_CACHE_HOME") or f"{host.environ.get('HOME', '')}/.cache"
    path = host.path(f"{cache}/unhang/{FILE}")
    found = None
    if path.is_file():
        if (wrong := fsio.check_owner(path.parent)) is not None:
            raise OSError(wrong)
        try:
            with contextlib.closing(sqlite3.connect(f"file:{urllib.parse.quote(str(path))}?mode=ro", uri=True, timeout=0.2)) as db:
                found = db.execute("SELECT data FROM last_check WHERE host = ?", (host.hostname(),)).fetchone()
        except sqlite3.Error as e:
            raise OSError(f"{path}: {e}") from e
    if found is None:
        raise NotHere("no speed was checked here against a baseline (unhang bench record, unhang bench check)")
    check = Check(**json.loads(found[0]))
    unread = ("some speeds, of which the last check could not tell whether they are slower",) if check.undecided else ()
    return Speed(check=check, unread=unread)


def _summary(seen: Speed) -> Text:
    last = seen.check
    return msg(
        "checked {when}: {slower} slower, {same} not, {undecided} undecided",
        when=last.checked,
        slower=len(last.slower),
        same=last.same,
        undecided=last.undecided,
    )


SUBJECT = Subject(id="speed", title=msg("speed against a baseline", "title"), facts=Speed, collect=collect, summary=_summary)
