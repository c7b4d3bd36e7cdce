"""How many collectives the groups of this process see during an evaluation, by group and backend, and which groups are out of step behind it.

Counts are torch's own. NCCL's are of collectives alone; Gloo counts sends and receives as well, which two ranks make and a third does not (read in
torch 2.13): where counts differ, its flight recorder tells the collectives from them. A group that a thread serves (asynchronous checkpoints, health
checks) may be ahead on one rank for a moment: it is looked at again, and nothing is said of it while it moves, or a thread stands in a call of it.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import torch.distributed as dist
from torch._C import _distributed_c10d as extension
from torch.distributed import distributed_c10d as c10d

from unhang.errors import StoreLost
from unhang.runtime import log
from unhang.runtime.collectives.guarded_group import GuardedGroup

_LOOKS_EVERY_S = 0.25
# What a thread does meanwhile, and waits for, has happened on all ranks then.
_LOOKS_AGAIN_AFTER_S = (0.02, 0.1, 0.3, 0.6, 1.0, 2.0)
_COMES_WITHIN_S = 30.0
# Where it is known that somebody does not come.
_WITHOUT_SOME_S = 5.0


class OfGroup(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One backend of a group on one rank. `made`: calls since the evaluation began; `now`: since the group was made.

    `collectives` of `made`, None where it is not known. `served`: a thread beside the evaluation was seen in a call of it.
    """

    name: str
    ranks: str
    devices: str
    made: int
    now: int = 0
    says: str = ""
    collectives: int | None = None
    served: bool = False

    @property
    def key(self) -> str:
        return f"{self.name}|{self.ranks}|{self.devices}"


