"""Writes docs/accuracy.md: how often `unhang why` names the right cause, on our own fixtures and on real reports (`field.py`).

With --check, says whether the page is up to date.

Every line that a cause promises to recognise is put into a log: lines of a healthy training before it, what its victims and the launcher print
after it (or, one time in four, before it), all in one style of prefix. Near misses are put into healthy logs, without victims. Which log, which
victims, which prefix is drawn from a hash of the case: the same each time, on each machine.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import field as real_reports
import msgspec
import zstandard
from field import wilson

from unhang.diagnosis import logs as diagnosis
from unhang.knowledge import catalogue
from unhang.logs import clean, match

ROOT = Path(__file__).resolve().parent.parent
HEALTHY = ROOT / "tests" / "diagnosis" / "healthy"
PAGE = ROOT / "docs" / "accuracy.md"
# What stands in front of a case: trainings of several frameworks, and no more of them than this.
BEFORE = ("torchrun-2", "torchrun-tee", "agent-info", "two-nodes-c10d", "debug-info", "transformers", "deepspeed", "lightning", "ray-train", "mpirun")
BEFORE_LINES = 60
RANK, OTHER, WORLD = 3, 1, 8

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One log to judge. `cause` is None for a healthy one; a near miss is a line that `cause` must not be told from."""

    cause: str | None
    kind: str
    text: str
    about: str


@dataclass(frozen=True, kw_only=True)
class Told:
    """What was told of a case: the primary cause (None: nothing), whether it is a root, and the others."""

    primary: str | None
    root: bool
    others: tuple[str, ...]
    symptoms: tuple[str, ...]


def drawn(options: Sequence[T], *key: object) -> T:
    """One of the options, the same one for the same key, in every version of Python."""
    return options[int(hashlib.sha256(repr(key).encode()).hexdigest(), 16) % len(options)]


def healthy_text(name: str) -> str:
    return zstandard.ZstdDecompressor().decompressobj().decompress((HEALTHY / f"{name}.log.zst").read_bytes()).decode(errors="replace")


