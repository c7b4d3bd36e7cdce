"""One attempt of a training over several hosts: started by the agent of each, followed here, judged as one.

A host's supervisor restarts nothing and ends nothing that hangs: who waits for whom is known only here, where the evidence of all hosts is laid
into one run directory.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import io
import json
import signal
import time
import zipfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from unhang import fsio
from unhang.diagnosis import why
from unhang.errors import UnhangError
from unhang.fsio import as_argument
from unhang.hosts import merged
from unhang.hosts.job import Answer
from unhang.hosts.merged import Part, merge, newest
from unhang.hosts.pace import LINKS_EVERY_S, Pace
from unhang.hosts.reach import Agents
from unhang.launch import events
from unhang.launch.attempt import Result
from unhang.launch.incidents import Judged, parted
from unhang.launch.output import Sink
from unhang.launch.patience import Patience, kind_of
from unhang.launch.step_rate import STARTUP_S
from unhang.model import frozen
from unhang.records.incident import Incident, IncidentKind, LogRef, Slow
from unhang.records.rundir import RunDir
from unhang.records.status import Now

_FOLLOW_S, _LOST_S, _START_S, _RECORDS_S = 1.0, 15.0, 30.0, 120.0
# Answers missing in a row after which a host is lost: its pipe is gone, or it fails to answer.
_MOST_UNANSWERED, _MOST_FAILED = 2, 30
# Hosts that are silent all at once are as well as before, most likely: it is this one that is cut off. They are looked for as long as that.
_AGAIN_S, _AGAIN_EVERY_S, _MORE_S = 1800.0, 5.0, 30.0
# They ask the environment for what torchrun is told.
LAUNCHERS = ("llamafactory-cli",)
# After one host's part has ended with a failure: the others' own errors are evidence, and come soon or not at all.
_OTHERS_S = 20.0
_LOOK_S, _END_S = 30.0, 100.0
# More than `follow` and `records` give, as they travel.
_ANSWER_BYTES = 1 << 20


@frozen
class Job:
    """What each host runs: `words` are a script or module (`module`) with its arguments, or a launcher that asks the environment (`LAUNCHERS`);
    `options` are those of the hosts' own `unhang run`.
    """

    words: tuple[str, ...]
    module: bool
    per_host: int
    python: str
    cwd: str
    environ: Mapping[str, str]
    options: tuple[str, ...] = ()
    hang_after_s: float | None = None
    startup_s: float = STARTUP_S

    def started(self, node_rank: int, nodes: int, address: str, port: int) -> dict[str, Any]:
        """The command line and the variables of one host."""
        own = ("--run-dir", "{folder}", "--on-failure", "report", "--max-restarts", "0", "--fallback", "off", "--quiet", *self.options)
        world = {"nnodes": nodes, "node-rank": node_rank, "nproc-per-node": self.per_host, "master-addr": address, "master-port": port}
        environ = dict(self.environ)
        if Path(self.words[0]).name in LAUNCHERS:
            environ |= {name.replace("-", "_").upper(): str(value) for name, value in world.items()} | {"FORCE_TORCHRUN": "1"}
            launcher = (str(Path(self.python).with_name(Path(self.words[0]).name)), *self.words[1:])
        else:
            given = (word for name, value in world.items() for word in (f"--{name}", str(value)))
            launcher = (self.python, "-m", "torch.distributed.run", *given, "--max-restarts", "0", *(("-m",) if self.module else ()), *self.words)
        return {"argv": [self.python, "-m", "unhang", "run", *own, "--", *launcher], "cwd": self.cwd, "environ": environ}


@dataclass(kw_only=True)
class _Host:
    """What has come from one host. `began_s`: when its run began, in seconds since the job's start."""

    name: str
    folder: str
    ranks: range
    offsets: dict[str, int] = field(default_factory=dict)
    events_bytes: int = 0
    said_bytes: int = 0
    said: str = ""
    now: Now | None = None
    began_s: float | None = None
    drawn: int = 0
    unanswered: int = 0
    exitcode: int | None = None
    lost: bool = False
    is_closed: bool = False
    ended_at_s: float | None = None

    @property
    def is_over(self) -> bool:
        return self.exitcode is not None or self.lost


