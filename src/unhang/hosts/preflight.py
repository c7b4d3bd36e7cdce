"""Are these hosts fit to train together? Facts of all at once, names, clocks, directories, and each link in both directions."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Literal

from unhang.diagnosis import doctor
from unhang.diagnosis.redact import redact, redact_data
from unhang.errors import UnhangError
from unhang.facts import gpu, infiniband, libraries, snapshot_file
from unhang.facts.snapshot import Snapshot
from unhang.hosts import compare, edges, group
from unhang.hosts.compare import named, odd
from unhang.hosts.edges import Edge, Fault, Probe
from unhang.hosts.hostlist import Host
from unhang.hosts.job import Answer
from unhang.hosts.reach import START_S, STEP_S, Agents, Failure, pipes, reached
from unhang.i18n import NOTHING, Text, joined, msg, same
from unhang.knowledge import catalogue
from unhang.model import Area, Examination, HostFinding, Severity, frozen
from unhang.probes import plan

SCHEMA = "unhang/hosts/1"
By = Literal["ssh", "srun", "join"]
# Of one link: all rungs together, and each direction of the bulk.
_LINK_S, _BULK_S = 1.5, 0.25
_SUSPECT_ROUNDS, _SUSPECTS_S = 5, 10.0
_QUICK_ROUNDS = 6
_FACTS_S, _NAMES_S, _ANSWER_S = 20.0, 15.0, 5.0
_SLOW_LOOKUP_S = 1.0
_CLOCK_ASKED, _CLOCK_S = 5, 1.0
STORE_PORT = 29500
# Looked at on one host alone, or not the training's.
_WITHOUT = ("speed", "kernel_log", "ports", "processes")
AREAS = {
    "reach": msg("reached"),
    "host": msg("each host"),
    "differences": msg("same on all"),
    "names": msg("names"),
    "clocks": msg("clocks"),
    "places": msg("directories"),
    "links": msg("links"),
    "group": msg("all_reduce"),
}


@frozen
class Asked:
    """`environ` is what the job will have set; `master` and `port` its rendezvous: None for the first host, 0 for any port that is free.

    `group` adds a real all_reduce over the hosts against which nothing was found; `quick` tries each host with a few others only, and no speeds.
    """

    hosts: tuple[Host, ...]
    python: str
    ssh: tuple[str, ...] = ()
    by: By = "ssh"
    environ: Mapping[str, str]
    places: tuple[str, ...] = ()
    master: str | None = None
    port: int = STORE_PORT
    group: bool = False
    quick: bool = False


@frozen
class Link:
    """One direction between two hosts at its best: seconds there and back, bytes per second. `failed` is the rung at which most tests ended."""

    sender: str
    receiver: str
    failed: str | None
    round_trip_s: float | None
    bytes_per_s: float | None


@frozen
class Result:
    """`bad` are hosts that a finding names, alone or by an edge of theirs; `coverage` is the share of all directed pairs that were tried.

    `smallest` is the share of the others' speed below which a slow link would have been told from noise. `addresses` are those at which a host is
    reached by the others.
    """

    schema: str = SCHEMA
    hosts: tuple[str, ...]
    examination: Examination
    links: tuple[Link, ...]
    bad: tuple[str, ...]
    coverage: float
    smallest: float | None
    addresses: Mapping[str, str]
    took_s: float


Progress = Callable[[Text], None]


async def examine(asked: Asked, progress: Progress) -> Result:
    """Look at all hosts. A host that is dead, slow or silent is a finding, and is waited for no longer than its step may take."""
    begun = time.monotonic()
    progress(msg("logging in to {n} hosts", n=len(asked.hosts)))
    limit_s = STEP_S if asked.by == "srun" else START_S
    async with reached(pipes(asked.hosts, python=asked.python, ssh=asked.ssh, by=asked.by), limit_s=limit_s) as agents:
        return await _Preflight(asked, agents, progress).run(begun)


async def through(agents: Agents, asked: Asked) -> Result:
    """Look at all hosts through agents that were reached already."""
    return await _Preflight(asked, agents, lambda _: None).run(time.monotonic())


class _Preflight:
    def __init__(self, asked: Asked, agents: Agents, progress: Progress) -> None:
        self.asked, self.agents, self.progress = asked, agents, progress
        self.findings: list[HostFinding] = []
        self.unread: dict[str, list[str]] = defaultdict(list)
        self.seen: dict[str, Snapshot] = {}
        self.addresses: dict[str, str] = {}
        self.reached_at: dict[str, str] = {}
        self.own: dict[str, str] = {}
        self.unreachable: set[str] = set()
        self.store: tuple[str, int] | None = None
        self.probes: list[Probe] = []
        self.bad: Counter[str] = Counter()
        self.reduced: group.Outcome | None = None

    async def run(self, begun: float) -> Result:
        await self._facts()
        await self._clocks()
        await self._names()
        await self._rendezvous()
        await self._places()
        await self._links()
        await self._ports_again()
        self.progress(msg("judging"))
        self.findings += self._of_hosts()
        # A limit that is too low on some hosts has been told there.
        told = {f.cause for f in self.findings if f.area == "host" and f.cause in ("limits", "shm-exhausted")}
        self.findings += (f for f in compare.compared(self.seen) if f.cause not in told)
        await self._group()
        self._reach()
        order = list(AREAS)
        self.findings.sort(key=lambda f: (doctor.SEVERITIES.index(f.severity), order.index(f.area)))
        names = tuple(host.name for host in self.asked.hosts)
        examination = Examination(
            host=named(names),
            taken=next((s.taken for s in self.seen.values()), ""),
            areas=tuple(self._area(id) for id in order),
            findings=tuple(self.findings),
        )
        return redact_data(
            Result(
                hosts=names,
                examination=examination,
                links=self._matrix(),
                bad=tuple(name for name in names if self.bad[name]),
                coverage=edges.coverage(self.agents.names, self.probes),
                smallest=edges.smallest(self.probes),
                addresses=self.addresses,
                took_s=time.monotonic() - begun,
            )
        )

    def _find(
        self,
        cause: str,
        area: str,
        severity: Severity,
        says: Text,
        leads_to: Text,
        *,
        hosts: Sequence[str] = (),
        remedies: tuple[str, ...] | None = (),
    ) -> None:
        found = catalogue.load()[cause]
        self.findings.append(found.host_finding(area=area, severity=severity, says=says, leads_to=leads_to, remedies=remedies))
        self.bad.update(hosts)

    # ---- what each host says

    async def _facts(self) -> None:
        self.progress(msg("looking at {n} hosts", n=len(self.agents.names)))
        first = next(iter(self.agents.names), "")
        environ = {"NNODES": str(len(self.asked.hosts)), "MASTER_ADDR": self.asked.master or first, **self.asked.environ}
        question = {"do": "facts", "environ": environ, "places": self.asked.places, "without": _WITHOUT}
        for name, answer in (await self.agents.ask_all(question, limit_s=_FACTS_S)).items():
            if (seen := self._snapshot(answer, name)) is not None:
                self.seen[name] = seen
        self.unread["host"] += (name for name in self.agents.names if name not in self.seen)

    def _snapshot(self, answer: Answer, name: str) -> Snapshot | None:
        try:
            return snapshot_file.decode(json.dumps(answer["snapshot"]).encode(), name=name)
        except (UnhangError, RecursionError) as e:
            self.agents.errors.append(f"facts: {e}"[:300])
            return None

    def _of_hosts(self) -> Iterator[HostFinding]:
        """What is wrong on single hosts, said once for all that have it."""
        whose: dict[tuple[str, str], list[str]] = defaultdict(list)
        found: dict[tuple[str, str], HostFinding] = {}
        for name, seen in self.seen.items():
            examined = doctor.examine(seen)
            areas = [area.id for area in examined.areas if area.state == "unknown" or area.unread]
            if unread := [*areas, *(missed.what for missed in examined.not_examined)]:
                self.unread["host"].append(f"{name}: {', '.join(unread)}")
            for finding in examined.findings:
                if finding.severity != "note":
                    same_one = finding.cause, finding.says
                    whose[same_one].append(name)
                    found[same_one] = finding
        for key, names in whose.items():
            finding = found[key]
            on = msg("{hosts}: ", hosts=named(names) if len(names) < len(self.seen) else msg("all hosts"))
            if finding.severity == "error" and len(names) < len(self.seen):
                self.bad.update(names)
            yield replace(finding, area="host", says=on + finding.says)

    def _reach(self) -> None:
        for name, failure in self.agents.failed.items():
            cause, says = _unreached(failure)
            said = msg(": {said}", said=redact(failure.said)) if failure.said else NOTHING
            says = msg("{host} {says}", host=name, says=says) + said
            leads_to = msg("it takes part in no training, and all others wait for it")
            remedies = ("passwordless", "reach-sshd") if cause == "ssh-launcher" and failure.stage == "login" else ()
            self._find(cause, "reach", "error", says, leads_to, hosts=(name,), remedies=remedies)

    # ---- clocks

    async def _clocks(self) -> None:
        offsets: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for _ in range(_CLOCK_ASKED):
            sent = time.time()
            answers = await self.agents.ask_all({"do": "clock"}, limit_s=_ANSWER_S)
            took = time.time() - sent
            for name, answer in answers.items():
                # All were asked at once: as exact as half of the slowest answer, and better by the best of several.
                offsets[name].append((took, answer["now_s"] - sent - took / 2))
        best = {name: min(found) for name, found in offsets.items()}
        if len(best) < 2:
            return
        middle = median(offset for _, offset in best.values())
        off = {name: offset - middle for name, (took, offset) in best.items() if abs(offset - middle) > _CLOCK_S + took}
        if not off:
            return
        most = 2 * len(off) >= len(best)
        says = msg("the clocks disagree: {said}") if most else msg("the clock differs from that of most hosts: {said}")
        said = ", ".join(f"{name} {offset:+.1f} s" for name, offset in sorted(off.items(), key=lambda item: -abs(item[1]))[:8])
        leads_to = msg("credentials are refused, builds and file times go wrong, logs cannot be put in order")
        self._find("clock-skew", "clocks", "warning", says.fill(said=said), leads_to, remedies=("compare-clocks", "set-the-clock"))

    # ---- names

    async def _names(self) -> None:
        self.progress(msg("resolving names"))
        hosts = {host.name: host for host in self.asked.hosts}
        # Beyond a few, each asks for its neighbours: what one does not know it does not know of any.
        listed = list(hosts)
        near = {name: _near(listed, i) for i, name in enumerate(listed)}
        self.reached_at = {name: answer["reached_at"] for name, answer in self.agents.hello.items() if answer.get("reached_at")}
        questions = {
            name: {
                "do": "names",
                "names": near[name],
                "addresses": [self.reached_at[n] for n in near[name][:8] if n in self.reached_at],
            }
            for name in self.agents.names
        }
        answers = await self.agents.ask(questions, limit_s=_NAMES_S)
        resolved: dict[str, dict[str, list[str]]] = defaultdict(dict)
        missing: dict[str, list[str]] = defaultdict(list)
        slow: dict[str, float] = {}
        for at, answer in answers.items():
            for name, found in answer["names"].items():
                if "addresses" in found:
                    resolved[name][at] = found["addresses"]
                elif name in hosts:
                    missing[name].append(at)
            took = max((found["took_s"] for found in (*answer["names"].values(), *answer["addresses"].values())), default=0.0)
            if took > _SLOW_LOOKUP_S:
                slow[at] = took
        for name in self.agents.names:
            elsewhere = {at: found for at, found in resolved[name].items() if at != name}
            others = {at: found for at, found in elsewhere.items() if not _is_local(found)}
            told = Counter(map(tuple, others.values()))
            self.addresses[name] = told.most_common(1)[0][0][0] if told else self.reached_at.get(name, name)
            # Only where some know it: a name of the user's own ssh_config is none that a training uses.
            if missing[name] and told:
                says = msg("{name} does not resolve on {hosts}, and does on others", name=name, hosts=named(missing[name]))
                leads_to = msg("ranks there never find it")
                self._find("dns-resolution", "names", "error", says, leads_to, hosts=missing[name], remedies=("ask-each-host",))
            if (said := odd({at: ", ".join(found) for at, found in others.items()})) is not None:
                says = msg("{name} resolves differently: {said}", name=name, said=said)
                leads_to = msg("some hosts connect to another machine, or to an address that does not lead there")
                self._find("dns-resolution", "names", "error", says, leads_to, remedies=("ask-each-host",))
            if lost := [at for at in elsewhere if at not in others]:
                says = msg("{name} resolves to the loopback on {hosts}", name=name, hosts=named(lost))
                leads_to = msg("ranks there connect to themselves, and wait")
                self._find("dns-resolution", "names", "error", says, leads_to, hosts=lost, remedies=("ask-each-host",))
        if slow:
            says = msg("looking up a name takes {s} s on {hosts}", s=f"{max(slow.values()):.1f}", hosts=named(tuple(slow)))
            leads_to = msg("each connection waits for as long: torchrun and Gloo look up the addresses of their peers")
            self._find("dns-resolution", "names", "warning", says, leads_to, remedies=("ask-each-host",))
        self.own = {name: answer["full"] for name, answer in answers.items() if answer["full"] not in hosts}
        self._same_address()

    def _same_address(self) -> None:
        """The address that libraries were told to use, or else that of the name; of two hosts the same one leads to neither."""
        self.addresses |= {name: at for name, seen in self.seen.items() if (at := compare.address(seen)) is not None and name in self.addresses}
        whose: dict[str, list[str]] = defaultdict(list)
        for name, at in self.addresses.items():
            whose[at].append(name)
        for at, names in whose.items():
            if len(names) > 1:
                says = msg("{hosts} have the same address {at}", hosts=named(names), at=at)
                leads_to = msg("they connect to themselves, or to the wrong host: refused, or timed out")
                self._find("interface-selection", "names", "error", says, leads_to, remedies=("name-one-that-exists", "gloo-interface"))
        self.unreachable = {name for names in whose.values() if len(names) > 1 for name in names}

    # ---- the rendezvous

    async def _rendezvous(self) -> None:
        if not self.agents.names:
            return
        first = next(iter(self.agents.names))
        master = self.asked.master or first
        own = {name: {n: self.own[n] for n in _near(list(self.own), i) if n != name} for i, name in enumerate(self.agents.names)}
        questions = {name: {"do": "names", "names": [master, *own[name].values()], "addresses": []} for name in self.agents.names}
        answers = await self.agents.ask(questions, limit_s=_NAMES_S)
        asked = Counter(n for name in answers for n in own[name])
        unknown = Counter(n for name, answer in answers.items() for n, full in own[name].items() if "error" in answer["names"][full])
        if lost := [n for n in unknown if 2 * unknown[n] > asked[n]]:
            says = msg("others cannot resolve what {hosts} call themselves: {names}")
            leads_to = msg("torchrun announces that name to the others where it is not given an address")
            says = says.fill(hosts=named(lost), names=named([self.own[n] for n in lost]))
            self._find("dns-resolution", "names", "warning", says, leads_to, remedies=("ask-each-host",))
        serve = [name for name, answer in answers.items() if answer["is_first"][master]]
        if len(serve) != 1 and answers:
            who = msg("no host believes that it is {name}") if not serve else msg("{hosts} all believe that they are {name}")
            leads_to = msg("by torch's rule exactly one host serves the rendezvous: none does, or each waits at its own")
            self._find(
                "rendezvous-misconfig", "names", "error", who.fill(name=master, hosts=named(serve)), leads_to, remedies=("same-meeting-point",)
            )
        server = serve[0] if len(serve) == 1 else first
        held = await self.agents.ask({server: {"do": "port", "port": self.asked.port, "for_s": 60.0}}, limit_s=_ANSWER_S)
        answer = held.get(server, {})
        self.store = (server, answer["port"]) if "port" in answer else None
        if "error" in answer:
            says = msg("port {port} on {host} is taken: {error}", port=self.asked.port, host=server, error=answer["error"])
            holder = answer.get("holder")
            if holder:
                says += msg(" by {holder}", holder=redact(holder[:300]))
            leads_to = msg("the launcher ends at its start: address already in use")
            self._find("port-in-use", "names", "error", says, leads_to, remedies=("another-port", "who-has-it"))

    # ---- directories

    async def _places(self) -> None:
        paths, names = self.asked.places, self.agents.names
        if not paths or len(names) < 2:
            return
        self.progress(msg("comparing directories"))
        mark = f".unhang-{uuid.uuid4().hex[:12]}"
        question = {"do": "places", "paths": paths, "mark": mark}
        written = await self.agents.ask({names[0]: {**question, "do_it": "write"}}, limit_s=_ANSWER_S)
        try:
            answers = await self.agents.ask_all({**question, "do_it": "look"}, limit_s=_FACTS_S)
        finally:
            await self.agents.ask({names[0]: {**question, "do_it": "remove"}}, limit_s=_ANSWER_S)
        for path in paths:
            here = {name: answer["places"][path] for name, answer in answers.items() if "places" in answer}
            absent = [name for name, found in here.items() if "error" in found]
            if absent:
                says = msg("{path} on {hosts}: {error}", path=path, hosts=named(absent), error=here[absent[0]]["error"])
                leads_to = msg("the ranks there end when they read it")
                self._find("filesystem-shared", "places", "error", says, leads_to, hosts=absent, remedies=("same-path-everywhere",))
            if (said := odd({name: found["commit"] for name, found in here.items() if found.get("commit")})) is not None:
                says = msg("the commit of {path} differs: {said}", path=path, said=said)
                leads_to = msg("ranks run different code: their calls need not fit")
                self._find("version-mismatch", "places", "error", says, leads_to, remedies=("same-everywhere",))
            seen = [name for name, found in here.items() if found.get("seen")]
            present = [name for name in here if name not in absent]
            if not absent and (error := written.get(names[0], {}).get("places", {}).get(path, {}).get("error")):
                self.unread["places"].append(f"whether {path} is shared: {error} ({names[0]})")
            elif 0 < len(seen) < len(present):
                others = [name for name in present if name not in seen]
                digests = {name: here[name].get("digest") for name in present}
                said = odd({name: digest for name, digest in digests.items() if digest is not None})
                same_content = msg("what it holds is the same") if said is None else msg("what it holds differs")
                if said is None and None in digests.values():
                    same_content = msg("what it holds was not compared: it is too much")
                says = msg(
                    "{path} is not shared: what {first} writes is not seen on {hosts}; {content}",
                    path=path,
                    first=names[0],
                    hosts=named(others),
                    content=same_content,
                )
                leads_to = msg("checkpoints lie on one host alone, and a restart elsewhere does not find them")
                self._find("filesystem-shared", "places", "note" if said is None else "warning", says, leads_to)

    # ---- links

    async def _links(self) -> None:
        names = [name for name in self.agents.names if name not in self.unreachable]
        if len(names) < 2:
            return
        planned = edges.rounds(names)[: _QUICK_ROUNDS if self.asked.quick else None]
        for number, pairs in enumerate(planned, 1):
            self.progress(msg("links: round {i} of {n}", i=number, n=len(planned)))
            await self._round(pairs)
        until = time.monotonic() + _SUSPECTS_S
        for _ in range(_SUSPECT_ROUNDS):
            for pairs in edges.matchings(sorted(edges.suspects(self.probes))):
                if time.monotonic() > until:
                    break
                self.progress(msg("links: suspects again"))
                await self._round(pairs)
        for fault in edges.judge(self.probes, names):
            self._convict(fault)
        await self._store()

    async def _round(self, pairs: Sequence[Edge]) -> None:
        lost, there = edges.hopeless(self.probes), set(self.agents.names)
        ready = [(a, b) for a, b in pairs if {a, b} <= there]
        questions = {
            a: {
                "do": "test",
                "address": self.addresses[b],
                "port": self.agents.hello[b]["port"],
                "limit_s": _LINK_S,
                "bulk_s": 0 if self.asked.quick or {a, b} & lost else _BULK_S,
            }
            for a, b in ready
        }
        answers = await self.agents.ask(questions, limit_s=_LINK_S + _ANSWER_S)
        self.probes += (_probe(edge, answers[edge[0]]) for edge in ready if edge[0] in answers)

    async def _store(self) -> None:
        """The master's port, from whoever reaches its host otherwise: a firewall may let all through but this one."""
        if self.store is None:
            return
        server, port = self.store
        names = {p.edge[0] for p in self.probes if p.edge[1] == server and p.at is None}
        question = {"do": "test", "address": self.addresses[server], "port": port, "limit_s": _LINK_S, "bulk_s": 0}
        answers = await self.agents.ask(dict.fromkeys(names, question), limit_s=_LINK_S + _ANSWER_S)
        failed = {name: answer for name, answer in answers.items() if "error" in answer}
        if failed:
            error = Counter(answer["error"] for answer in failed.values()).most_common(1)[0][0]
            says = msg(
                "port {port} of {server} cannot be reached from {hosts}: {error}", port=port, server=server, hosts=named(tuple(failed)), error=error
            )
            leads_to = msg("the rendezvous is never complete: ranks wait for the store until their timeout")
            self._find("network-blocked", "links", "error", says, leads_to, remedies=_LINK_REMEDIES["network-blocked"])

    async def _group(self) -> None:
        if not self.asked.group:
            return
        fit = [name for name in self.agents.names if not self.bad[name] and name not in self.unreachable]
        seen = {name: self.seen[name].get(libraries.SUBJECT) for name in fit if name in self.seen}
        names = [name for name, found in seen.items() if found is not None and found.torch is not None]
        if without := [name for name in fit if name not in names]:
            self.unread["group"].append(f"{named(without)}: no torch there; name the training's Python with --python")
        if len(names) < 2:
            return
        # Whoever is to serve the rendezvous comes first.
        names.sort(key=lambda name: self.store is not None and name != self.store[0])
        self.progress(msg("all_reduce over {n} hosts", n=len(names)))
        with_gpus = [(gpus := self.seen[name].get(gpu.SUBJECT)) is not None and bool(gpus.gpus) for name in names]
        backend, address = "nccl" if all(with_gpus) else "gloo", self.addresses[names[0]]
        found = self.reduced = await group.all_reduce(self.agents, names, backend=backend, address=address, environ=self.asked.environ)
        if found is None or found.stage is None:
            return
        # The same words of all hosts blame none.
        hosts = tuple(found.failed) if 2 * len(found.failed) < len(found.hosts) else ()
        says = msg("all_reduce over {n} hosts fails on {hosts}, at: {stage}; {why}")
        stage = next(same(s.title) for s in plan.STAGES if s.id == found.stage)
        if found.finding is None:
            cause, why = "rank-exception" if found.ended else "collective-timeout", same(redact(next(iter(found.failed.values()))))
        else:
            cause, why = found.finding.cause, same(found.finding.says)
        says = says.fill(n=len(found.hosts), hosts=named(tuple(found.failed)), stage=stage, why=why)
        self._find(cause, "group", "error", says, msg("a training fails there as well"), hosts=hosts, remedies=None)

    async def _ports_again(self) -> None:
        """InfiniBand ports whose state has changed since the beginning."""
        with_ports = [name for name in self.agents.names if name in self.seen and self.seen[name].get(infiniband.SUBJECT) is not None]
        question = {"do": "facts", "environ": {}, "places": (), "only": ("infiniband",), "without": ()}
        answers = await self.agents.ask(dict.fromkeys(with_ports, question), limit_s=_FACTS_S)
        for name, answer in answers.items():
            seen = self._snapshot(answer, name)
            before, after = self.seen[name].get(infiniband.SUBJECT), seen.get(infiniband.SUBJECT) if seen is not None else None
            for was, port, where in _ports(before, after):
                if was.state != port.state:
                    says = msg("{where} was {was} at first and is {now} now")
                    says = says.fill(where=f"{name}: {where}", was=was.state or "?", now=port.state or "?")
                    self._find(
                        "ib-port-down",
                        "links",
                        "error",
                        says,
                        msg("NCCL loses its connections"),
                        hosts=(name,),
                        remedies=("see-the-ports",),
                    )

    def _convict(self, fault: Fault) -> None:
        sure = NOTHING if fault.is_established else msg(", likely")
        chance = same(f"{fault.chance:.0e}")
        pair, percent = dict(zip("ab", fault.hosts, strict=False)), 100 * (fault.factor or 0)
        count = msg(
            "{failed} of {tried} tests failed at {at} ({error})",
            failed=fault.failed,
            tried=fault.tried,
            at=_RUNGS.get(fault.at, same(fault.at)),
            error=fault.error,
        )
        if fault.kind == "groups" and max(map(len, fault.groups)) == 1:
            says = msg("no host reaches any other; {count}", count=count)
        elif fault.kind == "groups":
            says = msg(
                "groups of hosts do not reach each other: {groups}; {count}", groups=" | ".join(named(group) for group in fault.groups), count=count
            )
        elif fault.kind == "host":
            says = _WAYS[fault.way].fill(host=fault.hosts[0]) + msg("; ") + count
        elif fault.kind == "edge":
            says = (
                msg("{a} does not reach {b}, while {b} reaches {a}: {count}")
                if fault.way == "out"
                else msg("{a} and {b} do not reach each other, while both reach others: {count}")
            ).fill(**pair, count=count)
        elif fault.kind == "slow-host":
            says = _SLOW_HOST[fault.way].fill(host=fault.hosts[0], percent=round(percent))
        elif fault.kind == "slow-edge":
            says = msg("{a} to {b} carries {percent} % of what these two carry with others", **pair, percent=round(percent))
        else:
            says = msg("{a} to {b}: {percent} % of all segments were sent again", **pair, percent=f"{percent:.1f}")
        if fault.kind in ("host", "edge", "slow-host"):
            self.bad.update(fault.hosts)
        says += msg(" (a healthy one would be named by chance: {chance}{sure})", chance=chance, sure=sure)
        cause = "network-mtu" if fault.at.startswith("segment") else "network-blocked" if fault.at else "straggler-timeout"
        slow = msg("every step waits for this link")
        leads_to = msg("collectives over it hang until their timeout") if fault.at else slow
        self._find(cause, "links", "error" if fault.at else "warning", says, leads_to, remedies=_LINK_REMEDIES[cause])

    def _matrix(self) -> tuple[Link, ...]:
        found: dict[Edge, list[Probe]] = defaultdict(list)
        for p in self.probes:
            found[p.edge].append(p)
        links = []
        for (a, b), probes in found.items():
            back = found.get((b, a), [])
            speeds = [p.out_bytes_per_s for p in probes] + [p.in_bytes_per_s for p in back]
            failed = Counter(p.at for p in probes if p.at is not None)
            bad = 2 * sum(failed.values()) > len(probes)
            trips = [p.round_trip_s for p in probes if p.round_trip_s is not None]
            best = max((s for s in speeds if s is not None), default=None)
            rung = failed.most_common(1)[0][0] if bad else None
            links.append(Link(sender=a, receiver=b, failed=rung, round_trip_s=min(trips, default=None), bytes_per_s=best))
        return tuple(links)

    # ---- the areas

    def _area(self, id: str) -> Area:
        against = {f.severity for f in self.findings if f.area == id}
        # What an agent failed to do itself says nothing of its host.
        unread = (*self.unread[id], *(self.agents.errors if id == "reach" else ()))
        told = self._summary(id)
        state = "found" if against - {"note"} else "unknown" if unread or told is None else "noted" if against else "ok"
        if id == "places" and not self.asked.places:
            return Area(id=id, state="absent", summary=msg("none was named (--path)"))
        if id == "group" and not self.asked.group:
            return Area(id=id, state="absent", summary=msg("not asked for (--group)"))
        summary = told or msg("not looked at: too few hosts answer")
        return Area(id=id, state=state, summary=summary, unread=unread)  # type: ignore[arg-type]

    def _summary(self, id: str) -> Text | None:
        names, asked = self.agents.names, len(self.asked.hosts)
        if id == "reach":
            return msg("{n} of {all} hosts", n=len(names), all=asked)
        if id == "links":
            if not self.probes:
                return None
            speeds = [link.bytes_per_s for link in self._matrix() if link.bytes_per_s is not None]
            told = msg(
                "{n} directions, {percent} % of all", n=len({p.edge for p in self.probes}), percent=round(100 * edges.coverage(names, self.probes))
            )
            if speeds:
                told += msg(", {speed} MB/s at the median", speed=round(median(speeds) / 1e6))
            if (least := edges.smallest(self.probes)) is not None:
                told += msg("; less than {percent} % of that would have been seen", percent=round(100 * least))
            return told
        if id == "group":
            if self.reduced is None:
                return None
            said = msg("{n} hosts over {backend}: {said}")
            return said.fill(n=len(self.reduced.hosts), backend=self.reduced.backend, said=self.reduced.said or msg("failed"))
        if id == "places":
            return joined(self.asked.places) if len(names) > 1 else None
        looked_at = len(self.seen if id in ("host", "differences") else names)
        if looked_at < (1 if id == "host" else 2):
            return None
        return msg("{n} hosts", n=looked_at)


