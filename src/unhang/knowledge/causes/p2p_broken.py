"""p2p-broken: direct copies between GPUs hang, fail or damage data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, Findings, Found, HostView, LogView
from unhang.knowledge.words import COMMA, NOTHING, Text, joined, msg

if TYPE_CHECKING:
    from unhang.facts.gpu import Gpus, Pair
    from unhang.facts.pcie import Pcie

CAUSE = cause("p2p-broken")

_ADVICE = "from kernel command line which can lead to"


def in_logs(view: LogView) -> Answer:
    # RCCL prints its advice on every machine without the option, in healthy jobs too: it counts only where something hung.
    hung = bool(view.timeouts or view.statuses or view.hits_of("collective-timeout"))
    hits = [h for h in view.hits_of(CAUSE.id) if hung or _ADVICE not in h.text]
    return CAUSE.of_hits(hits, view)


def on_host(host: HostView) -> Findings:
    from unhang.facts import gpu, pcie

    seen, bus = host.get(gpu.SUBJECT), host.get(pcie.SUBJECT)
    if seen is not None:
        yield from _refused(seen)
    if seen is not None and bus is not None and seen.nvml_error is None and bus.virtual == "":
        # In a virtual machine the hypervisor needs access control and the IOMMU.
        yield from _redirected(seen, bus)
        yield from _translated(seen, bus)
    gpus = {g.address for g in seen.gpus} if seen is not None else set()
    # Adapters that reach into the memory of GPUs (GPUDirect RDMA) are refused in the same way.
    nics = {d.address for d in bus.devices if d.kind == "nic"} if gpus and bus is not None else set()
    for e in host.events:
        if e.kind == "iommu-fault" and e.device in gpus | nics and (e.last_age_s is None or e.last_age_s < 86400):
            yield Found("iommu-refused-adapter" if e.device in nics else "iommu-refused", event=e)


def _refused(seen: Gpus) -> Findings:
    # In MIG mode none may, which mig-slices tells.
    sliced = {g.index for g in seen.gpus if g.mig}
    refused = [p for p in seen.pairs if p.p2p not in (None, "ok", "unknown") and not {p.first, p.second} & sliced]
    for reason in dict.fromkeys(p.p2p for p in refused):
        alike = [p for p in refused if p.p2p == reason]
        by_nvlink = any((p.link or "").startswith("NV") for p in alike)
        yield Found("nvlink-refused" if by_nvlink else "peers-refused", who=_who(alike), reason=reason, each=alike[:3])


def _who(pairs: list[Pair]) -> Text:
    """ "GPUs 0 to 7" only where that is so of any two of them."""
    from unhang.facts import gpu

    members = {i for p in pairs for i in (p.first, p.second)}
    if len(pairs) == len(members) * (len(members) - 1) // 2:
        return gpu.named(members)
    shown = joined((msg("{first} and {second}", first=p.first, second=p.second) for p in pairs[:3]), COMMA)
    more = msg(" and more") if len(pairs) > 3 else NOTHING
    return msg("{n} pairs of GPUs ({shown}{more})", n=len(pairs), shown=shown, more=more)


def _redirected(seen: Gpus, bus: Pcie) -> Findings:
    from unhang.facts import pcie

    devices = {d.address: d for d in bus.devices}
    # Pairs of GPUs that have NVLink.
    address = {g.index: g.address for g in seen.gpus}
    joined = [{address.get(p.first), address.get(p.second)} for p in seen.pairs if (p.link or "").startswith("NV")]
    between_gpus: dict[str, tuple[str, ...]] = {}
    to_nics: dict[str, tuple[str, ...]] = {}
    for b in bus.between:
        first, second = devices.get(b.first), devices.get(b.second)
        if first is None or second is None:
            continue
        if second.kind == "gpu" and {b.first, b.second} in joined:
            continue
        # Only Mellanox's are sure to read GPU memory themselves.
        if second.kind == "nic" and second.vendor != "0x15b3":
            continue
        found = between_gpus if second.kind == "gpu" else to_nics
        found.update(
            {p: devices[p].acs or () for p in pcie.ports_between(first, second) if p in devices and "request-redirect" in (devices[p].acs or ())}
        )
    found = between_gpus | to_nics
    if found:
        ports = sorted(found)
        yield Found(
            "redirected" if between_gpus else "nics-redirected",
            shown=ports[:4],
            more=len(ports) > 4,
            each=[(port, found[port]) for port in ports[:3]],
            ports=ports,
        )


def _translated(seen: Gpus, bus: Pcie) -> Findings:
    from unhang.facts import gpu

    kinds = {d.address: d.iommu_type for d in bus.devices if d.kind == "gpu"}
    address = {g.index: g.address for g in seen.gpus}
    pairs = [
        p
        for p in seen.pairs
        if p.p2p == "ok"
        and not (p.link or "").startswith("NV")
        and any((kinds.get(address.get(i) or "") or "").startswith("DMA") for i in (p.first, p.second))
    ]
    if pairs:
        one = address.get(pairs[0].first) or ""
        yield Found("translated", gpus=gpu.named(i for p in pairs for i in (p.first, p.second)), one=one, type=kinds.get(one))
