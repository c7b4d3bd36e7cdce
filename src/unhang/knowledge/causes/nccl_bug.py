"""nccl-bug: a fault of NCCL itself that is known, and that another release does not have."""

from __future__ import annotations

from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, LogView
from unhang.patterns import lazily

CAUSE = cause("nccl-bug")
_SHARED_MEMORY = CAUSE.signature("shared-memory")
_BUGS = {CAUSE.signature(bug): bug for bug in ("shared-memory", "pci-paths", "net-id", "roce-version", "gin-start", "proxy-slots")}

_RELEASE = lazily(r"(\d+)\.(\d+)\.(\d+)")
_Release = tuple[int, int, int]
# Releases of each bug: the first that has it, the first that does not.
_AFFECTED: dict[str, tuple[_Release, _Release]] = {
    "shared-memory": ((2, 25, 1), (2, 26, 2)),
    "pci-paths": ((2, 0, 0), (2, 10, 3)),
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
    return CAUSE.of_hits(hits, view)


def _releases(view: LogView) -> dict[_Release, str]:
    return {(int(m[1]), int(m[2]), int(m[3])): text for text in view.nccl.versions if (m := _RELEASE.search(text))}


def _has(bug: str, releases: dict[_Release, str]) -> str | None:
    first, mended = _AFFECTED[bug]
    return next((".".join(map(str, r)) for r in sorted(releases) if first <= r < mended), None)
