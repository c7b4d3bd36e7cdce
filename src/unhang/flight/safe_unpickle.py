"""Pickles of plain values, from anywhere: no class is looked up, no memory is taken for what is not there, and of one that is cut off the rest is
kept.

The C unpickler makes room for what an opcode claims before it has seen it: nine bytes may ask for 4 GB. Hence a pickle is stepped through first, by
one regular expression over the opcodes that torch's and Python's picklers write for plain values; a pickle with others is looked at opcode by opcode,
which takes ten times as long.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from functools import lru_cache
from typing import Any

from unhang.errors import RecordError
from unhang.flight.reader_processes import is_bounded
from unhang.patterns import lazily

# A call of 20 frames takes some 100 opcodes, and a second goes by over two million of them where they are looked at one by one.
MAX_OPCODES = 20_000_000
# The unpickler asks a file without peek() for one opcode at a time.
_BUFFER_BYTES = 128 * 1024
_STOP = ord(".")
# Opcodes that a length stands behind: so many bytes of it, little endian.
_SIZED = {ord("X"): 4, 0x8C: 1, 0x8A: 1, 0x8B: 4, ord("U"): 1, ord("T"): 4}
_HEAD = lazily(rb"\x80[\2-\5](?:\x95.{8})?[\]}(]", re.DOTALL)
# The longest run that is matched at once: what the expression remembers of it takes memory.
_RUN = 2000


class CutOff(Exception):
    """The pickle ends before its end."""


class _Refusing(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise _refusal(module, name)


class _Careful(pickle._Unpickler):
    """Python's own unpickler, whose stack can be looked at when it fails."""

    # This one would make room before it has read.
    dispatch = {op: do for op, do in pickle._Unpickler.dispatch.items() if op != pickle.BYTEARRAY8[0]}  # noqa: RUF012

    def find_class(self, module: str, name: str) -> Any:
        raise _refusal(module, name)

    def left(self) -> list[Any]:
        """What had been made, outermost first; containers that were being filled stand before what was to go into them."""
        return [x for part in (*getattr(self, "metastack", ()), getattr(self, "stack", ())) for x in part]


def begins_as_pickle(head: bytes) -> bool:
    return _HEAD.match(head) is not None


def unpickled(data: bytes) -> tuple[Any, bytes]:
    """The value, and what stands behind the pickle. Raises RecordError for what is refused, CutOff, and nearly anything for damage."""
    if not is_bounded():
        end = _end(data)
        return _Refusing(_reader(data)).load(), data[end:]
    try:
        value = _Refusing(_reader(data)).load()
    except MemoryError:
        # Where it asks for what is not there, that is the reason.
        _end(data)
        raise
    # Where it ended only its file knows, and that has been read ahead.
    at = data.rfind(b'.{"members":')
    return value, data[at + 1 :] if at >= 0 else b""


def kept(data: bytes) -> list[Any]:
    """Of a pickle that is cut off or damaged: what it had made until there. Raises RecordError for what is refused."""
    unpickler = _Careful(io.BytesIO(data))
    try:
        return [unpickler.load()]
    except RecordError:
        raise
    except Exception:  # damaged pickles raise nearly anything
        return unpickler.left()


def _refusal(module: str, name: str) -> RecordError:
    return RecordError(f"the dump asks for {module}.{name}", cause="a dump holds plain values only; this file was made by something else")


def _reader(data: bytes) -> Any:
    return io.BufferedReader(io.BytesIO(data), _BUFFER_BYTES)


@lru_cache(maxsize=64)
def _plain(memo: int) -> re.Pattern[bytes]:
    """Opcodes of a fixed length. `memo` is the third byte of the largest place in the memo that is believed."""
    fixed = rb"[(\]})eusatldN012\x85\x86\x87\x88\x89\x94]|[hqK].|M..|[Jj]....|\x80.|[G\x95]........"
    put = rb"r..[\0-" + re.escape(bytes([memo])) + rb"]\0"
    return re.compile(rb"(?:" + fixed + rb"|" + put + rb"){1," + str(_RUN).encode() + rb"}", re.DOTALL)


def _end(data: bytes) -> int:
    """Where the pickle ends; what it makes is no larger than what it is made of. Raises CutOff, RecordError."""
    size = len(data)
    if size >> 16 > 0xFF:
        return _end_by_steps(data)
    plain = _plain(size >> 16)
    at = 0
    while at < size:
        if match := plain.match(data, at):
            at = match.end()
            continue
        code = data[at]
        if code == _STOP:
            return at + 1
        width = _SIZED.get(code)
        if width is None:
            return _end_by_steps(data)
        at += 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "little")
    raise CutOff("it ends before its end")


def _end_by_steps(data: bytes) -> int:
    stream = io.BytesIO(data)
    for number, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        if number > MAX_OPCODES or (opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and (argument or 0) > len(data)):
            raise RecordError("it asks for more than its size can hold", cause="it is no flight-recorder dump")
    return stream.tell()
