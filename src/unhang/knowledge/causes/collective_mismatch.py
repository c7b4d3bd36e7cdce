"""collective-mismatch: ranks issue different collectives, sizes, dtypes or orders."""

from __future__ import annotations

from unhang.knowledge import words
from unhang.knowledge.cause import Cause, Signature
from unhang.knowledge.gloo_crash import SIZE_MISMATCH, Crash, crash_of
from unhang.knowledge.guards import guard_of_parting
from unhang.model import Evidence, Finding, Remedy, Standing
from unhang.records.match import Parting, Side, other_line
from unhang.records.picture import Picture


def _in_run(picture: Picture) -> Finding | None:
    if (crash := crash_of(picture, picture.hits_of(CAUSE.id))) is not None:
        return _of_crash(picture, crash)
    if picture.front is not None and picture.front.parting is not None and guard_of_parting(picture) is None:
        return _of_parting(picture, picture.front.parting)
    return _of_words(picture)


def _of_parting(picture: Picture, parting: Parting) -> Finding:
    numbers = parting.odd or tuple(s.rank for s in parting.sides)
    standing: Standing = "established" if all(s.call is not None for s in parting.sides) else "likely"
    kinds = list(dict.fromkeys(s.key for s in parting.sides))
    first_odd = parting.side(numbers[0])
    rest = next(s for s in parting.sides if s.key != first_odd.key)
    seq = f" as call #{parting.seq} of group {parting.group}" if parting.seq is not None else ""
    says = f"{_did(picture, parting, first_odd)}{seq}, where {_did(picture, parting, rest)}"
    says += _how_known(parting)
    shown = [next(s for s in parting.sides if s.key == key) for key in kinds[:3]]
    return CAUSE.finding(
        standing=standing,
        says=says,
        ranks=numbers,
        hosts=words.hosts(picture, numbers),
        where=picture.place(first_odd.place) if first_odd.place is not None else None,
        evidence=tuple(_side_evidence(picture, s, parting) for s in shown),
        remedies=_remedies(first_odd, rest),
    )


def _how_known(parting: Parting) -> str:
    if parting.by == "majority":
        return f" ({len(parting.sides) - len(parting.odd)} of {len(parting.sides)} ranks agree)"
    if parting.by == "history":
        return " (the same line issued something else before)"
    if parting.by == "line":
        return " (this line was hardly ever reached before, and the other one at every step)"
    return "; which of them was meant is not in evidence"


def _did(picture: Picture, parting: Parting, side: Side) -> str:
    same = [s.rank for s in parting.sides if s.key == side.key]
    at = f" at {picture.place(side.place)}" if side.place is not None else ""
    return f"{words.ranks(same)} issued {words.call(side.call) if side.call is not None else side.op}{at}"


def _side_evidence(picture: Picture, side: Side, parting: Parting) -> Evidence:
    record = picture.rank(side.rank).record
    source = record.flight if side.call is not None else record.stacks
    seq = "" if parting.seq is None else f"#{parting.seq} "
    at = f", {words.frame(side.place)}" if side.place is not None else ""
    state = "waits" if side.waiting else "done"
    return Evidence(
        source=source or picture.incident_source,
        text=f"rank {side.rank}: {seq}{words.call(side.call) if side.call is not None else side.op} ({state}){at}",
    )


def _remedies(one: Side, other: Side) -> tuple[str, ...]:
    if one.op != other.op or other_line(one.place, other.place):
        return ("same-order", "check-each-call")
    if one.call is not None and other.call is not None and one.call.dtypes != other.call.dtypes:
        return ("same-dtype", "check-each-call")
    return ("same-size", "check-each-call")


def _of_crash(picture: Picture, crash: Crash) -> Finding:
    numbers = crash.odd or crash.involved
    at = picture.place(crash.place) if crash.place is not None else None
    what = f" ({words.call(crash.call)})" if crash.call is not None else ""
    if crash.odd:
        size = "another size" if len(crash.odd) == 1 else "other sizes"
        others = "the other rank" if len(crash.involved) - len(crash.odd) == 1 else "the other ranks"
        says = f"{words.ranks(crash.odd)} called a collective with {size} than {others}{what}"
        says += f" at {at}" if at else ""
    else:
        stood = [f"rank {n} at {picture.place(f)}" for n, f in list(crash.lines.items())[:2]] if crash.lines_differ else []
        where = f" ({', '.join(stood)})" if stood else f" at {at}" if at else ""
        says = f"the ranks called a collective with different sizes{where}; which of them is off is not in evidence"
    received = f" ({crash.received} bytes arrived where {crash.expected} were expected)" if crash.received else ""
    says += f"; it ended {words.ranks(crash.dead)} inside Gloo{received}"
    return CAUSE.finding(
        standing="established",
        says=says,
        ranks=numbers,
        hosts=words.hosts(picture, numbers),
        where=at,
        evidence=(*words.hit_evidence(crash.hits, at_most=1), *crash.evidence),
        remedies=("same-order" if crash.lines_differ else "same-size", "check-each-call"),
    )


