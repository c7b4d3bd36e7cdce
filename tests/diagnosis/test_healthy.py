"""Logs of healthy trainings, really run with many frameworks (scripts/healthy_logs.py): none of them may be told a cause."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from tests.tables import for_each

from unhang.diagnosis.logs import judge_logs
from unhang.model import Verdict

ROOT = Path(__file__).resolve().parents[2]
STORED = Path(__file__).parent / "healthy"
NAMES = sorted(p.name.removesuffix(".log.zst") for p in STORED.glob("*.log.zst"))
CONTENTS = json.loads((STORED / "contents.json").read_text("utf-8"))
# False positives that are known: what a healthy log is told to have. None of these may get a companion, and one that is cured has to go.
TOLD_ANYWAY = {
    # Only where its lines are dealt out to tasks, so that no logger's record stands over a traceback.
    "caught-download": ("rank-exception",),
    # Logged as INFO: a line of that level also stands over a crash that nobody caught.
    "caught-shapes": ("rank-exception",),
}
# Of machines and jobs of their own.
WRITTEN = tuple(p.stem for p in (ROOT / "scripts" / "healthy" / "written").glob("*.log"))
# What they caught names no writer: beside the logs of several ranks nothing tells whose steps stand behind it.
OF_NOBODY = ("child-processes", "loader-fork", "loader-many", "loader-persistent", "loader-pinned", "loader-spawn")


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


def verdict_on(text: str, folder: Path) -> Verdict:
    path = folder / "train.log"
    path.write_text(text, "utf-8")
    return judge_logs([str(path)]).verdict


WORN = (as_it_is, under_srun, under_kubernetes)


@for_each("worn", WORN)
@for_each("name", NAMES)
def test_a_healthy_log_has_no_cause(name: str, worn: Callable[[str], str], tmp_path: Path):
    verdict = verdict_on(worn(text_of(name)), tmp_path)
    if verdict.primary is None or verdict.primary.cause not in TOLD_ANYWAY.get(name, ()):
        assert told(verdict) is None


@pytest.mark.parametrize("name", sorted(TOLD_ANYWAY))
def test_what_is_told_anyway_still_is(name: str, tmp_path: Path):
    told_of = [worn for worn in WORN if verdict_on(worn(text_of(name)), tmp_path).primary is not None]
    assert told_of, "cured: take it out of TOLD_ANYWAY and make docs/accuracy.md again"


def test_all_of_them_together_have_no_cause(tmp_path: Path):
    healthy = [n for n in NAMES if n not in TOLD_ANYWAY and n not in OF_NOBODY and n not in WRITTEN]
    for name in healthy:
        (tmp_path / f"{name}.log.zst").write_bytes((STORED / f"{name}.log.zst").read_bytes())
    verdict = judge_logs([str(tmp_path)]).verdict
    assert len(verdict.inputs) == len(healthy)
    assert told(verdict) is None


def test_a_failure_behind_a_healthy_log_is_found(tmp_path: Path):
    """They are read, not skipped."""
    text = text_of("torchrun-4") + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    primary = verdict_on(text, tmp_path).primary
    assert primary is not None and primary.cause == "gpu-oom"


@pytest.mark.parametrize("name", ["restart-succeeds-info", "restart-succeeds"])
def test_a_start_that_failed_once_is_said(name: str):
    verdict = judge_logs([str(STORED / f"{name}.log.zst")]).verdict
    assert any(n.what == "attempt 1 of 2" and "it failed, the last one did not" in n.why for n in verdict.not_examined)


@pytest.mark.parametrize(
    ("name", "raised"), [("child-processes", "ValueError"), ("loader-fork", "OSError"), ("caught-download", "urllib.error.URLError")]
)
def test_what_was_caught_and_passed_over_is_said(name: str, raised: str):
    verdict = judge_logs([str(STORED / f"{name}.log.zst")]).verdict
    assert any(f" {raised}: " in n.what and n.why.startswith("passed over") and not n.unread for n in verdict.not_examined)


def test_there_are_many_and_they_are_small():
    assert len(NAMES) >= 50 and set(CONTENTS) == set(NAMES)
    assert len({c["framework"] for c in CONTENTS.values()}) >= 8
    assert sum(p.stat().st_size for p in STORED.iterdir()) < 2_000_000


def test_each_belongs_to_a_run_that_can_be_made_again():
    spec = importlib.util.spec_from_file_location("healthy_logs", ROOT / "scripts" / "healthy_logs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["healthy_logs"] = module  # where dataclasses look for it
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["healthy_logs"]
    assert {r.name: module.entry(r) for r in module.RUNS} == CONTENTS
    for run in module.RUNS:
        for script in re.findall(r"\b(\w+\.py)\b", run.command):
            assert (ROOT / "scripts" / "healthy" / script).is_file(), (run.name, script)


@for_each("name", NAMES)
def test_it_tells_nothing_of_the_machine(name: str):
    assert not re.search(r"(?<!\w)/root/|/work/|(?<!/srv)/home/|\.pyenv", text_of(name))
