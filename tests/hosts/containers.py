"""Machines seen from inside: a container, a pod, WSL 2. What is laid out is what stands there, not what the host around it has."""

from __future__ import annotations

from tests.hosts import nvml, pci
from tests.hosts.linux import ALL_CAPABILITIES, clock, group, group_v1, kernel, kernel_log, looks, namespaces, nodes, process, python, shm, storage
from tests.hosts.network import interface, loopback, names, routes, sockets
from tests.hosts.part import GIB, MIB, Part, all_of

# Those that Docker and containerd leave to a container.
DEFAULT_CAPABILITIES = "00000000a80425fb"
_OWN_NAMESPACES = {"pid": 4026532645, "ipc": 4026532644, "uts": 4026532643}
_FROM_RUNTIME = "rw,nosuid,nodev,noexec,relatime,size={}k,inode64"


def given(gpus: Part, number: int) -> Part:
    """What a container sees that was given the first of the GPUs: all of the bus, but without CAP_SYS_ADMIN."""
    kept: dict[str, str | bytes | None] = {}
    listed = 0
    for name, text in gpus.files.items():
        if name.startswith("/proc/driver/nvidia/gpus/"):
            listed += 1
            if listed > number:
                continue
        if not (name.startswith("/dev/nvidia") and name[11:].isdecimal() and int(name[11:]) >= number):
            kept[name] = text
    return pci.unprivileged(Part(files=kept, nvml={**gpus.nvml, "gpus": gpus.nvml["gpus"][:number]}))


def docker(*, shm_bytes: int = 64 * MIB, name: str = "3f2a4b5c6d7e", own_groups: Part | None = None) -> Part:
    """`docker run IMAGE` on a server with two sockets."""
    return _container(
        storage(shm(shm_bytes, source="shm", options=_FROM_RUNTIME.format(shm_bytes // 1024)), kind="overlay", device="overlay"),
        name=name,
        address="172.17.0.2/16",
        gateway="172.17.0.1",
    ) | all_of(own_groups or _groups(), Part(files={"/.dockerenv": ""}))


def docker_v1(*, memory: int, used: int, oom_kills: int = 0, cpus: float = -1) -> Part:
    """The same on a host with cgroup version 1: the path is the host's, and the container's own group is what is mounted."""
    path = "/docker/3f2a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718"
    rows = ("11:pids:{0}", "9:memory:{0}", "4:cpu,cpuacct:{0}", "1:name=systemd:{0}", "0::/system.slice/containerd.service")
    files = {"/proc/self/cgroup": "".join(f"{row.format(path)}\n" for row in rows)}
    return docker(shm_bytes=16 * GIB, own_groups=group_v1("", memory=memory, used=used, oom_kills=oom_kills, cpus=cpus) | Part(files=files))


def pod(
    *, memory: int, used: int, cache: int = 0, oom_kills: int = 0, cpus: float, pids: int = 8192, tasks: int = 120, shm_bytes: int | None = None
) -> Part:
    """A Kubernetes pod of containerd. `shm_bytes` is the size of an emptyDir volume with `medium: Memory` at /dev/shm; without one it has 64 MiB."""
    mounted = (
        shm(64 * MIB, source="shm", options=_FROM_RUNTIME.format(65536))
        if shm_bytes is None
        else shm(shm_bytes, options=f"rw,relatime,size={shm_bytes // 1024}k,inode64")
    )
    limits = group("", memory=memory, used=used, cache=cache, oom_kills=oom_kills, cpus=cpus, pids=pids, tasks=tasks)
    service = Part(
        files={"/var/run/secrets/kubernetes.io/serviceaccount/namespace": "default\n", "/proc/self/cgroup": "0::/\n"},
        environ={"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"},
    )
    inside = _container(storage(mounted, kind="overlay", device="overlay"), name="train-0", address="10.244.1.17/24", gateway="10.244.1.1")
    return all_of(inside, limits, service)


def _container(file_systems: Part, *, name: str, address: str, gateway: str) -> Part:
    return all_of(
        kernel(),
        nodes([("0-63", 512), ("64-127", 512)]),
        looks(capabilities=DEFAULT_CAPABILITIES, seccomp=2, memory_nodes="0-1"),
        namespaces(**_OWN_NAMESPACES),
        process(1, "python"),
        clock(),
        file_systems,
        python(),
        loopback(),
        # The other end stands in the host's namespace.
        interface("eth0", address, index=15, linked=16, speed=10000),
        routes("eth0", address, gateway),
        names(name, address.partition("/")[0]),
        sockets(),
        Part(files={"/proc/net/netfilter/nf_log": ""}),
    )


def _groups() -> Part:
    return group("") | Part(files={"/proc/self/cgroup": "0::/\n"})


def wsl2(*, gpus: int = 1, own_name: str = "127.0.1.1") -> Part:
    """Ubuntu in WSL 2: a virtual machine whose GPUs are Windows' own, behind /dev/dxg. Without them: gpus=0."""
    name, address = "DESKTOP-7QKF2", "172.28.112.5/20"
    windows = "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/9a2f2a40-0b1e-4c1e-8b0f-3c6f8a1d2e11"
    linux = all_of(
        kernel(release="5.15.167.4-microsoft-standard-WSL2", cpus=16, memory_gib=32, virtual="Microsoft Corporation"),
        looks(capabilities=ALL_CAPABILITIES, cpus="0-15"),
        namespaces(pid=4026532249, uts=4026532247),
        process(1, "systemd"),
        clock(),
        storage(shm(16 * GIB, source="none", options="rw,nosuid,nodev,noatime"), device="/dev/sdc"),
        python(),
        loopback(),
        interface("eth0", address, at=windows, driver="hv_netvsc", speed=10000),
        routes("eth0", address, "172.28.112.1"),
        # WSL writes this line.
        names(name, address.partition("/")[0], in_hosts=own_name),
        sockets(),
        kernel_log(),
        group("/"),
        Part(files={"/proc/self/cgroup": "0::/\n", "/proc/net/netfilter/nf_log": ""}),
    )
    if not gpus:
        return linux
    libraries = "/usr/lib/wsl/lib"
    cards = [
        nvml.card(bus, "NVIDIA GeForce RTX 4090", memory_bytes=24 * GIB, used_bytes=700 * MIB, nvmlDeviceGetCudaComputeCapability=(8, 9))
        for bus in range(1, gpus + 1)
    ]
    return linux | Part(
        files={
            "/dev/dxg": "",
            f"{libraries}/libcuda.so.1.1": "\x7fELF",
            f"{libraries}/libcuda.so.1": "-> libcuda.so.1.1",
            f"{libraries}/libnvidia-ml.so.1": "\x7fELF",
        },
        nvml={"gpus": tuple(cards), "p2p": 5},
    )
