"""rendezvous-misconfig: the processes disagree on how many they are, who they are, or where they meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from unhang.knowledge import words
from unhang.knowledge.cause import STANDINGS, LogView, cause, command
from unhang.knowledge.text import Text, joined, same
from unhang.model import Finding

if TYPE_CHECKING:
    from unhang.logs import Hit
    from unhang.records.incident_view import IncidentView

_REACH = "getent ahosts {host:host}; nc -vz -w 5 {host:host} {port:port}"


def _in_run(picture: IncidentView) -> Finding | None:
    if picture.incident.elsewhere and not any(r.record.backend for r in picture.ranks):
        return _of_two_places(picture)
    if picture.incident.kind != "world-size":
        return _of_hits(picture.hits_of(CAUSE.id))
    records = [r.record for r in picture.ranks]
    worlds = Counter(r.world_size for r in records if r.world_size is not None)
    expected = picture.incident.expected_world
    numbers = Counter(r.rank for r in records)
    twice = sorted(rank for rank, count in numbers.items() if count > 1)
    reported = joined((same(str(w)) for w in sorted(worlds)), Text(" and ", " 和 "))
    if set(worlds) == {1} and len(records) > 1 and set(numbers) == {0}:
        says = Text("{count} processes each believe they are rank 0 of 1", "{n} 个进程都认为自己是 rank 0（共 1 个）")
        says = says.fill(count=_count(len(records)), n=len(records))
    elif twice:
        says = Text("{count} processes each believe they are rank {rank} of {world}", "{n} 个进程都认为自己是 rank {rank}（共 {world} 个）").fill(
            count=_count(numbers[twice[0]]), n=numbers[twice[0]], rank=twice[0], world=reported or Text("an unknown number", "未知数目")
        )
    elif set(worlds) == {1}:
        says = Text("{count} processes form no process group: each trains for itself", "{n} 个进程没有组成进程组，各自单独训练")
        says = says.fill(count=_count(len(records)), n=len(records))
    else:
        says = Text("the processes report a world of {world}", "各进程报告的 WORLD_SIZE 是 {world}")
        says = says.fill(world=reported or Text("no known size", "未知数目"))
    if expected is not None:
        says += Text("; {n} {ranks} expected", "；应有 {n} 个 rank").fill(n=expected, ranks="ranks were" if expected != 1 else "rank was")
    alone = set(worlds) == {1}
    return CAUSE.finding(
        standing="established",
        says=says,
        ranks=tuple(sorted(numbers)),
        hosts=tuple(dict.fromkeys(r.host for r in records)),
        evidence=tuple(
            words.stated(
                picture.incident_source,
                Text(
                    "pid {pid} on {host}: rank {n} of {all}, local rank {local}", "{host} 上的 pid {pid}：rank {n}（共 {all} 个），本地 rank {local}"
                ).fill(pid=r.pid, host=r.host, n=r.rank, all=str(r.world_size), local=str(r.local_rank)),
            )
            for r in records[:4]
        ),
        remedies=("let-a-launcher-start-them", "read-the-environment") if alone else ("same-world", "read-the-environment"),
    )


def _of_two_places(picture: IncidentView) -> Finding:
    numbers = tuple(sorted(picture.incident.elsewhere))
    said = [words.of_rank(n, same(picture.incident.elsewhere[n])) for n in numbers]
    return CAUSE.finding(
        standing="established" if numbers == tuple(range(max(r.record.world_size or 1 for r in picture.ranks))) else "likely",
        says=Text("ranks of one training meet at different places: {said}", "同一个训练的各 rank 在不同的地方会合：{said}").fill(
            said=joined(said[:8])
        ),
        ranks=numbers,
        evidence=tuple(words.stated(picture.incident_source, told) for told in said[:4]),
        remedies=("same-meeting-point", "read-the-environment"),
    )


def _in_logs(view: LogView) -> Finding | None:
    own = tuple(h for h in view.hits_of(CAUSE.id) if h.signature != _WAITING or int(h.groups["joined"]) > int(h.groups["expected"]))
    if any(h.signature == _NOT_SET for h in own):
        return _of_hits(own)
    return (
        _numbered_alike(own)
        or _of_own(_in_force(own, failed=any(h.signature.needle in _NO_ANSWER for h in view.hits_of("store-disconnect"))), view)
        or _agents_waited(view)
        or _nobody_came(view)
    )


def _in_force(hits: Sequence[Hit], *, failed: bool) -> tuple[Hit, ...]:
    """Without what healthy jobs print too, unless a rendezvous failed."""
    failed = failed or any(h.signature not in (_NO_ID, _ADDRESS_UNREAD, _NODE) for h in hits)
    timed_out = any("RendezvousTimeoutError" in h.text for h in hits)
    speaking = [h for h in hits if h.signature == _NO_ID and timed_out] + [h for h in hits if h.signature == _ADDRESS_UNREAD and failed]
    return (*speaking, *(h for h in hits if h.signature not in (_NO_ID, _ADDRESS_UNREAD, _NODE)))


def _numbered_alike(hits: Sequence[Hit]) -> Finding | None:
    """Two launchers that each say they are node 0."""
    nodes: dict[str, set[tuple[str | None, str]]] = {}
    for h in hits:
        if h.signature == _NODE and h.groups["nodes"] != "1":
            nodes.setdefault(h.groups["node_rank"], set()).add((h.host, h.source))
    twice = next((number for number, places in nodes.items() if len(places) > 1), None)
    if twice is None:
        return None
    lines = [h for h in hits if h.signature == _NODE and h.groups["node_rank"] == twice]
    says = Text("{count} hosts each believe they are node {node} of {nodes}", "{n} 台主机都认为自己是节点 {node}（共 {nodes} 个）").fill(
        count=_count(len(nodes[twice])), n=len(nodes[twice]), node=twice, nodes=lines[0].groups["nodes"]
    )
    return CAUSE.of_hits(lines, standing="likely", says=says)


def _of_own(hits: Sequence[Hit], view: LogView) -> Finding | None:
    """A rendezvous that is closed or gone is what agents print that lost their peer: it counts only where nothing else is known."""
    lost = ("rank-exception", "host-oom-or-killed", "gpu-oom", "peer-lost", "collective-timeout")
    others = any(view.hits_of(c) for c in lost) or view.timeouts or any(e.code != 0 for e in view.exits)
    beaten = any("keep-alive" in h.text for h in view.hits_of("store-disconnect"))
    kept = tuple(h for h in hits if not ((others and h.signature == _CLOSED) or ((others or beaten) and h.signature == _NO_STORE)))
    if not kept:
        return None
    where = next(((h.groups["peer"], h.groups["port"]) for h in view.hits_of("store-disconnect") if {"peer", "port"} <= set(h.groups)), None)
    best = min(kept, key=lambda h: STANDINGS.index(h.signature.standing))
    if where is not None and best.signature in (_NO_STORE, _CONNECT_TIMED_OUT):
        return CAUSE.of_hits(
            (best, *(h for h in kept if h is not best)),
            view,
            says=Text(
                "no agent answered at {host} port {port}: the address is wrong, or the launcher there is not running",
                "{host} 的端口 {port} 上没有 agent 应答：地址有误，或者那里的启动器没有在运行",
            ).fill(host=where[0], port=where[1]),
            commands={"reach-the-meeting-point": command(_REACH, host=where[0], port=where[1])},
        )
    return CAUSE.of_hits(kept, view)


def _agents_waited(view: LogView) -> Finding | None:
    """A time-out of the store inside torchrun's agent: it waited for the agents of the other hosts, before any rank was started."""
    waited = [
        t
        for t in view.tracebacks
        if "imeout" in t.says
        and any(f.name in _AGENT and "elastic" in f.file for f in t.frames)
        # At the end agents wait for each other as well.
        and not any(f.name == "_exit_barrier" for f in t.frames)
    ]
    if not waited or any(view.hits_of(c) for c in _EXPLAINS):
        return None
    return CAUSE.finding(
        standing="likely",
        says=Text(
            "torchrun's agent waited for those of the other hosts, and they did not come: fewer were started than --nnodes, or two have one node "
            "rank",
            "torchrun 的 agent 在等待其他主机上的 agent，而它们没有来：启动的数量少于 --nnodes，或者有两台的 node rank 相同",
        ),
        evidence=tuple(t.evidence() for t in waited[:2]),
        remedies=("one-number-each", "same-world", "same-meeting-point"),
    )