@dataclass(eq=False)
class Attempt:
    """One start on all hosts. `interrupt` may be called from a signal handler of the event loop; `reach` makes new agents on these hosts."""

    agents: Agents
    hosts: Sequence[str]
    job: Job
    _: KW_ONLY
    number: int
    reach: Callable[[], Awaitable[Agents]]
    first_incident: int
    rundir: RunDir
    patience: Patience
    tell: events.Tell
    sink: Sink
    started: float
    leave_hung: bool

    def __post_init__(self) -> None:
        self._incident = self.first_incident
        self._hosts = [
            _Host(name=name, folder=str(self.rundir.on_host(name, self.number)), ranks=range(i * self.job.per_host, (i + 1) * self.job.per_host))
            for i, name in enumerate(self.hosts)
        ]
        self._logs: dict[Path, LogRef] = {}
        self._interrupts: list[int] = []
        self._sent = 0
        self._ended_by_us = False
        self._is_opened_for_world = self._is_wrong_world = False
        self._looked_s: float | None = None
        self._until_s: float | None = None
        self._pace = Pace({host.name: host.ranks for host in self._hosts})
        self._slow: Slow | None = None
        self._links_s = 0.0
        self.last: Judged | None = None

    def interrupt(self, number: int) -> None:
        self._interrupts.append(number)

    @property
    def lost(self) -> tuple[str, ...]:
        """Hosts of which nobody knows what they do now."""
        return tuple(host.name for host in self._hosts if host.lost)

    async def run(self, address: str | None) -> Result:
        """Start on all hosts, to meet at an address of the first; without one, follow what runs there already. Stays until all have ended."""
        try:
            await self._run(address)
        except Exception:
            # Nobody would follow it any more.
            await self._end()
            raise
        ranks = [rank for host in self._hosts if host.now is not None for rank in host.now.ranks]
        return Result(
            exitcode=self._exitcode,
            ended_by_us=self._ended_by_us,
            interrupted=bool(self._interrupts),
            steps=max((rank.step for rank in ranks), default=0),
            pace=None,
            incident=self.last[0] if self.last else None,
            verdict=self.last[1] if self.last else None,
        )

    async def _run(self, address: str | None) -> None:
        if address is None:
            self._resume()
            await self._look_for_all(wait_s=0.0)
            # What has been told already.
            tell, self.tell = self.tell, lambda _: None
            while await self._follow():
                pass
            self.tell = tell
        else:
            await self._start(address)
        while not all(host.is_over for host in self._hosts):
            if not await self._follow():
                await asyncio.sleep(_FOLLOW_S)
            if len(self._interrupts) > self._sent:
                await self._send(self._interrupts[self._sent])
                self._sent += 1
            elif not self._interrupts:
                await self._attend()
        while await self._follow():
            pass
        if self._exitcode and not self._interrupts and self.last is None:
            await self._judge("failure")

    @property
    def _exitcode(self) -> int:
        failed = sorted((h.ended_at_s or 0.0, h.exitcode) for h in self._hosts if h.exitcode)
        return 1 if self.lost else failed[0][1] if failed else 0

    # -- starting, following, ending

    async def _start(self, address: str) -> None:
        first = self._hosts[0].name
        found = await self._ask({first: {"do": "port", "port": 0, "for_s": 0.0}}, limit_s=_START_S)
        if "port" not in found.get(first, {}):
            raise UnhangError(f"{first} gives no free port")
        port = found[first]["port"]
        questions = {
            host.name: {
                "do": "start",
                "folder": host.folder,
                **self.job.started(i, len(self._hosts), address, port),
            }
            for i, host in enumerate(self._hosts)
        }
        answers = await self._ask(questions, limit_s=_START_S)
        for host in self._hosts:
            self._check(host, answers.get(host.name))
        self.tell(events.Started(attempt=self.number, pid=0, command=self.job.words))

    async def _ask(self, questions: Mapping[str, Mapping[str, Any]], *, limit_s: float) -> dict[str, Answer]:
        known = {name: question for name, question in questions.items() if name in self.agents.names}
        return await self.agents.ask(known, limit_s=limit_s, allowed_bytes=_ANSWER_BYTES)

    def _check(self, host: _Host, answer: Answer | None) -> None:
        """Whether a host has done what it was asked for: None is no answer."""
        if answer is None:
            host.lost, host.is_closed = True, self.agents.is_closed(host.name)
        elif "error" in answer:
            host.exitcode, host.said = 1, answer["error"]
        else:
            return
        host.ended_at_s = self._now()
        self._note(f"{host.name}: {_why_without(host)}")

    def _resume(self) -> None:
        """What was brought here before is not brought again."""
        for path in sorted(self.rundir.logs(self.number).glob("*")):
            rank, stream = _rank_and_stream(path.name)
            size = path.stat().st_size
            self._logs[path] = LogRef(path=self.rundir.relative(path), bytes=size, rank=rank)
            for host in self._hosts:
                if rank in host.ranks or path.stem == f"launcher-{host.name}":
                    host.offsets[path.name if rank is not None else f"launcher.{stream}"] = size

    async def _look_for_all(self, wait_s: float = _AGAIN_EVERY_S) -> None:
        """Until all are found again, with what runs there; those that are missing after a while are lost."""
        living = [host for host in self._hosts if not host.is_over]
        if wait_s:
            self._note("no host answers any more: the training goes on there as long as it gets on, and they are looked for")
        until, answers = self._now() + _AGAIN_S, dict[str, Answer]()
        while len(answers) < len(living) and self._now() < until and not self._interrupts:
            await asyncio.sleep(wait_s)
            wait_s = _AGAIN_EVERY_S
            self.agents = await self.reach()
            answers = await self._ask({host.name: {"do": "adopt", "folder": host.folder} for host in living}, limit_s=_LOST_S)
            if answers:
                until = min(until, self._now() + _MORE_S)
        for host in living:
            self._check(host, answers.get(host.name))
        if not answers:
            self._note(f"what runs there goes on: unhang run --attach {as_argument(self.rundir.path)}")

    async def _follow(self) -> bool:
        """Take in what is new of all hosts; whether there is more."""
        asked = {
            host.name: {"do": "follow", "folder": host.folder, "offsets": host.offsets, "events": host.events_bytes, "said": host.said_bytes}
            for host in self._hosts
            if not host.lost
        }
        answers = await self._ask(asked, limit_s=_LOST_S)
        for host in self._hosts:
            if host.name in answers:
                self._take(host, answers[host.name])
        silent = [host for host in self._hosts if host.name in asked and host.name not in answers and not host.is_over]
        for host in silent:
            host.unanswered += 1
        gone = [host for host in silent if host.name not in self.agents.names]
        if gone and not answers and (len(gone) > 1 or len(self._hosts) == 1):
            await self._look_for_all()
        else:
            for host in silent:
                if host.unanswered >= (_MOST_UNANSWERED if host in gone else _MOST_FAILED):
                    self._check(host, None)
        if (now := self._of_all()) is not None:
            with contextlib.suppress(OSError):
                self.rundir.write(self.rundir.now, now)
        return any(answer["is_more"] for answer in answers.values())

    def _take(self, host: _Host, answer: Answer) -> None:
        for name, data in answer["output"].items():
            raw = base64.b64decode(data)
            host.offsets[name] = host.offsets.get(name, 0) + len(raw)
            self._output(host, name, raw)
        host.unanswered = 0
        host.events_bytes += answer["events_bytes"]
        for line in answer["events"].splitlines():
            with contextlib.suppress(ValueError):
                self._happened(host, json.loads(line))
        host.said_bytes += answer["said_bytes"]
        host.said = (host.said + answer["said"])[-4000:]
        with contextlib.suppress(msgspec.ValidationError):
            if answer["now"]:
                host.now = msgspec.convert(answer["now"], Now)
                # Both by that host's own clock.
                host.began_s = self._now() - (answer["now_s"] - host.now.time_s) - host.now.at_s
        if host.exitcode is None and answer["exitcode"] is not None:
            host.exitcode, host.ended_at_s = answer["exitcode"], self._now()
            if host.exitcode and host.now is None:
                self._note(f"{host.name}: {_why_without(host)}")

    def _output(self, host: _Host, name: str, data: bytes) -> None:
        rank, stream = _rank_and_stream(name)
        if stream not in ("out", "err"):
            return
        path = self.rundir.logs(self.number) / (name if rank is not None else f"launcher-{host.name}.{stream}")
        with contextlib.suppress(OSError):
            fsio.make_directory(path.parent, 0o775)
            with open(path, "ab", opener=partial(fsio.open_private, mode=0o664)) as f:
                f.write(data)
        known = self._logs.get(path)
        self._logs[path] = LogRef(path=self.rundir.relative(path), bytes=(known.bytes if known else 0) + len(data), rank=rank)
        self.sink(rank, stream, data)  # type: ignore[arg-type]

    def _happened(self, host: _Host, event: Mapping[str, Any]) -> None:
        if event.get("event") == "Drawn":
            host.drawn += 1
            self._is_wrong_world |= self._is_opened_for_world
            self._is_opened_for_world = False
        elif event.get("event") == "Opened":
            self._is_opened_for_world |= event.get("kind") == "world-size"
        elif event.get("event") == "Joined":
            with contextlib.suppress(KeyError, TypeError):
                self.tell(events.Joined(rank=event["rank"], world_size=event["world_size"], backend=event["backend"], device=event.get("device")))
        elif event.get("event") == "Note":
            self._note(f"{host.name}: {event.get('text', '')}")

    async def _send(self, number: int) -> None:
        living = {h.name: {"do": "send", "folder": h.folder, "signal": number} for h in self._hosts if not h.is_over}
        await self._ask(living, limit_s=_LOST_S)

    async def _end(self) -> None:
        """End what still runs, and follow it to its end."""
        await self._send(signal.SIGTERM)
        until = self._now() + _END_S
        while not all(host.is_over for host in self._hosts) and self._now() < until and not self._interrupts:
            if not await self._follow():
                await asyncio.sleep(_FOLLOW_S)
        for host in self._hosts if not self._interrupts else ():
            if not host.is_over:
                self._check(host, None)

    # -- judging

    async def _attend(self) -> None:
        if self._is_wrong_world:
            self._is_wrong_world, self._ended_by_us = False, True
            await self._judge("world-size")
            await self._end()
            return
        over = [h for h in self._hosts if h.is_over and (h.lost or h.exitcode)]
        if over:
            since = min(h.ended_at_s or 0.0 for h in over)
            if self._now() - since > _OTHERS_S and not all(h.is_over for h in self._hosts):
                await self._look()
                await self._judge("failure")
                await self._end()
            return
        now = self._of_all()
        if now is None or now.standstill is None:
            self._moves_again()
            if now is not None:
                await self._watch_pace(now)
            return
        for_s = now.at_s - now.standstill.since_s
        if for_s < now.hang_after_s:
            return
        if self._looked_s is None:
            self._looked_s = self._now()
            await self._look()
            judged = await self._judge("hang")
            self._until_s = self._looked_s - for_s + self._limit_s(judged[0], now) if judged is not None else self._now() + now.hang_after_s
            if not self.leave_hung and (left := self._until_s - self._now()) > 1:
                self._note(f"to be ended in {left:.0f} s unless it moves")
        if self._until_s is not None and self._now() >= self._until_s and not self.leave_hung:
            self._note("ending the training: the time of this stall is over")
            self._ended_by_us = True
            await self._end()

    async def _watch_pace(self, now: Now) -> None:
        """Name once what makes the training slower than it was; it goes on."""
        if self._slow is not None:
            return
        if self._now() - self._links_s >= LINKS_EVERY_S:
            self._links_s = self._now()
            questions = {host.name: {"do": "links", "folder": host.folder} for host in self._hosts if not host.is_over}
            self._pace.links(await self._ask(questions, limit_s=_LOST_S), self._now())
        self._slow = self._pace.look(now)
        if self._slow is not None:
            await self._judge("straggler")
            self.last = None

    def _moves_again(self) -> None:
        if self._looked_s is not None:
            self.tell(events.CaughtUp(after_s=round(self._now() - self._looked_s, 1)))
            self._looked_s = self._until_s = self.last = None

    def _of_all(self) -> Now | None:
        """What all ranks do; None as long as a host has not told, or where none is left."""
        told = [(h.now, h.began_s) for h in self._hosts if h.now is not None and h.began_s is not None and not h.lost]
        if not told or any(h.now is None and not h.is_over for h in self._hosts):
            return None
        return merged.now(told, attempt=self.number, at_s=self._now())

    def _limit_s(self, incident: Incident, now: Now) -> float:
        """How long the others wait for whoever keeps them waiting."""
        absent = now.standstill.absent if now.standstill is not None else ()
        ranks = {record.rank: record for record in incident.ranks}
        if parted(self.rundir, ranks, incident.at_s):
            return 0.0
        timeout_s = min((r.timeout_s for r in ranks.values() if r.timeout_s is not None), default=None)
        starting = now.usual_gap_s is None
        kinds = [
            kind_of(r.activity, r.activity.wait, busy=r.activity.busy)
            for rank in absent
            if (r := ranks.get(rank)) is not None and r.activity is not None
        ]
        return min((self.patience.limit_s(kind, None, starting=starting, timeout_s=timeout_s) for kind in kinds or ["joined"]), default=0.0)

    async def _look(self) -> None:
        """Have evidence taken by all that still run, and wait until they have it."""
        asked = [(h, h.drawn) for h in self._hosts if not h.is_over]
        await self._send(signal.SIGURG)
        until = self._now() + _LOOK_S
        while self._now() < until and not self._interrupts and any(h.drawn <= before for h, before in asked if not h.is_over):
            if not await self._follow():
                await asyncio.sleep(_FOLLOW_S / 2)

    async def _judge(self, kind: IncidentKind) -> Judged | None:
        """Bring the records of all hosts here, lay them together, and judge them. Never raises: it watches a living training."""
        self.tell(events.Opened(incident=self._incident, kind=kind))
        try:
            return await (self._judged_slow if kind == "straggler" else self._judged)(self._now())
        except Exception as e:
            self._note(f"no verdict: {type(e).__name__}: {e}")
            self.tell(events.Abandoned(incident=self._incident))
            return None

    async def _judged(self, begun: float) -> Judged | None:
        with fsio.temporary_directory("hosts-") as folder:
            parts = [part for host in self._hosts if (part := await self._part(host, folder / host.name)) is not None]
            if not parts:
                self.tell(events.Abandoned(incident=self._incident))
                return None
            made = merge(
                self.rundir,
                parts,
                number=self._incident,
                attempt=self.number,
                command=self.job.words,
                cwd=self.job.cwd,
                logs=tuple(self._logs.values()),
                without={host.name: _why_without(host) for host in self._hosts if host.name not in {part.host for part in parts}},
                lost={host.name: tuple(host.ranks) for host in self._hosts if host.lost},
                closed=tuple(host.name for host in self._hosts if host.is_closed),
            )
        return await self._drawn(made, begun)

    async def _judged_slow(self, begun: float) -> Judged:
        """Of ranks that all move no evidence is taken: that would stop each of them."""
        made = Incident(
            number=self._incident,
            attempt=self.number,
            kind="straggler",
            at_s=begun,
            at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds"),
            cwd=self.job.cwd,
            command=tuple(self.job.words),
            slow=self._slow,
        )
        self.rundir.write(self.rundir.incident(made.number), made)
        return await self._drawn(made, begun)

    async def _drawn(self, made: Incident, begun: float) -> Judged:
        verdict = await asyncio.to_thread(why.judge, self.rundir, number=self._incident)
        self.rundir.write(self.rundir.incident_verdict(self._incident), verdict)
        self.rundir.write(self.rundir.verdict, verdict)
        self.last = made, verdict
        self._incident += 1
        self.tell(events.Drawn(incident=made.number, verdict=verdict, took_s=round(self._now() - begun, 3)))
        return self.last

    async def _part(self, host: _Host, folder: Path) -> Part | None:
        packed, size = b"", 1
        while len(packed) < size and host.name in self.agents.names:
            question = {"do": "records", "folder": host.folder, "offset": len(packed)}
            answer = (await self._ask({host.name: question}, limit_s=_RECORDS_S)).get(host.name)
            if answer is None:
                return None
            packed, size = packed + base64.b64decode(answer["data"]), answer["size"]
        if not packed:
            return None
        fsio.make_directory(folder)
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            for member in archive.infolist():
                path = (folder / member.filename).resolve()
                if folder.resolve() in path.parents and not member.is_dir():
                    fsio.make_directory(path.parent)
                    fsio.write_atomically(path, archive.read(member))
        rundir = RunDir(folder, is_trusted=True)
        incident = newest(rundir)
        return None if incident is None else Part(host=host.name, rundir=rundir, incident=incident, began_s=host.began_s or 0.0)

    # -- small things

    def _now(self) -> float:
        return time.monotonic() - self.started

    def _note(self, text: str) -> None:
        self.tell(events.Note(text=text))


def _rank_and_stream(name: str) -> tuple[int | None, str]:
    stem, _, stream = name.rpartition(".")
    return (int(stem[4:]) if stem.startswith("rank") and stem[4:].isdecimal() else None), stream


def _why_without(host: _Host) -> str:
    """Why a host has no records: it is lost, or its run ended before it began."""
    if host.lost:
        return "unhang has ended there, without a word" if host.is_closed else "it no longer answers"
    lines = [line.strip() for line in host.said.splitlines() if line.strip()]
    return lines[-1][:300] if lines else f"its run ended with exit code {host.exitcode}"
