"""Credentials, taken out of everything that a verdict shows.

Launch scripts carry tokens in command lines and environments, tracebacks and logs repeat them, and verdicts are pasted into bug reports.
"""

from __future__ import annotations

import re
from dataclasses import replace

from unhang.model import Evidence, Finding, NotExamined, Remedy, Verdict

HIDDEN = "[redacted]"

_NAME = r"(?:[A-Z0-9_]*_)?(?:API_?KEY|ACCESS_?KEY(?:_ID)?|SECRET(?:_ACCESS)?(?:_KEY)?|TOKEN|PASSWORD|PASSWD|PRIVATE_KEY|CREDENTIALS?)"
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?P<keep>\b[a-z][a-z0-9+.-]*://[^\s:/@]*:)[^\s@/]+(?=@)", re.IGNORECASE), r"\g<keep>" + HIDDEN),
    (re.compile(r"(?P<keep>\bauthorization['\"]?\s*[:=]\s*['\"]?(?:bearer|basic|token)?\s*)[\w.~+/=-]{8,}", re.IGNORECASE), r"\g<keep>" + HIDDEN),
    (
        re.compile(rf"(?P<keep>\b{_NAME}['\"]?\s*[=:]\s*)(?P<quote>['\"]?)(?!{re.escape(HIDDEN)})[^\s'\",;&)]+", re.IGNORECASE),
        r"\g<keep>\g<quote>" + HIDDEN,
    ),
    (
        re.compile(
            r"(?P<keep>--?(?:[a-z]+[-_])*(?:token|password|passwd|secret|api[-_]?key)[= ])(?P<quote>['\"]?)(?!\[redacted)[^\s'\"]+", re.IGNORECASE
        ),
        r"\g<keep>\g<quote>" + HIDDEN,
    ),
    (re.compile(r"\bhf_[A-Za-z0-9]{16,}\b"), HIDDEN),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{16,}"), HIDDEN),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), HIDDEN),
    (re.compile(r"\bgh[pousr]_[A-Za-z0-9]{20,}\b|\bgithub_pat_[A-Za-z0-9_]{20,}\b"), HIDDEN),
    (re.compile(r"\bglpat-[A-Za-z0-9_-]{16,}"), HIDDEN),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*"), HIDDEN),
    # Weights & Biases keys are bare: 40 hexadecimal digits behind a word that names them. Git commits look alike and stay.
    (re.compile(r"(?P<keep>\bwandb\b[^\n]{0,40}?[\s=:'\"])[0-9a-f]{40}\b", re.IGNORECASE), r"\g<keep>" + HIDDEN),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
)


def redact(text: str) -> str:
    """The text without credentials; everything around them stays, so that a line can still be found in its log."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def redact_verdict(verdict: Verdict) -> Verdict:
    """The verdict with every free text redacted."""
    return replace(
        verdict,
        primary=None if verdict.primary is None else _finding(verdict.primary),
        contributing=tuple(_finding(f) for f in verdict.contributing),
        symptoms=tuple(_finding(f) for f in verdict.symptoms),
        not_examined=tuple(NotExamined(what=redact(n.what), why=redact(n.why)) for n in verdict.not_examined),
    )


def _finding(finding: Finding) -> Finding:
    return replace(
        finding,
        says=redact(finding.says),
        where=None if finding.where is None else redact(finding.where),
        evidence=tuple(Evidence(source=e.source, text=redact(e.text), line=e.line) for e in finding.evidence),
        remedies=tuple(_remedy(r) for r in finding.remedies),
    )


def _remedy(remedy: Remedy) -> Remedy:
    return replace(remedy, says=redact(remedy.says), command=None if remedy.command is None else redact(remedy.command))
