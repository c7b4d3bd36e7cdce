"""A file with flight-recorder dumps, as plain values: pickle or JSON, packed or not, of one rank or of several, whole or cut off.

What may surprise: torch 2.2 wrote a bare list of entries; tools that gather JSON dumps write one file for each host, as a list, by rank, or one dump
a line; JSON's keys are sorted, so that `pg_config` and `pg_status` stand behind the entries, while a pickle has them before: a file that is cut off
has lost the newest entries in the one, and in the other what tells of its groups, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from unhang.errors import RecordError
from unhang.flight import safe_unpickle
from unhang.flight.pickle_columns import Repeats, repeats
from unhang.flight.rank_from_name import is_rank
from unhang.flight.reader_processes import extend_budget, is_bounded
from unhang.logs.kinds import FLIGHT, no_log
from unhang.logs.streams import HEAD_BYTES, Budget, Damaged, FileBytes, Limits, Stream, chunks, packing, unpacked
from unhang.model import frozen

# A dump of 2,000 entries with stacks is about 5 MB.
MAX_BYTES = 512 * 1024 * 1024
NEWEST_LOST = "it is cut off or damaged: its newest entries are lost"

# More containers than this are believed only of a file that has so many bytes for each: an empty one takes a byte of a pickle, two of JSON, and 64 of
# memory. Of a real dump's some 80 bytes of JSON, and 17 where calls have hundreds of tensors; of a pickle 4.
_MANY_CONTAINERS = 200_000
_BYTES_OF_CONTAINER = {"JSON": 8, "pickle": 3}
# Of a real dump some 200 bytes.
_MANY_ENTRIES, _BYTES_OF_ENTRY = 2_000, 96
_OF_A_DUMP = ("entries", "pg_status", "pg_config", "comm_lib_version", "nccl_version")
_OF_A_HOST = ("ranks", "dumps")
_BOM = b"\xef\xbb\xbf"


@frozen
class DumpFile:
    """One rank's dump as plain values. `rank` is what the file says of it, None where it says nothing; `cut` says what is lost.

    With `repeats` the entries in `raw` are one of each form, and `repeats` tells of all.
    """

    raw: Mapping[str, Any]
    rank: int | None = None
    cut: str | None = None
    repeats: Repeats | None = None

    def whole(self) -> DumpFile:
        """The same with all entries in `raw`."""
        if self.repeats is None:
            return self
        return replace(self, raw={**self.raw, "entries": self.repeats.expanded(self.raw["entries"])}, repeats=None)


def size_of(path: Path) -> int:
    """The size of a file in bytes, 0 if it cannot be read."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def is_dump(head: bytes) -> bool:
    """Whether a file that begins so is a flight-recorder dump: of a pickle its first strings tell, of JSON the first keys that it has."""
    return no_log("", head[:HEAD_BYTES]) == FLIGHT


def head_of(path: Path) -> bytes:
    """The first bytes of a file, unpacked; b"" where it cannot be read. Enough to tell a dump by."""
    try:
        file = FileBytes(path, str(path))
        try:
            data = Stream(chunks(file), str(path))
            if kind := packing(data.peek(HEAD_BYTES)):
                data = Stream(unpacked(kind, data, Budget(str(path), file.size_bytes, Limits())), str(path))
            return data.peek(HEAD_BYTES)
        finally:
            file.close()
    except (OSError, Damaged):
        return b""


def opened(path: Path, *, shorter: bool = False) -> tuple[DumpFile, ...]:
    """The dumps in a file; `shorter`: with `repeats` where that can be. Raises RecordError where it is missing, foreign or refused, or holds nothing
    that can be read."""
    data, damage = bytes_of(path)
    found = (_of_forms(data, str(path)) if shorter else ()) or decoded(data, str(path))
    return tuple(replace(o, cut=o.cut or damage) for o in found)


def _of_forms(data: bytes, source: str) -> tuple[DumpFile, ...]:
    """() where the dump has to be read whole."""
    found = repeats(data)
    if found is None:
        return ()
    short, forms, of_all = found
    try:
        (dump,) = decoded(short, source)
    except (RecordError, ValueError):
        return ()
    entries = dump.raw.get("entries")
    if dump.cut or not isinstance(entries, list) or len(entries) != forms or not all(isinstance(e, dict) for e in entries):
        return ()
    return (replace(dump, repeats=of_all),)


