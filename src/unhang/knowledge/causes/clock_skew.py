"""clock-skew: the clocks of hosts disagree so far that leases, tickets or timestamps break."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import cause
from unhang.knowledge.text import Text
from unhang.model import Evidence, HostFinding

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot

# Slurm's credentials live for minutes, Kerberos tickets bear five, S3 fifteen; leases of a rendezvous are counted in seconds.
_OFF_S = 1.0
# No training is older than its framework.
_NEVER_BEFORE_S = 1_704_067_200.0


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    import datetime

    from unhang.facts import clock

    seen = host.get(clock.SUBJECT)
    if seen is None:
        return
    if seen.now_s < _NEVER_BEFORE_S:
        year = datetime.datetime.fromtimestamp(seen.now_s, datetime.timezone.utc).date().isoformat()
        yield CAUSE.host_finding(
            area="clock",
            severity="error",
            says=Text("this machine believes that it is {year}", "本机认为现在是 {year}").fill(year=year),
            leads_to=Text(
                "certificates and tickets are not valid yet: downloads, Kerberos and object storage refuse",
                "证书和票据尚未生效：下载、Kerberos 和对象存储都会拒绝",
            ),
            evidence=(Evidence(source="clock", text=year),),
            remedies=("set-the-clock",),
        )
    elif seen.offset_s is not None and abs(seen.offset_s) >= _OFF_S:
        yield CAUSE.host_finding(
            area="clock",
            severity="warning",
            says=Text("the clock is {s} s {how}, as chrony measures", "据 chrony 测量，时钟{how} {s} 秒").fill(
                s=f"{abs(seen.offset_s):.1f}", how=Text("ahead", "快") if seen.offset_s > 0 else Text("behind", "慢")
            ),
            leads_to=Text(
                "with other hosts leases, tickets and credentials expire too early, and logs cannot be put in order",
                "与其他主机之间，租约、票据和凭据会过早失效，日志也无法排序",
            ),
            evidence=(Evidence(source="chronyc tracking", text=f"{seen.offset_s:+.3f} s"),),
            remedies=("set-the-clock", "compare-clocks"),
        )
    elif seen.synchronised is False:
        yield CAUSE.host_finding(
            area="clock",
            severity="note",
            says=Text("nothing keeps this machine's clock synchronised{although}", "没有任何程序在同步本机的时钟{although}").fill(
                although=Text(", although {keepers} runs", "，虽然 {keepers} 在运行").fill(keepers=", ".join(seen.keepers)) if seen.keepers else ""
            ),
            leads_to=Text(
                "one host alone does not mind; between several, clocks drift apart until credentials and leases break",
                "单台主机没有影响；多台主机之间时钟会逐渐偏离，直到凭据和租约失效",
            ),
            evidence=(Evidence(source="adjtimex", text="STA_UNSYNC"),),
            remedies=("set-the-clock", "compare-clocks"),
        )


CAUSE = cause("clock-skew", on_host=_on_host)
