"""Settings of NCCL and Gloo: what the ranks talk over.

NCCL reads its switches as numbers (`true` is 0), and a list of interfaces or adapters as prefixes, where `=` in front makes names of them.
"""

from __future__ import annotations

from collections.abc import Callable

from unhang.settings import support, values
from unhang.settings.setting import Installed, Setting, Spelled, Value
from unhang.text import Text
from unhang.variables.known import entries
from unhang.variables.value_parsers import wrong_for_tuning

# Read by the hook in the training's processes, see attach/protocol.
BACKEND = "UNHANG_BACKEND"
HOOK = "unhang's hook"
# Of `interface`: none is named, whatever the environment says.
AUTO = "auto"


def _to_nccl(variable: str, worded: Callable[[Value], str]) -> Callable[[Value, Installed, str], Spelled | Text]:
    def spell(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
        if not support.reads(installed, "nccl", variable):
            return support.refusal(installed, "nccl", variable)
        return Spelled(env={variable: worded(value)}, read_by=support.said(installed, "nccl"))

    return spell


def _disabling(value: Value) -> str:
    return "0" if value else "1"


def _enabling(value: Value) -> str:
    return "1" if value else "0"


def _where_available(value: Value) -> str:
    # 1 fails where it is not supported, 2 goes on without it.
    return "2" if value else "0"


def _exact(value: Value) -> str:
    # Without = NCCL takes what it is given for the beginning of names: mlx5_1 would be mlx5_10 as well, and ^mlx5_1 without it.
    name = str(value)
    return f"^={name.removeprefix('^').removeprefix('=')}" if name.startswith("^") else f"={name}"


def _backend(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
    if installed.torch is None:
        return support.no_torch(installed)
    if value == "nccl" and installed.nccl is None:
        return support.NO_NCCL
    if value == "nccl" and not installed.gpus:
        return support.NO_GPU
    if value == "nccl":
        return Text(
            "only gloo is put in place of what the script asks for; for NCCL leave backend out",
            "只有 gloo 会取代脚本所要的后端；要用 NCCL，不设 backend 即可",
        )
    return Spelled(env={BACKEND: str(value)}, read_by=HOOK)


def _interface(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
    env = {}
    readers = {}
    if support.reads(installed, "nccl", "NCCL_SOCKET_IFNAME"):
        # Neither NCCL nor torch takes an empty one for a name, and /etc/nccl.conf does not overrule it.
        env["NCCL_SOCKET_IFNAME"] = "" if value == AUTO else _exact(value)
        readers["NCCL_SOCKET_IFNAME"] = support.said(installed, "nccl")
    if support.reads(installed, "torch", "GLOO_SOCKET_IFNAME"):
        # Gloo takes exact names, and no mark in front of them.
        env["GLOO_SOCKET_IFNAME"] = "" if value == AUTO else str(value)
        readers["GLOO_SOCKET_IFNAME"] = f"Gloo of {support.said(installed, 'torch')}"
    return Spelled.by_several(readers, env=env) if env else support.no_torch(installed)


def _tuned(variable: str) -> Callable[[str], Value]:
    def parse(text: str) -> Value:
        found = wrong_for_tuning(text.strip(), entries()[variable].kind.choices)
        if not text.strip() or found is not None:
            shown = ", ".join(entries()[variable].kind.choices)
            raise ValueError(f"it is one or more of {shown}, with commas between them; ^ in front leaves them out")
        return text.strip()

    return parse


def _switch(key: str, title: Text, cost: Text, variable: str, worded: Callable[[Value], str]) -> Setting:
    return Setting(
        key=key,
        title=title.en,
        title_zh=title.zh,
        cost=cost.en,
        cost_zh=cost.zh,
        layer="communication",
        forms="on, off",
        example="off",
        parse=values.switch,
        spelling=_to_nccl(variable, worded),
    )


SETTINGS = (
    Setting(
        key="backend",
        title="what collectives go over",
        title_zh="集合通信使用的后端",
        cost="gloo: tensors of GPUs go through the host's memory, several times slower; it lacks some operations on them",
        cost_zh="gloo：GPU 张量经主机内存中转，慢数倍；部分操作不支持 GPU 张量",
        layer="communication",
        forms="nccl, gloo",
        example="gloo",
        parse=values.one_of("nccl", "gloo"),
        spelling=_backend,
    ),
    _switch(
        "shm",
        Text("NCCL's shared memory between processes of a host", "NCCL 在同一主机进程间使用共享内存"),
        Text("off: GPUs of one host that cannot copy directly talk by adapter or TCP", "off：同一主机内不能直连的 GPU 之间改走网卡或 TCP"),
        "NCCL_SHM_DISABLE",
        _disabling,
    ),
    _switch(
        "p2p",
        Text("direct copies between GPUs (NVLink, PCIe)", "GPU 间直接拷贝（NVLink、PCIe）"),
        Text("off: data goes through the host's memory, far slower where there is NVLink", "off：数据经主机内存中转，有 NVLink 时慢得多"),
        "NCCL_P2P_DISABLE",
        _disabling,
    ),
    _switch(
        "ib",
        Text("InfiniBand and RoCE between hosts", "主机间使用 InfiniBand/RoCE"),
        Text("off: traffic between hosts goes over TCP, an order of magnitude slower", "off：主机间流量走 TCP，慢一个数量级"),
        "NCCL_IB_DISABLE",
        _disabling,
    ),
    _switch(
        "cumem-host",
        Text("host memory of NCCL by cuMem", "NCCL 用 cuMem 分配主机内存"),
        Text("off: none that was measured; /dev/shm is used as before 2.24", "off：未见可测的代价；像 2.24 之前那样使用 /dev/shm"),
        "NCCL_CUMEM_HOST_ENABLE",
        _enabling,
    ),
    _switch(
        "nvls",
        Text("NVLink SHARP: reductions in the NVSwitch", "NVLink SHARP：在 NVSwitch 中归约"),
        Text(
            "off: slower all_reduce on hosts with NVSwitch (H100 and later), nothing elsewhere",
            "off：带 NVSwitch 的主机（H100 及以后）上 all_reduce 变慢，其他主机无影响",
        ),
        "NCCL_NVLS_ENABLE",
        _where_available,
    ),
    Setting(
        key="interface",
        title="network interfaces of NCCL and Gloo, by exact names; auto: as they choose themselves",
        title_zh="NCCL 与 Gloo 使用的网络接口（精确名称）；auto：由它们自行选择",
        cost="a host without an interface of that name fails at its start; lo reaches no other host",
        cost_zh="没有该名称接口的主机启动失败；lo 无法到达其他主机",
        layer="communication",
        forms="eth0 or eth0,eth1; auto names none",
        forms_zh="eth0 或 eth0,eth1；auto 表示不指定",
        example="eth0",
        parse=values.names,
        spelling=_interface,
    ),
    Setting(
        key="hca",
        title="RDMA adapters of NCCL, by exact names",
        title_zh="NCCL 使用的 RDMA 网卡（精确名称）",
        cost="other adapters of the host are left unused",
        cost_zh="主机上其余网卡被弃用",
        layer="communication",
        forms="mlx5_0,mlx5_1 or ^mlx5_2",
        forms_zh="mlx5_0,mlx5_1 或 ^mlx5_2",
        example="mlx5_0,mlx5_1",
        parse=values.adapters,
        spelling=_to_nccl("NCCL_IB_HCA", _exact),
    ),
    Setting(
        key="buffer",
        title="NCCL's buffer for each channel and peer, in bytes",
        title_zh="NCCL 每个通道、每个对端的缓冲区（字节）",
        cost="GPU memory for each channel and peer (4 MiB by default)",
        cost_zh="每个通道、每个对端占用的 GPU 内存（默认 4 MiB）",
        layer="communication",
        forms="8388608 or 8M",
        forms_zh="8388608 或 8M",
        example="8M",
        parse=values.size,
        spelling=_to_nccl("NCCL_BUFFSIZE", str),
    ),
    Setting(
        key="debug",
        title="how much NCCL tells",
        title_zh="NCCL 输出的详细程度",
        cost="info and more: long logs; trace slows down",
        cost_zh="info 及以上：日志很长；trace 会变慢",
        layer="communication",
        forms="version, warn, info, abort, trace",
        example="info",
        parse=values.one_of("version", "warn", "info", "abort", "trace"),
        spelling=_to_nccl("NCCL_DEBUG", lambda value: str(value).upper()),
    ),
    Setting(
        key="algorithm",
        title="NCCL's algorithms that are allowed",
        title_zh="允许 NCCL 使用的算法",
        cost="keeps NCCL from choosing the fastest",
        cost_zh="妨碍 NCCL 选择最快的算法",
        layer="communication",
        forms="Ring,Tree or ^NVLS",
        forms_zh="Ring,Tree 或 ^NVLS",
        example="Ring",
        parse=_tuned("NCCL_ALGO"),
        spelling=_to_nccl("NCCL_ALGO", str),
    ),
    Setting(
        key="protocol",
        title="NCCL's protocols that are allowed",
        title_zh="允许 NCCL 使用的协议",
        cost="keeps NCCL from choosing the fastest; LL128 where it is not supported corrupts data",
        cost_zh="妨碍 NCCL 选择最快的协议；平台不支持时强制 LL128 会损坏数据",
        layer="communication",
        forms="Simple,LL or ^LL128",
        forms_zh="Simple,LL 或 ^LL128",
        example="Simple",
        parse=_tuned("NCCL_PROTO"),
        spelling=_to_nccl("NCCL_PROTO", str),
    ),
)
