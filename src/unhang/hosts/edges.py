"""Which pairs of hosts are tried, and whom the outcome convicts: a host, one direction of one edge, or groups that do not reach each other.

What is bad is bad beside the other pairs of this run. The chance of a verdict is that of *any* healthy pair to be named, from the upper bound of
failure among all others.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Literal

from unhang.model import frozen

Edge = tuple[str, str]
Kind = Literal["groups", "host", "edge", "slow-host", "slow-edge", "loss"]
Way = Literal["in", "out", "both"]

# All pairs up to here; beyond that the ring of the job, and so many random matchings.
ALL_PAIRS = 16
_MATCHINGS = 8
# Established, if a healthy pair would be named less often.
ESTABLISHED = 1e-3
_HALF = math.log(2)
# The least noise that is believed, as a factor of speed.
_LEAST_NOISE = 0.08
_LOSSY, _LEAST_LOST = 0.01, 20


@frozen
class Probe:
    """One test of a link, opened by `edge[0]`. `at` is the rung that failed, None where none did. Speeds in bytes per second, each way; `lost` and
    `segments` count what the opener sent again, and all that it sent.
    """

    edge: Edge
    at: str | None = None
    error: str = ""
    round_trip_s: float | None = None
    out_bytes_per_s: float | None = None
    in_bytes_per_s: float | None = None
    lost: int = 0
    segments: int = 0


@frozen
class Fault:
    """`hosts` of an edge are sender and receiver. `way` of a host is "in" (it cannot be reached, or receives slowly), "out", or "both".

    `factor` is its speed beside the others', or the share of segments that were lost; `failed` of `tried` tests failed. `chance` is that of any
    healthy pair to be named so.
    """

    kind: Kind
    hosts: tuple[str, ...] = ()
    groups: tuple[tuple[str, ...], ...] = ()
    way: Way = "both"
    at: str = ""
    error: str = ""
    failed: int = 0
    tried: int = 0
    factor: float | None = None
    chance: float

    @property
    def is_established(self) -> bool:
        return self.chance < ESTABLISHED


def rounds(hosts: Sequence[str], *, seed: int = 0) -> list[list[Edge]]:
    """Disjoint pairs, one list after the other, each pair in both directions."""
    found: list[list[Edge]] = []
    if len(hosts) <= ALL_PAIRS:
        circle: list[str | None] = [*hosts, *[None] * (len(hosts) % 2)]
        for turn in range(len(circle) - 1):
            order = [circle[0], *(circle[1 + (turn + i) % (len(circle) - 1)] for i in range(len(circle) - 1))]
            found.append(_once((a, b) for a, b in zip(order, reversed(order), strict=True) if a is not None and b is not None))
    else:
        ring = list(zip(hosts, [*hosts[1:], hosts[0]], strict=True))
        found += [_once(ring[::2]), _once(ring[1::2])]
        shuffled, chosen = list(hosts), random.Random(seed)
        for _ in range(_MATCHINGS):
            chosen.shuffle(shuffled)
            found.append(list(zip(shuffled[::2], shuffled[1::2], strict=False)))
    return [direction for pairs in found for direction in (pairs, [(b, a) for a, b in pairs])]


def _once(pairs: Iterable[Edge]) -> list[Edge]:
    """Those of which no host has a pair before."""
    used: set[str] = set()
    found = []
    for a, b in pairs:
        if a not in used and b not in used:
            used |= {a, b}
            found.append((a, b))
    return found


def matchings(edges: Collection[Edge]) -> list[list[Edge]]:
    """All of these edges, each alone on its hosts."""
    found, left = [], list(edges)
    while left:
        found.append(_once(left))
        left = [edge for edge in left if edge not in found[-1]]
    return found


def coverage(hosts: Sequence[str], probes: Iterable[Probe]) -> float:
    """The share of all directed pairs that was tried."""
    return len({p.edge for p in probes}) / max(1, len(hosts) * (len(hosts) - 1))


def hopeless(probes: Iterable[Probe]) -> set[str]:
    """Hosts whose tests failed with three others: how fast they are is not asked any more."""
    failed = {frozenset(p.edge) for p in probes if p.at is not None}
    return {host for host, count in Counter(host for edge in failed for host in edge).items() if count >= 3}


def suspects(probes: Sequence[Probe]) -> set[Edge]:
    """Edges to be tried again: what failed, what was slow beside its neighbours, what lost segments, unless that is settled."""
    settled = [fault for fault in judge(probes) if fault.is_established]
    failed = {p.edge for p in probes if p.at is not None}
    speeds = _Speeds(probes)
    slow = sorted(((left, edge) for edge, left in speeds.rest.items() if left < -max(_HALF, 4 * speeds.noise)), key=lambda s: s[0])
    doubtful = {host for fault in judge(probes) if fault.kind == "slow-host" for host in fault.hosts}
    failed |= {edge for edge in speeds.of_edge if doubtful & set(edge)}
    found = failed | {edge for _, edge in slow[: 2 * len(speeds.hosts)]} | {edge for edge, (rate, _) in _losses(probes).items() if rate > _LOSSY}
    return {edge for edge in found if not any(_explains(fault, edge) for fault in settled)}


def _explains(fault: Fault, edge: Edge) -> bool:
    if fault.kind == "groups":
        return not any({*edge} <= {*group} for group in fault.groups)
    return set(fault.hosts) <= set(edge)


def judge(probes: Sequence[Probe], order: Sequence[str] = ()) -> tuple[Fault, ...]:
    """Whom these tests convict; nobody where there are too few to tell. Hosts are named in the order that is given."""
    faults, innocent = _unreached(probes, order)
    return (*faults, *_slow(innocent), *_lossy(innocent))


def smallest(probes: Sequence[Probe]) -> float | None:
    """What share of the others' speed a slow edge must be under to be told from noise; None where that cannot be told at all."""
    speeds = _Speeds(probes)
    return math.exp(-max(_HALF, 5 * speeds.noise)) if len(speeds.hosts) > 2 else None


