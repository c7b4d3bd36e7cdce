"""Dumps that are made to take long, each kind in a size that is given, and mutations of them."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterator
from typing import Any

from unhang.testing.dumps import pickled

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
    """A name and some `size` bytes of each kind."""
    one, text, few = entry(), "x" * (size // 2), size // 400
    everybody = {"ranks": str([*range(size // 14)])}
    frame = {"name": "f", "filename": "/a/train.py", "line": 1}

    def numbered(**fields: Any) -> list[dict[str, Any]]:
        return [entry(**{"record_id": n, "collective_seq_id": n + 1} | {k: f(n) for k, f in fields.items()}) for n in range(few)]

    for name, last in (("key", b"}h\x28Nst"), ("value", b"t"), ("set", b"\x8f(h\x28\x90t"), ("frozenset", b"(h\x28\x91t")):
        yield f"tuples doubled, as a {name}", doubled(40, last + b"u.")
    keys = b"".join(b"\x8a\x0c" + (n * ((1 << 61) - 1)).to_bytes(12, "little") + b"N" for n in range(size // 15))
    yield "keys with one hash", b"\x80\x02}(X\t\0\0\0pg_config}X\7\0\0\0entries}(" + keys + b"uu."
    yield "huge dimensions", pickle.dumps(dump([entry(input_sizes=[[10**18] * (size // 10)])]), protocol=2)
    yield "huge tensors", pickle.dumps(dump([entry(input_sizes=[[10**18]] * (size // 16))]), protocol=2)
    yield "dimensions of 30 digits", json.dumps(dump([entry(input_sizes=[[10**30] * (size // 32)])])).encode()
    yield "numbers of 4,000 digits", json.dumps(dump([entry(input_sizes=[[10**4000] * (size // 4002)])])).encode()
    yield "long numbers", pickle.dumps(dump([entry(collective_seq_id=1 << 4 * size, pg_id=1 << 4 * size)]), protocol=2)
    yield "one entry by memo", pickle.dumps(dump([one] * (size // 2)), protocol=2)
    yield "one list of frames by memo", pickle.dumps(dump(numbered(frames=lambda n, f=[frame] * (size // 4): f)), protocol=2)
    for field in ("process_group", "profiling_name", "state", "pg_id"):
        value = (text, text) if field == "process_group" else text
        yield f"a long {field} by memo", pickle.dumps(dump(numbered(**{field: lambda n, value=value: value})), protocol=2)
    yield "one list in itself", pickle.dumps(dump([entry(frames=(itself := []), input_sizes=itself)], itself=itself.append(itself)), protocol=2)
    lists: list[Any] = [[1]]
    for _ in range(40):
        lists = [lists, lists]
    for field in ("process_group", "input_sizes", "input_dtypes", "profiling_name", "frames"):
        yield f"lists in lists by memo as {field}", pickle.dumps(dump([entry(**{field: lists})]), protocol=2)
    for most in (9_000, size):
        groups = {str(n): {"desc": "x", "ranks": "[0, 1]"} for n in range(min(size // 20, most))}
        yield f"{len(groups)} groups", pickle.dumps(dump([one], pg_config=groups), protocol=2)
    yield "groups in entries", pickle.dumps(dump(numbered(process_group=lambda n: (str(n), "x"), pg_id=lambda n: n)), protocol=2)
    yield (
        "one group of all ranks by memo",
        pickle.dumps(dump([one], pg_config={str(n): everybody for n in range(min(9_000, size // 14))})),
    )
    yield "counts without end", pickle.dumps(dump([one], pg_status={str(n): {"last_enqueued_collective": n} for n in range(size // 20)}), protocol=2)
    yield "messages", pickled(dump(numbered(profiling_name=lambda n: f"nccl:send 0->{n}", is_p2p=lambda n: True, p2p_seq_id=lambda n: n)))
    yield "kinds without end", pickled(dump(numbered(input_sizes=lambda n: [[n]])))
    yield "numbers far apart", pickled(dump(numbered(collective_seq_id=lambda n: n * 90_000)))
    yield "one number", pickled(dump(numbered(collective_seq_id=lambda n: 1)))
    yield "frames without end", pickle.dumps(dump([entry(frames=[dict(frame, line=n) for n in range(size // 30)])]), protocol=2)
    yield "bytearrays", pickle.dumps(dump([entry(frames=[bytearray(size)])]), protocol=5)
    whole = json.dumps(dump([one])).encode()
    yield "JSON nested", whole[:-2] + b", {" + b'"a":[{' * (size // 6)
    yield "lists nested", whole[:-2] + b", " + b"[" * size
    yield "entries that are none", json.dumps(dump([one, *[7] * (size // 4)])).encode()
    yield "empty values behind it", whole + b"[]\n" * (size // 3)
    yield "blanks", whole + b" " * size
    yield "ranks of a host", json.dumps({"ranks": {str(n): dump([one], pg_config={}) for n in range(size // 500)}}).encode()
    yield "members", json.dumps(dump([one], members={str(n): [0] for n in range(min(9_000, size // 10))})).encode()


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The same with a part that is repeated, moved or another one."""
    made = bytearray(data)
    at, length = chance.randrange(len(made)), chance.choice((1, 2, 9, 60))
    part = made[at : at + length]
    made[(to := chance.randrange(len(made))) : to] = part * chance.choice((1, 1, 2, 30))
    made[chance.randrange(len(made))] = chance.randrange(256)
    return bytes(made)
