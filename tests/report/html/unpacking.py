"""What `data.js` reads out of a page's columns, in Python."""

from __future__ import annotations

import base64
import sys
import zlib
from array import array

from unhang.report.html.packing import Packed
from unhang.report.html.scene import Track


def unpacked(packed: Packed) -> list[Track]:
    """The tracks again, their times rounded down to units."""
    raw = {name: zlib.decompress(base64.b64decode(text), -15) for name, text in packed.blocks.items()}
    ops, sites = _of_planes(raw["ops"], 2), _of_planes(raw["sites"], 2)
    starts = _of_planes(raw["starts"], 4)
    tracks, at = [], 0
    for i in range(0, len(packed.tracks), 5):
        rank, group, first, count, timed = packed.tracks[i : i + 5]
        units, now = array("q"), 0
        for delta in starts[at : at + count]:
            now = (now + delta) & 0xFFFFFFFF
            units.append(now)
        tracks.append(
            Track(
                rank=rank,
                group=group,
                first=first,
                ops=array("H", ops[at : at + count]),
                states=raw["states"][at : at + count],
                sites=array("H", sites[at : at + count]),
                starts_ns=array("q", [packed.t0_ns + u * packed.unit_ns for u in units]) if timed else None,
            )
        )
        at += count
    return tracks


def _of_planes(data: bytes, width: int) -> array[int]:
    count = len(data) // width
    planes = [data[i * count : (i + 1) * count] for i in range(width)]
    whole = bytearray(len(data))
    for i, plane in enumerate(planes if sys.byteorder == "little" else reversed(planes)):
        whole[i::width] = plane
    return array({2: "H", 4: "I"}[width], bytes(whole))
