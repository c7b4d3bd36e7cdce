"""ineffective-setting: the setting that was meant to prevent the failure is read by nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import LogView, cause, command
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Evidence, Finding, HostFinding

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot
    from unhang.records.incident_view import IncidentView

# A setting that nothing reads is harmless until what it was to prevent happens.
_PREVENTED = {"timeout": ("collective-timeout", "store-disconnect"), "backend": ("collective-timeout", "unhandled-generic", "peer-lost")}


def _in_logs(view: LogView) -> Finding | None:
    hits = view.hits_of(CAUSE.id)
    if any(view.hits_of(c) for c in _PREVENTED["timeout"]) or view.timeouts:
        timeouts = tuple(h for h in hits if h.signature in _TIMEOUTS)
        named = next((h for h in timeouts if h.groups.get("seconds", "").isdigit()), None)
        ran = next((t.timeout_ms for t in view.timeouts), None)
        if named is not None and ran is not None and int(named.groups["seconds"]) * 1000 != ran:
            return CAUSE.of_hits(
                timeouts,
                view,
                standing="likely",
                says=Text(
                    "{name}={value} had no effect: the collective was given up after its group's own timeout of {s} s",
                    "{name}={value} 没有生效：集合通信按所在组自己的超时 {s} 秒被放弃",
                ).fill(name=named.groups["name"], value=named.groups["seconds"], s=f"{ran / 1000:g}"),
            )
        if timeouts:
            return CAUSE.of_hits(timeouts, view)
    others = tuple(h for h in hits if h.signature not in _TIMEOUTS)
    return CAUSE.of_hits(others, view) if any(view.hits_of(c) for c in _PREVENTED["backend"]) or view.timeouts else None


def _in_run(picture: IncidentView) -> Finding | None:
    hits = picture.hits_of(CAUSE.id)
    return CAUSE.of_hits(hits) if any(picture.hits_of(c) for c in _PREVENTED["backend"]) else None


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import variables
    from unhang.variables.examine import nothing_to_scan, of_environment
    from unhang.variables.known import entries

    seen = host.get(variables.SUBJECT)
    if seen is None:
        return
    for one in of_environment(seen, nothing_to_scan):
        value = "" if one.value is None else f"={one.value}"
        see = {"see-who-reads": command("unhang vars {name:variable}", name=one.name)}
        evidence = (Evidence(source=one.source, line=one.line, text=f"{one.name}{value}"),)
        if renamed := next((r for r in one.remarks if r.kind == "renamed"), None):
            yield CAUSE.host_finding(
                area="variables",
                severity=renamed.severity,
                says=Text(f"{one.name}{value}: {renamed.says.en}", f"{one.name}{value}：{renamed.says.zh}"),
                leads_to=Text(
                    "it still holds; a release that drops the old name passes over it in silence", "目前仍然有效；不再支持旧名称的版本会悄悄忽略它"
                ),
                evidence=evidence,
                remedies=("see-who-reads",),
                commands=see,
            )
        said = next((r for r in one.remarks if r.kind in ("not-read", "typo") or (r.kind == "contradiction" and one.name in _HANDLING)), None)
        if said is None:
            continue
        known = one.name in entries() or said.kind == "typo"
        is_open = said.severity == "note"
        by_others = one.state == "unknown" or (one.name in entries() and entries()[one.name].owner == "nobody")
        remedy = _FOR_WHAT.get(entries()[one.name].what.en) if one.name in entries() else None
        yield CAUSE.host_finding(
            area="variables",
            severity="warning" if known and not is_open else "note",
            says=Text(f"{one.name}{value}: {said.says.en}", f"{one.name}{value}：{said.says.zh}")
            if is_open or by_others
            else Text(f"{one.name}{value} has no effect: {said.says.en}", f"{one.name}{value} 不起作用：{said.says.zh}"),
            leads_to=(Text("if so, ", "若是如此，") if is_open else NOTHING)
            + Text("what it was meant to prevent happens as if it were not set", "它本应防止的问题照样发生，如同没有设置"),
            evidence=evidence,
            remedies=(remedy, "see-who-reads") if remedy else ("unset-blocking-wait",) if said.kind == "contradiction" else ("see-who-reads",),
            commands=see,
        )


_HANDLING = ("NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
_FOR_WHAT = {"meant as the timeout of collectives": "timeout-as-argument", "meant to choose the backend": "gloo-as-argument"}

CAUSE = cause("ineffective-setting", in_run=_in_run, in_logs=_in_logs, on_host=_on_host)
_TIMEOUTS = CAUSE.named("timeouts")
