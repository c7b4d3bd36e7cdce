"""torch's pickle of a dump without the entries that repeat another one in all but their numbers.

Of a dump's thousands of entries some dozens differ in more than record, sequence number and time. torch's C++ pickler writes each entry in the same
way: keys and names as places in its memo, a number in one, two, four or eight bytes. Hence entries are told apart as bytes, a column of bytes at a
time, and only one of each form is unpickled, at a fraction of the cost. What is not written exactly so is left to the unpickler as it is.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

# Whole numbers that differ between calls that are otherwise the same.
_NUMBERS = frozenset(
    {
        "record_id",
        "seq_id",
        "collective_seq_id",
        "p2p_seq_id",
        "op_id",
        "time_created_ns",
        "time_discovered_started_ns",
        "time_discovered_completed_ns",
    }
)
# The list of entries and its first one, whose keys are written out and memoized; those of all others are places in the memo.
_FIRST = re.compile(rb"X\x07\0\0\0entries(?:q.|r.{4})?\]\((?=\}\(X.\0\0\0[a-z_]+(?:q(.)|r(.{4})))", re.DOTALL)
_TOKEN = re.compile(
    rb"(?P<ref>h.|j.{4})|(?P<number>K.|M..|J.{4}|\x8a\x08.{8})|(?P<atom>[\]})N\x88\x89]|G.{8})|(?P<put>q.|r.{4})"
    rb"|(?P<mark>\()|(?P<close>[eu])|(?P<pair>\x86)|(?P<text>X.{4})",
    re.DOTALL,
)
# By opcode: where its number begins, in how many bytes, and how they are read.
_WIDTHS = {ord("K"): (1, 1, "B"), ord("M"): (1, 2, "H"), ord("J"): (1, 4, "i"), 0x8A: (2, 8, "q")}
# Where there are more forms nothing is won: to look at one takes as long as to unpickle ten entries.
_MOST_FORMS = 500
_MOST_KNOWN = 8

Keys = tuple[tuple[bytes, str], ...]


class _Number(NamedTuple):
    """A number in an entry: its field, the place of its first byte, how many there are, and their type code."""

    field: str
    at: int
    width: int
    code: str


class _Layout(NamedTuple):
    """What stands where in an entry, which ends before `end`; `keys` are the keys that it writes out, by their opcode from the memo."""

    numbers: tuple[_Number, ...]
    end: int
    keys: Keys


@dataclass(frozen=True, kw_only=True, slots=True)
class _Alike:
    """Entries of one length whose numbers stand at the same places: where they are in the dump, their bytes behind each other, and for each one the
    place of the first entry that it is like."""

    places: Sequence[int]
    like: Sequence[int]
    numbers: tuple[_Number, ...]
    length: int
    data: bytes

    def column(self, field: str) -> array[int]:
        """The numbers of one field; zeros where these entries have none."""
        number = next((n for n in self.numbers if n.field == field), None)
        if number is None:
            return array("q", bytes(8 * len(self.places)))
        raw = bytearray(number.width * len(self.places))
        for byte in range(number.width):
            raw[byte :: number.width] = self.data[number.at + byte :: self.length]
        found = array(number.code)
        found.frombytes(raw)
        if sys.byteorder == "big":
            found.byteswap()
        return found if number.code == "q" else array("q", found)


class Repeats:
    """The entries of a dump of which one of each form is in hand: entry i is like form `form_of[i]`, with numbers of its own in `columns`."""

    def __init__(self, form_of: Sequence[int], columns: Mapping[str, array[int]]) -> None:
        """Raises ValueError if they do not fit each other."""
        self.form_of = array("I", form_of)
        self._columns = columns
        if any(len(column) != len(form_of) for column in columns.values()):
            raise ValueError("its columns do not fit each other")

    def numbers(self, field: str) -> array[int]:
        """One field of all entries, zeros where no entry has a number there."""
        return self._columns.get(field) or array("q", bytes(8 * len(self.form_of)))

    def expanded(self, forms: Sequence[Any]) -> list[Any]:
        """All entries, out of one of each form."""
        return [self._entry(forms[form], place) for place, form in enumerate(self.form_of)]

    def _entry(self, form: Any, place: int) -> Any:
        if not isinstance(form, Mapping):
            return form
        return {**form, **{name: column[place] for name, column in self._columns.items() if type(form.get(name)) is int}}


def repeats(data: bytes) -> tuple[bytes, int, Repeats] | None:
    """The pickle with one entry of each form, how many these are, and what tells of all.

    None where entries do not repeat each other, or this is not a dump as torch writes it.
    """
    begin = _FIRST.search(data)
    if begin is None:
        return None
    # What the key of the first field is in all entries but the first one.
    mark = b"}(" + (b"h" + begin[1] if begin[1] is not None else b"j" + begin[2])
    first, *others = data[begin.end() :].split(mark)
    written = _layout(first, ())
    if written is None or written.end != len(first) or not others:
        return None
    last = _laid_out(mark + others[-1], written.keys)
    if last is None:
        return None
    end = last.end - len(mark)
    tail, others[-1] = others[-1][end:], others[-1][:end]
    alike = _told_apart(others, mark, written.keys)
    if not tail.startswith(b"e") or alike is None:
        return None
    alike.append(_Alike(places=(0,), like=(0,), numbers=written.numbers, length=len(first), data=first))
    return _put_together(data[: begin.end()], mark, [first, *others], tail, alike)


def _told_apart(others: Sequence[bytes], mark: bytes, keys: Keys) -> list[_Alike] | None:
    """All entries but the first one, which are without their `mark`. None where something else stands among them, or too many forms."""
    of_length: dict[int, list[int]] = {}
    for place, size in enumerate(map(len, others), 1):
        of_length.setdefault(size, []).append(place)
    found, forms = list[_Alike](), 0
    for size, places in of_length.items():
        left, length = places, len(mark) + size
        while left:
            data = mark + mark.join([others[place - 1] for place in left])
            layout = _layout(data[:length], keys)
            if layout is None or layout.end != length:
                return None
            like = _likes(data, left, layout, keys)
            if like is None:
                return None
            fit = [of for of in like if of is not None]
            rest = list[int]()
            if len(fit) < len(left):
                rest = [place for place, of in zip(left, like, strict=True) if of is None]
                left = [place for place, of in zip(left, like, strict=True) if of is not None]
                data = mark + mark.join([others[place - 1] for place in left])
            found.append(_Alike(places=left, like=fit, numbers=layout.numbers, length=length, data=data))
            forms += len(set(fit))
            if forms > _MOST_FORMS:
                return None
            left = rest
    return found


def _likes(data: bytes, places: Sequence[int], layout: _Layout, keys: Keys) -> list[int | None] | None:
    """For each of the entries in `data` the place of the first one that differs in numbers at most, None for one of another layout. None alone
    where too many differ."""
    length = layout.end
    blank = _without(data, layout.numbers, length)
    entries = [blank[at : at + length] for at in range(0, len(blank), length)]
    first_of = dict(zip(reversed(entries), reversed(places), strict=True))
    if len(first_of) > _MOST_FORMS:
        return None
    return list(map({entry: place for entry, place in first_of.items() if _laid_out_once(entry, keys) == layout}.get, entries))


def _without(data: bytes, numbers: Sequence[_Number], length: int) -> bytes:
    """Entries of one length behind each other, with zero for all numbers."""
    blank = bytearray(data)
    zeros = bytes(len(data) // length)
    for number in numbers:
        for at in range(number.at, number.at + number.width):
            blank[at::length] = zeros
    return bytes(blank)


def _put_together(head: bytes, mark: bytes, entries: Sequence[bytes], tail: bytes, alike: Sequence[_Alike]) -> tuple[bytes, int, Repeats]:
    # What an entry puts into the memo has to stand before what takes it out.
    kept = sorted({place for each in alike for place in each.like})
    nth = {place: n for n, place in enumerate(kept)}
    # Where in the columns of `alike`, one behind the other, each entry is.
    order, forms = array("I", bytes(4 * len(entries))), array("I")
    at = 0
    for each in alike:
        forms.extend(map(nth.__getitem__, each.like))
        for at, place in enumerate(each.places, at):  # noqa: B020
            order[place] = at
        at += 1
    columns = {}
    for field in {number.field for each in alike for number in each.numbers}:
        together = array("q")
        for each in alike:
            together += each.column(field)
        columns[field] = array("q", map(together.__getitem__, order))
    data = b"".join((head, mark.join([entries[place] for place in kept]), tail))
    return data, len(kept), Repeats(array("I", map(forms.__getitem__, order)), columns)


@lru_cache(maxsize=1024)
def _known(_length: int, _keys: Keys) -> list[_Layout]:
    """The layouts that entries of a length have had. Ranks issue the same calls."""
    return []


def _layout(entry: bytes, keys: Keys) -> _Layout | None:
    """The same as `_laid_out`, quicker where an entry like it has been seen."""
    known = _known(len(entry), keys)
    for layout in known:
        if layout.end == len(entry) and _laid_out_once(_without(entry, layout.numbers, len(entry)), keys) == layout:
            return layout
    found = _laid_out(entry, keys)
    if found is not None and len(known) < _MOST_KNOWN:
        known.append(found)
    return found


@lru_cache(maxsize=4096)
def _laid_out_once(entry: bytes, keys: Keys) -> _Layout | None:
    return _laid_out(entry, keys)


def _laid_out(entry: bytes, keys: Keys) -> _Layout | None:
    """None where it is no entry of plain values as torch's pickler writes them."""
    name_of = dict(keys)
    numbers, written = list[_Number](), list[tuple[bytes, str]]()
    # How many values stand on the stack, from the last mark on, and what of them stood before each mark.
    held, before = 0, list[int]()
    field = text = ""
    seen = set[str]()
    at = 0
    while (token := _TOKEN.match(entry, at)) is not None:
        kind, at = token.lastgroup, token.end()
        is_key = len(before) == 1 and held % 2 == 0
        if kind == "mark":
            before.append(held)
            held = 0
        elif kind == "close":
            if not before:
                return None
            held = before.pop()
            if not before:
                return _Layout(numbers=tuple(numbers), end=at, keys=tuple(written))
        elif kind == "pair":
            held -= 1
        elif kind == "put":
            if text:
                place = (b"h" if token[0][:1] == b"q" else b"j") + token[0][1:]
                name_of[place] = text
                written.append((place, text))
        else:
            if is_key:
                field = name_of.get(token[0], "")
            elif len(before) == 1 and field in _NUMBERS:
                # Of a key that is there twice the last value counts.
                if field in seen:
                    return None
                seen.add(field)
                if kind == "number":
                    skip, width, code = _WIDTHS[token[0][0]]
                    numbers.append(_Number(field=field, at=token.start() + skip, width=width, code=code))
            held += 1
        text = ""
        if kind == "text":
            size = int.from_bytes(token[0][1:], "little")
            name = entry[at : at + size].decode("ascii", "replace")
            field = name if is_key else field
            # A key may be written where it is a value for the first time.
            text = name if is_key or name in _NUMBERS else ""
            at += size
    return None
