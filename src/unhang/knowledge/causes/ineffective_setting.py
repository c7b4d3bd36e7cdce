"""ineffective-setting: the setting that was meant to prevent the failure is read by nothing."""

from __future__ import annotations

from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, Findings, Found, HostView, LogView, RunView
from unhang.model import Evidence

CAUSE = cause("ineffective-setting")
_TIMEOUTS = CAUSE.named("timeouts")

# A setting that nothing reads is harmless until what it was to prevent happens.
_PREVENTED = {"timeout": ("collective-timeout", "store-disconnect"), "backend": ("collective-timeout", "unhandled-generic", "peer-lost")}


def in_logs(view: LogView) -> Answer:
    hits = view.hits_of(CAUSE.id)
    if any(view.hits_of(c) for c in _PREVENTED["timeout"]) or view.timeouts:
        timeouts = tuple(h for h in hits if h.signature in _TIMEOUTS)
        if timeouts:
            return CAUSE.of_hits(timeouts, view)
    others = tuple(h for h in hits if h.signature not in _TIMEOUTS)
    return CAUSE.of_hits(others, view) if any(view.hits_of(c) for c in _PREVENTED["backend"]) or view.timeouts else None


def in_run(picture: RunView) -> Answer:
    hits = picture.hits_of(CAUSE.id)
    return CAUSE.of_hits(hits) if any(picture.hits_of(c) for c in _PREVENTED["backend"]) else None


def on_host(host: HostView) -> Findings:
    from unhang.variables.examine import nothing_to_scan, of_environment
    from unhang.variables.known import entries

    seen = host.variables
    for one in of_environment(seen, nothing_to_scan):
        value = "" if one.value is None else f"={one.value}"
        if renamed := next((r for r in one.remarks if r.kind == "renamed"), None):
            yield Found(
                "renamed",
                severity=renamed.severity,
                evidence=(Evidence(source=one.source, line=one.line, text=f"{one.name}{value}"),),
                one=one,
                value=value,
                renamed=renamed,
            )
        said = next((r for r in one.remarks if r.kind in ("not-read", "typo") or (r.kind == "contradiction" and one.name in _HANDLING)), None)
        if said is None:
            continue
        known = one.name in entries() or said.kind == "typo"
        is_open = said.severity == "note"
        by_others = one.state == "unknown" or (one.name in entries() and entries()[one.name].owner == "nobody")
        remedy = _FOR_WHAT.get(entries()[one.name].what) if one.name in entries() else None
        yield Found(
            "ignored",
            severity="warning" if known and not is_open else "note",
            remedies=(remedy, "see-who-reads") if remedy else ("unset-blocking-wait",) if said.kind == "contradiction" else ("see-who-reads",),
            evidence=(Evidence(source=one.source, line=one.line, text=f"{one.name}{value}"),),
            one=one,
            value=value,
            said=said,
            only_told=is_open or by_others,
            is_open=is_open,
        )


_HANDLING = ("NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
_FOR_WHAT = {"meant as the timeout of collectives": "timeout-as-argument", "meant to choose the backend": "gloo-as-argument"}
