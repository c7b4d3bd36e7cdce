"""How much CPU time `unhang why` takes for hostile input of 1 MB: every hit and near miss of every cause repeated, or dumps built to be slow.

Each log or dump is judged in a process of its own with a limit on its CPU time; the cost of one harmless line or call is subtracted. Lines are
repeated unchanged, with other numbers, and all mixed. `--dumps` judges the dumps of `hostile_dumps.py` instead, each also packed. `--fuzz S`
mutates for S seconds and keeps the slowest. Prints the slowest, and one JSON line last.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import heapq
import json
import os
import pickle
import random
import re
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hostile_dumps

from unhang.knowledge import catalogue

HARMLESS = "2026-11-03 02:16:07,507 - INFO - trainer.py:412 - step 7 loss 0.1\n"
LIMIT_S = 20
# Of the fuzzer: how many of the slowest inputs are mutated further.
KEPT = 24
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{12,}\b|\d+")
_TOKEN = re.compile(r"[\w.+-]+|\W")
_RUNS = (
    "a", "1", " ", "/", "_", ".", "-", "a.", "1.", "a:", "a ", ",a", "=a", "(", "[", "{", "'", '"', "\\", "=", ":", "\t", "é", "中", "\x1b[0m",
    "[0m", "\x1b[",
)  # fmt: skip
_PREFIXES = (
    "[rank0]: ", "[rank0]:", "(pid=7) ", "0: ", "2026-11-03 02:16:07,507 ", "[1,0]<stderr>:", "\x1b[31m", "\x1b]0;", "    ", "| ", "node1: ",
    "E1103 02:16:07.507000 1 a.py:7] ", "INFO ", '{"log": "', "\r",
)  # fmt: skip
_HEADS = (
    "Traceback (most recent call last):\n", '  File "a.py", line 7, in f\n    g(\n', "Current thread 0x1 (most recent call first):\n",
    "╭─ Traceback (most recent call last) ─╮\n", "During handling of the above exception, another exception occurred:\n", "RuntimeError: x\n",
)  # fmt: skip

_STACK = 'Current thread 0x00007f4ebf9d3740 (most recent call first):\n  File "a.py", line 7 in f\n'
STACKS = {"stacks of nobody": _STACK + "x", "stacks of nobody between lines of others": _STACK + "[rank5]: x"}


def varied(line: str, r: random.Random) -> str:
    """The line with other numbers."""

    def other(found: re.Match[str]) -> str:
        text = found[0]
        head, digits = ("0x", text[2:]) if text.startswith("0x") else ("", text)
        letters = "0123456789" if digits.isdecimal() else "0123456789abcdef"
        return head + "".join(r.choice(letters) for _ in digits)

    return _NUMBER.sub(other, line)


def repeated(line: str, size: int, *, seed: int | None = None) -> bytes:
    line = line.rstrip("\n") + "\n"
    if seed is None:
        return (line * (size // len(line.encode("utf-8", "replace")) + 1)).encode("utf-8", "replace")[:size]
    return mixed([line], size, seed=seed)


def mixed(lines: list[str], size: int, *, seed: int) -> bytes:
    """The lines again and again, each time in another order and with other numbers."""
    r = random.Random(seed)
    parts: list[bytes] = []
    length = 0
    while length < size:
        for line in r.sample(lines, len(lines)):
            parts.append(varied(line.rstrip("\n") + "\n", r).encode("utf-8", "replace"))
            length += len(parts[-1])
    return b"".join(parts)[:size]


def every_line(only: str | None) -> Iterator[tuple[str, str]]:
    for cause in catalogue.load().values():
        if only in (None, cause.id):
            for kind, lines in (("hit", cause.hits), ("near miss", cause.near_misses)):
                yield from ((f"{cause.id}, {kind} {n}", line) for n, line in enumerate(lines))


def mutated(line: str, r: random.Random) -> str:
    tokens = _TOKEN.findall(line) or ["x"]
    at = r.randrange(len(tokens))
    kind = r.randrange(12)
    if kind == 0:
        tokens[at] *= r.choice((2, 10, 100, 1000))
    elif kind == 1:
        tokens[at] += r.choice(_RUNS) * r.choice((10, 100, 1000, 10_000))
    elif kind == 2:
        return (line.replace("\n", " ") * r.choice((10, 100)))[:20_000]
    elif kind == 3:
        return "".join(r.choice(_PREFIXES) for _ in range(r.choice((1, 2, 3)))) * r.choice((1, 30, 1000)) + line
    elif kind == 4:
        return r.choice(_HEADS) * r.choice((1, 3)) + line
    elif kind == 5:
        return line.replace("\n", r.choice(("\r", "", "\\n", "\0\n", "\n\n")))
    elif kind == 6:
        return r.choice((" ", "\t", "  ")) * r.choice((2, 80, 4000)) + line
    elif kind == 7:
        return line + "\n" + r.choice(_HEADS)
    elif kind == 8:
        return json.dumps({"log": line, "stream": "stderr", "time": "2026-11-03T02:16:07.507Z"}, ensure_ascii=r.random() < 0.5)
    elif kind == 9:
        del tokens[at : at + r.choice((1, 2, 10))]
    elif kind == 10:
        tokens[at:at] = [r.choice(_RUNS) * r.choice((100, 3000)), tokens[r.randrange(len(tokens))]]
    else:
        width = r.choice((79, 80, 100, 120, 132))
        return "\n".join("".join(tokens)[i : i + width].ljust(width, "x") for i in range(0, min(len(line), 8000), width))
    return "".join(tokens)[:60_000]


class Judged:
    """Judges logs in forked processes; all that is imported is shared."""

    def __init__(self, log: Path, harmless: bytes) -> None:
        from rich.console import Console

        from unhang.cli import app, unpacking, why, why_outputs  # noqa: F401
        from unhang.diagnosis import logs
        from unhang.report import terminal

        self.run: Callable[[], None] = app.run
        self.log = log
        # What is imported and compiled here need not be in each child.
        self.log.write_text(HARMLESS + "RuntimeError: x\n")
        with Path(os.devnull).open("w") as nothing:
            terminal.render(logs.judge_logs([str(self.log)]).verdict, Console(file=nothing), lang="en")
        self.empty_s = statistics.median(self._cpu_s(harmless) for _ in range(5))

    def cpu_s(self, data: bytes) -> float:
        """Above the cost of the harmless one, with that of the readers it forks."""
        return self._cpu_s(data) - getattr(self, "empty_s", 0.0)

    def _cpu_s(self, data: bytes) -> float:
        self.log.write_bytes(data)
        if not (pid := os.fork()):
            self._judge()
        _, status, used = os.wait4(pid, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) in (0, 1, 2):
            return used.ru_utime + used.ru_stime
        if os.WIFSIGNALED(status):
            return float(LIMIT_S)
        kept = self.log.with_name("failed.log")
        kept.write_bytes(data)
        raise SystemExit(f"unhang why failed: exit status {status}; {kept}")

    def _judge(self) -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nothing, fd)
        sys.argv[1:] = ["why", str(self.log)]
        code = 70
        with contextlib.suppress(BaseException):
            try:
                self.run()
            except SystemExit as e:
                code = e.code if isinstance(e.code, int) else 0
        os._exit(code)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1_000_000, help="bytes of each log")
    parser.add_argument("--only", metavar="CAUSE")
    parser.add_argument("--dumps", action="store_true", help="judge flight-recorder dumps instead of logs")
    parser.add_argument("--fuzz", type=float, default=0, metavar="S", help="mutate for S seconds instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write the slowest logs there")
    options = parser.parse_args()
    slowest: list[tuple[float, str, bytes]] = []
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        if options.dumps:
            judged = Judged(Path(folder) / "nccl_trace_rank_0", pickle.dumps(hostile_dumps.dump([hostile_dumps.entry()])))
        else:
            judged = Judged(Path(folder) / "hostile.log", HARMLESS.encode())

        def judge(name: str, data: bytes) -> float:
            nonlocal count
            count += 1
            took = judged.cpu_s(data)
            heapq.heappush(slowest, (took, name, data))
            if len(slowest) > 10:
                heapq.heappop(slowest)
            return took

        lines = list(every_line(options.only))
        if options.dumps:
            judge_dumps(judge, options.size, options.fuzz, random.Random(options.seed))
        elif options.fuzz:
            fuzz(lines, judge, options.size, options.fuzz, random.Random(options.seed))
        else:
            for name, line in lines:
                judge(name, repeated(line, options.size))
                judge(f"{name}, other numbers", repeated(line, options.size, seed=1))
            judge("all of these", mixed([line for _, line in lines], options.size, seed=1))
            for name, line in STACKS.items():
                judge(name, repeated(line, options.size))
    slowest.sort(key=lambda s: s[0], reverse=True)
    for n, (took, name, data) in enumerate(slowest):
        print(f"{took:7.2f} s  {name}: {data[:160]!r}", file=sys.stderr)
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / (f"nccl_trace_rank_{n}" if options.dumps else f"{n}.log")).write_bytes(data)
    result = {
        "benchmark": "hostile dumps" if options.dumps else "hostile",
        "bytes": options.size,
        "n": count,
        "cpu_s_of_a_harmless_one": round(judged.empty_s, 3),
        "slowest_cpu_s": [round(s[0], 2) for s in slowest],
        "slowest": slowest[0][1] if slowest else None,
    }
    print(json.dumps(result))


def judge_dumps(judge: Callable[[str, bytes], float], size: int, seconds: float, r: random.Random) -> None:
    made = list(hostile_dumps.dumps(size))
    for name, data in made:
        judge(name, data)
        # A packed file of about `size` bytes, worth the largest budget of its size.
        rest = r.randbytes(max(0, size - len(gzip.compress(data, 1)))) + bytes(16 * size)
        judge(f"{name}, packed", gzip.compress(data + rest, 1))
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        name, data = r.choice(made)
        judge(f"{name}, mutated", hostile_dumps.mutated(data, r))


def fuzz(lines: list[tuple[str, str]], judge: Callable[[str, bytes], float], size: int, seconds: float, r: random.Random) -> None:
    kept: list[tuple[float, int, str, str]] = []
    for n in range(sys.maxsize):
        if seconds <= 0:
            return
        began = time.monotonic()
        _, _, name, line = r.choice(kept) if kept and r.random() < 0.5 else (0, 0, *r.choice(lines))
        for _ in range(r.choice((1, 1, 2, 3))):
            line = mutated(line, r)
        took = judge(name, repeated(line, size, seed=n if r.random() < 0.3 else None))
        heapq.heappush(kept, (took, n, name, line))
        if len(kept) > KEPT:
            heapq.heappop(kept)
        seconds -= time.monotonic() - began


if __name__ == "__main__":
    main()
