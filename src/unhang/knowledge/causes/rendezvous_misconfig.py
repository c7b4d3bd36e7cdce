"""rendezvous-misconfig: the processes disagree on how many they are, who they are, or where they meet.

Long because each launcher and store tells it in words of its own; most of it is signatures and their lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from unhang.knowledge import words
from unhang.knowledge.cause import STANDINGS, Cause, LogView, Signature, command
from unhang.knowledge.text import Text, joined, same
from unhang.model import Finding, Remedy

if TYPE_CHECKING:
    from unhang.logs import Hit
    from unhang.records.incident_view import IncidentView

_REACH = "getent ahosts {host:host}; nc -vz -w 5 {host:host} {port:port}"


def _in_run(picture: IncidentView) -> Finding | None:
    if picture.incident.elsewhere and not any(r.record.backend for r in picture.ranks):
        return _of_two_places(picture)
    if picture.incident.kind != "world-size":
        return _of_hits(picture.hits_of(CAUSE.id))
    records = [r.record for r in picture.ranks]
    worlds = Counter(r.world_size for r in records if r.world_size is not None)
    expected = picture.incident.expected_world
    numbers = Counter(r.rank for r in records)
    twice = sorted(rank for rank, count in numbers.items() if count > 1)
    reported = joined((same(str(w)) for w in sorted(worlds)), Text(" and ", " 和 "))
    if set(worlds) == {1} and len(records) > 1 and set(numbers) == {0}:
        says = Text("{count} processes each believe they are rank 0 of 1", "{n} 个进程都认为自己是 rank 0（共 1 个）")
        says = says.fill(count=_count(len(records)), n=len(records))
    elif twice:
        says = Text("{count} processes each believe they are rank {rank} of {world}", "{n} 个进程都认为自己是 rank {rank}（共 {world} 个）").fill(
            count=_count(numbers[twice[0]]), n=numbers[twice[0]], rank=twice[0], world=reported or Text("an unknown number", "未知数目")
        )
    elif set(worlds) == {1}:
        says = Text("{count} processes form no process group: each trains for itself", "{n} 个进程没有组成进程组，各自单独训练")
        says = says.fill(count=_count(len(records)), n=len(records))
    else:
        says = Text("the processes report a world of {world}", "各进程报告的 WORLD_SIZE 是 {world}")
        says = says.fill(world=reported or Text("no known size", "未知数目"))
    if expected is not None:
        says += Text("; {n} {ranks} expected", "；应有 {n} 个 rank").fill(n=expected, ranks="ranks were" if expected != 1 else "rank was")
    alone = set(worlds) == {1}
    return CAUSE.finding(
        standing="established",
        says=says,
        ranks=tuple(sorted(numbers)),
        hosts=tuple(dict.fromkeys(r.host for r in records)),
        evidence=tuple(
            words.stated(
                picture.incident_source,
                Text(
                    "pid {pid} on {host}: rank {n} of {all}, local rank {local}", "{host} 上的 pid {pid}：rank {n}（共 {all} 个），本地 rank {local}"
                ).fill(pid=r.pid, host=r.host, n=r.rank, all=str(r.world_size), local=str(r.local_rank)),
            )
            for r in records[:4]
        ),
        remedies=("let-a-launcher-start-them", "read-the-environment") if alone else ("same-world", "read-the-environment"),
    )


def _of_two_places(picture: IncidentView) -> Finding:
    numbers = tuple(sorted(picture.incident.elsewhere))
    said = [words.of_rank(n, same(picture.incident.elsewhere[n])) for n in numbers]
    return CAUSE.finding(
        standing="established" if numbers == tuple(range(max(r.record.world_size or 1 for r in picture.ranks))) else "likely",
        says=Text("ranks of one training meet at different places: {said}", "同一个训练的各 rank 在不同的地方会合：{said}").fill(
            said=joined(said[:8])
        ),
        ranks=numbers,
        evidence=tuple(words.stated(picture.incident_source, told) for told in said[:4]),
        remedies=("same-meeting-point", "read-the-environment"),
    )


def _in_logs(view: LogView) -> Finding | None:
    own = tuple(h for h in view.hits_of(CAUSE.id) if h.signature != _WAITING or int(h.groups["joined"]) > int(h.groups["expected"]))
    if any(h.signature == _NOT_SET for h in own):
        return _of_hits(own)
    return (
        _numbered_alike(own)
        or _of_own(_in_force(own, failed=any(h.signature.needle in _NO_ANSWER for h in view.hits_of("store-disconnect"))), view)
        or _agents_waited(view)
        or _nobody_came(view)
    )


def _in_force(hits: Sequence[Hit], *, failed: bool) -> tuple[Hit, ...]:
    """Without what healthy jobs print too, unless a rendezvous failed."""
    failed = failed or any(h.signature not in (_NO_ID, _ADDRESS_UNREAD, _NODE) for h in hits)
    timed_out = any("RendezvousTimeoutError" in h.text for h in hits)
    speaking = [h for h in hits if h.signature == _NO_ID and timed_out] + [h for h in hits if h.signature == _ADDRESS_UNREAD and failed]
    return (*speaking, *(h for h in hits if h.signature not in (_NO_ID, _ADDRESS_UNREAD, _NODE)))


def _numbered_alike(hits: Sequence[Hit]) -> Finding | None:
    """Two launchers that each say they are node 0."""
    nodes: dict[str, set[tuple[str | None, str]]] = {}
    for h in hits:
        if h.signature == _NODE and h.groups["nodes"] != "1":
            nodes.setdefault(h.groups["node_rank"], set()).add((h.host, h.source))
    twice = next((number for number, places in nodes.items() if len(places) > 1), None)
    if twice is None:
        return None
    lines = [h for h in hits if h.signature == _NODE and h.groups["node_rank"] == twice]
    says = Text("{count} hosts each believe they are node {node} of {nodes}", "{n} 台主机都认为自己是节点 {node}（共 {nodes} 个）").fill(
        count=_count(len(nodes[twice])), n=len(nodes[twice]), node=twice, nodes=lines[0].groups["nodes"]
    )
    return CAUSE.of_hits(lines, standing="likely", says=says)


def _of_own(hits: Sequence[Hit], view: LogView) -> Finding | None:
    """A rendezvous that is closed or gone is what agents print that lost their peer: it counts only where nothing else is known."""
    lost = ("rank-exception", "host-oom-or-killed", "gpu-oom", "peer-lost", "collective-timeout")
    others = any(view.hits_of(c) for c in lost) or view.timeouts or any(e.code != 0 for e in view.exits)
    beaten = any("keep-alive" in h.text for h in view.hits_of("store-disconnect"))
    kept = tuple(h for h in hits if not ((others and h.signature == _CLOSED) or ((others or beaten) and h.signature == _NO_STORE)))
    if not kept:
        return None
    where = next(((h.groups["peer"], h.groups["port"]) for h in view.hits_of("store-disconnect") if {"peer", "port"} <= set(h.groups)), None)
    best = min(kept, key=lambda h: STANDINGS.index(h.signature.standing))
    if where is not None and best.signature in (_NO_STORE, _CONNECT_TIMED_OUT):
        return CAUSE.of_hits(
            (best, *(h for h in kept if h is not best)),
            view,
            says=Text(
                "no agent answered at {host} port {port}: the address is wrong, or the launcher there is not running",
                "{host} 的端口 {port} 上没有 agent 应答：地址有误，或者那里的启动器没有在运行",
            ).fill(host=where[0], port=where[1]),
            commands={"reach-the-meeting-point": command(_REACH, host=where[0], port=where[1])},
        )
    return CAUSE.of_hits(kept, view)


def _agents_waited(view: LogView) -> Finding | None:
    """A time-out of the store inside torchrun's agent: it waited for the agents of the other hosts, before any rank was started."""
    waited = [
        t
        for t in view.tracebacks
        if "imeout" in t.says
        and any(f.name in _AGENT and "elastic" in f.file for f in t.frames)
        # At the end agents wait for each other as well.
        and not any(f.name == "_exit_barrier" for f in t.frames)
    ]
    if not waited or any(view.hits_of(c) for c in _EXPLAINS):
        return None
    return CAUSE.finding(
        standing="likely",
        says=Text(
            "torchrun's agent waited for those of the other hosts, and they did not come: fewer were started than --nnodes, or two have one node "
            "rank",
            "torchrun 的 agent 在等待其他主机上的 agent，而它们没有来：启动的数量少于 --nnodes，或者有两台的 node rank 相同",
        ),
        evidence=tuple(t.evidence() for t in waited[:2]),
        remedies=("one-number-each", "same-world", "same-meeting-point"),
    )


