"""What became of the messages between two ranks, counted from the first that either of them posted.

Columns keep only pending messages; which of them belong together is told by how many went before, hence the dumps of the two are read again. Where a
ring has lost its beginning nothing can be counted: a message is then said to fit another one only if equally many are pending on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from unhang.flight import operations
from unhang.flight.coalesced import COALESCED
from unhang.flight.entries import Call, Flight
from unhang.flight.outcome import Kind, Outcome, SideOf

_KINDS = ("p2p-size", "p2p-alone", "transport")


def settled(outcome: Outcome, read: Callable[[int], Flight | None]) -> Outcome:
    """The outcome on messages of two ranks after counting; any other one, and one whose dumps cannot be read, as it is."""
    if outcome.kind not in _KINDS or not outcome.call.startswith(("send to", "receive from")) or len(outcome.members) != 2:
        return outcome
    waiting = outcome.waiting[0]
    partner = next(r for r in outcome.members if r != waiting)
    flights = {r: f for r in (waiting, partner) if (f := read(r)) is not None}
    if len(flights) < 2:
        return outcome
    pending = next((c for c in _of_group(flights[waiting], outcome.group_name) if c.seq == outcome.number and not c.done), None)
    ends = operations.peers(pending.op) if pending is not None else None
    if pending is None or ends is None or None in ends:
        return outcome
    if (alone := _alone_in_batch(outcome, waiting, pending, flights[waiting], read)) is not None:
        return alone
    sender, receiver = (waiting, partner) if outcome.call.startswith("send") else (partner, waiting)
    sent = _between(flights[sender], outcome.group_name, "send", ends)
    got = _between(flights[receiver], outcome.group_name, "recv", ends)
    if any(f.lost or f.cut or f.skipped for f in flights.values()):
        unequal = sum(not c.done for c in sent) != sum(not c.done for c in got)
        return _untold(outcome, waiting, partner) if outcome.kind != "p2p-alone" and unequal else outcome
    if _is_behind(sent, got):
        return replace(_untold(outcome, waiting, partner), unseen=(sender,), ahead=(), older=tuple(sorted({*outcome.older, sender})))
    return _counted(outcome, sender, receiver, sent, got)


def _is_behind(sent: Sequence[Call], got: Sequence[Call]) -> bool:
    """Whether more was received than the sender's dump has sent: it is older. What is behind a pending send has not been sent."""
    through = next((n for n, call in enumerate(sent) if not call.done), len(sent))
    newest = max((n for n, call in enumerate(got) if call.done), default=-1)
    return newest > through or newest >= len(sent)


def _alone_in_batch(outcome: Outcome, waiting: int, pending: Call, flight: Flight, read: Callable[[int], Flight | None]) -> Outcome | None:
    """The first message of a pending batch whose other side was never posted: the others of the batch are not over before it is."""
    mine = _of_group(flight, outcome.group_name)
    batch = [c for c in mine if c.seq == pending.seq and not c.done]
    group = flight.groups.get(outcome.group_name)
    if len(batch) < 2 or group is None or flight.lost:
        return None
    for call in batch:
        ends, kind = operations.peers(call.op), "send" if call.op.startswith("send") else "recv"
        if ends is None or (place := ends[kind == "send"]) is None or place >= len(group.members):
            continue
        there = group.members[place]
        other = read(there)
        if other is None or other.lost or other.cut or other.skipped:
            continue
        before = _between(flight, outcome.group_name, kind, ends)
        if before.index(call) >= len(_between(other, outcome.group_name, "recv" if kind == "send" else "send", ends)):
            words = _words(waiting, waiting, there) if kind == "send" else _words(waiting, there, waiting)
            members = tuple(sorted((waiting, there)))
            return replace(
                outcome, kind="p2p-alone", number=call.seq, call=words, members=members, ranks=(there,), waiting=(waiting,), finished=(), sides=()
            )
    return None


def _counted(outcome: Outcome, sender: int, receiver: int, sent: Sequence[Call], got: Sequence[Call]) -> Outcome:
    """The first message of the pair that is not over on both sides."""
    for n in range(max(len(sent), len(got))):
        one, other = (calls[n] if n < len(calls) else None for calls in (sent, got))
        if one is None or other is None:
            here, there = (sender, receiver) if other is None else (receiver, sender)
            alone = one or other
            # A small send is over before its receive is posted.
            if alone is None or alone.done:
                continue
            words = _words(here, sender, receiver)
            return replace(outcome, kind="p2p-alone", number=alone.seq, call=words, ranks=(there,), waiting=(here,), sides=())
        if one.done and other.done:
            continue
        sides = (_side(one, "send", sender), _side(other, "recv", receiver))
        here = receiver if one.done else sender if other.done else outcome.waiting[0]
        there = receiver if here == sender else sender
        fits = sides[0].call.split(" ")[1:] == sides[1].call.split(" ")[1:]
        kind: Kind = "p2p-size" if not fits else "finished-on-some" if one.done or other.done else "transport"
        over = kind == "finished-on-some"
        return replace(
            outcome,
            kind=kind,
            number=(one if here == sender else other).seq,
            call=_words(here, sender, receiver),
            ranks=(here,) if over else tuple(sorted((here, there))),
            waiting=(here,),
            finished=(there,) if over else (),
            sides=sides,
            by="pairs",
        )
    return outcome


def _untold(outcome: Outcome, waiting: int, partner: int) -> Outcome:
    return replace(outcome, kind="cannot-tell", ranks=(waiting,), waiting=(waiting,), unseen=(), ahead=(partner,), sides=())


def _of_group(flight: Flight, group: str) -> list[Call]:
    """The messages of a group, oldest first."""
    return [c for c in flight.calls.get(group, ()) if c.is_p2p and c.op != COALESCED]


def _between(flight: Flight, group: str, kind: str, ends: tuple[int | None, int | None]) -> list[Call]:
    """The sends or receives from one rank to another, with those of any source."""
    return [c for c in _of_group(flight, group) if c.op.startswith(kind) and operations.peers(c.op) in (ends, (None, ends[1]))]


def _words(here: int, sender: int, receiver: int) -> str:
    return f"send to rank {receiver}" if here == sender else f"receive from rank {sender}"


def _side(call: Call, kind: str, rank: int) -> SideOf:
    elements = sum(call.elements) or sum(call.output_elements)
    return SideOf(call=f"{kind} {elements} {'/'.join(dict.fromkeys(call.dtypes))}".strip(), ranks=(rank,), number=call.seq)
