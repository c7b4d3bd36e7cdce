"""wsl-limits: not supported under WSL2."""

from __future__ import annotations

from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, Findings, Found, HostView, LogView, RunView
from unhang.knowledge.words import msg

CAUSE = cause("wsl-limits")

# A machine that runs under WSL2 fails for every other reason too: the platform alone says nothing. These do not work there, or only in part.
_AFFECTED = ("shm-register-failed", "p2p-broken", "unhandled-generic", "shm-exhausted")
_PLATFORM = msg("this runs under WSL2")
_PINNED = msg("host memory could not be pinned: WSL2 allows a part of it only")


def in_logs(seen: LogView | RunView) -> Answer:
    hits = seen.hits_of(CAUSE.id)
    own = [h for h in hits if h.signature.says not in (_PLATFORM, _PINNED)]
    if own:
        return CAUSE.of_hits(own, seen)
    pinned = [h for h in hits if h.signature.says == _PINNED]
    if len(pinned) == len(hits):
        return None
    if pinned:
        return CAUSE.of_hits(pinned, seen, standing="likely", remedies=("native-linux",))
    return CAUSE.of_hits(hits, seen, Found("under-wsl")) if any(seen.hits_of(c) for c in _AFFECTED) else None


in_run = in_logs


def on_host(host: HostView) -> Findings:
    from unhang.facts import gpu

    seen, gpus = host.container, host.get(gpu.SUBJECT)
    if "microsoft" in (seen.kernel or "").lower():
        # All of Windows' GPUs stand behind one /dev/dxg.
        reached = any(d.path.startswith("/dev/dxg") for d in seen.devices)
        yield Found("wsl", severity="warning" if gpus is not None and len(gpus.gpus) > 1 else "note", seen=seen, reached=reached)