def _nobody_came(view: LogView) -> Finding | None:
    """The store waited for processes or was never found, and nothing else is known: who was started, and where, is the first question."""
    lines = [h for h in view.hits_of("store-disconnect") if "expected" in h.groups or ("peer" in h.groups and "port" in h.groups)]
    if not lines or view.timeouts or any(view.hits_of(c) for c in _EXPLAINS):
        return None
    first = lines[0]
    g = first.groups
    if "expected" in g and g.get("joined") != g["expected"]:
        if int(g.get("joined", "0")) > int(g["expected"]):
            says = Text(
                "{n} processes came where {all} were expected: two jobs share the store, or a rank was started twice",
                "来了{n}进程，而应有 {all} 个：两个任务共用了同一个 store，或者某个 rank 被启动了两次",
            )
        else:
            says = Text(
                "{n} of {all} processes came: the others were not started, or went to another address",
                "{all} 个进程中来了{n}：其余的没有启动，或者去了别的地址",
            )
        came = Text("{n}", " {n} 个").fill(n=g["joined"]) if "joined" in g else Text("only some", "一部分")
        says = says.fill(n=came, all=g["expected"])
        remedies = ("same-world", "reach-the-meeting-point", "read-the-environment")
    elif "peer" in g:
        says = Text(
            "nothing answered at {host} port {port}: the address is wrong, or no launcher runs there",
            "{host} 的端口 {port} 没有应答：地址有误，或者那里没有启动器在运行",
        ).fill(host=g["peer"], port=g["port"])
        remedies = ("reach-the-meeting-point", "same-meeting-point", "read-the-environment")
    else:
        return None
    reach = command(_REACH, host=g.get("peer"), port=g.get("port"))
    return CAUSE.finding(
        standing="possible",
        says=says,
        ranks=tuple(sorted({h.rank for h in lines if h.rank is not None})),
        evidence=words.hit_evidence(lines, at_most=3),
        remedies=remedies,
        commands={"reach-the-meeting-point": reach} if "peer" in g else None,
    )