def _unreached(probes: Sequence[Probe], order: Sequence[str]) -> tuple[list[Fault], list[Probe]]:
    """Faults of what cannot be reached, and the probes that these do not explain."""
    outcomes: dict[Edge, list[Probe]] = defaultdict(list)
    for probe in probes:
        outcomes[probe.edge].append(probe)
    tested = {host for edge in outcomes for host in edge}
    hosts = tuple(host for host in order if host in tested) or tuple(sorted(tested))
    bad = {edge: tried for edge, tried in outcomes.items() if 2 * sum(p.at is not None for p in tried) > len(tried)}
    worked = {frozenset(edge) for edge in outcomes if edge not in bad and edge[::-1] not in bad}
    parts = _parts(hosts, worked)
    faults: list[Fault] = []
    groups = tuple(part for part in parts if len(part) > 1)
    if not worked and len(hosts) > 2:
        return [replace(_fault("groups", bad, outcomes, 1, groups=tuple(parts)), chance=0.0)], []
    whose = {host: i for i, part in enumerate(groups) for host in part}
    between = {e: t for e, t in bad.items() if whose.get(e[0], -1) != whose.get(e[1], -2)}
    # Where tests ended early, groups may be those that were not tried.
    if len(groups) > 1 and between:
        faults.append(_fault("groups", between, outcomes, len(groups), groups=groups))
        bad = {edge: tried for edge, tried in bad.items() if edge not in between}
    ends: dict[tuple[str, str], list[Edge]] = defaultdict(list)
    for edge in outcomes:
        ends["out", edge[0]].append(edge)
        ends["in", edge[1]].append(edge)
    for host in hosts:
        ways = {}
        for way in ("in", "out"):
            failed = {edge: bad[edge] for edge in ends[way, host] if edge in bad}
            # With one partner it is as well that one's.
            if 2 * len(failed) > len(ends[way, host]) > 1 and any(host not in edge for edge in worked):
                ways[way] = failed
        if ways:
            failed = {edge: tried for found in ways.values() for edge, tried in found.items()}
            faults.append(_fault("host", failed, outcomes, len(hosts), hosts=(host,), way="both" if len(ways) > 1 else next(iter(ways))))
            bad = {edge: tried for edge, tried in bad.items() if host not in edge}
    for edge, tried in bad.items():
        if edge[::-1] not in bad:
            faults.append(_fault("edge", {edge: tried}, outcomes, len(outcomes), hosts=edge, way="out"))
        elif hosts.index(edge[0]) < hosts.index(edge[1]):
            both = {edge: tried, edge[::-1]: bad[edge[::-1]]}
            faults.append(_fault("edge", both, outcomes, len(outcomes), hosts=edge, way="both"))
    guilty = {host for f in faults if f.kind == "host" for host in f.hosts}
    return faults, [p for p in probes if p.at is None and not guilty & set(p.edge)]


