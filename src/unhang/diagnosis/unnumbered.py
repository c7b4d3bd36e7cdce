"""One dump alone whose name does not tell its rank: it was numbered to be read, and no answer may name that number."""

from __future__ import annotations

from dataclasses import replace

from unhang.model import Evidence, Finding, NotExamined, Verdict
from unhang.patterns import lazily

# The partner of a message is one that the dump itself tells.
_EN = lazily(r"(?<!from )(?<!to )\brank 0\b")
_ZH = lazily(r"(?<!来自 )(?<!发往 )\brank 0\b")


def unnumbered(verdict: Verdict) -> Verdict:
    """The verdict on a dump that was numbered 0, without that number."""
    return replace(verdict.each(_finding), not_examined=tuple(map(_not_examined, verdict.not_examined)))


def _en(text: str) -> str:
    return _EN.sub("the rank of this dump", text)


def _zh(text: str) -> str:
    return _ZH.sub("该转储所属的 rank", text)


def _finding(finding: Finding) -> Finding:
    evidence = tuple(Evidence(source=e.source, text=_en(e.text), line=e.line) for e in finding.evidence)
    return replace(finding, says=_en(finding.says), says_zh=_zh(finding.says_zh), ranks=(), evidence=evidence)


def _not_examined(left: NotExamined) -> NotExamined:
    return replace(left, what=_en(left.what), why=_en(left.why), what_zh=_zh(left.what_zh), why_zh=_zh(left.why_zh))
