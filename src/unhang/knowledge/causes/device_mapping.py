"""device-mapping: a rank asks for a GPU that it does not have, or works on another one than its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Cause, Command, LogView, Signature, command
from unhang.knowledge.text import Text
from unhang.model import Evidence, Finding, HostFinding, Remedy, Severity

if TYPE_CHECKING:
    from unhang.facts.gpu import Gpus
    from unhang.facts.snapshot import Snapshot
    from unhang.logs import Hit

_AGAIN: Mapping[str, Command | None] = MappingProxyType(
    {
        "podman": command("podman restart CONTAINER"),
        "kubernetes": command("kubectl delete pod POD"),
        "apptainer": command("apptainer exec --nv IMAGE nvidia-smi -L"),
    }
)

# A rank above 0 on local device 0, with rank 0 on the same host: its process sees one GPU, so NCCL cannot know that the pair has no peer access.
PEERS_HIDDEN = r"\[0\] NCCL INFO Channel \d+(?:/\d+)? : [1-9]\d*\[[0-9a-f]+\] -> 0\[[0-9a-f]+\] via P2P"

_MIG = r"\bMIG-[0-9A-Za-z]|MIG \d+g\.\d+gb|MIG-\d+g\.\d+gb|\bMIG (?:M\.|device)"


# A log that ends so soon behind a line of somebody who still asks Ray for more: nothing more came, as it seems.
_LAST_LINES = 2
# A barrier over NCCL is an all-reduce of one element, and here one of the first collectives.
_FIRST_COLLECTIVES = 3
# What the others raise when a collective does not end.
_CONSEQUENCES = frozenset(("DistBackendError", "DistNetworkError", "DistStoreError", "ChildFailedError", "SignalException"))


def _in_logs(view: LogView) -> Finding | None:
    hits = view.hits_of(CAUSE.id)
    real = [h for h in hits if "guessed" not in h.groups]
    if real:
        gpus = _gpus(real, view)
        start = command("nvidia-smi -L; torchrun --standalone --nproc-per-node {gpus:number} train.py", gpus=gpus)
        last = max(real, key=lambda h: h.place)
        ended = all(h.signature.standing == "possible" for h in real) and view.lines.get(last.source, 0) - (last.line or 0) <= _LAST_LINES
        return CAUSE.of_hits(real, view, standing="likely" if ended else None, commands={"fewer-ranks": start} if gpus else None)
    return CAUSE.of_hits(hits, view) if hits and _hung_at_a_barrier(view) else None


def _gpus(hits: Sequence[Hit], view: LogView) -> int | None:
    """How many GPUs a host has, where lines tell: by number, or because the ranks from that one on all asked for one that is not there."""
    told = next((count for h in hits if (count := h.groups.get("count", "")).isdigit() and "wanted" in h.groups), None)
    if told is not None:
        return int(told) or None
    beyond = {h.rank for h in hits if h.rank is not None and "ordinal" in h.text}
    first = min(beyond, default=0)
    one_host = len({h.host for h in hits if h.host is not None}) < 2
    return first if first and one_host and view.world_size is not None and beyond == set(range(first, view.world_size)) else None


def _hung_at_a_barrier(view: LogView) -> bool:
    """Several ranks hang in one and the same early barrier, or in the start of its communicator, and nothing else is in evidence.

    Healthy jobs print torch's guess too, and a lone watchdog tells that somebody else is missing.
    """
    if any(h.signature.role == "root" for cause, hits in view.hits.items() if cause != CAUSE.id for h in hits):
        return False
    if any(t.type.rpartition(".")[2] not in _CONSEQUENCES for t in view.tracebacks):
        return False
    if view.timeouts:
        calls = {(t.group, t.seq, t.op, t.numel_in) for t in view.timeouts}
        barriers = all(
            t.seq is not None and t.seq <= _FIRST_COLLECTIVES and (t.op == "BARRIER" or (t.op == "ALLREDUCE" and t.numel_in == 1))
            for t in view.timeouts
        )
        return barriers and len(calls) == 1 and len({t.at.rank for t in view.timeouts}) > 1
    return len({i.rank for i in view.nccl.inits if not i.completed}) > 1


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import container, gpu

    seen = host.get(gpu.SUBJECT)
    if seen is None:
        return
    yield from _visible(seen)
    kind = container.kind(host)
    confined = kind not in ("bare", "slurm", "systemd", "wsl")
    around = host.get(container.SUBJECT)
    closed = [d.path for d in around.devices if d.path.startswith("/dev/nvidia") and not d.usable] if around is not None else []
    # In a container those are the container's own affair (container-capability).
    closed = [path for path in closed if not confined and re.fullmatch(r"/dev/nvidia(?:ctl|-uvm|\d+)", path)]
    if closed:
        yield CAUSE.host_finding(
            area="gpu",
            severity="error",
            says=Text("{paths} may not be opened by this user", "当前用户无权打开 {paths}").fill(paths=", ".join(closed[:4])),
            leads_to=Text("CUDA finds no GPU, or does not start", "CUDA 找不到 GPU，或无法启动"),
            evidence=(Evidence(source="/dev", text=f"no right to read and write {', '.join(closed[:4])}"),),
            remedies=("device-files",),
        )
    # The device control group refuses what the file's own rights allow.
    if confined and seen.driver and seen.nvml_error in ("Unknown Error", "Insufficient Permissions"):
        yield CAUSE.host_finding(
            area="gpu",
            severity="error",
            says=Text(f"the container has lost its GPUs: NVML says {seen.nvml_error}", f"容器已经失去 GPU：NVML 报告 {seen.nvml_error}"),
            leads_to=Text("CUDA does not start in new processes; those that run go on", "新进程里 CUDA 无法启动；已在运行的不受影响"),
            evidence=(Evidence(source="NVML", text=seen.nvml_error),),
            remedies=("start-the-container-again",),
            commands={"start-the-container-again": _AGAIN[kind]} if kind in _AGAIN else None,
        )


def _visible(seen: Gpus) -> Iterable[HostFinding]:
    """CUDA takes the GPUs of CUDA_VISIBLE_DEVICES up to the first that does not exist."""
    if seen.visible is None or seen.nvml_error is not None or not seen.gpus:
        return
    number = len(seen.gpus)

    def found(says: Text, leads_to: Text, severity: Severity) -> HostFinding:
        return CAUSE.host_finding(
            area="gpu",
            severity=severity,
            says=Text(f"CUDA_VISIBLE_DEVICES={seen.visible}: ", f"CUDA_VISIBLE_DEVICES={seen.visible}：") + says,
            leads_to=leads_to,
            evidence=(Evidence(source="environment", text=f"CUDA_VISIBLE_DEVICES={seen.visible}"),),
            remedies=("visible-before-start",) if severity != "note" else ("numbers-not-uuids",),
            commands={"visible-before-start": command("unset CUDA_VISIBLE_DEVICES")},
        )

    named = [n.strip() for n in seen.visible.split(",") if n.strip()]
    if not named or named[0] in ("-1", "NoDevFiles"):
        hides = Text(f"it hides all {number} GPUs", f"它隐藏了全部 {number} 块 GPU")
        yield found(hides, Text("a training started from here sees no GPU", "从这里启动的训练看不到任何 GPU"), "warning")
        return
    if any(n.startswith("MIG-") for n in named) or any(g.mig for g in seen.gpus):
        return
    uuids = [g.uuid for g in seen.gpus]
    for place, name in enumerate(named):
        by_uuid = name.startswith("GPU-")
        if by_uuid and None in uuids:
            return
        if (by_uuid and not any((u or "").startswith(name) for u in uuids)) or (name.isdecimal() and int(name) >= number) or name.startswith("-"):
            says = Text(
                f"there is no GPU {name} among the {number} here; CUDA shows the {place} before it",
                f"本机 {number} 块 GPU 中没有 {name}；CUDA 只显示它之前的 {place} 块",
            )
            leads_to = Text("ranks that take a later one fail with 'invalid device ordinal'", "使用其后各块的 rank 会报 'invalid device ordinal'")
            yield found(says, leads_to, "error")
            return
    if named[0].startswith("GPU-"):
        named_so = Text("GPUs are named by UUID", "用 UUID 指定 GPU")
        yield found(named_so, Text("frameworks that expect numbers there stop with a ValueError", "要求写编号的框架会以 ValueError 停止"), "note")


CAUSE = Cause(
    id="device-mapping",
    role="root",
    title="A rank has the wrong GPU",
    title_zh="进程与 GPU 的对应关系有误",
    what=(
        "The mapping from ranks to GPUs is wrong: a rank addresses a GPU that is not visible to it, or its tensors and its model are on "
        "different GPUs."
    ),
    why=(
        "More ranks than visible GPUs, torch.cuda.set_device missing or called too late, CUDA_VISIBLE_DEVICES changed after CUDA had started, or "
        "a launcher that shows each worker one GPU only."
    ),
    signatures=(
        # NCCL opening a peer's memory: the peer's GPU is hidden from this process.
        Signature(
            needle="'invalid device ordinal'",
            pattern=r"NCCL WARN (?:Cuda|HIP) failure (?:\d+ )?'invalid device ordinal'",
            unless=_MIG,
            standing="likely",
            says="NCCL addresses the GPU of another rank and this process cannot see it: each worker was shown its own GPU only",
            says_zh="NCCL 要访问另一个 rank 的 GPU，而该进程看不到它：每个 worker 只能看到自己的 GPU",
            remedies=("see-all-gpus", "set-the-device"),
        ),
        Signature(
            needle="invalid device ordinal",
            pattern=r"^(?!.{0,400}NCCL WARN).{0,400}?invalid device ordinal",
            unless=_MIG,
            says="a rank asked for a GPU number that is not among the visible ones",
            says_zh="某个 rank 请求的 GPU 编号不在可见的 GPU 之中",
            remedies=("fewer-ranks", "set-the-device"),
        ),
        Signature(
            needle="but torch.cuda.device_count() is",
            pattern=r"on CUDA device (?P<device>\d+) but torch\.cuda\.device_count\(\) is (?P<count>\d+)",
            says="a checkpoint was saved on cuda:{device} and this process sees {count} GPUs",
            says_zh="检查点是在 cuda:{device} 上保存的，而该进程看到 {count} 块 GPU",
            remedies=("map-location",),
        ),
        Signature(
            needle="But your machine only has:",
            pattern=r"But your machine only has: (?P<has>\[.{0,80}?\])",
            says="more GPUs were asked for than this machine has ({has})",
            says_zh="请求的 GPU 多于本机所有（{has}）",
            remedies=("fewer-ranks",),
        ),
        Signature(
            needle="number of available GPUs",
            pattern=r"\((?P<wanted>\d+)\) (?:cannot be|is) larger than the number of available GPUs \((?P<count>\d+)\)",
            says="{wanted} ranks were asked for and {count} GPUs are visible",
            says_zh="请求了 {wanted} 个 rank，而可见的 GPU 有 {count} 块",
            remedies=("fewer-ranks",),
        ),
        # Ray deals the GPUs out (verl, NeMo-RL, vLLM). That one node has fewer than the engine wants is usual, and no error.
        *(
            Signature(
                needle=needle,
                pattern=rf"(?P<said>{pattern})",
                standing="possible" if pattern.startswith("Not enough ") else "likely" if "may" in pattern else "established",
                says="more was asked for than the Ray cluster has: {said}",
                says_zh="请求的资源多于 Ray 集群所有：{said}",
                remedies=("gpus-of-ray", "fit-the-cluster"),
            )
            for needle, pattern in (
                ("is less than total desired GPUs", r"Total available GPUs [\d.]+ is less than total desired GPUs [\d.]*\d"),
                ("cannot be satisfied in this ray cluster", r"Resource pool .{1,200}?cannot be satisfied in this ray cluster"),
                (" are available in the cluster", r"Not enough [GC]PUs available\. Requested \d+ .{1,40} are available in the cluster"),
                ("Cluster resources may be insufficient", r"Maximum number of retries reached \(\d+\)\. Cluster resources may be insufficient"),
                ("waiting for placement groups to be ready", r"Timed out waiting for placement groups to be ready\. The cluster may not have"),
            )
        ),
        Signature(
            needle="required GPUs exceeds the total number of available GPUs in the placement group",
            pattern=r"Error: .{0,40}required GPUs exceeds the total number of available GPUs in the placement group",
            says="the engine wants more GPUs than Ray has for it",
            says_zh="引擎要的 GPU 多于 Ray 能给它的",
            remedies=("gpus-of-ray", "fewer-ranks"),
        ),
        Signature(
            needle="Cannot provide a placement group ",
            pattern=r"Cannot provide a placement group (?:of|requiring) .{0,4000}? within (?P<seconds>\d+) seconds",
            says="Ray had not the GPUs that the engine asked for within {seconds} s: too few are there, or others hold them",
            says_zh="{seconds} s 内 Ray 没有凑齐引擎请求的 GPU：数量太少，或被别人占着",
            remedies=("gpus-of-ray", "fewer-ranks"),
        ),
        # Said after 10, 30, 70, 150 ... seconds: a busy cluster may still find them.
        Signature(
            needle="Waiting for creating a placement group of specs for ",
            pattern=r"placement group of specs for (?P<seconds>\d{3,}) seconds",
            standing="possible",
            says="the engine has waited {seconds} s for GPUs of Ray: too few are there, others hold them, or a node is known by another address",
            says_zh="引擎等待 Ray 的 GPU 已有 {seconds} s：数量太少，或被别人占着，或某个节点登记的是另一个地址",
            remedies=("gpus-of-ray", "fewer-ranks"),
        ),
        Signature(
            needle="does not allocate any GPUs on the driver node",
            says="Ray gave the engine no GPU of the host on which it was started",
            says_zh="Ray 没有把引擎启动所在主机的 GPU 分给引擎",
            remedies=("gpus-of-ray",),
        ),
        Signature(
            needle="Current node has no GPU available",
            pattern=r"Error: Current node has no GPU available",
            says="Ray knows of no GPU on the host on which the engine was started",
            says_zh="据 Ray 所知，引擎启动所在的主机上没有 GPU",
            remedies=("gpus-of-ray",),
        ),
        Signature(
            needle="device_ids and output_device arguments only work",
            pattern=r"got device_ids \[(?P<device>\d+)\]",
            says="the model that is wrapped in DistributedDataParallel is not on cuda:{device}, the GPU of this rank",
            says_zh="用 DistributedDataParallel 包装的模型不在 cuda:{device}（该 rank 的 GPU）上",
            remedies=("set-the-device",),
        ),
        Signature(
            needle="(device_ids[0]) but found one of them on device",
            pattern=r"on device (?P<wanted>cuda:\d+) \(device_ids\[0\]\) but found one of them on device: (?P<found>\w+(?::\d+)?)",
            says="the model has to be on {wanted} and parts of it are on {found}",
            says_zh="模型必须在 {wanted} 上，而它有一部分在 {found} 上",
            remedies=("set-the-device",),
        ),
        Signature(
            needle="Inconsistent compute device and `device_id`",
            pattern=r"on rank (?P<number>\d+): (?P<found>\S{1,20}) vs (?P<wanted>\S{1,20})",
            says="FSDP on rank {number} was given {wanted} and the model is on {found}",
            says_zh="rank {number} 上为 FSDP 指定了 {wanted}，而模型在 {found} 上",
            remedies=("set-the-device",),
        ),
        Signature(
            needle="tensor not on device passed to init_process_group",
            says="a collective was called on a tensor of another GPU than the one that init_process_group was given",
            says_zh="某次集合通信的张量不在传给 init_process_group 的那块 GPU 上，而在另一块上",
            remedies=("set-the-device",),
        ),
        Signature(
            needle="on a different device than the one you're training on",
            says="the quantised model was loaded onto another GPU than the one of this rank",
            says_zh="量化模型没有加载到该 rank 的 GPU 上，而是加载到了另一块",
            remedies=("load-on-own-gpu",),
        ),
        Signature(
            needle="found at least two devices, cuda:",
            pattern=r"at least two devices, (?P<first>cuda:\d+) and (?P<second>cuda:\d+)",
            standing="likely",
            says="one operation got tensors from {first} and {second}: a rank works on two GPUs",
            says_zh="同一次操作的张量来自 {first} 和 {second}：某个 rank 在两块 GPU 上工作",
            remedies=("set-the-device", "load-on-own-gpu"),
        ),
        Signature(
            needle="invalid literal for int() with base 10: 'GPU-",
            says="a framework expects numbers in CUDA_VISIBLE_DEVICES and found the UUID of a GPU",
            says_zh="某个框架要求 CUDA_VISIBLE_DEVICES 中写编号，读到的却是 GPU 的 UUID",
            remedies=("numbers-not-uuids",),
        ),
        # NVML counted GPUs before CUDA_VISIBLE_DEVICES was changed, or with another value of it than CUDA uses.
        Signature(
            needle="device < num_gpus INTERNAL ASSERT FAILED",
            unless=_MIG,
            standing="likely",
            says="torch counted the visible GPUs differently before and after CUDA started: CUDA_VISIBLE_DEVICES was changed inside the process",
            says_zh="torch 在 CUDA 启动前后数出的可见 GPU 数不同：CUDA_VISIBLE_DEVICES 在进程内被修改过",
            remedies=("visible-before-start",),
        ),
        Signature(
            needle="failed to open CUDA IPC handle",
            pattern=r"\[0\] .{0,60}NCCL WARN failed to open CUDA IPC handle : (?P<errno>\d+)",
            near=PEERS_HIDDEN,
            standing="likely",
            says="every worker sees its own GPU only, so NCCL chose peer-to-peer for a pair of GPUs that cannot do it",
            says_zh="每个 worker 只能看到自己的 GPU，因此 NCCL 为一对做不到 P2P 的 GPU 选用了 P2P",
            remedies=("see-all-gpus",),
        ),
        Signature(
            needle="devices used by this process are currently unknown",
            pattern=r"\[?Rank (?P<number>\d+)\]? .{0,20}using (?:best-guess )?GPU (?P<guessed>\d+) ",
            standing="possible",
            says="rank {number} has not said which GPU is its own, and torch guesses {guessed}; a wrong guess hangs the first collective",
            says_zh="rank {number} 没有说明哪块 GPU 是自己的，torch 猜测是 {guessed}；猜错会使第一次集合通信卡住",
            remedies=("set-the-device",),
        ),
        Signature(
            needle="No CUDA GPUs are available",
            pattern="Error: No CUDA GPUs are available",
            unless=r"too old|Error 80\d|NVML|libcuda\.so|Found no NVIDIA driver|Xid|CUDA-capable device is detected",
            standing="likely",
            says="a process sees no GPU at all: CUDA_VISIBLE_DEVICES is empty or names none that exists here, or its worker was given none",
            says_zh="某个进程看不到任何 GPU：CUDA_VISIBLE_DEVICES 为空，或所列的在本机都不存在，或者它所在的 worker 没有分到 GPU",
            remedies=(
                "see-all-gpus",
                "visible-before-start",
                "fewer-ranks",
            ),
        ),
    ),
    in_logs=_in_logs,
    on_host=_on_host,
    remedies=(
        Remedy(
            id="fewer-ranks",
            says="Start no more ranks per host than GPUs are visible there (--nproc-per-node, --num_processes, tensor_parallel_size).",
            says_zh="每台主机启动的进程数不要超过可见的 GPU 数（--nproc-per-node、--num_processes、tensor_parallel_size）。",
            command='echo "visible: ${CUDA_VISIBLE_DEVICES:-all}"; nvidia-smi -L; torchrun --standalone --nproc-per-node gpu train.py',
            verify="python -c 'import torch; print(torch.cuda.device_count())'",
        ),
        Remedy(
            id="set-the-device",
            says=(
                "Number GPUs by the local rank, never by the global one, and before anything touches CUDA: local = "
                "int(os.environ['LOCAL_RANK']); torch.cuda.set_device(local); init_process_group('nccl', device_id=torch.device('cuda', local))."
            ),
            says_zh=(
                "用本地 rank（而不是全局 rank）编号 GPU，并且在使用 CUDA 之前完成：local = int(os.environ['LOCAL_RANK'])；"
                "torch.cuda.set_device(local)；init_process_group('nccl', device_id=torch.device('cuda', local))。"
            ),
            command="grep -rnE \"set_device|cuda:[0-9]|local_rank|get_rank\\(\\)\" --include='*.py' .",
            verify="NCCL_DEBUG=INFO torchrun ARGS train.py 2>&1 | grep -o 'rank [0-9]* nranks [0-9]* cudaDev [0-9]* nvmlDev [0-9]*' | sort -u",
        ),
        Remedy(
            id="see-all-gpus",
            says=(
                "Let every worker of a host see all its GPUs and choose one with set_device; NCCL then knows which pairs have peer access. Under "
                "Slurm use --gpus-per-node or --gpu-bind=none instead of --gpus-per-task."
            ),
            says_zh=(
                "让同一主机上的每个进程都能看到全部 GPU，再用 set_device 选择其一，这样 NCCL 才知道哪些 GPU 之间可以直接互访。Slurm 下用 "
                "--gpus-per-node 或 --gpu-bind=none 代替 --gpus-per-task。"
            ),
            command="srun --label --gpu-bind=none bash -c 'echo $SLURM_PROCID $CUDA_VISIBLE_DEVICES; nvidia-smi -L | wc -l'",
        ),
        Remedy(
            id="map-location",
            says="Load checkpoints onto the CPU or the rank's own GPU: torch.load(path, map_location='cpu').",
            says_zh="把检查点加载到 CPU 或本进程自己的 GPU：torch.load(path, map_location='cpu')。",
            command="grep -rn 'torch.load(' --include='*.py' . | grep -v map_location",
        ),
        Remedy(
            id="load-on-own-gpu",
            says=(
                "Load the model onto the rank's own GPU: device_map={'': int(os.environ['LOCAL_RANK'])}; device_map='auto' spreads it over all GPUs."
            ),
            says_zh="把模型加载到本进程自己的 GPU：device_map={'': int(os.environ['LOCAL_RANK'])}；device_map='auto' 会把它分散到所有 GPU。",
            command="grep -rn 'device_map' --include='*.py' --include='*.yaml' .",
        ),
        Remedy(
            id="visible-before-start",
            says="Set CUDA_VISIBLE_DEVICES in the shell that starts Python, never after torch is imported.",
            says_zh="在启动 Python 的 shell 中设置 CUDA_VISIBLE_DEVICES，不要在导入 torch 之后修改。",
            command="grep -rn \"CUDA_VISIBLE_DEVICES\" --include='*.py' .",
            verify="python -c 'import os, torch; print(os.environ.get(\"CUDA_VISIBLE_DEVICES\"), torch.cuda.device_count())'",
        ),
        Remedy(
            id="fit-the-cluster",
            says="Ask for what it has: trainer.nnodes and n_gpus_per_node in verl, cluster.num_nodes and gpus_per_node in NeMo-RL.",
            says_zh="按集群实有数量请求：verl 用 trainer.nnodes 和 n_gpus_per_node，NeMo-RL 用 cluster.num_nodes 和 gpus_per_node。",
        ),
        Remedy(
            id="gpus-of-ray",
            says=(
                "See what Ray has to give: every host has joined, each with its GPUs, no earlier job holds them, and the address of a host is the "
                "one that VLLM_HOST_IP names there."
            ),
            says_zh=("查看 Ray 手中的资源：每台主机都已加入并带有 GPU，没有之前的作业占着它们，并且主机的地址与该主机上 VLLM_HOST_IP 的值一致。"),
            command="ray status; ray list nodes; ray list placement-groups --filter state=CREATED",
        ),
        Remedy(
            id="numbers-not-uuids",
            says="Use GPU numbers instead of UUIDs in CUDA_VISIBLE_DEVICES.",
            says_zh="CUDA_VISIBLE_DEVICES 中使用 GPU 编号而不是 UUID。",
            command="nvidia-smi --query-gpu=index,uuid --format=csv",
        ),
        Remedy(
            id="device-files",
            says="See who may open the device files, and join that group or let the driver make them for all (NVreg_DeviceFileMode=0666).",
            says_zh="查看设备文件的访问权限，加入相应的用户组，或让驱动为所有用户创建设备文件（NVreg_DeviceFileMode=0666）。",
            command="ls -l /dev/nvidia*; id; grep -rn NVreg_DeviceFile /etc/modprobe.d",
            verify="nvidia-smi -L",
        ),
        Remedy(
            id="start-the-container-again",
            says="Start the container again: a reload of systemd on the host takes the GPUs from containers that run.",
            says_zh="重新启动容器：宿主机上 systemd 重新加载时，会使正在运行的容器失去 GPU。",
            command="docker restart CONTAINER; docker exec CONTAINER nvidia-smi -L",
            verify="nvidia-smi -L",
        ),
    ),
    leads_to=("duplicate-gpu", "rank-exception", "backend-unavailable"),
    mistaken_for={
        "duplicate-gpu": "there each GPU exists and two ranks took the same one",
        "mig-slices": "a process sees one slice of a partitioned GPU, whatever CUDA_VISIBLE_DEVICES lists",
        "p2p-broken": "there the mapping is right and peer access between two GPUs does not work",
        "collective-timeout": "the timeout is what the other ranks print",
        "config-error": "an option of the launcher that asks for more ranks than GPUs is seen from here as a wrong mapping",
        "gpu-hardware": "a GPU that fell off the bus is missing from nvidia-smi, too",
    },
    sources=(
        "https://docs.pytorch.org/docs/stable/generated/torch.cuda.set_device.html",
        "https://docs.pytorch.org/docs/stable/elastic/run.html",
        "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables",
        "https://slurm.schedmd.com/gres.html",
    ),
    hits=(
        "node7:5120:5341 [1] transport/p2p.cc:275 NCCL WARN Cuda failure 101 'invalid device ordinal'",
        "(TaskRunner pid=4711) ValueError: Total available GPUs 6.0 is less than total desired GPUs 8",
        "ValueError: Resource pool global_pool: 8*1cannot be satisfied in this ray cluster",
        "Not enough CPUs available. Requested 64 CPUs, but only 32 are available in the cluster.",
        "ResourceInsufficientError: Maximum number of retries reached (6). Cluster resources may be insufficient or cluster itself is unstable.",
        "TimeoutError: Timed out waiting for placement groups to be ready. The cluster may not have enough resources to satisfy the request",
        "(EngineCore_DP0 pid=812) ValueError: The number of required GPUs exceeds the total number of available GPUs in the placement group.",
        (
            "ValueError: Cannot provide a placement group of placement_group_specs=[{'node:10.0.0.7': 0.001, 'GPU': 1.0}, {'GPU': 1.0}] within 1800 "
            "seconds. See `ray status` to make sure the cluster has enough resources."
        ),
        "ValueError: Cannot provide a placement group requiring 4.0 GPUs (placement_group_specs=[{'GPU': 4.0}]) within 1800 seconds.",
        (
            "(EngineCore_DP0 pid=812) INFO 11-03 10:05:10 [ray_utils.py:231] Waiting for creating a placement group of specs for 310 seconds. "
            "specs=[{'node:10.0.0.7': 0.001, 'GPU': 1.0}, {'GPU': 1.0}]. Check `ray status` and `ray list nodes` to see if you have enough resources"
        ),
        "ValueError: Ray does not allocate any GPUs on the driver node. Consider adjusting the Ray placement group or its bundles.",
        "ValueError: Current node has no GPU available. current_node_resource={'CPU': 32.0, 'node:10.0.0.7': 1.0}.",
        "node7:5120:5341 [1] transport/p2p.cc:136 NCCL WARN Cuda failure 'invalid device ordinal'",
        "[rank6]: RuntimeError: CUDA error: invalid device ordinal",
        "torch.AcceleratorError: CUDA error: invalid device ordinal",
        "THCudaCheck FAIL file=torch/csrc/cuda/Module.cpp line=34 error=10 : invalid device ordinal",
        "RuntimeErrorRuntimeError: : CUDA error: invalid device ordinal",
        "(RayWorkerWrapper pid=812) RuntimeError: HIP error: invalid device ordinal",
        "RuntimeError: Attempting to deserialize object on CUDA device 3 but torch.cuda.device_count() is 1. Please use torch.load with map_location",
        "lightning.fabric.utilities.exceptions.MisconfigurationException: You requested gpu: [0, 1, 2, 3]\n But your machine only has: [0, 1]",
        "ValueError: World size (8) is larger than the number of available GPUs (4) in this node. If this is intentional",
        "ValueError: tensor_parallel_size (4) cannot be larger than the number of available GPUs (2)",
        (
            "ValueError: DistributedDataParallel device_ids and output_device arguments only work with single-device/multiple-device GPU modules "
            "or CPU modules, but got device_ids [1], output_device 1, and module parameters {device(type='cuda', index=0)}."
        ),
        "RuntimeError: module must have its parameters and buffers on device cuda:0 (device_ids[0]) but found one of them on device: cuda:1",
        "[rank1]: ValueError: Inconsistent compute device and `device_id` on rank 1: cuda:0 vs cuda:1",
        "RuntimeError: Attempt to perform collective on tensor not on device passed to init_process_group",
        "ValueError: You can't train a model that has been loaded in 8-bit precision on a different device than the one you're training on.",
        "[rank1]: RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:1 and cuda:0!",
        "ValueError: invalid literal for int() with base 10: 'GPU-9a1f0c33-2b6d-4c55-a0c2-77d1b7f2e310'",
        (
            'RuntimeError: device >= 0 && device < num_gpus INTERNAL ASSERT FAILED at "/pytorch/aten/src/ATen/cuda/CUDAContext.cpp":52, please '
            "report a bug to PyTorch."
        ),
        (
            "node7:5120:5341 [0] NCCL INFO Channel 00 : 3[b0] -> 0[80] via P2P/IPC\nnode7:5120:5341 [0] transport/p2p.cc:238 NCCL WARN failed to "
            "open CUDA IPC handle : 217 peer access is not supported between these two devices"
        ),
        (
            "[rank3]:[W1103 10:00:01.213483298 ProcessGroupNCCL.cpp:4561] [PG ID 0 PG GUID 0 Rank 3]  using GPU 0 to perform barrier as devices "
            "used by this process are currently unknown. This can potentially cause a hang"
        ),
        "[W ProcessGroupNCCL.cpp:1569] Rank 2 using best-guess GPU 2 to perform barrier as devices used by this process are currently unknown.",
        ("[rank2]: RuntimeError: No CUDA GPUs are available"),
    ),
    near_misses=(
        "(EngineCore_DP0 pid=812) WARNING 11-03 10:00:01 [ray_utils.py:352] Tensor parallel size (16) exceeds available GPUs (8).",
        "INFO 11-03 10:00:11 [ray_utils.py:231] Waiting for creating a placement group of specs for 10 seconds. specs=[{'GPU': 1.0}]",
        "WARNING 11-03 10:00:01 ray_utils.py:320] The number of required GPUs exceeds the total number of available GPUs in the placement group.",
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cpu and cuda:0!",
        "CUDA_VISIBLE_DEVICES=MIG-3f2a9c10-55ff-5c1d-9d1e-0a1b2c3d4e5f\nRuntimeError: CUDA error: invalid device ordinal",
        "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False.",
        "node7:5120:5120 [1] NCCL INFO comm 0x5581 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 4f000 commId 0x9f - Init START",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        ("UserWarning: No CUDA GPUs are available, falling back to CPU"),
        ("The NVIDIA driver on your system is too old (found version 11040)\nRuntimeError: No CUDA GPUs are available"),
    ),
    explain={
        "en": (
            "Each rank should use one GPU of its host, the one whose number is its local rank among the visible ones. Here a rank asked for a "
            "number that does not exist for it, or its model, its data and its communicator are on different GPUs. Count first: the ranks "
            "started on the host against what torch.cuda.device_count() says there; CUDA_VISIBLE_DEVICES renumbers the GPUs from 0. Then look "
            "for the global rank used as a GPU number, which works on the first host only. torch's warning that the devices are currently "
            "unknown is harmless where the guess is right; passing device_id to init_process_group removes it."
        ),
        "zh": (
            "每个进程应使用本机的一块 GPU，其编号等于本地 rank（在可见 GPU 中从 0 数起）。这里某个进程请求了一个对它来说不存在的编号，或者它的模"
            "型、数据与通信组不在同一块 GPU 上。先数一数：该主机启动了几个进程，torch.cuda.device_count() 又是多少；CUDA_VISIBLE_DEVICES 会让编号"
            "重新从 0 开始。再检查是否把全局 rank 当成了 GPU 编号，这种写法只在第一台主机上能用。torch 关于设备未知的警告，在猜对时并无妨碍；把 "
            "device_id 传给 init_process_group 即可消除。"
        ),
    },
)