def _fault(kind: Kind, bad: Mapping[Edge, Sequence[Probe]], outcomes: Mapping[Edge, Sequence[Probe]], among: int, **more: object) -> Fault:
    tried = [p for probes in bad.values() for p in probes]
    failed = [p for p in tried if p.at is not None]
    others = [p for edge, probes in outcomes.items() if edge not in bad for p in probes]
    rate = upper_bound(sum(p.at is not None for p in others), len(others))
    rung, error = Counter((p.at or "", p.error) for p in failed).most_common(1)[0][0]
    chance = min(1.0, among * rate ** len(failed))
    return Fault(kind=kind, at=rung, error=error, failed=len(failed), tried=len(tried), chance=chance, **more)  # type: ignore[arg-type]


def _parts(hosts: Sequence[str], worked: Collection[frozenset[str]]) -> list[tuple[str, ...]]:
    """Hosts that reach each other over whatever others."""
    near: dict[str, set[str]] = defaultdict(set)
    for edge in worked:
        for host in edge:
            near[host] |= edge
    found, left = [], dict.fromkeys(hosts)
    while left:
        part: set[str] = set()
        waiting = {next(iter(left))}
        while waiting:
            host = waiting.pop()
            part.add(host)
            waiting |= near[host] - part
        found.append(tuple(host for host in hosts if host in part))
        left = {host: None for host in left if host not in part}
    return found


class _Speeds:
    """Speed as overall × sender × receiver × edge, in logarithms, by median polish: a slow host takes nobody's edge with it.

    Of an edge that was tried several times the best counts for the model, all count against a slow edge.
    """

    def __init__(self, probes: Iterable[Probe]) -> None:
        self.tries: dict[Edge, list[float]] = defaultdict(list)
        for p in probes:
            for edge, speed in ((p.edge, p.out_bytes_per_s), (p.edge[::-1], p.in_bytes_per_s)):
                if speed:
                    self.tries[edge].append(math.log(speed))
        self.of_edge = {edge: max(found) for edge, found in self.tries.items()}
        self.hosts = tuple(dict.fromkeys(host for edge in self.of_edge for host in edge))
        self.middle = median(self.of_edge.values()) if self.of_edge else 0.0
        self.sends, self.receives = dict.fromkeys(self.hosts, 0.0), dict.fromkeys(self.hosts, 0.0)
        for _ in range(10):
            self._polish(self.sends, 0)
            self._polish(self.receives, 1)
        self.rest = {edge: self.expected_and_rest(edge, speed) for edge, speed in self.of_edge.items()}
        self.noise = _spread(self.rest.values())

    def _polish(self, effects: dict[str, float], at: int) -> None:
        left = defaultdict(list)
        for edge, speed in self.of_edge.items():
            left[edge[at]].append(self.expected_and_rest(edge, speed) + effects[edge[at]])
        # Where two hosts are all there are, nothing tells a host from the edge.
        effects.update({host: median(found) for host, found in left.items() if len(found) > 1})

    def expected_and_rest(self, edge: Edge, speed: float) -> float:
        return speed - self.middle - self.sends[edge[0]] - self.receives[edge[1]]


def _spread(values: Iterable[float]) -> float:
    found = list(values)
    middle = median(found) if found else 0.0
    return max(1.4826 * median(abs(v - middle) for v in found), _LEAST_NOISE) if found else _LEAST_NOISE


def _centred(effects: Mapping[str, float]) -> dict[str, float]:
    middle = median(effects.values())
    return {host: effect - middle for host, effect in effects.items()}


