"""ib-config: an InfiniBand or RoCE setting does not fit, and a call of the verbs library fails."""

from __future__ import annotations

import re
from collections.abc import Iterable

from unhang.facts.infiniband import Device, Gid, Infiniband, Port
from unhang.knowledge.judge import Findings, Found, HostView
from unhang.knowledge.words import COMMA, joined, msg


def on_host(host: HostView) -> Findings:
    from unhang.facts import container, infiniband

    seen = host.infiniband
    if infiniband.disabled(seen):
        return
    up = infiniband.active(seen)
    wanted = seen.settings.get("NCCL_IB_HCA")
    if wanted is not None and wanted.value.strip("^=") and not infiniband.candidates(seen):
        yield Found("none-left", wanted=wanted, names=[d.name for d in seen.devices])
    # Where a container has none at all, container-capability tells.
    if up and (not seen.verbs_devices or seen.verbs_usable is False) and not container.lacks_verbs(host.snapshot):
        inside = host.kind in ("docker", "podman", "kubernetes", "container", "lxc", "apptainer")
        yield Found(
            "no-verbs",
            remedies=("give-the-device",) if inside else ("load-verbs",),
            n=len(up),
            seen=seen,
            names=", ".join(seen.verbs_devices) or "no uverbs device",
        )
    roce = [(d, p) for d, p in up if p.link_layer == "Ethernet" and p.gids is not None]
    # All of them: what a container hides has no type.
    if all(g.type is not None for _, p in roce for g in p.gids or ()):
        for device, port in roce:
            yield from _gids(seen, device, port)
    yield from _pkeys(seen, up)
    mtus = {n: seen.net_mtu_bytes[n] for d, _ in roce for n in d.net_devices if n in seen.net_mtu_bytes}
    cards = {d.board_id for d, _ in roce}
    if len(set(mtus.values())) > 1 and len(cards) == 1:
        small = sorted(n for n, m in mtus.items() if m < max(mtus.values()))
        yield Found(
            "different-mtus",
            mtus=[f"{n} {mtu}" for n, mtu in sorted(mtus.items())],
            small=small,
            mtu=max(mtus.values()),
        )


def _gids(seen: Infiniband, device: Device, port: Port) -> Findings:
    """The GID that NCCL would use on a RoCE port: that of NCCL_IB_GID_INDEX, else (2.21 and later) one of RoCE v2 with an IPv4 address."""
    gids = port.gids or ()
    good = [g for g in gids if g.type == "RoCE v2" and g.ipv4 is not None]
    setting = seen.settings.get("NCCL_IB_GID_INDEX")
    # NCCL reads numbers up to the first character that is none.
    index = int(found[0]) if setting is not None and (found := re.match(r"\d+", setting.value.strip())) else None
    folder = f"/sys/class/infiniband/{device.name}/ports/{port.number}/gids"
    right = str(good[0].index) if good else "3"
    if index is not None and setting is not None and gids:
        chosen = next((g for g in gids if g.index == index), None)
        if chosen is not None and chosen.type == "RoCE v2":
            return
        yield Found(
            "forced-gid",
            severity="error" if chosen is None else "warning",
            index=index,
            device=device,
            port=port,
            chosen=chosen,
            setting=setting,
            folder=folder,
            table=_table(gids),
            right=right,
        )
    elif index is None and not good and gids:
        yield Found(
            "no-ipv4-gid",
            device=device,
            port=port,
            folder=folder,
            table=_table(gids),
            way=(device.net_devices or ("ETH",))[0],
        )


def _table(gids: Iterable[Gid]) -> str:
    return "; ".join(f"{g.index} {g.ipv4 or g.address} {g.type}" for g in list(gids)[:6]) or "no entries"


def _pkeys(seen: Infiniband, up: Iterable[tuple[Device, Port]]) -> Findings:
    setting = seen.settings.get("NCCL_IB_PKEY")
    index = setting.value.strip() if setting is not None and setting.value.strip().isdigit() else "0"
    for device, port in up:
        if port.link_layer == "InfiniBand" and port.pkeys and index not in port.pkeys:
            keys = joined((msg("{key} at {i}", key=key, i=i) for i, key in port.pkeys.items()), COMMA)
            yield Found("no-partition-key", device=device, port=port, index=index, keys=keys, next=next(iter(port.pkeys)))