def _of_hits(hits: Sequence[Hit]) -> Finding | None:
    if not hits:
        return None
    unset = [h for h in hits if h.signature == _NOT_SET]
    if not unset:
        return _numbered_alike(hits) or CAUSE.of_hits(_in_force(hits, failed=False))
    numbers = tuple(sorted({h.rank for h in unset if h.rank is not None}))
    return CAUSE.finding(
        standing="established",
        says=Text(
            "{name} is not set, so the process does not know who it is: no launcher that sets it started it",
            "没有设置{name}，进程不知道自己是谁：它不是由会设置该变量的启动器启动的",
        ).fill(name=Text("{name}", " {name}").fill(name=name) if (name := unset[0].groups.get("name")) else Text("a variable", "某个变量")),
        ranks=numbers,
        evidence=words.hit_evidence(unset),
        remedies=("let-a-launcher-start-them", "read-the-environment"),
    )


def _count(n: int) -> str:
    return {2: "two", 3: "three", 4: "four"}.get(n, str(n))


# What the store prints where nobody answered; that it is gone says only that its rank has ended.
_NO_ANSWER = ("client socket has timed out after", "clients joined", "in store based barrier on rank", "wait timeout after ", "Socket Timeout")
# Where one of these is in evidence, that nobody came is its consequence.
_EXPLAINS = (
    "network-blocked",
    "dns-resolution",
    "interface-selection",
    "port-in-use",
    "ssh-launcher",
    "config-error",
    "gloo-connect",
    "host-oom-or-killed",
    "gpu-oom",
    "library-link",
    "launcher-wrong-env",
    "peer-lost",
    "collective-timeout",
)

# Where torchrun's agent exchanges with its like what each host has.
_AGENT = frozenset({"_share_and_gather", "_assign_worker_ranks", "synchronize", "_rendezvous", "next_rendezvous"})

# Told every ten seconds by each rank that waits, also at the start of healthy jobs: there fewer came, never more. torch up to 2.0 waits for the
# very number.
_WAITING = Signature(
    needle="Waiting in store based barrier to initialize process group",
    pattern=r"\(world_size=(?P<expected>\d{1,9}), (?:worker_count|num_workers_joined)=(?P<joined>\d{1,9}), ",
    standing="possible",
    says="{joined} processes came where {expected} were expected: two jobs share the store, or an earlier attempt left its count",
    says_zh="来了 {joined} 个进程，而预期是 {expected} 个：两个任务共用了同一个 store，或之前的尝试留下了计数",
    remedies=("same-world", "reach-the-meeting-point", "read-the-environment"),
)
_NOT_SET = Signature(
    needle="using env:// rendezvous: environment variable",
    pattern=r"Error initializing torch\.distributed using env:// rendezvous: environment variable (?P<name>\w+) expected",
)
_CLOSED = Signature(
    needle="RendezvousClosedError",
    pattern=r"RendezvousClosedError(?!\w)",
    standing="possible",
    says="the rendezvous was closed: another agent had finished or failed, or an earlier job used the same rendezvous id",
    says_zh="rendezvous 已被关闭：另一个 agent 已经结束或失败，或之前的任务用了相同的 rendezvous id",
    remedies=("fresh-rendezvous-id", "same-meeting-point"),
)
_NO_STORE = Signature(
    needle="RendezvousConnectionError",
    pattern=r"RendezvousConnectionError(?:: (?P<reason>.{1,120}))?",
    # Asked by an agent whose ranks run, or are through.
    unless=r"\bnum_nodes_waiting\b|failed to shutdown the rendezvous",
    lines=24,
    standing="likely",
    says="torchrun's agent could not connect to the rendezvous: its address is wrong, its host does not know that it is the one, or a port is closed",
    says_zh="torchrun 的 agent 无法连接 rendezvous：地址不对，应承载它的主机没有认出自己，或某个端口没有放开",
    remedies=("reach-the-meeting-point", "same-meeting-point"),
)
_CONNECT_TIMED_OUT = Signature(
    needle="connect() timed out",
    pattern=r"RuntimeError: connect\(\) timed out\. Original timeout was (?P<timeout_ms>\d+) ms",
    standing="likely",
    says="nothing answered at the address of the store within {timeout_ms} ms: it is wrong, or no launcher runs there",
    says_zh="{timeout_ms} ms 内 store 的地址没有应答：地址不对，或那里没有启动器在运行",
    remedies=("reach-the-meeting-point", "same-meeting-point", "read-the-environment"),
)

