"""container-capability: a capability, a device or a mount is missing in the container."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import cause, command
from unhang.knowledge.text import Text
from unhang.model import Evidence, HostFinding

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import container, infiniband, network
    from unhang.facts.units import counted

    seen = host.get(container.SUBJECT)
    if seen is None or seen.kind in ("bare", "slurm", "systemd", "wsl"):
        return
    here = {d.path: d.usable for d in seen.devices}
    if seen.nvidia_gpus_on_bus and "/dev/nvidiactl" not in here:
        yield CAUSE.host_finding(
            area="container",
            severity="warning",
            says=Text(
                f"this container has no /dev/nvidiactl, and the machine has {counted(seen.nvidia_gpus_on_bus, 'NVIDIA GPU')}",
                f"此容器里没有 /dev/nvidiactl，而机器上有 {seen.nvidia_gpus_on_bus} 块 NVIDIA GPU",
            ),
            leads_to=Text("torch finds no GPU: it was started without any, or lost them", "torch 找不到 GPU：启动时就没有，或已经丢失"),
            evidence=(Evidence(source="/sys/bus/pci/devices", text=f"{counted(seen.nvidia_gpus_on_bus, 'device')} of vendor 0x10de"),),
            remedies=("gpus-given", "container-toolkit", "devices-again"),
            commands={"gpus-given": _GIVEN[seen.kind]} if seen.kind in _GIVEN else None,
        )
    elif "/dev/nvidiactl" in here and "/dev/nvidia-uvm" not in here:
        yield CAUSE.host_finding(
            area="container",
            severity="error",
            says=Text("/dev/nvidiactl is here and /dev/nvidia-uvm is not", "有 /dev/nvidiactl，却没有 /dev/nvidia-uvm"),
            leads_to=Text(
                "CUDA cannot start, although nvidia-smi works: it needs /dev/nvidia-uvm",
                "虽然 nvidia-smi 可用，CUDA 却无法启动：它需要 /dev/nvidia-uvm",
            ),
            evidence=(Evidence(source="/dev", text=", ".join(p for p in here if p.startswith("/dev/nvidia"))),),
            remedies=("uvm", "devices-again"),
        )
    refused = [path for path, usable in here.items() if path.startswith("/dev/nvidia") and not path.startswith("/dev/nvidia-caps/") and not usable]
    if refused:
        yield CAUSE.host_finding(
            area="container",
            severity="error",
            says=Text("{paths} may not be opened by this user", "当前用户无权打开 {paths}").fill(paths=", ".join(refused)),
            leads_to=Text("CUDA finds no device, or fails to initialise", "CUDA 找不到设备，或初始化失败"),
            evidence=(Evidence(source=refused[0], text="no right to read and write"),),
            remedies=("devices-again",),
        )
    given = seen.nvidia_driver_capabilities
    if given and given != "all" and "/dev/nvidiactl" in here and "compute" not in given.split(","):
        yield CAUSE.host_finding(
            area="container",
            severity="error",
            says=Text(f"NVIDIA_DRIVER_CAPABILITIES={given} leaves out compute", f"NVIDIA_DRIVER_CAPABILITIES={given} 没有包含 compute"),
            leads_to=Text("libcuda.so is not put into the container, and torch finds no driver", "libcuda.so 没有放进容器，torch 找不到驱动"),
            evidence=(Evidence(source="the environment", text=f"NVIDIA_DRIVER_CAPABILITIES={given}"),),
            remedies=("driver-capabilities",),
        )
    if container.lacks_verbs(host):
        adapters = host.get(infiniband.SUBJECT)
        # Only NCCL uses them, between hosts.
        needed = seen.nvidia_gpus_on_bus and network.several_hosts(host) and (adapters is None or infiniband.active(adapters))
        yield CAUSE.host_finding(
            area="container",
            severity="warning" if needed else "note",
            says=Text(
                f"no usable /dev/infiniband/uverbs* is in this container, and the machine has {counted(seen.infiniband_on_bus, 'RDMA adapter')}",
                f"此容器里没有可用的 /dev/infiniband/uverbs*，而机器上有 {seen.infiniband_on_bus} 块 RDMA 网卡",
            ),
            leads_to=Text(
                "NCCL goes over TCP sockets, many times slower, and says so only at NCCL_DEBUG=INFO",
                "NCCL 走 TCP 套接字，慢很多倍，只有 NCCL_DEBUG=INFO 时才说明",
            ),
            evidence=(Evidence(source="/sys/class/infiniband", text=counted(seen.infiniband_on_bus, "adapter")),),
            remedies=("infiniband",),
        )


_GIVEN = {
    "podman": command("podman run --device nvidia.com/gpu=all IMAGE"),
    "kubernetes": command("kubectl set resources deployment NAME --limits=nvidia.com/gpu=8"),
    "apptainer": command("apptainer exec --nv IMAGE python train.py"),
}


CAUSE = cause("container-capability", on_host=_on_host)