def decoded(data: bytes, source: str) -> tuple[DumpFile, ...]:
    """The same, of bytes in hand."""
    if not data:
        raise RecordError(f"{source} is empty", cause="the process ended while it was writing")
    text = data.removeprefix(_BOM).lstrip()
    is_json = text[:1] in (b"{", b"[")
    if _mostly_empty(text if is_json else data, is_json=is_json):
        raise RecordError(f"{source} is refused: it asks for more than its size can hold", cause="it is no flight-recorder dump")
    try:
        found = _of_json(text, source) if is_json else _of_pickle(data, source)
    except RecursionError as e:
        raise RecordError(f"{source} is damaged: it is nested too deep", cause="it is no flight-recorder dump") from e
    if not found:
        raise RecordError(f"{source} is damaged: nothing in it can be read", cause="it was cut off, or it is no flight-recorder dump")
    # One that stands there once may be in the list any number of times.
    if any(
        isinstance(entries := dump.raw.get("entries"), list) and len(entries) > max(_MANY_ENTRIES, len(data) // _BYTES_OF_ENTRY) for dump in found
    ):
        raise RecordError(f"{source} lists more entries than a file of its size can hold", cause="it is no flight-recorder dump")
    return found


def _mostly_empty(data: bytes, *, is_json: bool) -> bool:
    """Whether a file holds containers with hardly anything in them. Bytes in strings and numbers are counted, too, which are few."""
    least = _BYTES_OF_CONTAINER["JSON" if is_json else "pickle"]
    if len(data) < _MANY_CONTAINERS:
        return False
    containers = sum(map(data.count, (b"{", b"[") if is_json else (b"}", b"]", b")", b"(", b"\x85", b"\x86", b"\x87")))
    return containers > max(_MANY_CONTAINERS, len(data) // least)


def bytes_of(path: Path) -> tuple[bytes, str | None]:
    """What is in a file, unpacked, and what its packing has lost. Raises RecordError where it cannot be read or is larger than any dump."""
    try:
        # Devices and pipes have no end, whatever their size says.
        if path.exists() and not path.is_file():
            raise RecordError(f"{path} is no file")
        file = FileBytes(path, str(path))
    except OSError as e:
        raise RecordError(f"cannot read {path}: {e.strerror or e}") from e
    damage = None
    parts: list[bytes] = []
    try:
        head = file.read_at(0, HEAD_BYTES)
        if (kind := packing(head)) is None:
            # Room is made for what is asked for.
            data = file.read_at(0, min(MAX_BYTES, file.size_bytes) + 1)
        else:
            limits = Limits(always_bytes=MAX_BYTES, unpacked_bytes=MAX_BYTES)
            raw = unpacked(kind, Stream(chunks(file), str(path)), Budget(str(path), file.size_bytes, limits))
            try:
                parts.extend(raw)
            except Damaged as e:
                if "bomb" in e.why:
                    raise RecordError(f"{path} is larger than any flight-recorder dump (more than {MAX_BYTES} bytes)") from e
                damage = f"its packing is damaged: {e.why}"
            data = b"".join(parts)
            extend_budget(len(data))
    except OSError as e:
        raise RecordError(f"cannot read {path}: {e.strerror or e}") from e
    finally:
        file.close()
    if len(data) > MAX_BYTES:
        raise RecordError(f"{path} is larger than any flight-recorder dump (more than {MAX_BYTES} bytes)")
    return data, damage


def _of_pickle(data: bytes, source: str) -> tuple[DumpFile, ...]:
    try:
        value, behind = safe_unpickle.unpickled(data)
    except RecordError as e:
        raise RecordError(f"{source} is refused: {e}", cause=e.cause) from None
    except MemoryError as e:
        if is_bounded():
            raise
        raise RecordError(f"{source} is refused: it asks for more than its size can hold", cause="it is no flight-recorder dump") from e
    except Exception as e:  # damaged pickles raise nearly anything
        try:
            found = _pieces(safe_unpickle.kept(data)) if safe_unpickle.begins_as_pickle(data[:16]) else ()
        except RecordError as refused:
            raise RecordError(f"{source} is refused: {refused}", cause=refused.cause) from None
        if not found:
            raise RecordError(f"{source} is damaged: {type(e).__name__}: {e}", cause="it was cut off, or it is no flight-recorder dump") from e
        return found
    if behind.startswith(b"{") and isinstance(value, dict):
        try:
            return _each(value | {"members": json.loads(behind)["members"]}, source)
        except (ValueError, KeyError, TypeError, RecursionError):
            return tuple(DumpFile(raw=o.raw, cut="what it tells of the members of groups is cut off") for o in _each(value, source))
    return _each(value, source)


def _of_json(text: bytes, source: str) -> tuple[DumpFile, ...]:
    try:
        return _each(json.loads(text), source)
    except ValueError as e:
        if found := tuple(_of_lines(text.decode("utf-8", "replace"), source)):
            return found
        raise RecordError(f"{source} is damaged: {e}", cause="it was cut off, or it is no flight-recorder dump") from e


def _of_lines(text: str, source: str) -> Iterator[DumpFile]:
    """Several values behind each other, the last of which may be cut off."""
    decoder, at = json.JSONDecoder(), 0
    while (at := _next(text, at)) < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            yield from _json_pieces(text[at:])
            return
        yield from _each(value, source)


def _json_pieces(text: str) -> tuple[DumpFile, ...]:
    """The whole entries of a JSON dump that is cut off."""
    found = re.search(r'"entries"\s*:\s*\[', text)
    if found is None:
        return ()
    decoder, entries, at = json.JSONDecoder(), list[Any](), found.end()
    while (at := _next(text, at, ",")) < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        entries.append(value)
    entries = [e for e in entries if isinstance(e, dict)]
    return (DumpFile(raw={"entries": entries}, cut=NEWEST_LOST),) if entries else ()


def _next(text: str, at: int, skip: str = "") -> int:
    while at < len(text) and (text[at].isspace() or text[at] in skip):
        at += 1
    return at


def _pieces(left: list[Any]) -> tuple[DumpFile, ...]:
    """A dump from what its unpickler had made: pairs of key and value that had not gone into the outermost dict yet, and whole entries."""
    raw: dict[str, Any] = {}
    entries: list[Any] = []
    for n, value in enumerate(left):
        if isinstance(value, dict) and "version" in value and not raw:
            raw = dict(value)
        elif isinstance(value, str) and n + 1 < len(left) and (value == "version" or (value in _OF_A_DUMP and isinstance(left[n + 1], dict))):
            raw[value] = left[n + 1]
        elif isinstance(value, list):
            entries += [e for e in value if isinstance(e, dict) and "profiling_name" in e]
        elif isinstance(value, dict) and "profiling_name" in value and "state" in value:
            entries.append(value)
    if not entries and "pg_status" not in raw:
        return ()
    entries = list({id(e): e for e in (*(raw.get("entries") or ()), *entries)}.values())
    return (DumpFile(raw=raw | {"entries": entries}, cut=NEWEST_LOST),)


def _each(value: Any, source: str) -> tuple[DumpFile, ...]:
    """The dumps that a value holds."""
    if isinstance(value, list) and value and all(isinstance(e, dict) and "profiling_name" in e for e in value):
        return (DumpFile(raw={"version": "", "entries": value}),)
    if isinstance(value, list) and value and all(_is_raw(e) for e in value):
        return tuple(DumpFile(raw=e) for e in value)
    if isinstance(value, dict):
        if _is_raw(value):
            told = value.get("rank")
            return (DumpFile(raw=value, rank=told if isinstance(told, int) and not isinstance(told, bool) and is_rank(told) else None),)
        for name in _OF_A_HOST:
            if isinstance(value.get(name), (dict, list)):
                return _each(value[name], source)
        ranked = [(re.fullmatch(r"(?:rank[_ -]?)?(\d{1,9})", str(key)), e) for key, e in value.items()]
        if ranked and all(m is not None and is_rank(int(m[1])) and _is_raw(e) for m, e in ranked):
            return tuple(DumpFile(raw=e, rank=int(m[1])) for m, e in ranked if m is not None)
    raise RecordError(f"{source} is not a flight-recorder dump: it holds a {type(value).__name__}")


def _is_raw(value: Any) -> bool:
    return isinstance(value, dict) and any(name in value for name in _OF_A_DUMP)