_RUNGS = {
    "connect": msg("the connection"),
    "small": msg("the first bytes"),
    "segment out": msg("the first full packets there"),
    "segment in": msg("the first full packets back"),
    "bulk out": msg("much data there"),
    "bulk in": msg("much data back"),
}
_WAYS = {
    "in": msg("{host} cannot be reached by others"),
    "out": msg("{host} reaches no others"),
    "both": msg("{host} and others do not reach each other"),
}
_SLOW_HOST = {
    "in": msg("{host} receives at {percent} % of the others' speed"),
    "out": msg("{host} sends at {percent} % of the others' speed"),
    "both": msg("{host} sends and receives at {percent} % of the others' speed"),
}
_LINK_REMEDIES: Mapping[str, tuple[str, ...]] = {
    "network-mtu": ("find-the-mtu", "one-mtu"),
    "network-blocked": ("open-between-hosts", "try-the-port"),
    "straggler-timeout": ("check-again",),
}


def _unreached(failure: Failure) -> tuple[str, Text]:
    if failure.stage == "login" and "could not resolve" in failure.said.lower():
        return "dns-resolution", msg("is no name that is known here")
    if failure.stage == "login":
        return "ssh-launcher", msg("cannot be logged in to")
    if failure.stage == "python":
        return "ssh-launcher", msg("has no Python that is new enough (3.10): name one with --python")
    if failure.stage == "source":
        return "network-mtu", msg("takes a login, and nothing that is longer than a packet arrives")
    if failure.stage == "flood":
        return "peer-lost", msg("sends without end")
    if failure.stage == "invalid":
        return "peer-lost", msg("sends an answer that is not valid")
    return "peer-lost", msg("answered at first, and is silent now")


