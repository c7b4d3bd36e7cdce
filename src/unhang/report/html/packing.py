"""The columns of a scene as text that a browser unpacks by itself: raw deflate in base64, one block for each column over all tracks.

Ranks repeat each other and training loops repeat themselves, so that operation ids of 1,024 ranks come to a few kilobytes. Times do not: they are
cut to units of a 4-millionth of the whole, stored as differences, and laid out byte plane by byte plane (all lowest bytes first), which deflate
packs a third smaller than interleaved ones. The reader is `data.js`.
"""

from __future__ import annotations

import base64
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from unhang.model import frozen
from unhang.report.html.scene import Divergence, Scene, Track

# A tab of a browser takes some 20 bytes for a bar, and paints half a million in a few milliseconds.
MAX_BARS = 4_000_000
_UNITS = 1 << 22
_LEAST_UNIT_NS = 1_000
_MASK = 0xFFFFFFFF
# Kept in front of a divergence where older columns have to be left out.
_CONTEXT = 64


@frozen
class Packed:
    """`blocks` by column; `tracks` are five numbers each: rank, group, first number, columns, and 1 where it has times.

    Times are `t0_ns` + n * `unit_ns`, up to `until` units. `left_out` counts columns that were too many to draw.
    """

    blocks: dict[str, str]
    tracks: list[int]
    t0_ns: int
    unit_ns: int
    until: int
    left_out: int


def pack(scene: Scene, *, max_bars: int = MAX_BARS) -> Packed:
    """The columns of all tracks; where there are more than `max_bars`, the newest of each and those around the divergences."""
    tracks, left_out = _bounded(scene, max_bars)
    t0, unit, until = _clock(tracks, scene.until_ns)
    starts = array("I")
    header: list[int] = []
    for track in tracks:
        timed = track.starts_ns is not None
        header += (track.rank, track.group, track.first, len(track.states), int(timed))
        starts.extend(_times(track, t0, unit))
    blank = {len(t.states): array("H", bytes(2 * len(t.states))) for t in tracks if t.sites is None}
    columns = {
        "ops": _planes((t.ops for t in tracks), 2),
        "states": b"".join(t.states for t in tracks),
        "sites": _planes((t.sites if t.sites is not None else blank[len(t.states)] for t in tracks), 2),
        "starts": _planes([starts], 4),
    }
    return Packed(
        blocks={name: _deflated(data) for name, data in columns.items()},
        tracks=header,
        t0_ns=t0,
        unit_ns=unit,
        until=until,
        left_out=left_out + scene.left_out,
    )


def _bounded(scene: Scene, max_bars: int) -> tuple[Sequence[Track], int]:
    total = sum(len(t.states) for t in scene.tracks)
    if total <= max_bars:
        return scene.tracks, 0
    share = max(1, max_bars // len(scene.tracks))
    kept = [_newest(t, share, scene.divergences) for t in scene.tracks]
    return kept, total - sum(len(t.states) for t in kept)


def _newest(track: Track, share: int, divergences: Iterable[Divergence]) -> Track:
    """The newest `share` columns; where a divergence is older than these, as many from shortly before it."""
    begin = max(0, len(track.states) - share)
    numbers = [d.number for d in divergences if d.group == track.group and d.number >= track.first]
    if numbers:
        begin = min(begin, max(0, min(numbers) - track.first - min(_CONTEXT, share // 2)))
    cut = slice(begin, begin + share)
    return replace(
        track,
        first=track.first + begin,
        ops=track.ops[cut],
        states=track.states[cut],
        starts_ns=None if track.starts_ns is None else track.starts_ns[cut],
        sites=None if track.sites is None else track.sites[cut],
    )


def _clock(tracks: Iterable[Track], until_ns: int) -> tuple[int, int, int]:
    """The first instant, the unit, and how many units the whole takes."""
    t0, last = 0, until_ns
    for column in (track.starts_ns for track in tracks if track.starts_ns is not None):
        told = column if column and min(column) > 0 else [t for t in column if t > 0]
        if told:
            t0 = min(t0 or told[0], min(told))
            last = max(last, max(told))
    if not t0 or last <= t0:
        return t0, _LEAST_UNIT_NS, 1
    unit = max(_LEAST_UNIT_NS, -(-(last - t0) // _UNITS))
    return t0, unit, -(-(last - t0) // unit)


def _times(track: Track, t0: int, unit: int) -> Iterator[int]:
    """Starts in units, as differences (modulo 2^32: clocks are set back); what is not recorded is the one before it."""
    before = now = 0
    for t in track.starts_ns or bytes(len(track.states)):
        now = (t - t0) // unit if t > 0 else now
        yield (now - before) & _MASK
        before = now


def _planes(columns: Iterable[array[int]], width: int) -> bytes:
    """All lowest bytes, then all second ones, and so on."""
    whole = b"".join(column.tobytes() for column in columns)
    planes = [whole[i::width] for i in range(width)]
    return b"".join(planes if sys.byteorder == "little" else reversed(planes))


def _deflated(data: bytes) -> str:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    return base64.b64encode(packer.compress(data) + packer.flush()).decode("ascii")
