"""Judges the log parts of public reports, typed anew, with `unhang why`, and makes the table of docs/accuracy.md from what came out.

    python scripts/field.py judge DIR     DIR/<group>/<id>.log holds the log part of each report of scripts/field.jsonl
    python scripts/field.py wrong         what was wrong, of the half to learn from

scripts/field.jsonl keeps a report's address, its label and the verdict, never its text. The label was given from the log part alone before any
verdict was seen. The first 205 were halved by a hash of the address; nobody looks at single reports of `measure` (six were). Those of
`later` were gathered afterwards and judged once, before anything was learned from them; they keep that verdict.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import msgspec

REPORTS = Path(__file__).with_name("field.jsonl")
GROUPS = ("later", "measure", "learn")
FAMILIES_SHOWN = 3

Outcome = Literal["right", "undecided", "wrong", "wrong and established", "no failure seen", "false alarm"]
OUTCOMES: tuple[Outcome, ...] = ("right", "undecided", "wrong", "wrong and established", "no failure seen", "false alarm")


class Judged(msgspec.Struct, frozen=True):
    """The primary finding of `unhang why` (None if there is none) and its exit code."""

    cause: str | None
    standing: str | None
    exitcode: int


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """A public report. `causes` are all ids that are right, best first ("healthy" for no failure); `decidable` is false if the log part shows
    consequences only; `why` is the labeller's reason; `ranks` are those that failed, if the log part names them.
    """

    id: str
    source: str
    year: int
    family: str
    group: Literal["learn", "measure", "later"]
    decidable: bool
    causes: tuple[str, ...]
    why: str
    ranks: tuple[int, ...] = ()
    judged: Judged | None = None

    @property
    def outcome(self) -> Outcome:
        """What the verdict is worth. Where only consequences are in the log, it is right not to name a root."""
        assert self.judged is not None
        if self.judged.exitcode == 0:
            return "right" if "healthy" in self.causes else "no failure seen"
        if self.causes == ("healthy",):
            return "false alarm"
        if self.judged.cause in self.causes:
            return "right"
        if self.judged.standing == "not-established":
            return "undecided" if self.decidable else "right"
        return "wrong and established" if self.judged.standing == "established" else "wrong"


def reports() -> list[Report]:
    """All reports, those of one family together."""
    return [msgspec.json.decode(line, type=Report) for line in REPORTS.read_bytes().splitlines()]


def judge(log: Path) -> Judged:
    """Raises RuntimeError if `unhang why` itself fails."""
    done = subprocess.run([sys.executable, "-m", "unhang", "why", "--json", str(log)], capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{log}: unhang why ended with {done.returncode}: {done.stderr[-500:]}")
    primary = json.loads(done.stdout)["primary"] or {}
    return Judged(primary.get("cause"), primary.get("standing"), done.returncode)


def section() -> Iterator[str]:
    """The Markdown lines of docs/accuracy.md on real reports: every group, then years and families of those that nothing was learned from."""
    known = [r for r in reports() if r.judged is not None]
    measured = [r for r in known if r.group != "learn"]
    head = f"| what | n | {' | '.join(OUTCOMES)} | right, 95 % interval |\n|---|{'---:|' * (len(OUTCOMES) + 2)}"
    yield head
    for group in GROUPS:
        for decidable, words in ((True, "the log part names the cause"), (False, "it shows consequences only")):
            yield _row(f"`{group}`: {words}", [r for r in known if r.group == group and r.decidable is decidable])
    yield f"\n{head}"
    for year in sorted({r.year for r in measured}):
        yield _row(str(year), [r for r in measured if r.year == year])
    counts = Counter(r.family for r in measured)
    for family in sorted(counts, key=lambda f: (-counts[f], f)):
        if counts[family] >= FAMILIES_SHOWN:
            yield _row(family, [r for r in measured if r.family == family])
    if rest := [r for r in measured if counts[r.family] < FAMILIES_SHOWN]:
        yield _row("others", rest)


def _row(what: str, chosen: Sequence[Report]) -> str:
    counts = Counter(r.outcome for r in chosen)
    right, n = counts["right"], len(chosen)
    interval = "" if not n else "{:.0%} to {:.0%}".format(*wilson(right, n))
    return f"| {what} | {n} | {' | '.join(str(counts[o]) for o in OUTCOMES)} | {interval} |"


def wilson(k: int, n: int) -> tuple[float, float]:
    """The 95 % interval of Wilson for k of n."""
    z, p = 1.959964, k / n
    middle, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, (middle - spread) / (1 + z * z / n)), (middle + spread) / (1 + z * z / n)


def _keep(all_reports: Iterable[Report]) -> None:
    REPORTS.write_bytes(b"".join(msgspec.json.encode(r) + b"\n" for r in sorted(all_reports, key=lambda r: (r.family, r.id))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("judge").add_argument("folder", type=Path)
    commands.add_parser("wrong")
    given = parser.parse_args()
    known: dict[str, Any] = {r.id: r for r in reports()}
    if given.command == "judge":
        there = [r for r in known.values() if r.group != "later" and (given.folder / r.group / f"{r.id}.log").is_file()]
        with ThreadPoolExecutor(2) as pool:
            verdicts = list(pool.map(lambda r: judge(given.folder / r.group / f"{r.id}.log"), there))
        _keep({**known, **{r.id: msgspec.structs.replace(r, judged=v) for r, v in zip(there, verdicts, strict=True)}}.values())
        print(f"judged {len(there)} of {len(known)} reports", *section(), sep="\n")
    else:
        for r in known.values():
            if r.group == "learn" and r.judged is not None and r.outcome != "right":
                print(f"{r.outcome}: {r.id} {', '.join(r.causes)} <- {r.judged.cause} {r.judged.standing}: {r.why}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
