"""port-in-use: the address that the job wants to listen on is taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from unhang.knowledge import text, words
from unhang.knowledge.caught_exceptions import passed_over
from unhang.knowledge.cause import LogView, cause, command
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Evidence, Finding, HostFinding

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot
    from unhang.logs import Hit
    from unhang.records.incident_view import IncidentView

_RESERVE = "sudo sysctl -w net.ipv4.ip_local_reserved_ports={ports:name,}"


def _in_run(picture: IncidentView) -> Finding | None:
    return _of_hits(picture.hits_of(CAUSE.id)) if picture.incident.kind == "failure" else None


def _in_logs(view: LogView) -> Finding | None:
    return _of_hits([h for h in view.hits_of(CAUSE.id) if not passed_over(view, h)])


def _of_hits(hits: Sequence[Hit]) -> Finding | None:
    if not hits:
        return None
    port = next((p for h in hits if (p := h.groups.get("port"))), None)
    numbers = tuple(sorted({h.rank for h in hits if h.rank is not None}))
    who = text.ranks(numbers) if numbers else Text("a process", "某个进程")
    at = Text(" on port {port}", "端口 {port}").fill(port=port) if port else NOTHING
    # Below 1024 are services of the system, sshd first of all: nobody ends those for a training.
    chosen = ("port-of-its-own",) if port is not None and int(port) < 1024 else ("another-port", "who-has-it", "once-per-host")
    # The line that names the port says most.
    best = sorted(hits, key=lambda h: "port" not in h.groups)
    return CAUSE.finding(
        standing="established",
        says=Text("{who} could not listen{at}: the address is in use", "{who} 无法监听{at}：地址已被占用").fill(who=who, at=at),
        ranks=numbers,
        evidence=words.hit_evidence(best),
        remedies=chosen,
        commands={"who-has-it": command("ss -ltnp 'sport = :{port:port}'", port=port)} if port else None,
    )


# A large job takes thousands: each pair of ranks has several connections.
_FEW_PORTS = 4096


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import container, ports

    seen = host.get(ports.SUBJECT)
    if seen is None:
        return
    # In a worker of torchrun the store that stands there is the job's own; hosts that are not the first start none.
    starts = not seen.job.torchrun_worker and seen.job.first is not False
    holder = next((h for h in (*seen.listeners, *seen.connections) if starts and h.port == seen.store_port), None)
    if holder is not None:
        look = command("sudo ss -ltnp 'sport = :{port:port}'", port=seen.store_port)
        asked = seen.job.master_port is not None
        who = (
            Text("pid {pid} ({command})", "pid {pid}（{command}）").fill(pid=holder.pid, command=holder.command or Text("unknown", "未知"))
            if holder.pid is not None
            else Text(f"a process of user {holder.uid} that is not visible here", f"用户 {holder.uid} 的一个在此不可见的进程")
        )
        usual = Text(f"port {seen.store_port}, which launchers take unless told another,", f"启动器默认使用的端口 {seen.store_port} ")
        what = Text(f"MASTER_PORT={seen.store_port}", f"MASTER_PORT={seen.store_port} ") if asked else usual
        by_slurm = ("once-per-host",) if container.kind(host) == "slurm" else ()
        yield CAUSE.host_finding(
            area="ports",
            severity="error" if asked and seen.job.first else "warning",
            says=Text("{what} is taken by {who}, {state} on {address}", "{what}已被 {who} 占用（{address}，{state}）").fill(
                what=what, who=who, state=holder.state, address=holder.address
            ),
            leads_to=Text(
                "the store of a job that starts here cannot listen: Address already in use", "在此启动的作业的 store 无法监听：Address already in use"
            ),
            evidence=(Evidence(source="/proc/net/tcp", text=f"{holder.address}:{holder.port} {holder.state}"),),
            remedies=("who-has-it", "another-port", *by_slurm),
            commands={"who-has-it": look if holder.pid is None else command("ps -fp {pid:pid}", pid=holder.pid)},
        )
    if seen.range_first is None or seen.range_last is None:
        return
    size = max(0, seen.range_last - seen.range_first + 1)
    source = "/proc/sys/net/ipv4/ip_local_port_range"
    evidence = (Evidence(source=source, text=f"{seen.range_first} {seen.range_last}"),)
    if seen.range_first <= seen.store_port <= seen.range_last and not ports.is_reserved(seen, seen.store_port):
        yield CAUSE.host_finding(
            area="ports",
            severity="note",
            says=Text(
                f"port {seen.store_port} of the store lies in the range that the system hands out ({seen.range_first} to {seen.range_last})",
                f"store 的端口 {seen.store_port} 落在系统的临时端口范围内（{seen.range_first} 到 {seen.range_last}）",
            ),
            leads_to=Text(
                "now and then an outgoing connection holds the port when the store wants to listen: Address already in use",
                "store 要监听时，端口偶尔被外出连接占着：Address already in use",
            ),
            evidence=evidence,
            remedies=("reserve-port", "another-port"),
            commands={"reserve-port": command(_RESERVE, ports=(*seen.reserved, seen.store_port))},
        )
    if seen.in_range is not None and size and seen.in_range > 0.8 * size:
        yield CAUSE.host_finding(
            area="ports",
            severity="warning",
            says=Text(
                f"{seen.in_range} of the {size} ports that the system hands out are in use", f"{size} 个临时端口中已有 {seen.in_range} 个在使用"
            ),
            leads_to=Text("new connections fail: Cannot assign requested address", "新连接失败：Cannot assign requested address"),
            evidence=evidence,
            remedies=("widen-range",),
        )
    elif size < _FEW_PORTS:
        yield CAUSE.host_finding(
            area="ports",
            severity="note",
            says=Text(
                f"the system hands out {size} ports only ({seen.range_first} to {seen.range_last})",
                f"系统只有 {size} 个临时端口（{seen.range_first} 到 {seen.range_last}）",
            ),
            leads_to=Text(
                "many ranks, loader workers and stores together can use them up: Cannot assign requested address",
                "许多 rank、DataLoader worker 和 store 合起来会把它们用完：Cannot assign requested address",
            ),
            evidence=evidence,
            remedies=("widen-range",),
        )


CAUSE = cause("port-in-use", in_run=_in_run, in_logs=_in_logs, on_host=_on_host)
