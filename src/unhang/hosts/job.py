"""The part of a job that runs on one host: its `unhang run` is started, followed and ended by the agent. Standard library only.

What is written stays on the host, below the job's folder; what is asked for goes through the pipe, in bounded answers. Once the pipe has closed the
training goes on as long as it gets on; ranks that stand still are ended when nobody has asked for them for a while, so that no new attempt
elsewhere meets them again.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import io
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from unhang import fsio
from unhang.facts import processes
from unhang.facts.host import Host
from unhang.model import ProcessId

Question = Mapping[str, Any]
Answer = dict[str, Any]

# Of one answer.
_OUTPUT_BYTES, _EVENT_BYTES, _PACKED_BYTES = 256_000, 64_000, 400_000
# Of the records of one host: stacks of hundreds of threads and dumps of thousands of calls.
_MOST_BYTES, _MOST_FILES = 256 << 20, 5_000
LEASE_S = 30.0
_TICK_S, _START_S, _FORCE_S = 1.0, 20.0, 5.0
_LINKS_S = 5.0
# Of `ss -tinp`. Times are in ms; while the other end takes nothing ("rwnd_limited"), its process is slow and not the link.
_ENDS = re.compile(r"\s\[?(?:::ffff:)?(?P<local>[\d.]+|[\da-f:]+)\]?:\d+\s+\[?(?:::ffff:)?(?P<peer>[\d.]+|[\da-f:]+)\]?:\d+\s")
_COUNTED = re.compile(r"\b(bytes_acked|bytes_retrans|busy|rwnd_limited):(\d+)")
_jobs: dict[str, _Job] = {}
# A supervisor outlives the pipe, but not the agent that keeps it: SIGTERM comes to it when the thread that started it has ended.
_KEPT = (sys.executable, "-c", "import ctypes,os,sys;ctypes.CDLL(None).prctl(1,15);os.execvp(sys.argv[1],sys.argv[1:])")


class _Job:
    """All that is known of it stands in files beside its folder: a second agent on this host can follow what a first one has started."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.output, self._known, self._end, self._asked = (Path(f"{folder}.{what}") for what in ("out", "process", "exitcode", "asked"))
        self.packed = b""
        self.keeper: threading.Thread | None = None
        self._code: int | None = None
        self._ends = 0

    def start(self, asked: Question) -> None:
        """Raises OSError where it cannot be started, as it cannot be twice in one folder."""
        self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.renew_lease()
        failed: queue.SimpleQueue[OSError | None] = queue.SimpleQueue()
        self.keeper = threading.Thread(target=self._keep, args=(asked, failed))
        self.keeper.start()
        if (error := failed.get(timeout=_START_S)) is not None:
            raise error

    def _keep(self, asked: Question, failed: queue.SimpleQueue[OSError | None]) -> None:
        try:
            with open(self.output, "xb", opener=fsio.open_private) as out:
                process = subprocess.Popen(
                    [*_KEPT, *(word.replace("{folder}", str(self.folder)) for word in asked["argv"])],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    cwd=asked["cwd"],
                    # As in an environment that is activated: llamafactory-cli starts the torchrun that is first on PATH, DeepSpeed a ninja.
                    env={**os.environ, "PATH": f"{Path(asked['argv'][0]).parent}:{os.environ.get('PATH', '')}", **asked["environ"]},
                    start_new_session=True,
                )
            known = {what: processes.identity(Host(), pid) for what, pid in (("process", process.pid), ("keeper", os.getpid()))}
            fsio.write_atomically(self._known, json.dumps({what: dataclasses.asdict(one) for what, one in known.items() if one}).encode())
        except OSError as e:
            failed.put(e)
            return
        failed.put(None)
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._code = process.wait(_TICK_S)
                break
            self._end_if_forgotten()
        with contextlib.suppress(OSError):
            fsio.write_atomically(self._end, str(self._code).encode())

    @property
    def processes(self) -> tuple[ProcessId, ...]:
        """The supervisor, and the agent that keeps it; none where none was started here."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            known = json.loads(self._known.read_bytes())
            return ProcessId(**known["process"]), ProcessId(**known["keeper"])
        return ()

    @property
    def exitcode(self) -> int | None:
        """None while it runs. One that was ended together with its agent has the code of the signal."""
        if self._code is not None:
            return self._code
        # Before the file is read, which an agent that lives writes after the end.
        is_gone = not any(processes.is_alive(Host(), process) for process in self.processes)
        with contextlib.suppress(OSError, ValueError):
            return int(self._end.read_bytes())
        return -signal.SIGTERM if is_gone else None

    def renew_lease(self) -> None:
        """Any agent on this host may, by this host's clock."""
        with contextlib.suppress(OSError):
            self._asked.touch(mode=0o600)
            os.utime(self._asked, (time.time(), time.time()))

    def _end_if_forgotten(self) -> None:
        """Ranks that stand still are ended when nobody has asked for them within the lease: the second signal ends them by force."""
        with contextlib.suppress(OSError):
            since_s = time.time() - self._asked.stat().st_mtime
            if since_s > LEASE_S + _FORCE_S * self._ends and not self._is_moving():
                self._ends += 1
                self.send(signal.SIGTERM)

    def send(self, number: int) -> None:
        for process in self.processes[:1]:
            if processes.is_alive(Host(), process):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def now(self) -> Answer:
        """What the supervisor wrote down last of its ranks; {} before it has."""
        with contextlib.suppress(OSError, ValueError):
            found: Answer = json.loads((self.folder / "now.json").read_bytes())
            return found
        return {}

    def _is_moving(self) -> bool:
        """Whether the training gets on, as far as its supervisor can tell: no standstill for longer than is usual there, and told just now."""
        now = self.now()
        return bool(now) and time.time() - now["time_s"] < LEASE_S and now.get("standstill") is None and not now.get("last")


