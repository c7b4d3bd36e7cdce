"""duplicate-gpu: two ranks of one communicator use the same GPU."""

from __future__ import annotations

from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, Findings, Found, HostView, LogView
from unhang.patterns import lazily

CAUSE = cause("duplicate-gpu")

_RELEASE = lazily(r"(\d+)\.(\d+)\.(\d+)")
# What torch 2.15 pins, whose nccl2 takes the global rank modulo the number of GPUs where the script names no device (NCCLBootstrap.cpp).
_OF_NCCL2 = (2, 30, 7)


def in_logs(view: LogView) -> Answer:
    """Every rank names one pair; together they tell how many share how many GPUs."""
    hits = view.hits_of(CAUSE.id)
    pairs = {(int(h.groups["first"]), int(h.groups["second"]), h.groups["device"]) for h in hits if "device" in h.groups}
    # Whether torch's nccl2 may have chosen the devices: it says so, or NCCL is the release that torch 2.15 pins, or a later one.
    releases = [tuple(int(n) for n in m.groups()) for v in view.nccl.versions if (m := _RELEASE.search(v)) is not None]
    newer = any("GPU/Partition" in h.signature.needle for h in view.hits_of(CAUSE.id))
    guess = ("name-the-device",) if bool(view.nccl.guessed) or newer or any(r >= _OF_NCCL2 for r in releases) else ()
    if not pairs:
        own = next((h.signature.remedies or () for h in hits), ())
        return CAUSE.of_hits(hits, view, remedies=(*guess, *own) if guess else None)
    devices = sorted({d for _, _, d in pairs})
    numbers = {r for a, b, _ in pairs for r in (a, b)}
    hosts = {h.host for h in hits if h.host is not None}
    shown, more = [_bus_id(d) for d in devices[:4]], len(devices) - 4 if len(devices) > 4 else None
    # One bus id seen from two machines that NCCL takes for one: it compares host name and boot id.
    alike = any(len({h.host for h in hits if h.groups.get("device") == d and h.host is not None}) > 1 for d in devices)
    if alike:
        return CAUSE.of_hits(hits, view, Found("hosts-confused", on=sorted(hosts)[:4], numbers=numbers, n=len(devices), shown=shown, more=more))
    by = ""
    remedies = (*guess, "set-the-device", "one-rank-per-gpu")
    if len(devices) > 1 and len(hosts) < 2:
        # They are spread over GPUs and begin again at the first: there are more of them than GPUs.
        remedies = ("one-rank-per-gpu", *guess, "set-the-device")
        by = "host"
    return CAUSE.of_hits(hits, view, Found("shared", remedies=remedies, by=by, numbers=numbers, n=len(devices), shown=shown, more=more))


def _bus_id(device: str) -> str:
    """ "1000" is 01:00.0: NCCL prints the PCI address as one hexadecimal number."""
    number = int(device, 16)
    domain, bus, slot, function = number >> 20, number >> 12 & 0xFF, number >> 4 & 0xFF, number & 0xF
    return (f"{domain:04x}:" if domain else "") + f"{bus:02x}:{slot:02x}.{function:x}"


def on_host(host: HostView) -> Findings:

    seen = host.gpu
    if seen.visible is None:
        return
    named = [n.strip() for n in seen.visible.split(",") if n.strip()]
    twice = sorted({n for n in named if named.count(n) > 1})
    if twice:
        yield Found("visible-twice", seen=seen, twice=twice, once=dict.fromkeys(named))