def _of_words(picture: Picture) -> Finding | None:
    """torch's own check (TORCH_DISTRIBUTED_DEBUG=DETAIL) names the ranks in its message."""
    hits = [h for h in picture.hits_of(CAUSE.id) if "other" in h.groups]
    if not hits:
        return None
    numbers = tuple(sorted({int(h.groups[k]) for h in hits for k in ("one", "other")}))
    speaker = next((r for r in picture.raised if r.number in numbers or not numbers), None)
    at = picture.where(speaker) if speaker is not None else None
    return CAUSE.finding(
        standing="established",
        says=f"{words.ranks(numbers)} issued different collectives{words.at(picture, speaker) if speaker else ''} (found by torch's own check)",
        ranks=numbers,
        where=at,
        evidence=words.hit_evidence(hits),
        remedies=("same-order",),
    )


CAUSE = Cause(
    id="collective-mismatch",
    role="root",
    title="Ranks issue different collectives",
    title_zh="各进程发出的集合通信不一致",
    what="At the same place of the sequence, ranks of one group called different operations, or the same one with other sizes or dtypes.",
    why="Uneven numbers of batches, tensors whose size depends on local data, parameters that take part on some ranks only, "
    "an early return or a caught exception on one rank.",
    signatures=(
        SIZE_MISMATCH,
        Signature(
            needle="Detected mismatch between collectives on ranks",
            pattern=r"Rank (?P<one>\d+) is running collective: .*, but Rank (?P<other>\d+) is running",
        ),
    ),
    in_run=_in_run,
    remedies=(
        Remedy(
            id="same-size",
            says="Give the tensor the same number of elements on every rank: pad it, gather the sizes first, or reduce sums and counts, not lists.",
        ),
        Remedy(id="same-dtype", says="Use one dtype on every rank: equal bytes of different dtypes give silent garbage, not an error."),
        Remedy(
            id="same-order",
            says="Let every rank make the same calls in the same order: equal numbers of batches (drop_last, DistributedSampler, "
            "model.join()), find_unused_parameters where branches differ, no early return on one rank.",
        ),
        Remedy(
            id="check-each-call",
            says="Let torch compare operation and shape of every call before it is made (slow; for finding the place only).",
            env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
        ),
    ),
    mistaken_for={
        "rank0-guarded-collective": "there a test of the rank stands around the call",
        "peer-lost": "a size mismatch on Gloo kills the rank with the smaller tensor; what the survivors print is a consequence",
        "straggler-timeout": "here every rank is inside some collective; there one is in none",
    },
    sources=(
        "https://docs.pytorch.org/docs/stable/distributed.html#debugging-torch-distributed-applications",
        "https://docs.pytorch.org/tutorials/advanced/generic_join.html",
    ),
    hits=(
        (
            "  what():  [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 4096 vs 1024. "
            "Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?"
        ),
        (
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 3 is running collective: CollectiveFingerPrint(SequenceNumber=5, "
            "OpType=ALLGATHER, TensorShape=[4]), but Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=5, OpType=ALLREDUCE)."
        ),
    ),
    near_misses=(
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:20200: Connection reset by peer.",
        "RuntimeError: The size of tensor a (4) must match the size of tensor b (8) at non-singleton dimension 0",
    ),
    explain={
        "en": (
            "Every rank of a group has to make the same calls, in the same order, with the same number of elements and the same dtype. Here one "
            "did not. With NCCL the ranks then wait for each other for ever, or reduce garbage; with Gloo the rank that expected less is killed at "
            "once and the others lose their peer. The verdict names the rank that differs from the majority, or from what the same line of code "
            "did before."
        ),
        "zh": (
            "组内每个进程必须以同样的顺序发出同样的调用，元素个数和 dtype 也要一致。这里有进程没有做到。用 NCCL 时大家会永远互相等待，或者归约出垃"
            "圾数据；用 Gloo 时，期望数据较少的那个进程会立刻被结束，其他进程失去同伴。结论点名的是与多数不同，或与同一行代码以前的行为不同的那个进"
            "程。"
        ),
    },
)
