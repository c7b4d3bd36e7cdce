"""Faults, planted one after the other into a copy of the sources: the corpus must notice each. `planted.py [NUMBER...]`"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import corpus  # noqa: E402

# What is wrong; the text, which stands once in all sources; what takes its place; where it must be noticed.
FAULTS = [
    ("two signatures in the other order", "ordered = sorted(hits, key=lambda h: (STANDINGS", "ordered = sorted(reversed(hits), key=lambda h: (STANDINGS", "logs"),
    ("`unless` of a signature lost", "            unless=_PINNING,\n            says=\"a CUDA call", "            says=\"a CUDA call", "logs"),
    ("attempt off by one", "number = len(self.attempts)\n", "number = max(1, len(self.attempts) - 1)\n", "logs"),
    ("clocks of hosts ignored", "if ahead := clocks.offsets(_shared(hits, hosts)):", "if ahead := {}:", "logs"),
    ("remedies in another order", "remedies if remedies is not None else best.signature.remedies,", "(remedies if remedies is not None else best.signature.remedies)[::-1],", "logs"),
    ("a group's ranks wrong", "members=members, known=True, tracks=found", "members=tuple(range(len(members))), known=True, tracks=found", "dumps"),
    ("standing one too high", "standing=standing or best.signature.standing,", "standing=standing or STANDINGS[max(0, STANDINGS.index(best.signature.standing) - 1)],", "logs"),
    ("a line of evidence lost", "evidence=words.hit_evidence(_one_per_text(ordered), at_most=3),", "evidence=words.hit_evidence(_one_per_text(ordered), at_most=2),", "logs"),
    ("a command without its value", 'docker run --shm-size=8g IMAGE",', 'docker run --shm-size= IMAGE",', "logs"),
    ("exit code 1 of a run that recovered", "EXIT_FOUND if verdict.primary is not None and not verdict.recovered else", "EXIT_FOUND if verdict.primary is not None else", "runs"),
    ("ranks that answered RAS include those that did not", "set(range(size)) - set(absent) if complete", "set(range(size)) if complete", "rest"),
    ("an option too many for Slurm", "#SBATCH --nodes=", "#SBATCH --exclusive --nodes=", "rest"),
]  # fmt: skip


def plant(sources: Path, old: str, new: str) -> Path:
    """Into the one file that has the text."""
    (path,) = [p for p in sources.rglob("*") if p.suffix in (".py", ".j2") and old in p.read_text("utf-8")]
    text = path.read_text("utf-8")
    assert text.count(old) == 1, f"{path.name} has it {text.count(old)} times: {old}"
    path.write_text(text.replace(old, new), "utf-8")
    return path


def main() -> int:
    chosen = [int(n) for n in sys.argv[1:]] or range(1, len(FAULTS) + 1)
    unseen = 0
    for number in chosen:
        what, old, new, kind = FAULTS[number - 1]
        with tempfile.TemporaryDirectory() as name:
            shutil.copytree(ROOT / "src", Path(name) / "src")
            path = plant(Path(name) / "src" / "unhang", old, new)
            recorded, now = corpus.recorded(kind), corpus.answers(kind, source=Path(name))
            differ = {1: 0, 2: 0}
            with tempfile.TemporaryDirectory() as under:
                given = corpus.inputs(kind, Path(under))
            for id, facts in recorded.items():
                differ[given[id]["tier"]] += facts != now[id][0]
        unseen += not sum(differ.values())
        where = path.relative_to(Path(name) / "src" / "unhang")
        print(f"| {number} | {what} | {where} | {kind} | {differ[1]} real, {differ[2]} harvested |", flush=True)
    return int(bool(unseen))


if __name__ == "__main__":
    sys.exit(main())
