"""Flight-recorder dumps as torch writes them, byte for byte: torch's C++ pickler differs from Python's in what it memoizes.

Source: `torch/csrc/jit/serialization/pickler.cpp`, and dumps of torch 2.13. Strings are memoized by their text, numbers take one, two, four or eight
bytes, and of all containers only the frames stand in several entries; the list of frames, the sizes and the names of the group are written anew in
each.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any


def pickled(dump: Mapping[str, Any]) -> bytes:
    """A dump of dicts, lists, pairs, strings, whole numbers, booleans and None. Raises TypeError for anything else."""
    return _Pickler().pickled(dump)


class _Pickler:
    def __init__(self) -> None:
        self._memo: dict[str | int, bytes] = {}
        self._out = list[bytes]()

    def pickled(self, value: object) -> bytes:
        self._push(value)
        return b"\x80\2" + b"".join(self._out) + self._place(len(self._memo), b"q", b"r") + b"."

    def _push(self, value: object, *, key: str = "") -> None:
        out = self._out.append
        if isinstance(value, str):
            self._text(value)
        elif value is None or isinstance(value, bool):
            out(b"N" if value is None else b"\x88" if value else b"\x89")
        elif isinstance(value, int):
            out(_number(value))
        elif isinstance(value, tuple):
            for each in value:
                self._push(each)
            out(b"\x86")
        elif isinstance(value, list):
            out(b"]")
            if value:
                out(b"(")
                for each in value:
                    if key == "frames":
                        self._frame(each)
                    else:
                        self._push(each)
                out(b"e")
        elif isinstance(value, Mapping):
            out(b"}")
            if value:
                out(b"(")
                for name, each in value.items():
                    self._text(name)
                    self._push(each, key=name)
                out(b"u")
        else:
            raise TypeError(f"no dump holds a {type(value).__name__}")

    def _text(self, text: str) -> None:
        if (known := self._memo.get(text)) is not None:
            self._out.append(known)
            return
        data = text.encode()
        self._out.append(b"X" + struct.pack("<I", len(data)) + data)
        self._memoize(text)

    def _frame(self, frame: Mapping[str, Any]) -> None:
        if (known := self._memo.get(id(frame))) is not None:
            self._out.append(known)
            return
        self._push(frame)
        self._memoize(id(frame))

    def _memoize(self, what: str | int) -> None:
        place = len(self._memo)
        self._memo[what] = self._place(place, b"h", b"j")
        self._out.append(self._place(place, b"q", b"r"))

    @staticmethod
    def _place(place: int, short: bytes, long: bytes) -> bytes:
        return short + bytes([place]) if place < 256 else long + struct.pack("<I", place)


def _number(n: int) -> bytes:
    if 0 <= n < 1 << 8:
        return b"K" + struct.pack("<B", n)
    if 0 <= n < 1 << 16:
        return b"M" + struct.pack("<H", n)
    if -(1 << 31) <= n < 1 << 31:
        return b"J" + struct.pack("<i", n)
    return b"\x8a\x08" + struct.pack("<q", n)
