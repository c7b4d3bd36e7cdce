"""port-in-use: the address that the job wants to listen on is taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from unhang.knowledge import cann, text, words
from unhang.knowledge.caught_exceptions import passed_over
from unhang.knowledge.cause import Cause, LogView, Signature, command
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Evidence, Finding, HostFinding, Remedy

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


CAUSE = Cause(
    id="port-in-use",
    role="root",
    title="The port is taken",
    title_zh="端口已被占用",
    what="The rendezvous, the store or a server of the job could not listen on its port, because another process does.",
    why="A job on the same host with the same MASTER_PORT (29500 is everybody's default), or a process that an earlier run left behind.",
    signatures=(
        cann.message("Failed to enable listening for the ", remedies=("who-has-it", "another-port")),
        Signature(needle="EADDRINUSE", pattern=r"port: (?P<port>\d+), useIpv6: \w+, code: -98, name: EADDRINUSE"),
        Signature(needle="The server socket has failed to bind to", pattern=r"failed to bind to \[?[^\]\s]*\]?:(?P<port>\d+) \(errno: 98"),
        Signature(needle="[Errno 98]", pattern=r"\[Errno 98\](?! .{0,200}bind on address).{0,300}?[Aa]ddress already in use"),
        Signature(
            needle="error while attempting to bind on address",
            pattern=r"bind on address \('[^']*', (?P<port>\d+)\S*\): (?:\[errno 98\] )?address already in use",
        ),
        Signature(needle="RuntimeError: Address already in use"),
        Signature(needle="Bind to port ", pattern=r"error: Bind to port (?P<port>\d{1,5}) on \S{1,64} failed: Address already in use"),
        # accelerate looks before it starts anything.
        Signature(needle="another process is utilizing it", pattern=r"communication on port `(?P<port>\d+)`, but another process is utilizing it"),
        # HCCL.
        Signature(
            needle="Failed to bind the IP port", pattern=r"Failed to bind the IP port\. Reason: The IP address and port have been bound already"
        ),
        Signature(
            needle="[HcclSocket][Listen]",
            pattern=r"specific port\[(?P<port>\d+)\] fail\. Please check the port status",
            standing="likely",
        ),
        # NCCL's own listeners take free ports, unless NCCL_COMM_ID names one.
        Signature(needle="Call to bind failed", pattern=r"NCCL WARN Call to bind failed : Address already in use"),
        Signature(needle=" is already in use", pattern=r"(?:Error|ERROR)\b.{0,80}[Pp]ort (?P<port>\d{2,5}) is already in use"),
        Signature(needle="bind: address already in use", pattern=r"listen tcp\d? \S{0,60}:(?P<port>\d{2,5}): bind: address already in use"),
        Signature(needle="Failed to bind to address", pattern=r"RuntimeError: Failed to bind to address \S*:(?P<port>\d+)"),
        Signature(needle="ZMQError: Address already in use", pattern=r"ZMQError: Address already in use(?: \(addr='\S*:(?P<port>\d+)'\))?"),
    ),
    in_run=_in_run,
    in_logs=_in_logs,
    on_host=_on_host,
    remedies=(
        Remedy(
            id="another-port",
            says="Let the system choose a free port on one host: torchrun --standalone (or --rdzv-endpoint localhost:0).",
            says_zh="单机时让系统选择空闲端口：torchrun --standalone（或 --rdzv-endpoint localhost:0）。",
            command="torchrun --standalone --nproc-per-node N train.py",
        ),
        Remedy(
            id="who-has-it",
            says="See who listens there, and end it if it is left over from an earlier run.",
            says_zh="查看谁在监听该端口；若是上一次运行的残留就结束它。",
            command="ss -ltnp 'sport = :29500'",
        ),
        Remedy(
            id="port-of-its-own",
            says=(
                "Leave the port to the service that has it (22 is the host's sshd), and take another one: a container that "
                "shares the host's network starts its own sshd on another port, which the launcher's ssh has to be told."
            ),
            says_zh=(
                "把该端口留给占用它的服务（22 是主机的 sshd，你正是由它登录的），改用别的端口：与主机共用网络的容器要在另一个端口启动自己的 sshd，"
                "并告诉启动器的 ssh。"
            ),
            command="/usr/sbin/sshd -p 2222; printf 'Host *\\n  Port 2222\\n' >> ~/.ssh/config",
        ),
        Remedy(
            id="once-per-host",
            says="Under srun start the launcher once for each host (--ntasks-per-node=1): several would all want the same port.",
            says_zh="在 srun 下每台主机只启动一次启动器（--ntasks-per-node=1）：启动多个会争用同一端口。",
            command="srun --ntasks-per-node=1 torchrun --nproc-per-node 8 ...",
        ),
        Remedy(
            id="reserve-port",
            says="Keep the system from handing the port out.",
            says_zh="把该端口加入保留列表，系统就不会把它分配给别的连接。",
            command="sudo sysctl -w net.ipv4.ip_local_reserved_ports=29500",
        ),
        Remedy(
            id="widen-range",
            says="Give back the system's usual range of ports, or a wider one.",
            says_zh="恢复系统默认的端口范围，或设得更宽。",
            command="sudo sysctl -w net.ipv4.ip_local_port_range='32768 60999'",
        ),
    ),
    leads_to=("rendezvous-misconfig", "rank-exception"),
    mistaken_for={
        "rendezvous-misconfig": "a wrong address gives a timeout or a refused connection, not EADDRINUSE",
        "network-blocked": "a blocked port is refused to the client; here the server cannot even listen",
    },
    sources=(
        "https://docs.pytorch.org/docs/stable/elastic/run.html",
        "https://man7.org/linux/man-pages/man2/bind.2.html",
    ),
    hits=(
        "EI0019: [PID: 812] 2026-01-08-11:02:13.441.302 Failed to enable listening for the host network adapter socket. Reason: port 60000 is bound",
        (
            "[ERROR] HCCL(5122,python3):2026-11-03-09:10:02.118.301 [hccl_socket.cc:100] [5122][HcclSocket][Listen] socket type[1], listen on "
            "ip[10.0.0.8] and specific port[16666] fail. Please check the port status and whether the port is been using by other process."
        ),
        "EJ0003: [PID: 812] 2026-11-03 Failed to bind the IP port. Reason: The IP address and port have been bound already.",
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, "
            "code: -98, name: EADDRINUSE, message: address already in use"
        ),
        "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29501 (errno: 98 - Address already in use).",
        "OSError: [Errno 98] Address already in use",
        "[Errno 98] error while attempting to bind on address ('127.0.0.1', 8265): address already in use",
        "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): [errno 98] address already in use",
        "RuntimeError: Address already in use",
        "error: Bind to port 22 on 0.0.0.0 failed: Address already in use.",
        (
            "ConnectionError: Tried to launch distributed communication on port `29500`, but another process is utilizing it. Please specify a "
            "different port"
        ),
        "node7:12:40 [0] include/socket.h:320 NCCL WARN Call to bind failed : Address already in use",
        "OSError: Port 30000 is already in use",
        "docker: Error response from daemon: listen tcp 0.0.0.0:29500: bind: address already in use",
        "RuntimeError: Failed to bind to address 0.0.0.0:50051; set GRPC_VERBOSITY=debug to see why",
        "zmq.error.ZMQError: Address already in use (addr='tcp://*:5557')",
    ),
    near_misses=(
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 80, useIpv6: false, "
            "code: -13, name: EACCES"
        ),
        "RuntimeError: CUDA device is already in use",
        "OSError: [Errno 99] Cannot assign requested address",
        "WARNING: port 7860 is already in use, trying 7861",
        "bind [127.0.0.1]:8888: Address already in use",
        "ValueError: the name `adapter_1` is already in use",
    ),
    explain={
        "en": (
            "Only one process can listen on a port. Another job on this host uses the same one (29500 is the default of nearly everything), or a "
            "process of an earlier run is still alive. Choose another port, or let torchrun choose a free one with --standalone."
        ),
        "zh": (
            "一个端口同一时间只能由一个进程监听。要么本机上另一个任务用了同样的端口（29500 几乎是所有工具的默认值），要么上一次运行留下的进程还活"
            "着。换一个端口，或者用 torchrun --standalone 让它自动选择空闲端口。"
        ),
    },
)
