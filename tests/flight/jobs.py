"""Jobs that never ran: a mesh of tensor, pipeline and data parallel ranks whose recorders are written as NCCL would, with one thing gone wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from unhang.flight.dump import flight_of
from unhang.flight.dump_file import decoded
from unhang.flight.entries import Flight, alone

T0 = 1_795_000_000_000_000_000
TRAIN = "/home/user/train.py"


@dataclass
class Plan:
    """What every rank does in one step: (group, op, elements, line)."""

    world: int
    tp: int = 1
    seed: int = 0
    steps: int = 12
    groups: dict[str, tuple[str, list[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.groups["0"] = ("default_pg", list(range(self.world)))
        if self.tp > 1:
            for start in range(0, self.world, self.tp):
                self.groups[f"tp{start}"] = ("tp", list(range(start, start + self.tp)))
            for offset in range(self.tp):
                self.groups[f"dp{offset}"] = ("dp", list(range(offset, self.world, self.tp)))

    def calls(self, rank: int) -> list[tuple[str, str, int, int]]:
        """All calls of a rank in order."""
        step: list[tuple[str, str, int, int]] = []
        if self.tp > 1:
            tp, dp = f"tp{rank - rank % self.tp}", f"dp{rank % self.tp}"
            step = [(tp, "all_reduce", 64, 30), (tp, "_all_gather_base", 32, 31), (tp, "broadcast", 2, 32)]
            step += [(dp, "all_reduce", 4096, 40), (dp, "broadcast", 8, 41), (dp, "all_reduce", 512, 42)]
        step += [("0", "all_reduce", 1, 50), ("0", "broadcast", 16, 51), ("0", "all_reduce", 4, 52)]
        return step * self.steps


def frames(op: str, line: int) -> list[dict[str, object]]:
    return [
        {"name": op, "filename": "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", "line": 99},
        {"name": "step", "filename": TRAIN, "line": line},
    ]


def entry(
    record: int,
    group: tuple[str, str],
    number: int,
    op: str,
    elements: int,
    line: int,
    state: str,
    *,
    t: int,
    dtype="Float",
    outputs=None,
    backend="nccl",
):
    return {
        "record_id": record,
        "pg_id": abs(hash(group[0])) % 1000,
        "process_group": group,
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": f"{backend}:{op}",
        "time_created_ns": T0 + t,
        "input_sizes": [[elements]],
        "input_dtypes": [dtype],
        "output_sizes": [[elements if outputs is None else outputs]],
        "output_dtypes": [dtype],
        "state": ("scheduled" if backend == "gloo" else state),
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": state == "completed",
        "timeout_ms": 600000,
        "is_p2p": False,
        "frames": frames(op, line),
    }


def dump(entries, groups=None, **changes):
    config = {name: {"name": name, "desc": desc, "ranks": str(ranks)} for name, (desc, ranks) in (groups or {}).items()}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": list(entries)} | changes


def run(plan: Plan, changed=None, *, ring: int = 2000, ahead: int = 0):
    """Let all ranks run `calls`, with those of some ranks `changed`, until nobody can go on; `ahead` more are enqueued behind a call that hangs.

    A call ends once all members of its group have come to it with the same one; the dumps of all ranks, by rank.
    """
    todo = {r: list((changed or {}).get(r, plan.calls(r))) for r in range(plan.world)}
    at = dict.fromkeys(todo, 0)
    counts: dict[int, dict[str, int]] = {r: {} for r in todo}
    entries: dict[int, list[dict[str, object]]] = {r: [] for r in todo}
    arrived: dict[tuple[str, int], dict[int, dict[str, object]]] = {}
    clock = 0

    def issue(r: int, *, runs: bool = True) -> None:
        nonlocal clock
        call = todo[r][at[r]]
        group, op, elements, line = call[:4]
        more = call[4] if len(call) > 4 else {}
        number = counts[r][group] = counts[r].get(group, 0) + 1
        clock += 1000
        outputs = elements * len(plan.groups[group][1]) if op == "_all_gather_base" else None
        made = entry(
            len(entries[r]), (group, plan.groups[group][0]), number, op, elements, line, "scheduled", t=clock, **({"outputs": outputs} | more)
        )
        entries[r].append(made)
        at[r] += 1
        here = arrived.setdefault((group, number), {})
        here[r] = made
        if runs and len(here) == len(plan.groups[group][1]) and len({fits(e) for e in here.values()}) == 1:
            for e in here.values():
                e["state"], e["retired"] = "completed", True

    moved = True
    while moved:
        moved = False
        order = list(todo)
        plan.random.shuffle(order)
        for r in order:
            while at[r] < len(todo[r]) and todo[r][at[r]] is not None:
                if entries[r] and entries[r][-1]["state"] != "completed":
                    break
                issue(r)
                moved = True
    for r in todo:
        for _ in range(ahead):
            if at[r] < len(todo[r]) and todo[r][at[r]] is not None and any(e["state"] != "completed" for e in entries[r]):
                # Behind a call that hangs nothing runs.
                issue(r, runs=False)
    return {r: dump(e[-ring:], {g: v for g, v in plan.groups.items() if r in v[1]}) for r, e in entries.items()}


def fits(e: dict[str, object]) -> tuple[object, ...]:
    return e["profiling_name"], str(e["input_sizes"]), str(e["output_sizes"]), str(e["input_dtypes"])


def parse(data: bytes) -> Flight:
    """The dump in these bytes, in objects."""
    return flight_of(alone(decoded(data, "the dump"), "the dump"), source="the dump")
