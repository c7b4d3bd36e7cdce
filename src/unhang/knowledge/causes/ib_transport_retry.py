"""ib-transport-retry: an InfiniBand or RoCE transfer was given up after its retries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import cause, command
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Evidence, HostFinding

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot


# What adapters count when transfers are lost or late on the way: each of these cost a retry.
_LOST = ("local_ack_timeout_err", "packet_seq_err", "out_of_sequence", "rnr_nak_retry_err", "roce_slow_restart")
# One packet in ten thousand: RDMA starts over from the lost packet.
_MANY = 1e-4


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import infiniband

    seen = host.get(infiniband.SUBJECT)
    if seen is None:
        return
    up = infiniband.active(seen)
    for device, port in up:
        packets = port.counters.get("port_rcv_packets", 0) + port.counters.get("port_xmit_packets", 0)
        for counter in _LOST:
            count = port.counters.get(counter, 0)
            others = sorted(p.counters.get(counter, 0) for d, p in up if (d, p) != (device, port))
            usual = others[len(others) // 2] if others else 0
            if count < 1000 or count < 10 * usual or (count < _MANY * packets if packets else not others):
                continue
            file = f"/sys/class/infiniband/{device.name}/ports/{port.number}/hw_counters/{counter}"
            each = f"{1000 * count / packets:.2g}" if packets else ""
            share = Text(f", {each} for each thousand packets", f"，每千个包 {each} 次") if packets else NOTHING
            yield CAUSE.host_finding(
                area="infiniband",
                severity="note",
                says=Text(
                    f"{device.name} port {port.number} counted {count} {counter} since its driver was loaded",
                    f"{device.name} 端口 {port.number} 自驱动加载以来 {counter} 计数为 {count}",
                )
                + share,
                leads_to=Text(
                    "a path that loses packets is slow under load, and in the end gives up: transport retry counter exceeded",
                    "丢包的路径在负载下很慢，最终放弃：transport retry counter exceeded",
                ),
                evidence=(Evidence(source=file, text=str(count)),),
                remedies=("test-the-path",),
                commands={"test-the-path": command("ib_write_bw -d {device:name} -D 60 -F; grep . {file:path}", device=device.name, file=file)},
            )


CAUSE = cause("ib-transport-retry", on_host=_on_host)
