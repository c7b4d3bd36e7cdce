"""torch's flight recorder, read from inside: live counters of every group for each heartbeat, a dump on request.

There is one recorder for each kind of event, not one for each process: NCCL writes to its own (`_dump_nccl_trace*`), Gloo to the generic one
(`_dump_fr_trace*`), which stays empty on NCCL. The first read freezes the recorder's settings (TORCH_FR_BUFFER_SIZE), which a script may still set
before it initialises torch.distributed: hence nothing is read earlier.

Counters are kept by a number that each process gives its groups by itself; they are reported by the group's name, which is the same on all ranks.
Where a build has an accelerator's recorder, the generic recorder's groups are called "cpu:NAME": a group with both backends counts in both.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import sys
from _thread import allocate_lock, get_ident
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from .protocol import open_private

# torch turns the frames of a dump into text with the help of torch._inductor, which it finds with `hasattr(torch, "_inductor")`
# (torch/csrc/profiler/python/combined_traceback.cpp). Since torch 2.1 that imports it: 800 modules, 1.5 s of CPU and several times that on a host
# whose cores are taken, in a thread that the training knows nothing of, and for ever where the main thread hangs in the middle of the same import.
# In a process that has not compiled anything it has nothing to tell.
_NAME = "_inductor"


@contextlib.contextmanager
def left_alone() -> Iterator[None]:
    """Inside, this thread finds no compiler in a torch that has not imported it yet; every other thread finds the real one."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    with _lock:
        there = vars(torch).setdefault(_NAME, _ABSENT)
        if there is _ABSENT:
            _ABSENT.threads.append(get_ident())
    if there is not _ABSENT:
        yield
        return
    try:
        yield
    finally:
        with _lock:
            _ABSENT.threads.remove(get_ident())
            # Whoever has imported the real one meanwhile has put it there.
            if not _ABSENT.threads and vars(torch).get(_NAME) is _ABSENT:
                del vars(torch)[_NAME]


class _Absent(ModuleType):
    """A module without anything for these threads, and the real one, imported then, for all others."""

    def __init__(self) -> None:
        super().__init__(f"torch.{_NAME}")
        self.threads: list[int] = []

    def __getattr__(self, name: str) -> Any:
        if get_ident() in self.threads:
            raise AttributeError(name)
        return getattr(__import__(f"torch.{_NAME}", fromlist=[name]), name)


_ABSENT = _Absent()
_lock = allocate_lock()

_ACCELERATORS = ("nccl", "xccl")
_GENERIC = "fr"
# The entry that would tell a group's name may have been overwritten; a full read of 2,000 entries costs 55 ms.
_NAMING_ATTEMPTS = 3
# Reads (four a second) after which a call of Gloo that stands is looked up among the entries.
_STANDS = 4


