"""A coverage-guided fuzzer of everything that reads lines, from bytes to the verdict: python tests/fuzz/fuzz_judging.py CORPUS [libFuzzer options].

It fails on any exception, on a cause whose check broke, on evidence that is longer than people read, and on a verdict that cannot be shown.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["unhang.logs", "unhang.diagnosis"]):
    from unhang.diagnosis.assemble import CONTEXT, assemble
    from unhang.diagnosis.kernel_log_scope import sifted
    from unhang.diagnosis.logs import Judge
    from unhang.logs import Needles, alarms, blocks, line_matcher, read

from unhang.knowledge import catalogue
from unhang.report import markdown, terminal
from unhang.report.console import Console

NEEDLES = Needles((*catalogue.signatures(), *CONTEXT, *alarms.SIGNATURES))
blocks.BLOCK_BYTES = 512


def one(data: bytes) -> None:
    reads = [read(io.BytesIO(part), NEEDLES, source=f"rank{n}.log", latest_s=1.8e9) for n, part in enumerate(data.split(b"\1\2\1"))]
    sorted_out = sifted(reads, catalogue.signatures())
    reads = sorted_out.reads
    attempts = assemble(reads, catalogue.signatures())
    for attempt in attempts:
        verdict = Judge(reads, sorted_out.not_examined, attempts, sorted_out.doubts).verdict(attempt.number, alone=True)
        assert not [n for n in verdict.not_examined if "check is broken" in n.why], verdict.not_examined
        for h in attempt.hits:
            assert len(h.text) <= line_matcher.MAX_TEXT + 2 and h.line is not None and h.line >= 1
        terminal.render(verdict, Console(io.StringIO(), width=80), lang="en")
        markdown.render(verdict)


def seeds() -> list[bytes]:
    """Every line that a cause knows, and what it must not be taken for."""
    return [line.encode() for c in catalogue.load().values() for line in (*c.hits, *c.near_misses)]


if __name__ == "__main__":
    corpus = Path(sys.argv[1])
    for i, seed in enumerate(seeds()):
        (corpus / f"seed-{i}").write_bytes(seed)
    one(b"\1\2\1".join(seeds()))
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
