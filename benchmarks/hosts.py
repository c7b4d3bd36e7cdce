"""What does `unhang doctor --hosts` cost with many hosts, and does it still name the right ones? Simulated: this machine's answers, links drawn.

    python benchmarks/hosts.py [--hosts 64,1024,10000] [--noise 0.1]

Each host answers with this machine's facts, decoded and judged as any; speeds of links are log-normal with this noise. Four faults are made: one host
that sends at a tenth, one directed edge of the ring that is blocked, another torch on one host, a clock that is a minute off. Time on the wire is not
simulated: the seconds are those that one processor of the coordinator needs. One JSON line last.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import itertools
import json
import math
import platform
import random
import sys
import time
from collections.abc import Mapping
from typing import Any

from unhang.hosts import agent, answers, preflight
from unhang.hosts.hostlist import Host
from unhang.hosts.reach import Agents, Answer, Pipe
from unhang.text import Text

SPEED = 1e9
SLOW, BLOCKED, ODD, LATE = 5, (10, 11), 20, 30


class Simulated(Agents):
    """Agents without pipes: a question is answered at once, and the answer checked as any."""

    def __init__(self, hosts: int, noise: float) -> None:
        named = tuple(Host(name=f"n{i:05d}", login="") for i in range(hosts))
        super().__init__([Pipe(named, labelled=True)])
        self.hello = {host.name: {"port": i + 1, "reached_at": _address(i)} for i, host in enumerate(named)}
        self._noise, self._drawn = noise, random.Random(hosts)
        self._number = {host.name: i for i, host in enumerate(named)}
        self._facts: Answer | None = None

    async def ask(self, questions: Mapping[str, Mapping[str, Any]], *, limit_s: float) -> dict[str, Answer]:
        del limit_s
        found = {name: self._answer(self._number[name], question) for name, question in questions.items()}
        assert not any(answers.why_not(questions[name], answer) for name, answer in found.items())
        return found

    def _answer(self, i: int, question: Mapping[str, Any]) -> Answer:
        if question["do"] == "facts":
            return self._snapshot(i, question)
        if question["do"] == "clock":
            return {"now_s": time.time() + 60 * (i == LATE)}
        if question["do"] == "port":
            return {"port": question["port"]}
        if question["do"] == "names":
            # An address is known, a name is looked up: that of a host says its number.
            names = {name: {"addresses": [_address(int(name[1:]))], "took_s": 0.001} for name in question["names"]}
            return {"names": names, "addresses": {}, "is_first": {n: int(n[1:]) == i for n in names}, "full": f"n{i:05d}"}
        return self._link(i, _number(question["address"]), question)

    def _snapshot(self, i: int, question: Mapping[str, Any]) -> Answer:
        if self._facts is None:
            self._facts = json.loads(json.dumps(agent.facts(question)))
        if i != ODD:
            return self._facts
        odd = copy.deepcopy(self._facts)
        odd["snapshot"]["parts"]["libraries"]["facts"]["torch"]["version"] = "2.0.0"
        return odd

    def _link(self, a: int, b: int, question: Mapping[str, Any]) -> Answer:
        if (a, b) == BLOCKED:
            return {"error": "timed out", "at": "connect"}
        out, back = (SPEED * math.exp(self._drawn.gauss(0, self._noise)) / (10 if sender == SLOW else 1) for sender in (a, b))
        speeds = {"out_bytes_per_s": out, "in_bytes_per_s": back} if question["bulk_s"] else {}
        return {"round_trip_s": 1e-4, "segments": (0, 1000), **speeds}


def _address(i: int) -> str:
    return f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}"


def _number(address: str) -> int:
    _, a, b, c = map(int, address.split("."))
    return a << 16 | b << 8 | c


def measured(hosts: int, noise: float) -> dict[str, Any]:
    """Seconds of one processor by stage, and whether exactly the four faults were named."""
    agents = Simulated(hosts, noise)
    asked = preflight.Asked(hosts=tuple(Host(name=name, login=name) for name in agents.names), python=sys.executable, environ={})
    stages: list[tuple[str, float]] = []

    def stage(says: Text) -> None:
        stages.append((says.partition(" ")[0].rstrip(":"), time.process_time()))

    result = asyncio.run(preflight.through(agents, asked, stage))
    stages.append(("end", time.process_time()))
    spent: dict[str, float] = {}
    for (name, begun), (_, ended) in itertools.pairwise(stages):
        spent[name] = round(spent.get(name, 0.0) + ended - begun, 2)
    told = [f.says for f in result.examination.findings if f.area != "host"]
    slow, a, b, odd, late = (f"n{i:05d}" for i in (SLOW, *BLOCKED, ODD, LATE))
    expected = (f"{slow} sends at", f"{a} does not reach {b}", f"on {odd},", f"{late} +60")
    missed = [words for words in expected if not any(words in says for says in told)]
    return {
        **{f"{stage}_cpu_s": seconds for stage, seconds in spent.items()},
        "coverage": round(result.coverage, 4),
        "links": len(result.links),
        "missed": len(missed),
        "beyond": len(told) - len(expected) + len(missed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", default="64,1024,10000", help="numbers of hosts, with commas")
    parser.add_argument("--noise", type=float, default=0.1, help="standard deviation of the logarithm of a link's speed")
    args = parser.parse_args()
    found = {}
    for hosts in map(int, args.hosts.split(",")):
        found[f"{hosts} hosts"] = measured(hosts, args.noise)
        print(hosts, found[f"{hosts} hosts"], flush=True)
    print(json.dumps({"benchmark": "hosts", "machine": platform.platform(), "noise": args.noise, "cases": found}))


if __name__ == "__main__":
    main()
