"""nccl-bug: a fault of NCCL itself that is known, and that another release does not have."""

from __future__ import annotations

from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, Found, LogView
from unhang.patterns import lazily

CAUSE = cause("nccl-bug")
_SHARED_MEMORY = CAUSE.signature("shared-memory")
_BUGS = {CAUSE.signature(bug): bug for bug in ("shared-memory", "pci-paths", "net-id", "roce-version", "gin-start", "proxy-slots")}

_RELEASE = lazily(r"(\d+)\.(\d+)\.(\d+)")
_Release = tuple[int, int, int]
# Releases of each bug: the first that has it, the first that does not.
_AFFECTED: dict[str, tuple[_Release, _Release]] = {
    "bootstrap-confusion": ((2, 19, 1), (2, 21, 5)),
    "shared-memory": ((2, 25, 1), (2, 26, 2)),
    "pci-paths": ((2, 0, 0), (2, 10, 3)),
    "connect-retry": ((2, 12, 7), (2, 24, 3)),
    "net-id": ((2, 24, 3), (2, 27, 3)),
    "roce-version": ((2, 21, 5), (2, 26, 2)),
    "gin-start": ((2, 28, 3), (2, 29, 2)),
    "proxy-slots": ((2, 0, 0), (2, 29, 3)),
}


def in_logs(view: LogView) -> Answer:
    releases = _releases(view)
    # What only certain releases do is no bug of another one.
    hits = tuple(h for h in view.hits_of(CAUSE.id) if (bug := _BUGS.get(h.signature)) is None or not releases or _has(bug, releases))
    by_release = [h for h in hits if h.signature == _SHARED_MEMORY and _has(_BUGS[h.signature], releases)]
    if by_release:
        return CAUSE.of_hits(by_release, view, standing="established")
    return CAUSE.of_hits(hits, view) or _bootstrap_confusion(view, releases) or _connect_retry(view, releases)


def _releases(view: LogView) -> dict[_Release, str]:
    return {(int(m[1]), int(m[2]), int(m[3])): text for text in view.nccl.versions if (m := _RELEASE.search(text))}


def _has(bug: str, releases: dict[_Release, str]) -> str | None:
    first, mended = _AFFECTED[bug]
    return next((".".join(map(str, r)) for r in sorted(releases) if first <= r < mended), None)


def _bootstrap_confusion(view: LogView, releases: dict[_Release, str]) -> Found | None:
    """Two exchanges of one start-up taken for each other: sizes that are NCCL's own (4, 256, 1024), at bootstrap.cc."""
    release = _has("bootstrap-confusion", releases)
    lines = [h for c in ("version-mismatch", "collective-mismatch") for h in view.hits_of(c) if "bootstrap.cc" in h.text and "truncated" in h.text]
    if release is None or len(releases) != 1 or not lines:
        return None
    return Found(
        "bootstrap-confusion",
        ranks=lines,
        evidence=lines[:3],
        release=release,
    )


def _connect_retry(view: LogView, releases: dict[_Release, str]) -> Found | None:
    """NCCL up to 2.23 gives up at the second refusal, which it prints as an aborted connection, instead of trying for 20 s."""
    release = _has("connect-retry", releases)
    lines = [h for h in view.hits_of("network-blocked") if "Software caused connection abort" in h.text]
    if release is None or not lines:
        return None
    return Found("connect-retry", ranks=lines, evidence=lines[:3], release=release)
