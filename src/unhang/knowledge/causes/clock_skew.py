"""clock-skew: the clocks of hosts disagree so far that leases, tickets or timestamps break."""

from __future__ import annotations

from unhang.knowledge.judge import Findings, Found, HostView

# Slurm's credentials live for minutes, Kerberos tickets bear five, S3 fifteen; leases of a rendezvous are counted in seconds.
_OFF_S = 1.0
# No training is older than its framework.
_NEVER_BEFORE_S = 1_704_067_200.0


def on_host(host: HostView) -> Findings:
    import datetime

    seen = host.clock
    if seen.now_s < _NEVER_BEFORE_S:
        year = datetime.datetime.fromtimestamp(seen.now_s, datetime.timezone.utc).date().isoformat()
        yield Found("wrong-year", year=year)
    elif seen.offset_s is not None and abs(seen.offset_s) >= _OFF_S:
        yield Found("off", abs=abs(seen.offset_s), ahead=seen.offset_s > 0, seen=seen)
    elif seen.synchronised is False:
        yield Found("unsynchronised", seen=seen)