def start(asked: Question) -> Answer:
    """Start `argv` in `cwd`; "{folder}" in it stands for the job's folder."""
    job = _Job(asked["folder"])
    try:
        job.start(asked)
    except OSError as e:
        return {"error": f"{e.filename or asked['argv'][0]}: {e.strerror or e}"}
    _jobs[asked["folder"]] = job
    return {}


def adopt(asked: Question) -> Answer:
    """Follow what another agent has started."""
    job = _Job(asked["folder"])
    if not job.processes:
        return {"error": f"{asked['folder']}: nothing was started there"}
    _jobs[asked["folder"]] = job
    return {}


def follow(asked: Question) -> Answer:
    """What is new: output of each rank and of launchers from an offset on, whole lines of events, what ranks do, and how it ended."""
    job = _jobs[asked["folder"]]
    job.renew_lease()
    # First: what is written by the end is read below.
    exitcode = job.exitcode
    left, output = _OUTPUT_BYTES, {}
    for path in sorted((job.folder / "logs").glob("attempt-0/*")):
        offset = asked["offsets"].get(path.name, 0)
        if data := _part(path, offset, left):
            output[path.name] = base64.b64encode(data).decode()
            left -= len(data)
    begun = _part(job.folder / "events.jsonl", asked["events"], _EVENT_BYTES)
    events = begun[: begun.rfind(b"\n") + 1]
    said = _part(job.output, asked["said"], _EVENT_BYTES)
    return {
        "exitcode": exitcode,
        "output": output,
        "events": events.decode("utf-8", "replace"),
        "events_bytes": len(events),
        "said": said.decode("utf-8", "replace"),
        "said_bytes": len(said),
        "now": job.now(),
        "now_s": time.time(),
        "is_more": left <= 0 or len(begun) == _EVENT_BYTES,
    }


def links(asked: Question) -> Answer:
    """What the ranks here have sent over each of their TCP connections, by the kernel's own counters."""
    pids = {f"pid={rank['pid']}," for rank in _jobs[asked["folder"]].now().get("ranks", ())}
    printed = Host().run(["ss", "-tinpOH", "state", "established"], timeout_s=_LINKS_S).out
    found = []
    for line in printed.splitlines():
        counted = {name: float(value) for name, value in _COUNTED.findall(line)}
        ends = _ENDS.search(line)
        if ends is not None and "busy" in counted and any(pid in line for pid in pids):
            busy_s = max(0.0, counted["busy"] - counted.get("rwnd_limited", 0.0)) / 1000
            sent = {"bytes": int(counted.get("bytes_acked", 0)), "again_bytes": int(counted.get("bytes_retrans", 0)), "busy_s": busy_s}
            found.append({"local": ends["local"], "peer": ends["peer"], **sent})
    return {"links": found}


def send(asked: Question) -> Answer:
    """Send the supervisor a signal: SIGTERM ends the training, SIGURG has evidence taken."""
    _jobs[asked["folder"]].send(asked["signal"])
    return {}


def records(asked: Question) -> Answer:
    """A piece of an archive of all incidents and last stacks, from an offset on; it is packed at offset 0."""
    job = _jobs[asked["folder"]]
    job.renew_lease()
    if asked["offset"] == 0:
        job.packed = _packed(job.folder)
    piece = job.packed[asked["offset"] : asked["offset"] + _PACKED_BYTES]
    return {"data": base64.b64encode(piece).decode(), "size": len(job.packed)}


def _packed(folder: Path) -> bytes:
    packed, left = io.BytesIO(), _MOST_BYTES
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=3, strict_timestamps=False) as archive:
        for count, path in enumerate(_records(folder)):
            # What its supervisor writes anew just now.
            with contextlib.suppress(FileNotFoundError):
                left -= path.stat().st_size
                if count > _MOST_FILES or left < 0:
                    break
                archive.write(path, path.relative_to(folder))
    return packed.getvalue()


def _records(folder: Path) -> Iterator[Path]:
    """What a judge needs first."""
    yield from (p for p in (folder / "run.json",) if p.is_file())
    for pattern in ("incidents/*/*.*", "incidents/*/stacks/*", "fatal/attempt-0/*", "incidents/*/flight/*", "incidents/*/flight/*/*"):
        yield from (p for p in sorted(folder.glob(pattern)) if p.is_file() and not p.is_symlink())


def _part(path: Path, offset: int, most: int) -> bytes:
    with contextlib.suppress(OSError), path.open("rb") as f:
        f.seek(offset)
        return f.read(max(0, most))
    return b""


def wait_for_all(*, end: bool) -> None:
    """The pipe has closed: stay until all trainings that were started here have ended; those that stand still are ended, or with `end` all."""
    for number in (signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    for job in _jobs.values():
        if job.keeper is not None:
            if end:
                job.send(signal.SIGTERM)
            job.keeper.join()