def _slow(probes: Sequence[Probe]) -> list[Fault]:
    speeds = _Speeds(probes)
    if len(speeds.hosts) < 3:
        return []
    faults: list[Fault] = []
    # Of four hosts, a slow one has half of all edges.
    sends, receives = (_centred(effects) for effects in (speeds.sends, speeds.receives))
    noise = _spread([*sends.values(), *receives.values()])
    below = {edge for edge, speed in speeds.of_edge.items() if speed < speeds.middle - _HALF}
    for host in speeds.hosts:
        effects = {"out": sends[host], "in": receives[host]}
        ways = {way: effect for way, effect in effects.items() if effect < -max(_HALF, 5 * noise)}
        if not ways:
            continue
        mine = [e for e in speeds.of_edge if ("out" in ways and e[0] == host) or ("in" in ways and e[1] == host)]
        others = [e for e in speeds.of_edge if host not in e]
        tried = sum(len(speeds.tries[edge]) for edge in mine)
        chance = min(1.0, 2 * len(speeds.hosts) * upper_bound(len(below.intersection(others)), len(others)) ** tried)
        way: Way = "both" if len(ways) > 1 else "out" if "out" in ways else "in"
        factor = math.exp(min(ways.values()))
        faults.append(Fault(kind="slow-host", hosts=(host,), way=way, factor=factor, tried=tried, failed=tried, chance=chance))
    limit = max(_HALF, 5 * speeds.noise)
    for edge, rest in speeds.rest.items():
        # Less than half even at its best: what happens once is traffic of others.
        tried = len(speeds.tries[edge])
        if rest >= -limit or tried < 3:
            continue
        near = [[v for e, v in speeds.of_edge.items() if e != edge and e[at] == edge[at]] for at in (0, 1)]
        if all(near) and speeds.of_edge[edge] < min(map(median, near)) - _HALF:
            slow = [value < -_HALF for other, value in speeds.rest.items() if other != edge]
            chance = min(1.0, len(speeds.rest) * upper_bound(sum(slow), len(slow)) ** tried)
            faults.append(Fault(kind="slow-edge", hosts=edge, way="out", factor=math.exp(rest), tried=tried, failed=tried, chance=chance))
    return faults


def _losses(probes: Iterable[Probe]) -> dict[Edge, tuple[float, int]]:
    lost: Counter[Edge] = Counter()
    sent: Counter[Edge] = Counter()
    for p in probes:
        lost[p.edge] += p.lost
        sent[p.edge] += p.segments
    return {edge: (lost[edge] / sent[edge], lost[edge]) for edge in sent if sent[edge]}


def _lossy(probes: Sequence[Probe]) -> list[Fault]:
    """Segments sent again, for each that was sent: a fast link sends more of them, and loses more without any fault."""
    rates = _losses(probes)
    if len(rates) < 3:
        return []
    usual = median(rate for rate, _ in rates.values())
    found = {edge: rate for edge, (rate, count) in rates.items() if count >= _LEAST_LOST and rate > max(_LOSSY, 10 * usual)}
    lossy = [rates[edge][0] > _LOSSY for edge in rates if edge not in found]
    tries = Counter(p.edge for p in probes)
    bound = upper_bound(sum(lossy), len(lossy))
    chances = {edge: min(1.0, len(rates) * bound ** tries[edge]) for edge in found}
    return [
        Fault(kind="loss", hosts=edge, way="out", factor=rate, tried=tries[edge], failed=tries[edge], chance=chances[edge])
        for edge, rate in found.items()
    ]


def upper_bound(failed: int, tried: int) -> float:
    """The rate of failure that so many failures still allow, with a confidence of 95 % (Clopper and Pearson)."""
    if failed >= tried:
        return 1.0

    def at_most(rate: float) -> float:
        one, other = math.log(rate), math.log1p(-rate)
        return math.fsum(math.exp(_log_comb(tried, k) + k * one + (tried - k) * other) for k in range(failed + 1))

    low, high = failed / tried, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if at_most(middle) > 0.05 else (low, middle)
    return high


def _log_comb(n: int, k: int) -> float:
    """Of large numbers `math.comb` takes long: of a rack that is down, minutes."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