# What healthy jobs print as well: it counts only beside a rendezvous that failed.
_NO_ID = Signature(
    needle="config has no run_id",
    standing="likely",
    says="torchrun was given no --rdzv-id, so every host made up one of its own and none met another",
    says_zh="没有给 torchrun 指定 --rdzv-id，因此每台主机各自生成了一个，互相没有会合",
    remedies=("same-rendezvous-id", "same-meeting-point"),
)
_ADDRESS_UNREAD = Signature(
    needle="master_addr is only used for static rdzv_backend",
    standing="possible",
    says="--master-addr was given and is not read with --rdzv-backend c10d; if --rdzv-endpoint is missing, every host waits at its own localhost",
    says_zh="给出了 --master-addr，但使用 --rdzv-backend c10d 时不读取它；如果没有 --rdzv-endpoint，每台主机都在自己的 localhost 上等待",
    remedies=("same-meeting-point",),
)
_NODE = Signature(
    needle="Multi-node training enabled: num nodes:",
    pattern=r"num nodes: (?P<nodes>\d+), node rank: (?P<node_rank>\d+)",
    standing="possible",
    remedies=("one-number-each", "read-the-environment"),
)
# Netmasks, broadcast and unset addresses, and the one of LLaMA-Factory's example.
_NOBODYS_ADDRESS = Signature(
    needle="The client socket has failed to connect to ",
    pattern=(
        r"connect to \[?(?:::ffff:)?(?P<address>255\.[\d.]+|0\.0\.0\.0|[\d.]+\.255|192\.168\.0\.1)\]?:(?P<port>\d+) "
        r"\(errno: (?:110|113|101) - (?P<error>[^)]+)\)"
    ),
    standing="likely",
    says="MASTER_ADDR {address} is no address of a host of the job (a netmask, a broadcast or an example's): {error}",
    says_zh="MASTER_ADDR {address} 不是任务中任何主机的地址（是子网掩码、广播地址或示例中的地址）：{error}",
    remedies=("same-meeting-point", "reach-the-meeting-point"),
)

_LOW_PORT = r"(?P<port>\d{1,3}|10[01]\d|102[0-3])(?!\d)"