def _near(names: Sequence[str], i: int, count: int = 64) -> list[str]:
    """The next ones in the circle."""
    return [names[(i + k) % len(names)] for k in range(min(count, len(names)))]


def _is_local(addresses: Sequence[str]) -> bool:
    return all(a.startswith("127.") or a == "::1" for a in addresses)


def _probe(edge: Edge, answer: Answer) -> Probe:
    lost, segments = answer.get("segments") or (0, 0)
    return Probe(
        edge=edge,
        at=answer.get("at", "connect") if "error" in answer else None,
        error=str(answer.get("error", "")),
        round_trip_s=answer.get("round_trip_s"),
        out_bytes_per_s=answer.get("out_bytes_per_s"),
        in_bytes_per_s=answer.get("in_bytes_per_s"),
        lost=lost,
        segments=segments,
    )


def _ports(before: infiniband.Infiniband | None, after: infiniband.Infiniband | None) -> Iterator[tuple[infiniband.Port, infiniband.Port, str]]:
    if before is None or after is None:
        return
    was = {(d.name, p.number): p for d in before.devices for p in d.ports}
    for device in after.devices:
        for port in device.ports:
            if (old := was.get((device.name, port.number))) is not None:
                yield old, port, f"{device.name} port {port.number}"


def run(asked: Asked, progress: Progress = lambda _: None) -> Result:
    """`examine` to its end."""
    return asyncio.run(examine(asked, progress))
