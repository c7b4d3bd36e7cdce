"""Logs of healthy trainings, really run with many frameworks (scripts/healthy_logs.py): none of them may be told a cause."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from unhang.diagnosis.logs import judge_logs
from unhang.model import Verdict

STORED = Path(__file__).parent / "healthy"
NAMES = sorted(p.name.removesuffix(".log.zst") for p in STORED.glob("*.log.zst"))
CONTENTS = json.loads((STORED / "contents.json").read_text("utf-8"))


def text_of(name: str) -> str:
    return zstandard.ZstdDecompressor().decompressobj().decompress((STORED / f"{name}.log.zst").read_bytes()).decode(errors="replace")


def as_it_is(text: str) -> str:
    return text


def under_srun(text: str) -> str:
    return "".join(f"{n % 4}: {line}\n" for n, line in enumerate(text.split("\n")))


def under_kubernetes(text: str) -> str:
    return "".join(f"2026-11-03T10:{n // 60 % 60:02d}:{n % 60:02d}.{n % 1000:03d}000000Z {line}\n" for n, line in enumerate(text.split("\n")))


def told(verdict: Verdict) -> str | None:
    """None for a healthy log; otherwise what was found, as the failing test shows it."""
    if verdict.primary is None:
        return None
    lines = [f"{e.source}:{e.line}: {e.text[:300]}" for e in verdict.primary.evidence]
    return "\n".join([f"{verdict.primary.cause} ({verdict.primary.standing}): {verdict.primary.says}", *lines])


@pytest.mark.parametrize("worn", [as_it_is, under_srun, under_kubernetes])
@pytest.mark.parametrize("name", NAMES)
def test_a_healthy_log_has_no_cause(name: str, worn: Callable[[str], str], tmp_path: Path):
    path = tmp_path / "train.log"
    path.write_text(worn(text_of(name)), "utf-8")
    assert told(judge_logs([str(path)]).verdict) is None


def test_all_of_them_together_have_no_cause():
    verdict = judge_logs([str(STORED)]).verdict
    assert {i.source.split("/")[-1] for i in verdict.inputs} >= {f"{n}.log.zst" for n in NAMES}
    assert told(verdict) is None


def test_a_failure_behind_a_healthy_log_is_found(tmp_path: Path):
    """The logs are read, not skipped: the same directory with one failed rank more has a cause."""
    path = tmp_path / "train.log"
    path.write_text(text_of("torchrun-4") + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n", "utf-8")
    primary = judge_logs([str(path)]).verdict.primary
    assert primary is not None and primary.cause == "gpu-oom"


def test_a_start_that_failed_once_is_said():
    verdict = judge_logs([str(STORED / "restart-succeeds.log.zst")]).verdict
    assert any(n.what == "attempt 1 of 2" and "it failed, the last one did not" in n.why for n in verdict.not_examined)


def test_there_are_many_and_they_are_small():
    assert len(NAMES) >= 50 and set(CONTENTS) == set(NAMES)
    assert len({c["framework"] for c in CONTENTS.values()}) >= 8
    assert sum(p.stat().st_size for p in STORED.iterdir()) < 2_000_000
