"""Facts of the right types and of any value: every cause judges them, and every summary is made."""

from __future__ import annotations

import collections.abc
import dataclasses
import random
import types
import typing

from tests.tables import for_each

from unhang.diagnosis import doctor
from unhang.facts import snapshot

TEXTS = (
    "",
    "0",
    "x",
    "::",
    "a b",
    "/",
    "no",
    "inf",
    "8.0",
    "12.4",
    "2.1.0+cu118",
    "5.15",
    "mlx5_0",
    "eth0",
    "10.0.0.5/24",
    "fe80::1/64",
    "999.9.9.9/99",
)
NUMBERS = (0, 1, -1, 2, 7, 8, 64, 1024, 65536, 67108864, 2**31, 2**40, 2**63 - 1)


def made(of: typing.Any, random: random.Random) -> typing.Any:
    origin, arguments = typing.get_origin(of), typing.get_args(of)
    if origin in (typing.Union, types.UnionType):
        return made(random.choice(arguments), random)
    if origin is typing.Literal:
        return random.choice(arguments)
    if of in (type(None), object, typing.Any):
        return None
    if of is bool:
        return random.random() < 0.5
    if of is int:
        return random.choice(NUMBERS)
    if of is float:
        return random.choice((0.0, -1.0, 0.5, 1e9, 1e18))
    if of is str:
        return random.choice(TEXTS)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return tuple(made(a, random) for a in arguments)
    if origin in (tuple, list, frozenset):
        return origin(made(arguments[0], random) for _ in range(random.choice((0, 0, 1, 2, 3))))
    if origin in (dict, collections.abc.Mapping):
        return {made(arguments[0], random): made(arguments[1], random) for _ in range(random.choice((0, 1, 2)))}
    hints = typing.get_type_hints(of)
    return of(**{f.name: made(hints[f.name], random) for f in dataclasses.fields(of)})


@for_each("seed", range(10))
def test_odd_facts_are_judged(seed):
    chance = random.Random(seed)
    for _ in range(15):
        # The values of variables are judged by the checked table.
        known = {id: s for id, s in snapshot.subjects().items() if id != "variables" and chance.random() < 0.8}
        parts = {id: snapshot.Part(state="read", facts=made(s.facts, chance)) for id, s in known.items()}
        seen = doctor.examine(snapshot.Snapshot(host="node7", taken="2027-01-01T00:00:00+00:00", parts=parts))
        assert seen.not_examined == ()
