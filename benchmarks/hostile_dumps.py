"""Dumps that are made to take long, each kind in a size that is given, and mutations of them."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

_CONFIG = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}


def entry(**fields: Any) -> dict[str, Any]:
    """A call as NCCL's recorder writes it."""
    whole = {"record_id": 0, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 1, "p2p_seq_id": 0, "op_id": 1}
    whole |= {"profiling_name": "nccl:all_reduce", "time_created_ns": 1_795_000_000_000_000_001, "input_sizes": [[8]], "input_dtypes": ["Float"]}
    whole |= {"output_sizes": [[8]], "output_dtypes": ["Float"], "state": "scheduled", "retired": False, "timeout_ms": 600_000, "is_p2p": False}
    return whole | {"time_discovered_started_ns": None, "time_discovered_completed_ns": None, "frames": []} | fields


def dump(entries: Any, **fields: Any) -> dict[str, Any]:
    return {"version": "2.10", "pg_config": _CONFIG, "pg_status": {}, "entries": entries} | fields


def doubled(depth: int, last: bytes) -> bytes:
    """The value of a pickle whose one tuple is in the next one twice, so many times, and what is made of it."""
    steps = b"".join(b"h" + bytes([i]) + b"h" + bytes([i]) + b"\x86q" + bytes([i + 1]) for i in range(depth))
    return b"\x80\x02}(X\t\0\0\0pg_config}X\7\0\0\0entries]X\1\0\0\0z(X\1\0\0\0aq\0" + steps + b"h" + bytes([depth]) + last


def dumps(size: int) -> Iterator[tuple[str, bytes]]:
    """A name and some `size` bytes of each kind; of a few hundred bytes where these are worth any number."""
    one, text, few = entry(), "x" * (size // 2), size // 400
    frames = [{"name": "f", "filename": "/a/train.py", "line": 1}] * (size // 4)
    itself, lists = list[Any](), list[Any]()
    itself.append(itself)
    for _ in range(40):
        lists = [lists, lists]
    for name, last in (("key", b"}h\x28Nst"), ("set", b"\x8f(h\x28\x90t"), ("frozenset", b"(h\x28\x91t")):
        yield f"tuples doubled, as a {name}", doubled(40, last + b"u.")
    keys = b"".join(b"\x8a\x0c" + (n * ((1 << 61) - 1)).to_bytes(12, "little") + b"N" for n in range(size // 15))
    yield "keys with one hash", b"\x80\x02}(X\t\0\0\0pg_config}X\7\0\0\0entries}(" + keys + b"uu."
    alone: dict[str, dict[str, Any]] = {
        "dimensions": {"input_sizes": [[10**18] * (size // 10)]},
        "tensors": {"input_sizes": [[10**18]] * (size // 16)},
        "digits": {"input_sizes": [[10**4000] * (size // 4002)]},
        "long numbers": {"collective_seq_id": 1 << 2 * size, "pg_id": 1 << 2 * size},
        "itself": {"frames": itself, "input_sizes": itself},
        "frames": {"frames": [{"name": "f", "filename": "/a/train.py", "line": n} for n in range(size // 30)]},
        "bytearrays": {"frames": [bytearray(size)]},
        **{f"lists in lists as {field}": {field: lists} for field in ("process_group", "input_sizes", "input_dtypes", "profiling_name", "frames")},
    }
    for name, fields in alone.items():
        yield name, pickle.dumps(dump([entry(**fields)]), protocol=5)
    of_each: dict[str, dict[str, Callable[[int], Any]]] = {
        "one list of frames": {"frames": lambda n: frames},
        "a long group": {"process_group": lambda n: (text, text)},
        **{f"a long {field}": {field: lambda n: text} for field in ("profiling_name", "state", "pg_id")},
        "groups in entries": {"process_group": lambda n: (str(n), "x"), "pg_id": lambda n: n},
        "messages": {"profiling_name": lambda n: f"nccl:send 0->{n}", "is_p2p": lambda n: True, "p2p_seq_id": lambda n: n},
        "kinds": {"input_sizes": lambda n: [[n]]},
        "numbers far apart": {"collective_seq_id": lambda n: n * 90_000},
        "one number": {"collective_seq_id": lambda n: 1},
    }
    for name, made in of_each.items():
        entries = [entry(**{"record_id": n, "collective_seq_id": n + 1} | {k: f(n) for k, f in made.items()}) for n in range(few)]
        yield name, pickle.dumps(dump(entries), protocol=2)
    groups = {str(n): {"ranks": "[0, 1]"} for n in range(size // 20)}
    everybody = {"ranks": str([*range(size // 14)])}
    yield "groups", pickle.dumps(dump([one], pg_config=groups), protocol=2)
    yield "groups of all ranks", pickle.dumps(dump([one], pg_config={str(n): everybody for n in range(9_000)}), protocol=2)
    yield "one entry", pickle.dumps(dump([one] * (size // 6)), protocol=2)
    whole = json.dumps(dump([one])).encode()
    yield "objects nested", whole[:-2] + b", {" + b'"a":[{' * (size // 6)
    yield "lists nested", whole[:-2] + b", " + b"[" * size
    yield "blanks", whole + b" " * size
    yield "no entries", json.dumps(dump([one, *[7] * (size // 4)])).encode()
    alone = {str(n): {"entries": [entry(process_group=[str(n), "x"], state="scheduled")]} for n in range(size // 500)}
    yield "ranks in groups of their own", json.dumps({"ranks": alone}).encode()
    yield "ranks of a host", json.dumps({"ranks": {str(n): dump([one], pg_config={}) for n in range(size // 500)}}).encode()


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The same with a part that is repeated, moved or another one."""
    made = bytearray(data)
    at, length = chance.randrange(len(made)), chance.choice((1, 2, 9, 60))
    part = made[at : at + length]
    made[(to := chance.randrange(len(made))) : to] = part * chance.choice((1, 1, 2, 30))
    made[chance.randrange(len(made))] = chance.randrange(256)
    return bytes(made)