@lru_cache
def begun(name: str) -> list[str]:
    """The first half of a healthy log: a training that has not ended yet."""
    lines = healthy_text(name).splitlines()
    return lines[: min(BEFORE_LINES, len(lines) // 2)]


_FILE = '  File "/srv/job/train.py", line 188, in <module>\n    main()\n  File "/srv/job/train.py", line 141, in main\n    loss = step(batch)\n'
_VICTIMS = (
    (
        f"[rank{OTHER}]: Traceback (most recent call last):\n"
        f'[rank{OTHER}]:   File "/srv/job/train.py", line 141, in main\n'
        f"[rank{OTHER}]:     loss.backward()\n"
        f"[rank{OTHER}]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.4]:47492. "
        "This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error.\n"
    ),
    (
        f"[rank{OTHER}]:[E1103 10:42:08.408271257 ProcessGroupNCCL.cpp:607] [Rank {OTHER}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=120, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
        f"[rank{OTHER}]:[E1103 10:42:08.411271257 ProcessGroupNCCL.cpp:1664] [PG 0 (default_pg) Rank {OTHER}] Exception (either an error or timeout) "
        f"detected by watchdog at work: 120, last enqueued NCCL work: 122, last completed NCCL work: 119.\n"
    ),
    (
        f"node1:4711:4790 [{OTHER}] misc/socket.cc:46 NCCL WARN socketProgress: Connection closed by remote peer node4<47492>\n"
        f"[rank{OTHER}]: torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process "
        "exited or there was a network error, NCCL version 2.21.5\n"
    ),
    (
        f"[rank{OTHER}]:[W1103 10:32:10.118271257 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=64, addr=[node1]:41228, "
        "remote=[node0]:29500): failed to recv, got 0 bytes\n"
    ),
    "",
)
_TEARDOWN = (
    (
        "W1103 10:42:10.002000 4200 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 4712 closing signal SIGTERM\n"
        f"E1103 10:42:12.002000 4200 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: {RANK} (pid: 4714) of "
        "binary: /srv/env/bin/python\n"
        "Traceback (most recent call last):\n"
        '  File "/srv/env/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        "============================================================\n"
        "train.py FAILED\n"
        "------------------------------------------------------------\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-03_10:42:12\n  host      : node1\n"
        f"  rank      : {RANK} (local_rank: {RANK})\n  exitcode  : 1 (pid: 4714)\n  error_file: <N/A>\n"
    ),
    (
        f"srun: error: node1: task {RANK}: Exited with exit code 1\n"
        "slurmstepd: error: *** STEP 4711.0 ON node1 CANCELLED AT 2026-11-03T10:42:12 ***\n"
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
    ),
    "",
)
# Exceptions of the user's own code, for the cause that has no signature because it is told from tracebacks.
_EXCEPTIONS = (
    "KeyError: 'labels'",
    "ValueError: could not convert string to float: 'n/a'",
    "AssertionError: label 12 has no name",
    "TypeError: unsupported operand type(s) for +: 'int' and 'NoneType'",
    "IndexError: index 412 is out of bounds for axis 0 with size 400",
    "AttributeError: 'NoneType' object has no attribute 'shape'",
    "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    "ZeroDivisionError: float division by zero",
)
_EXCEPTION = re.compile(r"(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Failure): ")


def _plain(lines: Sequence[str], rank: int) -> list[str]:
    return list(lines)


def _srun(lines: Sequence[str], rank: int) -> list[str]:
    return [f"{rank}: {x}" for x in lines]


def _kubernetes(lines: Sequence[str], rank: int) -> list[str]:
    return [f"[pod/train-worker-{rank}/pytorch] {x}" for x in lines]


def _tee(lines: Sequence[str], rank: int) -> list[str]:
    return [f"[default{rank}]:{x}" for x in lines]


_STYLES = (_plain, _plain, _srun, _kubernetes, _tee)


def failure(hit: str, *key: object) -> str:
    """A log in which `hit` is the root."""
    if _EXCEPTION.match(hit):
        hit = "\n".join(f"[rank{RANK}]: {x}" for x in ("Traceback (most recent call last):\n" + _FILE + hit).splitlines())
    before = begun(drawn(BEFORE, "before", *key))
    victims = drawn(_VICTIMS, "victims", *key).splitlines()
    end = drawn(_TEARDOWN if victims else _TEARDOWN[:2], "end", *key).splitlines()
    style: Callable[[Sequence[str], int], list[str]] = drawn(_STYLES, "style", *key)
    lines = style(before, 0)
    parts = [(hit.splitlines(), RANK), (victims, OTHER)]
    # What NCCL says while it starts cannot stand behind a victim's words.
    if "NCCL INFO" not in hit and "NCCL version" not in hit and drawn(range(4), "order", *key) == 0:
        parts.reverse()
    for part, rank in parts:
        lines += style(part, rank)
    return "\n".join([*lines, *end]) + "\n"


def near_miss(line: str, *key: object) -> str:
    """A healthy log with a line in its middle that only looks like a failure."""
    lines = begun(drawn(BEFORE, "before", *key))
    style: Callable[[Sequence[str], int], list[str]] = drawn(_STYLES, "style", *key)
    half = len(lines) * 2 // 3
    return "\n".join([*style(lines[:half], 0), *style(line.splitlines(), 0), *style(lines[half:], 0)]) + "\n"


def cases() -> list[Case]:
    made: list[Case] = []
    for c in catalogue.load().values():
        hits = c.hits if c.id != "rank-exception" else _EXCEPTIONS
        if c.role == "root":
            made += [Case(cause=c.id, kind="root", text=failure(hit, c.id, n), about=hit) for n, hit in enumerate(hits)]
        else:
            made += [Case(cause=c.id, kind="symptom", text=near_miss(hit, c.id, n), about=hit) for n, hit in enumerate(hits)]
        made += [Case(cause=c.id, kind="near miss", text=near_miss(line, c.id, "near", n), about=line) for n, line in enumerate(c.near_misses)]
    for path in sorted(HEALTHY.glob("*.log.zst")):
        name = path.name.removesuffix(".log.zst")
        made.append(Case(cause=None, kind="healthy", text=healthy_text(name), about=name))
    return made


# The search engine is the same for every log, and compiling it takes longer than reading one of these.
diagnosis.Needles = lru_cache(diagnosis.Needles)


def judged(case: Case) -> Told:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.log"
        path.write_text(case.text, "utf-8")
        verdict = diagnosis.judge_logs([str(path)]).verdict
    primary = verdict.primary
    return Told(
        primary=None if primary is None else primary.cause,
        root=primary is not None and primary.standing != "not-established",
        others=tuple(f.cause for f in verdict.contributing),
        symptoms=tuple(f.cause for f in verdict.symptoms),
    )


@dataclass(frozen=True, kw_only=True)
class Row:
    """One cause: in how many of n logs it came first (`right`), stood behind a cause that claims the same line (`shared`) or another one
    (`second`), and what came first instead."""

    cause: str
    n: int
    right: int
    shared: int
    second: int
    instead: tuple[tuple[str, int], ...]

    @property
    def share_right(self) -> float:
        """Of the logs whose line belongs to this cause alone."""
        return self.right / (self.n - self.shared) if self.n > self.shared else 1.0


def claims(line: str) -> set[str]:
    """The roots that have a signature which hits in these very lines."""
    known = catalogue.signatures()
    lines = [clean(x)[0] for x in line.splitlines()]
    return {known[h.signature] for x in lines for h in match(x, known, source="", around="\n".join(lines)) if h.signature.role == "root"}


def row(cause: str, results: Sequence[tuple[Case, Told]]) -> Row:
    wrong = [(c, t) for c, t in results if t.primary != cause]
    behind = [(c, t) for c, t in wrong if cause in t.others]
    shared = sum(t.primary in claims(c.about) for c, t in behind)
    return Row(
        cause=cause,
        n=len(results),
        right=len(results) - len(wrong),
        shared=shared,
        second=len(behind) - shared,
        instead=tuple(sorted(Counter(t.primary or "nothing" for _, t in wrong).items(), key=lambda x: (-x[1], x[0]))),
    )


def measured() -> list[tuple[Case, Told]]:
    """Every case and what was told of it, on all processors."""
    todo = cases()
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(zip(todo, pool.map(judged, todo, chunksize=16), strict=True))


def rows(results: Iterable[tuple[Case, Told]]) -> list[Row]:
    of_cause: dict[str, list[tuple[Case, Told]]] = {}
    for case, told in results:
        if case.kind == "root" and case.cause is not None:
            of_cause.setdefault(case.cause, []).append((case, told))
    return [row(cause, its) for cause, its in sorted(of_cause.items())]


_REAL = (
    (
        "Log parts of failures that people posted in public trackers from 2023 to 2026, found by search and typed anew: what programs print, its "
        "order and its defects were kept, hosts, pids, paths, addresses and most numbers were made up. Each was labelled from its log part alone, "
        "with every cause that an expert would accept, before `unhang why` had seen it. A hash of its address put each of the first 205 into "
        "one of two halves: signatures were learned from `learn`, nobody looked at a single report of `measure` but for six at last, whose "
        "failures had been overlooked: general rules were made of these, no signature. Those of `later` were gathered "
        "afterwards and judged once, by the version of that day, before anything was learned from them. `scripts/field.jsonl` has addresses, "
        "labels and verdicts; `scripts/field.py` judges the halves again."
    ),
    "",
    (
        "`right`: the first cause is an accepted one, or, where the log part shows only consequences, no root cause is claimed. `undecided`: the "
        "verdict says that it does not know. `wrong`: another cause comes first, as likely or possible; `wrong and established`: as certain. The "
        "labels are ours, most log parts are excerpts, and people post what they could not solve themselves: the share in daily life will differ. "
        "Intervals are Wilson's, 95 %."
    ),
    "",
)
_EXPLAINED = (
    (
        "Each cause comes with lines that it promises to recognise. The script puts every one of them into a log as a whole job would have left "
        "it: lines of a healthy training before it, then what the other ranks and the launcher print when a rank is gone (a lost connection, a "
        "watchdog's timeout, a store error, torchrun's or Slurm's summary), one time in four before it; bare exceptions get a traceback; the whole "
        "in one of several styles of prefix. `unhang why` judges that log. It is right if the cause comes first."
    ),
    "",
    (
        "So this measures whether a verdict puts the root over its victims, keeps causes apart and stays silent on health. **It is not the accuracy "
        "on logs of other people:** the lines are ours, written with the signatures that recognise them. A wording that no signature knows is not "
        "in here, nor is a log that does not hold its cause, and causes are as frequent here as their fixtures, not as in life. Supervised runs "
        "(`unhang run`), which also have stacks and recorders, are not measured here but in the tests."
    ),
    "",
)


def _interval(what: str, told: Sequence[Told]) -> str:
    k, n = sum(t.primary is not None for t in told), len(told)
    low, high = wilson(k, n)
    return f"| {what} | {n} | {k} ({k / n:.1%}) | {low:.1%} to {high:.1%} |"


def page(results: Sequence[tuple[Case, Told]]) -> str:
    """docs/accuracy.md."""
    table = rows(results)
    n, right, shared, second = (sum(getattr(r, x) for r in table) for x in ("n", "right", "shared", "second"))
    symptoms = [(c, t) for c, t in results if c.kind == "symptom"]
    seen = sum(c.cause in (t.primary, *t.symptoms) and not t.root for c, t in symptoms)
    rooted = sum(t.root for _, t in symptoms)
    near = [(c, t) for c, t in results if c.kind == "near miss"]
    false = [(c, t) for c, t in near if c.cause == t.primary or c.cause in t.others]
    other = sum(t.root for c, t in near) - sum(c.cause == t.primary and t.root for c, t in near)
    healthy = [(c, t) for c, t in results if c.kind == "healthy"]
    alarms = [(c, t) for c, t in healthy if t.primary is not None]
    contents = msgspec.json.decode((HEALTHY / "contents.json").read_bytes(), type=dict[str, dict[str, Any]])
    frameworks = Counter(contents[c.about]["framework"] for c, _ in healthy)
    unmeasured = sorted(c.id for c in catalogue.load().values() if c.role == "root" and not any(r.cause == c.id for r in table))
    lines = [
        "# Accuracy",
        "",
        "Made by `python scripts/accuracy.py`; a test keeps it current.",
        "",
        "## Real reports",
        "",
        *_REAL,
        *real_reports.section(),
        "",
        "## Our own fixtures",
        "",
        *_EXPLAINED,
        "## Overall",
        "",
        "| what | n | result |",
        "|---|---:|---:|",
        f"| failures: the cause comes first | {n} | {right} ({right / n:.1%}) |",
        f"| failures: it comes behind another cause that claims the same line | {n} | {shared} ({shared / n:.1%}) |",
        f"| failures: it comes behind another cause | {n} | {second} ({second / n:.1%}) |",
        f"| failures: it is not reported | {n} | {n - right - shared - second} ({(n - right - shared - second) / n:.1%}) |",
        f"| only a symptom in the log: recognised, and no root made up | {len(symptoms)} | {seen} ({seen / len(symptoms):.1%}) |",
        f"| only a symptom in the log: a root is reported | {len(symptoms)} | {rooted} ({rooted / len(symptoms):.1%}) |",
        f"| near misses: reported as the cause they only resemble | {len(near)} | {len(false)} ({len(false) / len(near):.1%}) |",
        f"| healthy logs: anything is reported | {len(healthy)} | {len(alarms)} ({len(alarms) / len(healthy):.1%}) |",
        "",
        f"Near misses are often lines of another cause, which is then reported instead: {other} of {len(near)}.",
        "",
        "## Healthy logs",
        "",
        (
            f"{len(healthy)} logs of trainings and tools that ended well (`scripts/healthy_logs.py`). Hard ones were made to look like failures: "
            "caught errors with their tracebacks, restarts that succeed, words such as `timeout` and `out of memory` in configurations. Intervals "
            "are Wilson's, 95 %, and hold for logs such as these. They were really run, on CPUs with Gloo; what NCCL, RCCL, DeepEP, vLLM, Ray and "
            "Megatron print on GPUs is written in their grammar."
        ),
        "",
        "| healthy logs | n | something is told | 95 % interval |",
        "|---|---:|---:|---:|",
        *(_interval(what, [t for c, t in healthy if contents[c.about]["hard"] is hard]) for what, hard in (("ordinary", False), ("hard", True))),
        _interval("all", [t for _, t in healthy]),
        "",
        f"By framework: {', '.join(f'{name} {count}' for name, count in sorted(frameworks.items(), key=lambda x: (-x[1], x[0])))}.",
        "",
        *(f"- `{c.about}` ({contents[c.about]['shows']}): told as {t.primary}" for c, t in alarms),
        *([""] if alarms else []),
        "## By cause",
        "",
        (
            "`shared`: another cause that has a signature for the very same line came first, and this one is named behind it; one line alone cannot "
            "tell them apart. `right` is the share of all other logs in which this cause came first, `second` how many of them name it later."
        ),
        "",
        "| cause | n | right | shared | second | first instead |",
        "|---|---:|---:|---:|---:|---|",
        *(f"| {r.cause} | {r.n} | {r.share_right:.0%} | {r.shared} | {r.second} | {', '.join(f'{c} {k}' for c, k in r.instead)} |" for r in table),
        "",
        f"Not measured here, because no line names them: {', '.join(unmeasured) or 'none'}.",
    ]
    if false:
        lines += ["", "## Near misses that were taken for the cause", "", "| cause | n |", "|---|---:|"]
        lines += [f"| {cause} | {k} |" for cause, k in sorted(Counter(c.cause or "" for c, _ in false).items())]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    results = measured()
    text = page(results)
    if "--wrong" in arguments:
        for case, told in results:
            if case.kind == "root" and told.primary != case.cause:
                sys.stdout.write(f"{case.cause} -> {told.primary}, {told.others}: {case.about}\n")
            if case.kind == "symptom" and (told.root or case.cause not in (told.primary, *told.symptoms)):
                sys.stdout.write(f"symptom {case.cause} -> {told.primary}, {told.symptoms}: {case.about}\n")
            if case.kind == "near miss" and case.cause in (told.primary, *told.others):
                sys.stdout.write(f"near miss {case.cause} -> {told.primary}, {told.others}: {case.about}\n")
            if case.kind == "healthy" and told.primary is not None:
                sys.stdout.write(f"healthy {case.about} -> {told.primary}\n")
        return 0
    if "--check" in arguments:
        if PAGE.is_file() and PAGE.read_text("utf-8") == text:
            return 0
        sys.stderr.write("docs/accuracy.md is out of date\nTry: python scripts/accuracy.py\n")
        return 1
    PAGE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