CAUSE = Cause(
    id="rendezvous-misconfig",
    role="root",
    title="Rank, number of ranks or address of the job are missing, wrong or disagree",
    title_zh="作业的 rank、进程总数或地址缺失、有误或不一致",
    what=(
        "World size, rank or meeting point differ between the processes, or from what was asked for: they train apart, or wait for ranks that "
        "never come."
    ),
    why=(
        "A script that was started several times without a launcher, a launcher configuration for another number of processes, RANK or WORLD_SIZE "
        "left in the environment, code that sets them itself."
    ),
    signatures=(
        Signature(
            needle="gloo/context.cc",
            pattern=r"gloo/context\.cc:\d+\] rank < size\. (?P<number>\d+) vs (?P<size>\d+)",
            says="a process says that it is rank {number} of {size}: ranks count from 0 to one less than their number",
            says_zh="有进程自称是 rank {number}（共 {size} 个）：rank 从 0 编号，到总数减一为止",
            remedies=("read-the-environment", "same-world"),
        ),
        _NOT_SET,
        _WAITING,
        Signature(
            needle="RendezvousTimeoutError",
            pattern=r"(?<!['\w])RendezvousTimeoutError(?=:|\"|\s*$)",
            standing="likely",
            says="fewer hosts came to torchrun's rendezvous than --nnodes asks for, or they came with another rendezvous id or address",
            says_zh="到达 torchrun 的 rendezvous 的主机少于 --nnodes 要求的数量，或它们用了不同的 rendezvous id 或地址",
            remedies=("same-meeting-point", "same-world", "reach-the-meeting-point"),
        ),
        # The same for init_method tcp:// or file:// whose address carries no rank.
        Signature(
            needle=" rendezvous: ",
            pattern=r"Error initializing torch\.distributed using (?P<method>\w+):// rendezvous: (?P<what>rank|world size) parameter missing",
            says="init_process_group was given {method}:// and no {what}: neither the call nor a launcher says who the process is",
            says_zh="给 init_process_group 的是 {method}://，却没有 {what}：调用和启动器都没有说明该进程是谁",
            remedies=("let-a-launcher-start-them", "read-the-environment"),
        ),
        Signature(
            needle="Please launch distributed training with",
            pattern=r"Error: Please launch distributed training with `?(?P<launcher>[\w-]+)`?",
            says="several GPUs are visible and the script was started without a launcher: it asks for {launcher} or torchrun",
            says_zh="有多块 GPU 可见，而脚本没有通过启动器启动：它要求使用 {launcher} 或 torchrun",
            remedies=("let-a-launcher-start-them",),
        ),
        # TensorRT-LLM compares the number of MPI processes with the engine's.
        Signature(
            needle="Assertion failed: mpiSize == ",
            pattern=r"Assertion failed: mpiSize == (?P<wanted>tp ?\* ?pp(?: ?\* ?cp)?)",
            says="TensorRT-LLM runs in another number of MPI processes than the engine was built for ({wanted}): start it by mpirun -n",
            says_zh="TensorRT-LLM 所用的 MPI 进程数与 engine 构建时的数量（{wanted}）不同：请用 mpirun -n 启动",
            remedies=("same-world", "let-a-launcher-start-them"),
        ),
        _NO_STORE,
        _CLOSED,
        _CONNECT_TIMED_OUT,
        _NO_ID,
        _ADDRESS_UNREAD,
        _NODE,
        _NOBODYS_ADDRESS,
        Signature(
            needle="has already checked in",
            pattern=r"Bootstrap Root : rank (?P<duplicate>\d+) of (?P<world_size>\d+) ranks has already checked in",
            says="two processes of {world_size} say that they are rank {duplicate}",
            says_zh="{world_size} 个进程中有两个自称是 rank {duplicate}",
            remedies=("one-number-each", "read-the-environment"),
        ),
        Signature(
            needle="mismatch in ",
            pattern=(
                r"Bootstrap Root : mismatch in (?:rank count|info) from procs,? ?(?:nranks )?(?P<first>\d+) (?:vs|:) ?(?P<second>(?!(?P=first)\b)\d"
                r"+)"
            ),
            says="ranks disagree on how many they are: {first} and {second}",
            says_zh="各 rank 对总数的认识不一致：{first} 和 {second}",
            remedies=("same-world", "read-the-environment"),
        ),
        Signature(
            needle="nvalid rank requested",
            pattern=r"[Ii]nvalid rank requested : (?P<asked>-?\d+)/(?P<world_size>\d+)",
            says="a process says that it is rank {asked} of {world_size}",
            says_zh="有进程自称是 rank {asked}（共 {world_size} 个）",
            remedies=("one-number-each", "read-the-environment"),
        ),
        Signature(
            needle="rank should be in the interval",
            pattern=r"Invalid rank (?P<asked>-?\d+), rank should be in the interval \[0, (?P<last>-?\d+)\]",
            says="a process says that it is rank {asked}, and the highest rank is {last}",
            says_zh="有进程自称是 rank {asked}，而最大的 rank 是 {last}",
            remedies=("one-number-each", "read-the-environment"),
        ),
        Signature(
            needle="Mesh should not be bigger than default world size",
            pattern=r"Mesh should not be bigger than default world size (?P<world_size>\d+), but found (?P<asked>\d+)",
            says="a device mesh of {asked} ranks was asked of a world of {world_size}",
            says_zh="要求建立 {asked} 个 rank 的 device mesh，而 world size 是 {world_size}",
            remedies=("same-world", "let-a-launcher-start-them"),
        ),
        Signature(
            needle="set by init_process_group",
            pattern=r"the new group's (?P<what>world size|rank) should be (?:less or equal to|within) the world[ _]size set by init_process_group",
            says="a group names more ranks than there are: the {what} is beyond the world that was started",
            says_zh="某个组列出的 rank 比实际的多：{what} 超出了所启动的 world",
            remedies=("same-world", "let-a-launcher-start-them"),
        ),
        # Lightning compares its own numbers with the job's.
        Signature(
            needle="configured in SLURM",
            pattern=r"You set `(?P<own>[^`]+)` in Lightning, but .{0,80}configured in SLURM `(?P<job>[^`]+)` does not match",
            says="Lightning was told {own} and Slurm {job}",
            says_zh="给 Lightning 的是 {own}，给 Slurm 的是 {job}",
            remedies=("same-world",),
        ),
        Signature(
            needle="RendezvousStateError",
            standing="possible",
            says="the state of the rendezvous is corrupt, as where two jobs share an id",
            says_zh="rendezvous 的状态已损坏，两个任务共用一个 id 时会这样",
            remedies=("fresh-rendezvous-id",),
        ),
        Signature(
            needle="KeyError: 'MASTER_ADDR'",
            says="MASTER_ADDR is not set: no launcher that sets it started this process",
            says_zh="没有设置 MASTER_ADDR：该进程不是由会设置该变量的启动器启动的",
            remedies=("let-a-launcher-start-them", "read-the-environment"),
        ),
        Signature(
            needle="KeyError: '",
            pattern=r"KeyError: '(?P<name>LOCAL_RANK|RANK|WORLD_SIZE|MASTER_PORT|LOCAL_WORLD_SIZE)'",
            # Tables have columns of these names.
            near=r"\bos\.py\b|<frozen os>|os\.environ",
            says="{name} is not set: no launcher that sets it started this process",
            says_zh="没有设置 {name}：该进程不是由会设置该变量的启动器启动的",
            remedies=("let-a-launcher-start-them", "read-the-environment"),
        ),
        # torch's own sockets, those over libuv, Python's.
        *(
            Signature(
                needle=needle,
                pattern=pattern,
                says="port {port} is below 1024: only root, or a process with CAP_NET_BIND_SERVICE, may listen there",
                says_zh="端口 {port} 小于 1024：只有 root 或带有 CAP_NET_BIND_SERVICE 的进程才能在那里监听",
                remedies=("higher-port",),
            )
            for needle, pattern in (
                ("(errno: 13 - ", rf"failed to bind to \S{{1,100}}?:{_LOW_PORT} \(errno: 13 - "),
                ("code: -13, name: EACCES", rf"port: {_LOW_PORT}, useIpv6: \w+, code: -13, name: EACCES"),
                ("error while attempting to bind on address", rf"[Ee]rrno 13\] .{{0,40}}bind on address \('[^']{{0,100}}', {_LOW_PORT}"),
            )
        ),
        Signature(
            needle="Default process group has not been initialized",
            standing="possible",
            says="a collective was called before the process group was made, or in a process that no launcher started",
            says_zh="在进程组建成之前调用了集合通信，或调用它的进程不是由启动器启动的",
            remedies=("let-a-launcher-start-them", "read-the-environment"),
        ),
        # Without matching PMI support every task believes it is alone.
        Signature(
            needle="appears to have been direct launched",
            says="srun started an MPI program that has no PMI support for this Slurm, so that each process stands alone",
            says_zh="srun 启动的 MPI 程序不支持此 Slurm 的 PMI，因此每个进程各自独立",
            remedies=("srun-with-pmi",),
        ),
        Signature(
            needle="OPAL ERROR: Unreachable in file ",
            pattern=r"OPAL ERROR: Unreachable in file \w{0,20}(?:pmix|ext)\w{0,20}_client\.c",
            standing="likely",
            says="an MPI process found no server of its PMIx: it was not started by mpirun, or by an srun whose PMI is another",
            says_zh="某个 MPI 进程找不到它的 PMIx 服务端：它不是由 mpirun 启动的，或启动它的 srun 用的是另一种 PMI",
            remedies=("srun-with-pmi",),
        ),
    ),
    in_run=_in_run,
    in_logs=_in_logs,
    remedies=(
        Remedy(
            id="let-a-launcher-start-them",
            says="Start the script once, through a launcher that numbers the processes; the script itself must read RANK and WORLD_SIZE.",
            says_zh="通过启动器只启动一次脚本，由它给各进程编号；脚本自己要读取 RANK 和 WORLD_SIZE。",
            command="unhang run --nproc-per-node N train.py",
        ),
        Remedy(
            id="numbers-of-mpirun",
            says=(
                "mpirun numbers its processes by variables of its own: give the script those as RANK, LOCAL_RANK and WORLD_SIZE, and MASTER_ADDR and "
                "MASTER_PORT with -x."
            ),
            says_zh="mpirun 用自己的变量给进程编号：把它们作为 RANK、LOCAL_RANK 和 WORLD_SIZE 交给脚本，MASTER_ADDR 和 MASTER_PORT 用 -x 传递。",
            command=(
                "mpirun -np N -x MASTER_ADDR=HOST -x MASTER_PORT=29500 bash -c 'RANK=$OMPI_COMM_WORLD_RANK LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK "
                "WORLD_SIZE=$OMPI_COMM_WORLD_SIZE python train.py'"
            ),
        ),
        Remedy(
            id="numbers-of-srun",
            says=(
                "srun numbers its tasks by variables of its own: give the script those as RANK, LOCAL_RANK and WORLD_SIZE, or let srun start "
                "torchrun once per host."
            ),
            says_zh="srun 用自己的变量给任务编号：把它们作为 RANK、LOCAL_RANK 和 WORLD_SIZE 交给脚本，或让 srun 在每台主机上启动一次 torchrun。",
            command=(
                'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) MASTER_PORT=29500; '
                "srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS python train.py'"
            ),
        ),
        Remedy(
            id="same-world",
            says="Make launcher and configuration agree: --nproc-per-node, num_processes in accelerate's config, num_gpus in DeepSpeed's hostfile.",
            says_zh="让启动器与配置一致：--nproc-per-node、accelerate 配置里的 num_processes（所有主机的总数）、DeepSpeed hostfile 里的 slots。",
        ),
        Remedy(
            id="higher-port",
            says="Choose a port from 1024 on that is free, the same on all hosts.",
            says_zh="选用 1024 及以上的空闲端口，所有主机相同。",
            command="torchrun --master-port 29500 ...",
            verify="ss -ltn 'sport = :29500'",
        ),
        Remedy(
            id="read-the-environment",
            says="See what is left over in the environment, and unset it.",
            says_zh="查看环境里残留的变量并取消。",
            command="env | grep -E '^(RANK|LOCAL_RANK|WORLD_SIZE|MASTER_|GROUP_|NODE_)'",
        ),
        Remedy(
            id="same-meeting-point",
            says=(
                "Give every host the same --nnodes, --rdzv-id and --rdzv-endpoint, the endpoint being an address of one of them; --standalone and "
                "several hosts exclude each other, and master_addr is not read with c10d."
            ),
            says_zh=(
                "所有主机使用相同的 --nnodes、--rdzv-id 和 --rdzv-endpoint，且 endpoint 必须是其中一台主机自己的地址；--standalone 不能用于多机，使"
                "用 c10d 时 master_addr 不起作用。"
            ),
            command="torchrun --nnodes 2 --nproc-per-node 8 --rdzv-id job7 --rdzv-backend c10d --rdzv-endpoint 10.0.0.1:29500 train.py",
        ),
        Remedy(
            id="same-rendezvous-id",
            says="Give the same --rdzv-id on every host (the job's number will do).",
            says_zh="在每台主机上给出相同的 --rdzv-id（可用作业号）。",
            command="torchrun --rdzv-id $SLURM_JOB_ID --rdzv-backend c10d --rdzv-endpoint 10.0.0.1:29500 ...",
        ),
        Remedy(
            id="fresh-rendezvous-id",
            says="Use a new --rdzv-id for each start, and see that no agent of an earlier one is alive.",
            says_zh="每次启动使用新的 --rdzv-id，并确认没有上一次残留的 agent。",
            command="pgrep -af torchrun; torchrun --rdzv-id job7-$(date +%s) ...   # the same value on all hosts",
        ),
        Remedy(
            id="reach-the-meeting-point",
            says="See from every host what the address resolves to, and whether something listens there while the job starts.",
            says_zh="在每台主机上查看该地址解析到哪里，以及任务启动期间那里是否有进程在监听。",
            command="getent ahosts MASTER_ADDR; nc -vz -w 5 MASTER_ADDR 29500",
        ),
        Remedy(
            id="one-number-each",
            says=(
                "Give each host its own number: --node-rank, machine_rank in accelerate's file, NODE_RANK for LLaMA-Factory; under srun "
                "$SLURM_NODEID."
            ),
            says_zh="每台主机使用各自的编号：--node-rank、accelerate 配置里的 machine_rank、LLaMA-Factory 的 NODE_RANK；srun 下用 $SLURM_NODEID。",
            command="srun --ntasks-per-node=1 bash -c 'torchrun --nnodes $SLURM_NNODES --node-rank $SLURM_NODEID --master-addr MASTER ...'",
        ),
        Remedy(
            id="srun-with-pmi",
            says="Name the PMI that the program was built with, or start it by mpirun.",
            says_zh="指定程序编译时所用的 PMI，或改用 mpirun 启动。",
            command="srun --mpi=list; srun --mpi=pmix ./program",
        ),
    ),
    instead={
        "mpirun": {"let-a-launcher-start-them": "numbers-of-mpirun"},
        "srun": {"let-a-launcher-start-them": "numbers-of-srun"},
    },
    leads_to=("rank-exception",),
    mistaken_for={
        "config-error": "an option that the launcher itself refuses never comes to a rendezvous",
        "dns-resolution": "a name without an address is printed with a gai error",
        "port-in-use": "several processes that are all rank 0 may also collide on the port",
        "network-blocked": "where the meeting point is right but out of reach, clients time out one by one",
    },
    sources=(
        "https://docs.pytorch.org/docs/stable/elastic/run.html",
        "https://docs.pytorch.org/docs/stable/distributed.html#environment-variable-initialization",
    ),
    hits=(
        "The server socket has failed to bind to [::]:443 (errno: 13 - Permission denied).",
        "The server socket has failed to listen on any local network address. port: 80, useIpv6: false, code: -13, name: EACCES, message: denied",
        "PermissionError: [Errno 13] error while attempting to bind on address ('0.0.0.0', 512): permission denied",
        "[node7:00812] OPAL ERROR: Unreachable in file ext3x_client.c at line 112",
        (
            "INFO - Waiting in store based barrier to initialize process group for rank: 0, key: store_based_barrier_key:1 (world_size=4, "
            "worker_count=6, timeout=0:30:00)"
        ),
        "RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/context.cc:23] rank < size. 2 vs 2",
        "ValueError: Error initializing torch.distributed using tcp:// rendezvous: rank parameter missing",
        "ValueError: Please launch distributed training with `llamafactory-cli` or `torchrun`.",
        "RuntimeError: [TensorRT-LLM][ERROR] Assertion failed: mpiSize == tp * pp (/srv/src/tensorrt_llm/runtime/worldConfig.cpp:89)",
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set",
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        '  "message": "RendezvousTimeoutError: ",',
        (
            "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See inner "
            "exception for details."
        ),
        "torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
        "RuntimeError: connect() timed out. Original timeout was 60000 ms.",
        "WARNING:torch.distributed.launcher.api:config has no run_id, generated a random run_id: 1745806504",
        "W1103 10:00:01 1 torch/distributed/run.py:766] master_addr is only used for static rdzv_backend and when rdzv_endpoint is not specified.",
        "Multi-node training enabled: num nodes: 2, node rank: 0",
        "[W socket.cpp:663] [c10d] The client socket has failed to connect to [::ffff:255.255.255.0]:29500 (errno: 110 - Connection timed out).",
        "node7:12:40 [0] bootstrap.cc:330 NCCL WARN Bootstrap Root : rank 3 of 8 ranks has already checked in",
        "node7:12:40 [0] bootstrap.cc:150 NCCL WARN Bootstrap Root : mismatch in rank count from procs 8 : 16",
        (
            "[2026-11-03 10:00:01] node7:12:40 [0] bootstrap.cc:320 NCCL WARN Bootstrap Root : mismatch in info from procs, nranks 8 vs 16, "
            "nroots 1 vs 1"
        ),
        "node7:12:40 [0] init.cc:1691 NCCL WARN Invalid rank requested : 8/8",
        "ValueError: Invalid rank 4, rank should be in the interval [0, 3]",
        "RuntimeError: Mesh should not be bigger than default world size 4, but found 8 ranks!",
        "ValueError: the new group's world size should be less or equal to the world size set by init_process_group",
        (
            "ValueError: You set `num_nodes=4` in Lightning, but the number of nodes configured in SLURM `--nodes=2` does not match. HINT: Set "
            "`--nodes=4`."
        ),
        "torch.distributed.elastic.rendezvous.api.RendezvousStateError: The state of the rendezvous is corrupt.",
        "KeyError: 'MASTER_ADDR'",
        "    rank = int(os.environ['LOCAL_RANK'])\n[rank0]: KeyError: 'LOCAL_RANK'",
        "ValueError: Default process group has not been initialized, please make sure to call init_process_group.",
        'The application appears to have been direct launched using "srun",\nbut OMPI was not built with SLURM\'s PMI support',
    ),
    near_misses=(
        "The server socket has failed to bind to [::]:4430 (errno: 13 - Permission denied).",
        "[node7:00812] OPAL ERROR: Timeout in file base/pmix_base_fns.c at line 195",
        '    raise ValueError("Please launch distributed training with `llamafactory-cli` or `torchrun`.")',
        "INFO Please launch distributed training with torchrun for several GPUs (see the guide)",
        "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cpu//0/0",
        "W1121 01:31:40 set environment variable OMP_NUM_THREADS for each process to be 1 in default",
        "[W socket.cpp:663] [c10d] The client socket has failed to connect to [::ffff:10.0.0.4]:29500 (errno: 110 - Connection timed out).",
        "node7:12:40 [0] NCCL INFO Bootstrap Root : rank 3 of 8 ranks checked in",
        "ValueError: rank must be less than the matrix dimension",
        "KeyError: 'rank'",
        "  File \"/srv/env/lib/python3.11/site-packages/pandas/core/indexes/base.py\", line 3812, in get_loc\nKeyError: 'RANK'",
        "settings: Namespace(retry_on=['RendezvousTimeoutError', 'OSError'], tries=3)",
        "INFO dynamic_rendezvous: The node 'node1_8_0' attempts to join the next round of the rendezvous 'job7'.",
    ),
    explain={
        "en": (
            "The processes of a job learn from their environment who they are (RANK), how many there are (WORLD_SIZE) and where they meet "
            "(MASTER_ADDR, MASTER_PORT). Here these do not agree. Two processes that both believe they are rank 0 of 1 train two separate models, "
            "without any error, and overwrite each other's checkpoints; too large a world waits for ranks that nobody started."
        ),
        "zh": (
            "任务中的每个进程从环境变量得知自己是谁（RANK）、一共有多少（WORLD_SIZE）、在哪里会合（MASTER_ADDR、MASTER_PORT）。这里它们互相矛盾。两"
            "个都以为自己是 1 个进程中 rank 0 的进程，会不报错地各自训练一个模型，并互相覆盖检查点；总数设得太大，则会一直等没有人启动的进程。"
        ),
    },
)
