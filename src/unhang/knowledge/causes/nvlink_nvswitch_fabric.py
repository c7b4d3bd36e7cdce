"""nvlink-nvswitch-fabric: NVLink, NVSwitch or the services that manage them do not work."""

from __future__ import annotations

from unhang.facts.gpu import Gpus
from unhang.knowledge.judge import Findings, Found, HostView

_XIDS = frozenset({74, 136, 137, *range(144, 151), 155})


def on_host(host: HostView) -> Findings:
    from unhang.facts import gpu

    seen = host.get(gpu.SUBJECT)
    if seen is not None:
        yield from _manager(seen)
        yield from _links(seen)
    told = [e for e in host.events if (e.kind == "xid" and e.code in _XIDS) or (e.kind == "sxid" and e.severity == "Fatal")]
    for device in dict.fromkeys(e.device for e in told):
        events = sorted((e for e in told if e.device == device), key=lambda e: e.last_age_s or 0.0)
        newest = events[0]
        yield Found(
            "fabric-faults",
            severity="warning" if newest.last_age_s is None or newest.last_age_s < 86400 else "note",
            device=device,
            newest=newest,
            each=events[:3],
        )


def _manager(seen: Gpus) -> Findings:

    # Slices of a GPU need no NVLink.
    whole = [g for g in seen.gpus if not g.mig]
    unready = [g for g in whole if g.fabric in ("not-started", "in-progress") or g.fabric_error]
    manager = seen.fabric_manager
    if unready:
        states = sorted({g.fabric_error or g.fabric or "" for g in unready})
        yield Found(
            "not-registered",
            unready=unready,
            states=states,
            stopped=manager is not None and manager.running is False,
            each=[(g, g.fabric_error or g.fabric) for g in unready[:3]],
        )
    elif seen.nvswitches and manager is not None and manager.running is False and all(g.fabric is None for g in seen.gpus):
        # GPUs before Hopper do not tell of their registration.
        yield Found("no-fabric-manager", n=len(seen.nvswitches))
    driver = seen.driver or seen.nvml_driver
    if manager is not None and manager.version and driver and manager.version != driver:
        yield Found("other-fabric-manager", ready=any(g.fabric == "completed" for g in seen.gpus), manager=manager, driver=driver)


def _links(seen: Gpus) -> Findings:

    degraded = [g for g in seen.gpus if g.fabric_degraded]
    switched = [g for g in seen.gpus if any(link.remote_kind == "switch" for link in g.nvlinks)]
    for model in dict.fromkeys(g.name for g in switched):
        alike = [g for g in seen.gpus if g.name == model and g.error is None and not g.mig and g.nvlinks]
        up = {g.index: sum(link.active for link in g.nvlinks) for g in alike}
        fewer = [g for g in alike if up[g.index] < max(up.values())]
        degraded = [g for g in degraded if g not in fewer]
        for g in fewer:
            yield Found("links-down", g=g, up=up[g.index], max=max(up.values()), down=[link.link for link in g.nvlinks if not link.active])
    if degraded:
        yield Found("reduced", degraded=degraded)