def _nobody_came(view: LogView) -> Finding | None:
    """The store waited for processes or was never found, and nothing else is known: who was started, and where, is the first question."""
    lines = [h for h in view.hits_of("store-disconnect") if "expected" in h.groups or ("peer" in h.groups and "port" in h.groups)]
    if not lines or view.timeouts or any(view.hits_of(c) for c in _EXPLAINS):
        return None
    first = lines[0]
    g = first.groups
    if "expected" in g and g.get("joined") != g["expected"]:
        if int(g.get("joined", "0")) > int(g["expected"]):
            says = Text(
                "{n} processes came where {all} were expected: two jobs share the store, or a rank was started twice",
                "来了{n}进程，而应有 {all} 个：两个任务共用了同一个 store，或者某个 rank 被启动了两次",
            )
        else:
            says = Text(
                "{n} of {all} processes came: the others were not started, or went to another address",
                "{all} 个进程中来了{n}：其余的没有启动，或者去了别的地址",
            )
        came = Text("{n}", " {n} 个").fill(n=g["joined"]) if "joined" in g else Text("only some", "一部分")
        says = says.fill(n=came, all=g["expected"])
        remedies = ("same-world", "reach-the-meeting-point", "read-the-environment")
    elif "peer" in g:
        says = Text(
            "nothing answered at {host} port {port}: the address is wrong, or no launcher runs there",
            "{host} 的端口 {port} 没有应答：地址有误，或者那里没有启动器在运行",
        ).fill(host=g["peer"], port=g["port"])
        remedies = ("reach-the-meeting-point", "same-meeting-point", "read-the-environment")
    else:
        return None
    reach = command(_REACH, host=g.get("peer"), port=g.get("port"))
    return CAUSE.finding(
        standing="possible",
        says=says,
        ranks=tuple(sorted({h.rank for h in lines if h.rank is not None})),
        evidence=words.hit_evidence(lines, at_most=3),
        remedies=remedies,
        commands={"reach-the-meeting-point": reach} if "peer" in g else None,
    )


