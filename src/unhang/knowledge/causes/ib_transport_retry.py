"""ib-transport-retry: an InfiniBand or RoCE transfer was given up after its retries."""

from __future__ import annotations

from unhang.knowledge.judge import Findings, Found, HostView

# What adapters count when transfers are lost or late on the way: each of these cost a retry.
_LOST = ("local_ack_timeout_err", "packet_seq_err", "out_of_sequence", "rnr_nak_retry_err", "roce_slow_restart")
# One packet in ten thousand: RDMA starts over from the lost packet.
_MANY = 1e-4


def on_host(host: HostView) -> Findings:
    from unhang.facts import infiniband

    seen = host.infiniband
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
            yield Found(
                "errors-counted",
                device=device,
                port=port,
                count=count,
                counter=counter,
                per_thousand=each,
                share="for-each-thousand-packets" if packets else "",
                file=file,
            )