class CollectiveCounts(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What one rank says: groups that it has used, and checksums of the keys of those that it has not."""

    used: list[OfGroup] = []
    quiet: list[int] = []


class Calls:
    """Counts since it was made, of every group that this rank is in."""

    def __init__(self, circle: GuardedGroup) -> None:
        self._circle = circle
        self._began_ns = time.time_ns()
        self._served: set[str] = set()
        self._whose = threading.get_ident()
        # Where in the store it stands what we have told.
        self._told = ""
        self._before: dict[str, tuple[weakref.ref[Any], int]] = {}
        if circle.size > 1:
            self._before = {one.key: (weakref.ref(group), one.now) for group, one in _groups()}

    def counted(self) -> CollectiveCounts:
        found = list(self._since()) if self._circle.size > 1 else []
        return CollectiveCounts(used=[one for one in found if one.made], quiet=[_checksum(one.key) for one in found if not one.made])

    @contextmanager
    def told(self, key: str) -> Iterator[None]:
        """Which groups are used is told while it goes on: who waits in a call that nobody else makes cannot say it."""
        left = threading.Event()

        def tells() -> None:
            before: list[OfGroup] = []
            with contextlib.suppress(StoreLost):
                while not left.wait(_LOOKS_EVERY_S):
                    self._served |= _stood_in(self._whose)
                    used = [msgspec.structs.replace(one, made=1, now=0) for one in self.counted().used if not one.served]
                    # Where this is the first call of all, the ranks meet meanwhile.
                    if used != before and (board := self._circle.board) is not None:
                        before, self._told = used, f"{key}/used/{self._circle.me}"
                        board.put(self._told, msgspec.msgpack.encode(used))

        telling = threading.Thread(target=tells, name="unhang-evaluation", daemon=True)
        if self._circle.size > 1:
            telling.start()
        try:
            yield
        finally:
            left.set()
            if telling.ident is not None:
                # What it tells now would be forgotten by nobody.
                telling.join(_LOOKS_EVERY_S)

    def out_of_step(self, key: str, answers: Mapping[int, CollectiveCounts], gone: Sequence[int] = ()) -> list[str]:
        """What is so, of each group that is out of step: the same on all ranks. All that answered call it, but those that have `gone`."""
        circle = self._circle
        if circle.size == 1:
            return []
        missing = [rank for rank in circle.ranks if rank not in answers]
        found = self._of_missing(key, answers, missing) if missing else []
        # Whoever is missing asks for it when it comes.
        circle.forgets(*([self._told] if self._told else []), *([f"{key}/known"] if missing else []))
        # Those that whoever is missing belongs to have been judged.
        disputed = {
            key: dict(sorted(ranks.items()))
            for key, ranks in _made(answers).items()
            if len(set(ranks.values())) > 1 and not _members(key.split("|")[1]) & set(missing)
        }
        if not disputed:
            return found
        claimed, waits = self._looked_at_again(disputed, answers, once=bool(missing or gone))
        if waits:
            log.warning("not judged, because a thread beside the evaluation uses it: %s", "; ".join(waits))
        return found + claimed

    def _looked_at_again(
        self, made: dict[str, dict[int, int]], answers: Mapping[int, CollectiveCounts], *, once: bool
    ) -> tuple[list[str], list[str]]:
        """What is so of those that stay different, and of those that a thread still serves."""
        names = {one.key: one for said in answers.values() for one in said.used}
        before: dict[str, dict[int, OfGroup]] = {}
        found: dict[str, dict[int, OfGroup]] = {}
        for after_s in _LOOKS_AGAIN_AFTER_S[-1:] if once else _LOOKS_AGAIN_AFTER_S:
            time.sleep(after_s)
            mine = msgspec.msgpack.encode(self._closely(set(made)))
            came = self._circle.exchange_at(self._circle.begin("counts"), mine, _WITHOUT_SOME_S if once else _COMES_WITHIN_S)
            before, found = found, {key: {} for key in made}
            for rank, packed in sorted(came.items()):
                for one in msgspec.msgpack.decode(packed, type=list[OfGroup]):
                    found[one.key][rank] = one
            # Of who has not come, what it said before is the newest.
            made = {key: ranks for key, ranks in made.items() if ranks.keys() - came.keys() or _differ(found[key].values())}
            if not made:
                return [], []
        said: tuple[list[str], list[str]] = ([], [])
        for key, first in sorted(made.items()):
            ranks = found[key]
            moves = any(one.now != before[key][rank].now for rank, one in ranks.items() if rank in before.get(key, {}))
            counts = first | {rank: one.made if one.collectives is None else one.collectives for rank, one in ranks.items()}
            unsure = "cpu" in names[key].devices and any(one.collectives is None for one in ranks.values())
            served = moves or any(one.served for one in ranks.values())
            said[served].append(_told(names[key], counts, unsure=unsure))
        return said

    def _of_missing(self, key: str, answers: Mapping[int, CollectiveCounts], missing: Sequence[int]) -> list[str]:
        """Of groups that were used, and have a member that has not answered: it has made an unknown number of calls. One rank decides for all."""
        board = self._circle.store
        told = board.look_at([f"{key}/used/{rank}" for rank in missing])
        theirs = [one for packed in told if packed is not None for one in msgspec.msgpack.decode(packed, type=list[OfGroup])]
        served = self._served | _stood_in(self._whose)
        used: dict[str, OfGroup] = {}
        for one in (*(one for said in answers.values() for one in said.used), *theirs):
            if not one.served and one.name not in served and _members(one.ranks) & set(missing):
                used.setdefault(one.key, one)
        found = []
        for one in sorted(used.values(), key=lambda one: one.key):
            made = {rank: same.made for rank, said in answers.items() for same in said.used if same.key == one.key}
            zero = {rank: 0 for rank, said in answers.items() if _checksum(one.key) in said.quiet}
            found.append(_told(one, dict(sorted((zero | made).items())), others=True))
        decided = msgspec.msgpack.decode(board.decide(f"{key}/known", msgspec.msgpack.encode(found)), type=list[str])
        if not decided and self._circle.me in missing and (own := [one for one in self.counted().used if not one.served]):
            # What we have done since, nobody could tell the others.
            return [_told(one, {self._circle.me: one.made}, others=True) for one in own]
        return decided

    def _since(self) -> Iterator[OfGroup]:
        for group, one in _groups():
            known, before = self._before.get(one.key, (None, 0))
            # A group that was made again counts from nothing.
            made = one.now - before if known is not None and known() is group else one.now
            yield msgspec.structs.replace(one, made=made, served=one.name in self._served)

    def _closely(self, keys: set[str]) -> list[OfGroup]:
        served = _stood_in(self._whose)
        found = []
        for one in self._since():
            if one.key in keys:
                collectives = _recorded(one, self._began_ns) if "cpu" in one.devices else None
                found.append(msgspec.structs.replace(one, collectives=collectives, served=one.name in served))
        return found


def _groups() -> Iterator[tuple[Any, OfGroup]]:
    """Every group of several ranks that this one is in, once for each of its backends that counts."""
    if not dist.is_initialized():
        return
    for group in list(c10d._world.pg_map):
        # One that another thread destroys meanwhile.
        with contextlib.suppress(KeyError, ValueError, RuntimeError, AttributeError):
            ranks = tuple(dist.get_process_group_ranks(group))
            if len(ranks) < 2:
                continue
            name, members = c10d._get_process_group_name(group), _ranges(ranks)
            about = getattr(group, "group_desc", "")
            says = f"group {name!r}" + (f" ({about})" if about not in ("", "undefined", name) else "")
            says = f"{says} of ranks {members.replace(',', ', ')}"
            if group is c10d._world.default_pg:
                says = "the training's own group"
            for devices, number in _numbers(group):
                yield group, OfGroup(name=name, ranks=members, devices=devices, made=0, now=number, says=says)


def _numbers(group: Any) -> Iterator[tuple[str, int]]:
    """The count of each backend, with the kinds of devices that it serves."""
    backends: dict[int, tuple[Any, list[str]]] = {}
    for device in sorted(group._device_types, key=str):
        with contextlib.suppress(RuntimeError):
            backend = group._get_backend(device)
            backends.setdefault(id(backend), (backend, []))[1].append(device.type)
    for backend, devices in backends.values():
        # MPI's, and those of makers that do not count, have none.
        with contextlib.suppress(RuntimeError, AttributeError):
            yield "+".join(devices), int(backend._get_sequence_number_for_group())


def _made(answers: Mapping[int, CollectiveCounts]) -> dict[str, dict[int, int]]:
    """By group that somebody has used: calls of each rank that has it."""
    made: dict[str, dict[int, int]] = {}
    for rank, said in answers.items():
        for one in said.used:
            made.setdefault(one.key, {})[rank] = one.made
    for key, ranks in made.items():
        checksum = _checksum(key)
        ranks.update({rank: 0 for rank, said in answers.items() if rank not in ranks and checksum in said.quiet})
    return made


def _differ(said: Iterable[OfGroup]) -> bool:
    """In what was made meanwhile, and in all: what differed before only is not the evaluation's, and what differs no longer has been caught up."""
    said = list(said)
    if all(one.collectives is not None for one in said):
        return len({one.collectives for one in said}) > 1
    return len({one.made for one in said}) > 1 and len({one.now for one in said}) > 1


def _recorded(one: OfGroup, began_ns: int) -> int | None:
    """Collectives of Gloo since then, as torch's flight recorder has them; None where it does not hold them all."""
    if one.made == 0:
        # A recorder in which nothing stands may be off.
        return 0
    dump: Any = getattr(extension, "_dump_fr_trace", None)
    if dump is None:
        return None
    # includeCollectives, includeStackTraces, onlyActive
    entries = list(pickle.loads(dump(True, False, False)).get("entries") or [])
    oldest = min(entries, key=lambda entry: int(entry["record_id"]), default=None)
    if oldest is None or (int(oldest["record_id"]) > 0 and int(oldest["time_created_ns"]) > began_ns):
        return None
    since = one.now - one.made
    return sum(
        str(entry["process_group"][0]) in (one.name, f"cpu:{one.name}")
        and not entry.get("is_p2p")
        and since < int(entry["collective_seq_id"]) <= one.now
        and int(entry["time_created_ns"]) >= began_ns
        for entry in entries
    )


def _stood_in(whose: int) -> set[str]:
    """Names of the groups in whose calls other threads than `whose` stand now."""
    found = set()
    for ident, top in sys._current_frames().items():
        frame = None if ident == whose else top
        while frame is not None:
            if frame.f_code.co_filename == c10d.__file__ and "group" in frame.f_locals:
                with contextlib.suppress(KeyError, ValueError, RuntimeError, TypeError):
                    found.add(c10d._get_process_group_name(frame.f_locals["group"] or c10d._get_default_group()))
            frame = frame.f_back
    return found


def _told(one: OfGroup, made: Mapping[int, int], *, others: bool = False, unsure: bool = False) -> str:
    said = ", ".join(f"rank {rank} {count}" for rank, count in made.items())
    if others:
        known = f" ({said})" if said else ""
        return f"{one.says} may be out of step: in this evaluation it was used, and how many collectives some of its ranks made is not known{known}"
    hint = "; Gloo counts sends and receives as well, which its flight recorder would tell apart (TORCH_FR_BUFFER_SIZE=2000)" if unsure else ""
    return f"{one.says} is out of step: in this evaluation its ranks made different numbers of collectives ({said}{hint})"


def _checksum(key: str) -> int:
    return zlib.crc32(key.encode())


@functools.lru_cache(maxsize=256)
def _ranges(ranks: tuple[int, ...]) -> str:
    """As "0-3,8"."""
    found: list[list[int]] = []
    for rank in sorted(ranks):
        if found and found[-1][1] == rank - 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


@functools.lru_cache(maxsize=256)
def _members(ranges: str) -> frozenset[int]:
    pairs = [piece.partition("-") for piece in ranges.split(",")]
    return frozenset(rank for first, _, last in pairs for rank in range(int(first), int(last or first) + 1))
