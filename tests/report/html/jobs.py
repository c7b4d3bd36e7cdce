"""Jobs that were never run: scenes and verdicts of any size, with one fault, the same every time."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace

from unhang.model import Evidence, Finding, Input, NotExamined, Remedy, Verdict
from unhang.report.html.scene import (
    Divergence,
    Fact,
    Facts,
    Group,
    Operation,
    RankRow,
    Scene,
    Side,
    StackGroup,
    StackLine,
    State,
    Track,
)

T0_NS = 1_795_000_000_000_000_000
OPERATIONS = (
    Operation(name=""),
    Operation(name="all_reduce", says="6,553,600 × BFloat16"),
    Operation(name="all_reduce", says="13,107,200 × BFloat16"),
    Operation(name="all_reduce", says="1 × Float"),
    Operation(name="all_gather", says="4,096 × Long"),
    Operation(name="broadcast", says="512 × Long"),
)
SITES = ("", "train.py:212 in backward", "train.py:219 in log_loss", "evaluate.py:88 in gather_metrics", "evaluate.py:61 in sync_sampler")
# One step: four buckets of gradients, then the loss.
STEP = ((1, 1, 34.0), (2, 1, 41.0), (2, 1, 43.0), (1, 1, 30.0), (3, 2, 1.2))


def job(
    ranks: int, operations: int, *, missing: tuple[int, ...] = (), odd: tuple[int, ...] = (), unseen: tuple[int, ...] = (), per_host: int = 8
) -> Scene:
    """A data-parallel job that stopped at its last operation: `missing` ranks never came, `odd` ones issued a broadcast, `unseen` left no dump."""
    chance = random.Random(7)
    plan, clock_ms = [], 0.0
    for i in range(operations):
        op, site, lasts = STEP[i % len(STEP)]
        if i % 400 in (398, 399):
            op, site, lasts = 4, 3, 9.0
        clock_ms += 260.0 if op == 1 and i % len(STEP) == 0 else 14.0
        plan.append((op, site, clock_ms, lasts))
        clock_ms += lasts
    stop = operations - 1
    until = T0_NS + int((clock_ms + 31_000.0) * 1e6)
    tracks, rows = [], []
    for rank in range(ranks):
        host = f"node{rank // per_host:03d}" if ranks > per_host else "node1"
        if rank in unseen:
            rows.append(RankRow(rank=rank, host=host, concern="unknown", unseen=True))
            continue
        skew = chance.uniform(0.0, 2.5)
        ops, states, starts, sites = array("H"), bytearray(), array("q"), array("H")
        for i, (op, site, at_ms, _) in enumerate(plan):
            begin = T0_NS + int((at_ms + skew + chance.uniform(0.0, 2.0)) * 1e6)
            state = State.COMPLETED
            if i == stop:
                state = State.ISSUED
                if rank in missing:
                    op, site, state = 0, 0, State.MISSING
                elif rank in odd:
                    op, site = 5, 4
            ops.append(op)
            sites.append(site)
            states.append(state)
            starts.append(begin)
        tracks.append(Track(rank=rank, group=0, first=1, ops=ops, states=bytes(states), starts_ns=starts, sites=sites))
        last = f"{OPERATIONS[plan[stop][0]].name}"
        if rank in missing:
            row = RankRow(
                rank=rank, host=host, concern="missing", says="in no collective: time.sleep", where="data.py:140 in fetch", step=operations // 5 - 1
            )
        elif rank in odd:
            row = RankRow(rank=rank, host=host, concern="odd", says="waits in broadcast", where=SITES[4], step=operations // 5 - 1)
        else:
            row = RankRow(rank=rank, host=host, concern="waiting", says=f"waits in {last}", where=SITES[plan[stop][1]], step=operations // 5 - 1)
        rows.append(row)
    waiting = tuple(r for r in range(ranks) if r not in (*missing, *odd, *unseen))
    op = OPERATIONS[plan[stop][0]]
    sides = [Side(ranks=odd, operation="broadcast", says=OPERATIONS[5].says, site=SITES[4], doing="odd")] if odd else []
    sides += [Side(ranks=missing, doing="missing")] if missing else []
    sides += [Side(ranks=waiting, operation=op.name, says=op.says, site=SITES[plan[stop][1]], doing="waiting")]
    sides += [Side(ranks=unseen, doing="unknown")] if unseen else []
    parted = Divergence(group=0, number=operations, odd=odd, missing=missing, sides=tuple(sides))
    return Scene(
        title="t5-sft",
        taken="2026-11-22 06:14:09 UTC",
        ranks=tuple(rows),
        groups=(Group(name="0", desc="default_pg", members=tuple(range(ranks))),),
        operations=OPERATIONS,
        sites=SITES,
        tracks=tuple(tracks),
        divergences=(parted,) if odd or missing else (),
        stacks=stacks(waiting, odd or missing),
        facts=(
            Facts(
                title="run", facts=(Fact(name="command", value="torchrun --nproc-per-node 8 train.py --epochs 3"), Fact(name="torch", value="2.13"))
            ),
            Facts(title="environment", facts=(Fact(name="NCCL_DEBUG", value="WARN"), Fact(name="TORCH_FR_BUFFER_SIZE", value="2000"))),
            Facts(title="host", facts=(Fact(name="memory total", value="1,007.5 GiB"), Fact(name="/dev/shm", value="503.7 GiB free"))),
        ),
        until_ns=until,
        hosts_differ=ranks > per_host,
    )


def stacks(waiting: tuple[int, ...], others: tuple[int, ...]) -> tuple[StackGroup, ...]:
    main = (
        StackLine(file="train.py", line=301, name="<module>", code="main()", own=True),
        StackLine(file="train.py", line=290, name="main", code="train(model, loader)", own=True),
    )
    step = StackLine(file="train.py", line=212, name="backward", code="loss.backward()", own=True)
    sampler = StackLine(file="evaluate.py", line=61, name="sync_sampler", code="dist.broadcast(seed, src=0)", own=True)
    inside = StackLine(file="torch/distributed/distributed_c10d.py", line=3252, name="all_reduce")
    other = StackLine(file="torch/distributed/distributed_c10d.py", line=2879, name="broadcast")
    return (StackGroup(ranks=waiting, lines=(*main, step, inside), shared=2), StackGroup(ranks=others, lines=(*main, sampler, other), shared=2))


def mismatch() -> Verdict:
    return Verdict(
        primary=Finding(
            cause="collective-mismatch",
            standing="established",
            says="rank 3 issued broadcast (512 × Long) as #241 in default_pg, where all others issued all_reduce (6,553,600 × BFloat16)",
            ranks=(3,),
            hosts=("node1",),
            where="evaluate.py:61 in sync_sampler",
            evidence=(
                Evidence(source="incidents/1/flight/rank_3", text="#241 broadcast [512] Long at evaluate.py:61 in sync_sampler"),
                Evidence(source="incidents/1/flight/rank_0", text="#241 all_reduce [6553600] BFloat16 at train.py:212 in backward"),
                Evidence(source="logs/attempt-0/rank3.err", line=88, text="evaluating: the best loss so far is 0.4312"),
            ),
            remedies=(
                Remedy(id="same-branch", says="Make all ranks take the same branch: the test at evaluate.py:60 reads a value that only rank 3 has."),
                Remedy(id="detail", says="Let torch compare every call while you look for it.", env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
            ),
        ),
        symptoms=(Finding(cause="collective-timeout", standing="established", says="7 ranks wait for 31 s"),),
        not_examined=(NotExamined(what="kernel log", why="dmesg: read kernel buffer failed: Operation not permitted"),),
        inputs=tuple(Input(source=f"incidents/1/flight/rank_{r}", kind="flight", bytes=48_211 + 17 * r) for r in range(8)),
    )


def stuck(rank: int, unseen: tuple[int, ...]) -> Verdict:
    return Verdict(
        primary=Finding(
            cause="process-stuck",
            standing="likely",
            says=f"rank {rank} is alive, outside any collective, asleep at data.py:140 in fetch while 1,015 ranks wait in all_gather for 31 s",
            ranks=(rank,),
            hosts=(f"node{rank // 8:03d}",),
            where="data.py:140 in fetch",
            evidence=(
                Evidence(source=f"incidents/1/stacks/rank{rank}.json", text="data.py:140 in fetch: time.sleep(backoff_s)"),
                Evidence(source="incidents/1/flight/rank_0", text="#2000 all_gather [4096] Long at evaluate.py:88 in gather_metrics, not finished"),
            ),
            remedies=(
                Remedy(
                    id="bound",
                    says="Bound the retry in fetch: it may sleep for longer than the collective waits.",
                    command=f"py-spy dump --pid 4{rank}",
                ),
            ),
        ),
        not_examined=(
            NotExamined(what=f"the flight recorder of ranks {unseen[0]} to {unseen[-1]}", why="no dump was taken: node012 did not answer"),
        ),
        inputs=(Input(source="incidents/1/incident.json", kind="run", bytes=901_223),),
    )


def small() -> tuple[Verdict, Scene]:
    """8 ranks on one host; rank 3 took another branch."""
    return mismatch(), job(8, 241, odd=(3,))


def large(ranks: int = 1024, operations: int = 2000) -> tuple[Verdict, Scene]:
    """1,024 ranks of 2,000 operations; one never came, and the dumps of one host are not there."""
    unseen = tuple(range(96, 104))
    return stuck(713, unseen), job(ranks, operations, missing=(713,), unseen=unseen)


def gloo() -> tuple[Verdict, Scene]:
    """What Gloo's recorder gives: no ends, and no word on how anything ended. The rings of some ranks begin later."""
    verdict, scene = small()
    tracks = []
    for t in scene.tracks:
        kept = slice(4 * (t.rank % 2), None)
        states = bytes(State.ENDED if s == State.COMPLETED else s for s in t.states)
        tracks.append(replace(t, first=t.first + kept.start, ops=t.ops[kept], states=states[kept], sites=t.sites[kept], starts_ns=t.starts_ns[kept]))
    return verdict, replace(scene, tracks=tuple(tracks), title="gloo")
