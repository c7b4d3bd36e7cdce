"""clock-skew: the clocks of hosts disagree so far that leases, tickets or timestamps break."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Cause, Signature
from unhang.knowledge.text import Text
from unhang.model import Evidence, HostFinding, Remedy

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


CAUSE = Cause(
    id="clock-skew",
    role="root",
    title="The clocks of the hosts disagree",
    title_zh="主机之间时钟不一致",
    what=(
        "Something that compares times of two hosts (Slurm's credentials, Kerberos, object storage, a rendezvous heartbeat, a build) "
        "refuses to go on."
    ),
    why="No time service on a host, a virtual machine that was suspended, a wrong hardware clock after a reboot.",
    signatures=(
        Signature(
            needle="Check for out of sync clocks",
            says="Slurm could not use a credential, for the clocks of the hosts disagree",
            says_zh="Slurm 无法使用某个凭据，因为主机之间时钟不一致",
        ),
        Signature(
            needle="ewound credential",
            pattern=r"[Rr]ewound credential",
            says="munge met a credential from the future: the clock of its sender is ahead of this one",
            says_zh="munge 遇到了来自未来的凭据：发送方的时钟比本机快",
        ),
        Signature(
            needle="xpired credential",
            pattern=r"(?:munge|Munge|slurm).*[Ee]xpired credential",
            standing="likely",
            says="munge met an expired credential: the clocks of two hosts disagree, or it waited for minutes",
            says_zh="munge 遇到了过期的凭据：两台主机的时钟不一致，或者凭据等待了几分钟",
        ),
        # slurmd, of a step that it is asked to start: made in the past or the future by its own clock, or queued for minutes.
        Signature(
            needle="Job credential expired",
            standing="likely",
            says="Slurm refused to start tasks, for their credential is out of date: the clocks of two hosts disagree, or a daemon hung for minutes",
            says_zh="Slurm 拒绝启动任务，因为它们的凭据已过时：两台主机的时钟不一致，或者某个守护进程卡住了几分钟",
        ),
        Signature(
            needle="Clock skew too great",
            says="Kerberos refused a ticket: the clocks disagree by more than it allows (5 minutes)",
            says_zh="Kerberos 拒绝了某个票据：时钟相差超过了它允许的范围（5 分钟）",
        ),
        Signature(
            needle="RequestTimeTooSkewed",
            says="the object storage refused a request, for this host's clock is off",
            says_zh="对象存储拒绝了某个请求，因为本机的时钟不准",
        ),
        Signature(
            needle="Signature not yet current",
            pattern=r"Signature not yet current: (?P<signed>\S+)",
            says="a signed request lies in the future ({signed}): this host's clock is ahead",
            says_zh="某个签名请求的时间在未来（{signed}）：本机的时钟快了",
        ),
        Signature(
            needle="is now earlier than",
            pattern=r"Signature expired: (?P<signed>\S+) is now earlier than (?P<limit>\S+)",
            says="a signed request is too old ({signed}, limit {limit}): this host's clock is behind",
            says_zh="某个签名请求太旧（{signed}，期限 {limit}）：本机的时钟慢了",
        ),
        Signature(
            needle="clock difference against peer",
            pattern=r"clock difference against peer (?P<peer>\S+) is too high \[(?P<difference>[^]>]{1,80}?)(?: > [^]]{1,80})?\]",
            says="etcd measured a clock difference of {difference} against {peer}",
            says_zh="etcd 测得与 {peer} 的时钟相差 {difference}",
        ),
        Signature(
            needle="clock-drift",
            pattern=r"prober found high clock drift.*?clock-drift\"?[:=] ?\"?(?P<difference>[\d.]+\w+)",
            says="etcd measured a clock drift of {difference}",
            says_zh="etcd 测得时钟漂移 {difference}",
        ),
        Signature(
            needle="ystem clock wrong by",
            pattern=r"System clock wrong by (?P<difference>-?[\d.]+) seconds",
            standing="likely",
            says="chrony found the clock wrong by {difference} seconds",
            says_zh="chrony 发现时钟偏差 {difference} 秒",
        ),
        Signature(
            needle="is not yet valid",
            pattern=r"certificate (?:is not yet valid|has expired or is not yet valid: current time \S+ is before)",
            standing="likely",
            says="a certificate is not yet valid by this host's clock, which is behind",
            says_zh="按本机的时钟某个证书尚未生效，而本机的时钟慢了",
        ),
        Signature(
            needle="oken is not yet valid",
            pattern=r"token is not yet valid \((?P<claim>\w+)\)",
            standing="likely",
            says="a token is not yet valid by this host's clock ({claim})",
            says_zh="按本机的时钟某个令牌尚未生效（{claim}）",
        ),
        # make and ninja, where an extension is compiled at start-up on a shared file system.
        Signature(
            needle="s in the future",
            pattern=r"(?:has modification time|time stamp .* is) (?P<difference>[\d.e+]+) s in the future",
            standing="likely",
            says="a file was written {difference} s in the future: the file server's clock and this one disagree",
            says_zh="某个文件的写入时间在未来 {difference} 秒：文件服务器的时钟与本机不一致",
        ),
        Signature(
            needle="Clock skew detected",
            standing="likely",
            says="make found files from the future: the file server's clock and this one disagree",
            says_zh="make 发现了来自未来的文件：文件服务器的时钟与本机不一致",
        ),
        Signature(
            needle="perhaps system time is not set",
            standing="likely",
            says="ninja rebuilds for ever, for files are newer than the clock",
            says_zh="ninja 没完没了地重新构建，因为有文件比时钟还新",
        ),
        # torch's dynamic rendezvous compares each node's own time with this node's: 15 s apart is dead.
        Signature(
            needle="since they had no heartbeat",
            pattern=r"the node\(s\) (?P<nodes>.{1,200}?) have been removed from the rendezvous '(?P<run>[^']*)' since they had no heartbeat",
            standing="possible",
            says="torchrun took {nodes} for dead: their heartbeats are late, or their clocks are behind by more than the keep-alive time",
            says_zh="torchrun 认为 {nodes} 已死：它们的心跳来晚了，或者它们的时钟慢得超出了 keep-alive 时间",
            remedies=("compare-clocks", "longer-keep-alive", "set-the-clock"),
        ),
    ),
    on_host=_on_host,
    remedies=(
        Remedy(
            id="compare-clocks",
            says="Compare the clocks of all hosts.",
            says_zh="比较所有主机的时钟。",
            command="for h in node1 node2; do ssh $h date +%s.%N & done; wait; timedatectl; chronyc tracking",
        ),
        Remedy(
            id="set-the-clock",
            says="Run a time service on every host, and step the clock once.",
            says_zh="在每台主机上运行时间同步服务，并立即校准一次。",
            command="sudo systemctl enable --now chronyd && sudo chronyc makestep",
            verify="chronyc tracking | grep 'System time'",
        ),
        Remedy(
            id="longer-keep-alive",
            says="Until then let the rendezvous tolerate more: attempts times interval seconds may pass between heartbeats.",
            says_zh="在此之前可放宽 rendezvous 的容忍度：两次心跳之间允许间隔 attempts × interval 秒。",
            command="torchrun --rdzv-conf keep_alive_interval=10,keep_alive_max_attempt=30 ...",
        ),
    ),
    leads_to=("rendezvous-misconfig", "rank-exception"),
    mistaken_for={
        "straggler-timeout": "clocks do not slow a rank down; NCCL and Gloo compare no clocks at all",
        "rendezvous-misconfig": "nodes that join and vanish again and again may be alive with another time",
    },
    sources=(
        "https://github.com/dun/munge/wiki/Installation-Guide",
        "https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py",
        "https://web.mit.edu/kerberos/krb5-latest/doc/admin/troubleshoot.html",
    ),
    hits=(
        "slurmd: error: Check for out of sync clocks",
        "srun: error: Munge decode failed: Rewound credential",
        "slurmctld: error: Munge decode failed: Expired credential",
        "srun: error: Task launch for StepId=4711.0 failed on node node8: Job credential expired",
        "kinit: Clock skew too great while getting initial credentials",
        "botocore.exceptions.ClientError: An error occurred (RequestTimeTooSkewed) when calling the PutObject operation",
        "InvalidSignatureException: Signature not yet current: 20261103T100501Z is still later than 20261103T100001Z",
        "Signature expired: 20261103T095001Z is now earlier than 20261103T095501Z (20261103T101001Z - 15 min.)",
        "etcd: the clock difference against peer 8211f1d0f64f3269 is too high [4.2s > 1s]",
        '{"level":"warn","msg":"prober found high clock drift","remote-peer-id":"8211","clock-drift":"31.2s","rtt":"1ms"}',
        "chronyd[812]: System clock wrong by 73.512 seconds",
        "x509: certificate has expired or is not yet valid: current time 2026-11-03T10:00:01Z is before 2026-11-03T11:00:00Z",
        "jwt.exceptions.ImmatureSignatureError: The token is not yet valid (iat)",
        "make: Warning: File 'fused_adam.o' has modification time 341 s in the future",
        "make: warning:  Clock skew detected.  Your build may be incomplete.",
        "ninja: error: manifest 'build.ninja' still dirty after 100 tries, perhaps system time is not set",
        ("As part of the sync operation the node(s) node2_4711_0 have been removed from the rendezvous 'job7' since they had no heartbeat."),
    ),
    near_misses=(
        "google.auth.exceptions.RefreshError: Expired credential, run gcloud auth login",
        "srun: error: Task launch for StepId=4711.0 failed on node node8: Invalid job credential",
        "[W socket.cpp:601] [c10d] clock synchronised",
        "requests.exceptions.SSLError: certificate verify failed: certificate has expired",
        "x509: certificate has expired or is not yet valid: current time 2026-11-03T10:00:01Z is after 2026-10-03T11:00:00Z",
        "WARNING the learning rate schedule reaches 0 in the future",
    ),
    explain={
        "en": (
            "NCCL and Gloo compare no clocks, but what surrounds them does: Slurm's credentials (munge), Kerberos, object storage, tokens, "
            "make and ninja on a shared file system, and torchrun's dynamic rendezvous, which takes a node for dead when its heartbeat looks "
            "older than 15 s. One host whose clock is off then fails alone, or is thrown out again and again. Compare date on all hosts, start "
            "chrony, step the clock. A log that seems to show an effect before its cause is a sign of the same."
        ),
        "zh": (
            "NCCL 和 Gloo 不比较时钟，但周围的东西会：Slurm 的凭据（munge）、Kerberos、对象存储、令牌、共享文件系统上的 make 和 ninja，以及 "
            "torchrun 的动态 rendezvous——心跳看起来早于 15 秒就认为节点已死。于是时钟不准的那台主机单独失败，或者被反复踢出。比较所有主机的 "
            "date，启用 chrony 并立即校准。日志里结果出现在原因之前，也是同一问题的迹象。"
        ),
    },
)