class Recorders:
    """Reads the recorders of this process. `distributed` is torch.distributed.distributed_c10d, `c10d` its extension module."""

    def __init__(self, distributed: ModuleType, c10d: ModuleType) -> None:
        self._distributed = distributed
        self._c10d = c10d
        present = [kind for kind in (*_ACCELERATORS, _GENERIC) if hasattr(c10d, f"_dump_{kind}_trace_json") or hasattr(c10d, f"_dump_{kind}_trace")]
        self._kinds = tuple(present)
        self._names: dict[tuple[str, str], str] = {}
        self._attempts: dict[tuple[str, str], int] = {}
        self._over: set[tuple[str, str]] = set()
        # Of groups on Gloo whose newest call has not been counted as completed: which call, how often in a row, and whether it has in truth.
        self._standing: dict[str, tuple[int, int, bool]] = {}

    def groups(self) -> dict[str, list[int]]:
        """Newest collective issued and completed of every group: {name: [enqueued, completed]}. About 10 microseconds a recorder."""
        groups: dict[str, list[int]] = {}
        for kind in self._kinds:
            status = self._status(kind)
            for pg_id, counters in status.items():
                if (kind, pg_id) not in self._over:
                    enqueued, completed = (int(counters.get(f"last_{what}_collective", -1)) for what in ("enqueued", "completed"))
                    if kind == _GENERIC and completed < enqueued and self._is_over(pg_id, enqueued):
                        completed = enqueued
                    groups[self._name(kind, pg_id)] = [enqueued, completed]
        return groups

    def forget(self) -> None:
        """The groups that exist now were destroyed: what they left unfinished is of no interest to the groups that come after them."""
        self._over |= {(kind, pg_id) for kind in self._kinds for pg_id in self._status(kind)}

    def dump(self, path: str) -> None:
        """Write the recorder that was used to `path`, as torch itself does. Raises OSError, RuntimeError.

        Where an accelerator's and the generic one were both used, the generic one goes to `cpu/` beside it. Behind torch's pickle, where its readers
        do not look, stands a JSON object with the members of the groups: Gloo's dumps do not tell them.
        """
        members = json.dumps({"members": self._members()}, separators=(",", ":")).encode()
        used = [kind for kind in self._kinds if hasattr(self._c10d, f"_dump_{kind}_trace") and self._status(kind)] or [_GENERIC]
        for kind, where in zip(used, (path, os.path.join(os.path.dirname(path), "cpu", os.path.basename(path))), strict=False):
            dump: Any = getattr(self._c10d, f"_dump_{kind}_trace", None)
            if dump is None:
                raise RuntimeError("this torch has no flight recorder for the backend in use")
            # includeCollectives, includeStackTraces, onlyActive
            with left_alone():
                data = dump(True, True, False)
            _write(where, data + members)

    def _members(self) -> dict[str, list[int]]:
        """The ranks of every group that this one belongs to, whether it was used or not."""
        try:
            world: Any = self._distributed._world
            names = dict(world.pg_names)
            return {str(names[pg]): sorted(ranks) for pg, ranks in dict(world.pg_group_ranks).items() if pg in names}
        except Exception:  # a torch that keeps its groups otherwise: the dump is worth more than they are
            return {}

    def _status(self, kind: str) -> dict[str, Any]:
        return dict(self._read(kind, collectives=False).get("pg_status") or {})

    def _read(self, kind: str, *, collectives: bool) -> dict[str, Any]:
        read: Any = getattr(self._c10d, f"_dump_{kind}_trace_json", None)
        if read is not None:
            # includeCollectives, onlyActive
            return dict(json.loads(read(collectives, False)))
        # torch 2.4 has the pickle only; it was made in this process, a moment ago.
        return dict(pickle.loads(getattr(self._c10d, f"_dump_{kind}_trace")(collectives, False, False)))

    def _is_over(self, pg_id: str, enqueued: int) -> bool:
        """Whether a call that the counters call pending has ended.

        Two threads of Gloo that end two calls at about the same time may note them in the other order (one in a hundred calls that follow each other
        closely): the counter then stays one behind for ever, and the rank would seem to wait. The entries know better; reading them costs more.
        """
        known, reads, over = self._standing.get(pg_id, (-1, 0, False))
        reads = reads + 1 if known == enqueued else 1
        if known != enqueued or reads == _STANDS:
            over = reads == _STANDS and self._all_ended(pg_id)
        self._standing[pg_id] = (enqueued, reads, over)
        return over

    def _all_ended(self, pg_id: str) -> bool:
        entries = self._read(_GENERIC, collectives=True).get("entries") or []
        of_group = [entry.get("retired") is True for entry in entries if str(entry.get("pg_id")) == pg_id]
        return bool(of_group) and all(of_group)

    def _name(self, kind: str, pg_id: str) -> str:
        key = (kind, pg_id)
        if key not in self._names and self._attempts.get(key, 0) < _NAMING_ATTEMPTS:
            self._attempts[key] = self._attempts.get(key, 0) + 1
            found = self._names_of_generic() if kind == _GENERIC else self._names_of_accelerator()
            self._names.update({(kind, of): name for of, name in found.items()})
        prefix = "cpu:" if kind == _GENERIC and self._kinds[0] in _ACCELERATORS else ""
        return prefix + self._names.get(key, f"#{pg_id}")

    def _names_of_generic(self) -> dict[str, str]:
        entries = self._read(_GENERIC, collectives=True).get("entries") or []
        return {str(entry["pg_id"]): str(entry["process_group"][0]) for entry in entries}

    def _names_of_accelerator(self) -> dict[str, str]:
        # Not from the entries: reading those asks CUDA about events, which would spoil a graph that is being captured.
        uid: Any = getattr(self._distributed, "_get_process_group_uid", None)
        world: Any = getattr(self._distributed, "_world", None)
        if uid is None or world is None:
            return {}
        return {str(uid(pg)): str(name) for pg, name in dict(world.pg_names).items()}


def _write(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    try:
        with open(temporary, "wb", opener=open_private) as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
