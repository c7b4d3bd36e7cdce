"""The ids of causes that have no file of their own yet, and what each means: a verdict may name them as possible.

A cause that gets its file is found there; its line here is then read by nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from unhang.knowledge import catalogue

_MEANINGS: Mapping[str, tuple[str, str]] = {
    "shm-exhausted": ("/dev/shm is full or too small, as with a container's default of 64 MiB", "/dev/shm 太小或已满，例如容器默认只有 64 MiB"),
    "shm-stale-or-missing": ("a shared-memory segment went away before its peer attached to it", "共享内存段在对方连接之前就消失了"),
    "shm-permission": ("shared-memory segments may not be created: permissions or mount options", "没有权限创建共享内存段：权限或挂载选项"),
    "cumem-host-numa": (
        "ranks disagree about host-memory handles, because a NUMA node has no memory or no CPU",
        "某个 NUMA 节点没有内存或 CPU，导致各进程对主机内存句柄的判断不一致",
    ),
    "shm-register-failed": ("CUDA refused to register a shared-memory segment that exists", "共享内存段存在，但 CUDA 拒绝注册它"),
    "version-mismatch": ("NCCL, torch or CUDA differ between the ranks", "各进程的 NCCL、torch 或 CUDA 版本不同"),
    "driver-too-old": ("the CUDA driver is too old for this runtime", "CUDA 驱动对当前运行时来说太旧"),
    "driver-reboot-needed": ("the driver was upgraded and the old kernel module still runs", "驱动已升级，但旧的内核模块仍在运行，需要重启"),
    "arch-not-in-build": ("this build holds no kernels for this GPU", "这个版本没有包含适用于该 GPU 的内核"),
    "gpu-newer-than-nccl": ("the GPU is newer than the NCCL release in use", "GPU 比所用的 NCCL 版本更新"),
    "library-link": ("a shared library is missing, lacks a symbol, or is there twice", "动态库缺失、缺少符号，或同时存在两份"),
    "launcher-wrong-env": ("the launcher or Python of another environment was started", "启动的是另一个环境里的启动器或 Python"),
    "env-relocation": ("an environment was moved, and paths inside it still point to the old place", "环境被移动过，内部路径仍指向旧位置"),
    "duplicate-gpu": ("two ranks use the same GPU", "两个进程使用了同一块 GPU"),
    "device-mapping": ("ranks are mapped to GPUs wrongly, or to one that does not exist", "进程与 GPU 的对应关系有误，或指向不存在的 GPU"),
    "gpu-busy-exclusive": ("another process holds the GPU, or it is in exclusive mode", "GPU 被其他进程占用，或处于独占模式"),
    "mig-slices": ("MIG slices are used where whole GPUs are needed", "需要整块 GPU 的地方使用了 MIG 切片"),
    "gpu-oom": ("a GPU ran out of memory", "GPU 显存不足"),
    "gpu-hardware": ("a GPU reports a fault of its own: Xid, ECC, fallen off the bus", "GPU 自身报告故障：Xid、ECC、掉卡"),
    "nic-hardware": ("a network adapter reports a fault of its own", "网卡自身报告硬件故障"),
    "illegal-memory-access": (
        "a CUDA kernel accessed invalid memory, noticed in a later collective",
        "CUDA 内核访问了非法内存，到后面的集合通信才暴露",
    ),
    "interface-selection": ("the communication uses the wrong network interface", "通信使用了错误的网络接口"),
    "network-blocked": (
        "packets between the hosts are refused or dropped: a firewall, a missing route",
        "主机之间的数据包被拒绝或丢弃：防火墙或缺少路由",
    ),
    "network-mtu": ("small messages pass and large ones stall, because MTUs differ on the way", "小消息能通过，大消息卡住：路径上的 MTU 不一致"),
    "dns-resolution": ("a host name resolves to nothing, or to the host's own loopback", "主机名无法解析，或解析到了本机回环地址"),
    "foreign-traffic": ("something that is no rank, such as a port scanner, spoke to a port of the job", "任务的端口收到了外来连接，例如端口扫描"),
    "ssh-launcher": (
        "a host could not be reached by ssh, or the environment did not travel with it",
        "无法通过 ssh 到达某台主机，或环境变量没有带过去",
    ),
    "ib-port-down": ("an InfiniBand or RoCE port is not active", "InfiniBand 或 RoCE 端口未处于 Active 状态"),
    "ib-config": (
        "an InfiniBand or RoCE setting does not fit: GID, adapter, PKey, locked memory",
        "InfiniBand 或 RoCE 配置不合适：GID、网卡、PKey、锁定内存",
    ),
    "ib-transport-retry": (
        "an InfiniBand transfer was given up after its retries: link or fabric",
        "InfiniBand 传输重试多次后放弃：链路或交换网络的问题",
    ),
    "gdr-peer-memory": ("GPUDirect RDMA cannot register GPU memory", "GPUDirect RDMA 无法注册显存"),
    "p2p-broken": ("direct copies between GPUs hang or damage data", "GPU 之间的直接拷贝会卡住或损坏数据"),
    "nvlink-nvswitch-fabric": ("NVLink, NVSwitch or the service that manages them does not work", "NVLink、NVSwitch 或其管理服务不正常"),
    "topology-file": ("a topology file that was given does not fit the machine", "指定的拓扑文件与机器不符"),
    "container-capability": ("the container lacks a capability, a device or a mount", "容器缺少某项权限、设备或挂载"),
    "wsl-limits": ("this is not supported under WSL2", "WSL2 不支持这项功能"),
    "limits": ("a limit of the system was reached: open files, locked memory, processes", "达到了系统限制：打开文件数、锁定内存、进程数"),
    "filesystem-shared": ("a path is missing on a node, differs between nodes, or is stale", "某个节点上路径缺失、内容不同，或挂载已失效"),
    "disk-full": ("the disk that takes checkpoints, logs or caches is full", "存放检查点、日志或缓存的磁盘已满"),
    "clock-skew": ("the clocks of the hosts differ too far", "各主机的时钟相差太大"),
    "wrong-backend-for-tensor": ("a tensor lies on a device that the backend does not serve", "张量所在的设备不受当前通信后端支持"),
    "gloo-connect": ("Gloo's ranks cannot connect to each other, and nothing more exact is known", "Gloo 各进程之间无法建立连接，且没有更具体的原因"),
    "config-error": ("an option of the launcher or the framework is wrong", "启动器或框架的某个选项有误"),
    "ineffective-setting": ("a setting is read by nothing that is installed here, or was renamed", "某个设置在这里没有任何程序读取，或已改名"),
    "nccl-bug": ("a known bug of NCCL, mended in a later version", "NCCL 的已知缺陷，升级后可解决"),
    "unknown": ("nothing that was recognised names the cause", "没有认出能说明原因的线索"),
}


def without_page() -> Mapping[str, tuple[str, str]]:
    """Ids without a file, with what they mean in English and in Chinese."""
    return MappingProxyType({id: said for id, said in _MEANINGS.items() if id not in catalogue.load()})


def meaning(name: str) -> tuple[str, str, str] | None:
    """(id, English, Chinese) of an id that has no file; None for any other name."""
    id = name.strip().lower().replace("_", "-")
    said = without_page().get(id)
    return None if said is None else (id, *said)