def _of_hits(hits: Sequence[Hit]) -> Finding | None:
    if not hits:
        return None
    unset = [h for h in hits if h.signature == _NOT_SET]
    if not unset:
        return _numbered_alike(hits) or CAUSE.of_hits(_in_force(hits, failed=False))
    numbers = tuple(sorted({h.rank for h in unset if h.rank is not None}))
    return CAUSE.finding(
        standing="established",
        says=Text(
            "{name} is not set, so the process does not know who it is: no launcher that sets it started it",
            "没有设置{name}，进程不知道自己是谁：它不是由会设置该变量的启动器启动的",
        ).fill(name=Text("{name}", " {name}").fill(name=name) if (name := unset[0].groups.get("name")) else Text("a variable", "某个变量")),
        ranks=numbers,
        evidence=words.hit_evidence(unset),
        remedies=("let-a-launcher-start-them", "read-the-environment"),
    )


def _count(n: int) -> str:
    return {2: "two", 3: "three", 4: "four"}.get(n, str(n))


# What the store prints where nobody answered; that it is gone says only that its rank has ended.
_NO_ANSWER = ("client socket has timed out after", "clients joined", "in store based barrier on rank", "wait timeout after ", "Socket Timeout")
# Where one of these is in evidence, that nobody came is its consequence.
_EXPLAINS = (
    "network-blocked",
    "dns-resolution",
    "interface-selection",
    "port-in-use",
    "ssh-launcher",
    "config-error",
    "gloo-connect",
    "host-oom-or-killed",
    "gpu-oom",
    "library-link",
    "launcher-wrong-env",
    "peer-lost",
    "collective-timeout",
)

# Where torchrun's agent exchanges with its like what each host has.
_AGENT = frozenset({"_share_and_gather", "_assign_worker_ranks", "synchronize", "_rendezvous", "next_rendezvous"})


CAUSE = cause("rendezvous-misconfig", in_run=_in_run, in_logs=_in_logs)
_WAITING = CAUSE.signature("waiting")
_NOT_SET = CAUSE.signature("not-set")
_CLOSED = CAUSE.signature("closed")
_NO_STORE = CAUSE.signature("no-store")
_CONNECT_TIMED_OUT = CAUSE.signature("connect-timed-out")
_NO_ID = CAUSE.signature("no-id")
_ADDRESS_UNREAD = CAUSE.signature("address-unread")
_NODE = CAUSE.signature("node")
