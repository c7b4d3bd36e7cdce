"""A real all_reduce over several hosts, one rank on each: what a training does first, after its connections were tried one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unhang import fsio
from unhang.hosts.job import Answer
from unhang.hosts.reach import Agents
from unhang.model import Finding, frozen
from unhang.probes.live import verdict_of

STAGES = ("import", "device", "process-group", "all_reduce-float32", "sizes")
# Ranks wait for each other for less than the whole may take: so the first to fail says why.
BOUND_S, _TIMEOUT_S = 120.0, 40.0
_ANSWER_S = 10.0


@frozen
class Outcome:
    """`stage` is the first at which a host failed, None if none did; `failed` are the hosts that came no further, each with the reason.

    `said` is the speed by the last stage, `finding` the verdict on the output of the failed ranks, `ended` whether one of them ended by itself.
    """

    backend: str
    hosts: tuple[str, ...]
    stage: str | None
    failed: Mapping[str, str]
    said: str = ""
    finding: Finding | None = None
    ended: bool = False


async def all_reduce(agents: Agents, hosts: Sequence[str], *, backend: str, address: str, environ: Mapping[str, str]) -> Outcome | None:
    """Try it; the first host serves the store at `address`, on a port of its kernel's choice. None where nobody answers."""
    first = hosts[0]
    port = (await agents.ask({first: {"do": "port", "port": 0, "for_s": 0.0}}, limit_s=_ANSWER_S)).get(first, {}).get("port")
    if port is None:
        return None
    given = {**environ, "MASTER_ADDR": address, "MASTER_PORT": str(port), "WORLD_SIZE": str(len(hosts)), "LOCAL_RANK": "0"}
    asked = {"backend": backend, "port": port, "stages": STAGES, "timeout_s": _TIMEOUT_S}
    question = {"do": "group", "asked": asked, "bound_s": BOUND_S}
    questions = {name: {**question, "environ": {**given, "RANK": str(rank)}} for rank, name in enumerate(hosts)}
    answers = await agents.ask(questions, limit_s=BOUND_S + _ANSWER_S)
    came_to = {name: _came_to(answer) for name, answer in answers.items()}
    if not answers:
        return None
    reached = min(done for done, _ in came_to.values())
    if reached == len(STAGES):
        said = next(t.get("why", "") for answer in answers.values() for t in answer["told"] if t["stage"] == STAGES[-1] and t["state"] == "passed")
        return Outcome(backend=backend, hosts=tuple(answers), stage=None, failed={}, said=said)
    failed = {name: why for name, (done, why) in came_to.items() if done == reached}
    finding = _finding({name: answers[name]["log"] for name in failed})
    ended = any(answers[name]["exitcode"] is not None for name in failed)
    return Outcome(backend=backend, hosts=tuple(answers), stage=STAGES[reached], failed=failed, finding=finding, ended=ended)


def _came_to(answer: Answer) -> tuple[int, str]:
    """How many stages a rank has behind it, and why not more."""
    passed = {t["stage"] for t in answer["told"] if t["state"] == "passed"}
    why = next((t.get("why") for t in answer["told"] if t["state"] == "failed"), None)
    if why is None and answer["exitcode"] is None:
        why = f"did not come back within {BOUND_S:g} s"
    return sum(stage in passed for stage in STAGES), why or f"ended with exit code {answer['exitcode']}"


def _finding(logs: Mapping[str, str]) -> Finding | None:
    with fsio.temporary_directory("group-") as folder:
        paths = [folder / f"rank{rank}.log" for rank in range(len(logs))]
        for path, text in zip(paths, logs.values(), strict=True):
            fsio.write_atomically(path, text.encode())
        verdict = verdict_of(paths)
    return verdict.primary if verdict is not None else None
