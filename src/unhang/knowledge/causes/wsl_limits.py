"""wsl-limits: not supported under WSL2."""

from __future__ import annotations

from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, Findings, Found, HostView, LogView, RunView
from unhang.knowledge.text import msg
from unhang.logs import Hit
from unhang.model import Finding

CAUSE = cause("wsl-limits")

# A machine that runs under WSL2 fails for every other reason too: the platform alone says nothing. These do not work there, or only in part.
_AFFECTED = ("shm-register-failed", "p2p-broken", "unhandled-generic", "shm-exhausted")
_PLATFORM = msg("this runs under WSL2")
_PINNED = msg("host memory could not be pinned: WSL2 allows a part of it only")


def in_run(picture: RunView) -> Answer:
    return _of_hits(picture.hits_of(CAUSE.id), affected=any(picture.hits_of(c) for c in _AFFECTED))


def in_logs(view: LogView) -> Answer:
    return _of_hits(view.hits_of(CAUSE.id), affected=any(view.hits_of(c) for c in _AFFECTED), view=view)


def _of_hits(hits: tuple[Hit, ...], *, affected: bool, view: LogView | None = None) -> Finding | None:
    own = [h for h in hits if h.signature.says not in (_PLATFORM, _PINNED)]
    if own:
        return CAUSE.of_hits(own, view)
    pinned = [h for h in hits if h.signature.says == _PINNED]
    if len(pinned) == len(hits):
        return None
    if pinned:
        return CAUSE.of_hits(pinned, view, standing="likely", remedies=("native-linux",))
    if not affected:
        return None
    return CAUSE.of_hits(hits, view, Found("under-wsl"))


def on_host(host: HostView) -> Findings:
    from unhang.facts import container, gpu

    seen, gpus = host.get(container.SUBJECT), host.get(gpu.SUBJECT)
    if seen is None or "microsoft" not in (seen.kernel or "").lower():
        return
    # All of Windows' GPUs stand behind one /dev/dxg.
    reached = any(d.path.startswith("/dev/dxg") for d in seen.devices)
    yield Found(
        "wsl",
        severity="warning" if gpus is not None and len(gpus.gpus) > 1 else "note",
        seen=seen,
        what="" if reached else "there-is-no-dev",
        kernel=seen.kernel or "",
    )
