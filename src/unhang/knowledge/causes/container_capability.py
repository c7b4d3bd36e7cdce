"""container-capability: a capability, a device or a mount is missing in the container."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Cause, Signature, command
from unhang.knowledge.text import Text
from unhang.model import Evidence, HostFinding, Remedy

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


CAUSE = Cause(
    id="container-capability",
    role="root",
    title="The container lacks a capability, a device or a mount",
    title_zh="容器缺少某项权限、设备或挂载",
    what="A system call was refused, or a device was not there, although both work on the host.",
    why=(
        "Container runtimes drop capabilities (SYS_PTRACE, SYS_NICE, IPC_LOCK), filter system calls, mount the image read-only and show only the "
        "devices that were asked for; systemd can take devices away from a running container."
    ),
    signatures=(
        Signature(
            needle="Operation not permitted",
            pattern=r"pidfd_(?P<call>getfd|open): ?Operation not permitted",
            says="pidfd_{call} was refused: sharing GPU memory between processes by expandable segments needs the right to ptrace",
            says_zh="pidfd_{call} 被拒绝：用 expandable segments 在进程间共享显存需要 ptrace 权限",
            remedies=("sys-ptrace", "no-expandable-segments"),
        ),
        Signature(
            needle="the pidfd_open syscall needed",
            says="the kernel or the container's seccomp profile does not allow pidfd_open, which sharing expandable segments needs",
            says_zh="内核或容器的 seccomp 配置不允许 pidfd_open，而共享 expandable segments 需要它",
            remedies=("sys-ptrace", "no-expandable-segments"),
        ),
        Signature(
            needle="Failed to initialize NVML: Unknown Error",
            says="the container lost its GPU devices: a reload of systemd on the host took them away, or they were never given",
            says_zh="容器失去了 GPU 设备：主机上 systemd 重新加载时拿走了它们，或者从未给过",
            standing="likely",
            remedies=("devices-again",),
        ),
        # NCCL opens it at its start.
        Signature(
            needle="libnvidia-ml.so",
            pattern=r"NCCL WARN .{0,200}libnvidia-ml\.so|^(?:[Ff]ailed to open|dlopen) libnvidia-ml\.so",
            standing="likely",
            says="NCCL finds no libnvidia-ml.so.1: the GPU driver's libraries are not in this container (capability 'utility'), or not on this host",
            says_zh="NCCL 找不到 libnvidia-ml.so.1：此容器中没有 GPU 驱动的库（缺少 utility 能力），或主机上没有",
            remedies=("container-toolkit",),
        ),
        Signature(
            needle="Failed to initialize NVML: Insufficient Permissions",
            says="the process may not open the GPU's device files",
            says_zh="该进程无权打开 GPU 的设备文件",
            remedies=("devices-again",),
        ),
        Signature(
            needle="could not select device driver",
            pattern=r"could not select device driver .{0,40}with capabilities: \[\[gpu",
            says="the container runtime knows no GPUs: the NVIDIA container toolkit is missing or not configured",
            says_zh="容器运行时不认识 GPU：NVIDIA container toolkit 缺失或未配置",
            remedies=("container-toolkit",),
        ),
        Signature(
            needle="nvidia-container-cli: ",
            pattern=r"nvidia-container-cli: (?P<error>initialization error|mount error|device error|detection error|ldcache error)[^\n]{0,200}",
            unless=r"requirement error|\bWSL|microsoft-standard",
            says="the NVIDIA container runtime could not give the GPUs to the container ({error})",
            says_zh="NVIDIA 容器运行时无法把 GPU 交给容器（{error}）",
            standing="likely",
            remedies=("container-toolkit",),
        ),
        Signature(
            needle="pthread_create failed",
            pattern=r"pthread_create failed[^\n]{0,120}Operation not permitted",
            says="threads cannot be started: the container's seccomp profile refuses a system call that this C library uses (clone3)",
            says_zh="无法启动线程：容器的 seccomp 配置拒绝了这个 C 库使用的系统调用（clone3）",
            remedies=("newer-runtime",),
        ),
        Signature(
            needle="process_vm_readv",
            pattern=r"process_vm_(?:readv|writev)[^\n]{0,200}Operation not permitted",
            standing="likely",
            says="UCX may not copy between processes (cross-memory attach is refused for want of SYS_PTRACE)",
            says_zh="UCX 无权在进程间拷贝（缺少 SYS_PTRACE，cross-memory attach 被拒绝）",
            remedies=("sys-ptrace", "no-cma"),
        ),
        Signature(
            needle="Call to ibv_",
            pattern=r"Call to (?P<call>ibv_\w{3,40}) failed(?: with error)?:? (?P<error>Operation not permitted|Permission denied)",
            says="{call} was refused ({error}): the container lacks IPC_LOCK or the right to use /dev/infiniband",
            says_zh="{call} 被拒绝（{error}）：容器缺少 IPC_LOCK，或无权使用 /dev/infiniband",
            standing="likely",
            remedies=("infiniband",),
        ),
        Signature(
            needle="/dev/infiniband/",
            pattern=(
                r"(?:[Ff]ailed to open|cannot open|open)[^\n]{0,80}(?P<device>/dev/infiniband/\S{1,60})[^\n]{0,40}(?P<error>No such file or"
                r" directory|Permission denied|Operation not permitted)"
            ),
            says="{device} cannot be opened in the container: {error}",
            says_zh="在容器里无法打开 {device}：{error}",
            remedies=("infiniband",),
        ),
        Signature(
            needle="Operation not permitted",
            pattern=r"open\((?P<device>/dev/(?:accel|vfio|kfd|dri|davinci)[\w/]{0,40})\): Operation not permitted",
            says="the process may not open {device}",
            says_zh="该进程无权打开 {device}",
            remedies=("devices-given",),
        ),
        Signature(
            needle="fill_device_fds: condition fds[",
            standing="likely",
            says="oneCCL cannot open a GPU's device file: /dev/dri is not, or not wholly, in this container",
            says_zh="oneCCL 打不开 GPU 的设备文件：容器中没有 /dev/dri，或不完整",
            remedies=("devices-given",),
        ),
        Signature(
            needle="Read-only file system: '/",
            pattern=r"\[Errno 30\] Read-only file system: '(?P<path>/(?!dev/shm|psm_)[^']{1,300})'",
            standing="likely",
            says="{path} lies on a read-only file system: the image is mounted so, or no volume is mounted there",
            says_zh="{path} 位于只读文件系统上：镜像是这样挂载的，或者那里没有挂载卷",
            remedies=("writable-volume",),
        ),
        Signature(
            needle="(core dumped) due to seccomp",
            standing="likely",
            says="the container's seccomp profile ended the process",
            says_zh="容器的 seccomp 配置结束了该进程",
            remedies=("newer-runtime",),
        ),
        Signature(
            needle="setting membind: Operation not permitted",
            standing="likely",
            says="numactl may not bind memory: the container's seccomp profile refuses set_mempolicy without SYS_NICE",
            says_zh="numactl 无权绑定内存：容器的 seccomp 配置在没有 SYS_NICE 时拒绝 set_mempolicy",
            remedies=("numa-policy",),
        ),
        Signature(
            needle="set_mempolicy: Operation not permitted",
            near="numactl|membind|cpunodebind|--interleave|exit(?:ed|s)? (?:code|with|status)|numa_bind",
            standing="likely",
            says="a memory policy may not be set: the container's seccomp profile refuses set_mempolicy without SYS_NICE",
            says_zh="无权设置内存策略：容器的 seccomp 配置在没有 SYS_NICE 时拒绝 set_mempolicy",
            remedies=("numa-policy",),
        ),
        Signature(
            needle="Found no NVIDIA driver on your system",
            pattern="Error: Found no NVIDIA driver on your system",
            standing="likely",
            says="torch finds no NVIDIA driver here: the container was started without GPUs, or this host has none",
            says_zh="torch 在此处找不到 NVIDIA 驱动：启动容器时没有给 GPU，或者本机没有",
            remedies=(
                "devices-again",
                "container-toolkit",
            ),
        ),
    ),
    on_host=_on_host,
    remedies=(
        Remedy(
            id="gpus-given",
            says="Start the container with the GPUs.",
            says_zh="启动容器时把 GPU 交给它。",
            command="docker run --gpus all IMAGE",
            verify="nvidia-smi -L",
        ),
        Remedy(
            id="uvm",
            says="Load the module on the machine and make its device file, then start the container again.",
            says_zh="在主机上加载该模块并创建设备文件，然后重新启动容器。",
            command="sudo nvidia-modprobe -u -c=0",
            verify="ls -l /dev/nvidia-uvm",
        ),
        Remedy(
            id="driver-capabilities",
            says="Let the container toolkit put in what CUDA and NVML need.",
            says_zh="让容器工具包装入 CUDA 和 NVML 需要的库。",
            command="docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility IMAGE",
            verify="ldconfig -p | grep -E 'libcuda.so.1|libnvidia-ml.so.1'",
        ),
        Remedy(
            id="sys-ptrace",
            says="Allow ptrace in the container; where ranks are in one container and one user, kernel.yama.ptrace_scope of the host counts too.",
            says_zh="在容器里允许 ptrace；若进程在同一容器、同一用户下，还要看主机的 kernel.yama.ptrace_scope。",
            command="docker run --cap-add SYS_PTRACE --ipc=host IMAGE   # Kubernetes: securityContext.capabilities.add: [SYS_PTRACE]",
            verify="capsh --print | grep -o cap_sys_ptrace; sysctl kernel.yama.ptrace_scope",
        ),
        Remedy(
            id="numa-policy",
            says="Give the container SYS_NICE, which lets it set memory policies, or do without numactl --membind.",
            says_zh="给容器加上 SYS_NICE，使其可以设置内存策略；或者不使用 numactl --membind。",
            command="docker run --cap-add=SYS_NICE IMAGE",
            verify="numactl --membind=0 true && echo allowed",
        ),
        Remedy(
            id="no-expandable-segments",
            says="Or do without expandable segments in processes that share GPU memory.",
            says_zh="或者在共享显存的进程里不使用 expandable segments。",
            env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"},
            verify='python -c \'import torch; torch.ones(1, device="cuda"); print([s["is_expandable"] for s in torch.cuda.memory_snapshot()])\'',
        ),
        Remedy(
            id="no-cma",
            says="Or let MPI copy through shared memory; the message is harmless where results are right.",
            says_zh="或者让 MPI 通过共享内存拷贝；如果结果正确，这条信息可以忽略。",
            env={"OMPI_MCA_btl_vader_single_copy_mechanism": "none", "UCX_TLS": "^cma"},
            verify="mpirun -np 2 --mca btl_base_verbose 100 hostname 2>&1 | grep -i vader",
        ),
        Remedy(
            id="devices-again",
            says=(
                "Start the container anew: it gets its devices back. So that it does not happen again, name the devices (--device, or CDI), or make "
                "/dev/char links with nvidia-ctk, or use the cgroupfs driver."
            ),
            says_zh=(
                "重新启动容器即可恢复设备。为避免再次发生：显式指定设备（--device 或 CDI），或用 nvidia-ctk 创建 /dev/char 链接，或改用 cgroupfs 驱"
                "动。"
            ),
            command="sudo nvidia-ctk system create-dev-char-symlinks --create-all   # then start the container again; before: ls -l /dev/nvidia*",
            verify="nvidia-smi -L",
        ),
        Remedy(
            id="devices-given",
            says="Give the device to the container and the user to the group that owns it.",
            says_zh="把该设备交给容器，并把用户加入拥有该设备的组。",
            command="ls -l /dev/accel* /dev/vfio /dev/kfd /dev/dri /dev/davinci* 2>/dev/null; id",
        ),
        Remedy(
            id="container-toolkit",
            says="Install and configure the NVIDIA container toolkit, then restart the runtime.",
            says_zh="安装并配置 NVIDIA container toolkit，然后重启容器运行时。",
            command="sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
            verify="docker run --rm --gpus all ubuntu nvidia-smi -L",
        ),
        Remedy(
            id="enroot-by-hand",
            says=(
                "Start the image by hand on that node, without pyxis: enroot's hook 98-nvidia.sh calls nvidia-container-cli, which runs ldconfig for "
                "the image. Import the image again where it is damaged or for another CPU, and let its root file system be written "
                "(--container-writable)."
            ),
            says_zh=(
                "在该节点上不经 pyxis 手动启动镜像：enroot 的钩子 98-nvidia.sh 调用 nvidia-container-cli，后者为镜像运行 ldconfig。镜像损坏或面向"
                "别的 CPU 时重新导入，并让其根文件系统可写（--container-writable）。"
            ),
            command=(
                "ls /etc/enroot/hooks.d; nvidia-container-cli -k -d /dev/stderr info | tail -20; enroot create -n try IMAGE.sqsh && "
                "NVIDIA_VISIBLE_DEVICES=all enroot start --rw try nvidia-smi -L"
            ),
            verify="srun --container-image=IMAGE.sqsh --container-writable nvidia-smi -L",
        ),
        Remedy(
            id="enroot-mounts",
            says=(
                "Mount what is missing with pyxis: devices and directories go through --container-mounts, the right to write through "
                "--container-writable."
            ),
            says_zh="用 pyxis 挂载缺少的内容：设备和目录写在 --container-mounts 中，可写则加 --container-writable。",
            command=(
                "srun --container-image=IMAGE.sqsh --container-writable --container-mounts=/dev/infiniband:/dev/infiniband,/scratch:/scratch ls "
                "-l /dev/infiniband"
            ),
        ),
        Remedy(
            id="apptainer-nv",
            says="Start the container with --nv (--rocm for AMD), which binds the driver and the devices of the host.",
            says_zh="用 --nv（AMD 用 --rocm）启动容器，它会绑定主机的驱动和设备。",
            command="apptainer exec --nv IMAGE nvidia-smi -L",
        ),
        Remedy(
            id="device-plugin",
            says=(
                "Ask for GPUs in the pod (resources.limits nvidia.com/gpu), and see that the node offers them: the device plugin, or the GPU "
                "operator."
            ),
            says_zh="在 Pod 中申请 GPU（resources.limits 的 nvidia.com/gpu），并确认节点提供它们：需要 device plugin 或 GPU operator。",
            command="kubectl describe node NODE | grep -A8 -i allocatable | grep nvidia; kubectl get pods -A | grep -iE 'nvidia|gpu-operator'",
            verify="kubectl exec POD -- nvidia-smi -L",
        ),
        Remedy(
            id="newer-runtime",
            says="Upgrade docker, containerd, runc and libseccomp on the host; to prove it, run once without the filter.",
            says_zh="升级主机上的 docker、containerd、runc 和 libseccomp；要验证，可临时关闭过滤运行一次。",
            command="docker run --rm --security-opt seccomp=unconfined IMAGE python -c 'import threading; threading.Thread(target=print).start()'",
            verify="docker version --format '{{.Server.Version}}'; runc --version",
        ),
        Remedy(
            id="infiniband",
            says="Give the container the InfiniBand devices, the right to lock memory, and no limit on it.",
            says_zh="把 InfiniBand 设备、锁定内存的权限和无限制的额度交给容器。",
            command="docker run --device=/dev/infiniband --cap-add IPC_LOCK --ulimit memlock=-1:-1 --network=host IMAGE",
            verify="ls -l /dev/infiniband && ibv_devinfo -l && ulimit -l",
        ),
        Remedy(
            id="writable-volume",
            says="Mount a writable volume there, or point caches and outputs at one.",
            says_zh="在该路径挂载可写卷，或者把缓存和输出指向可写卷。",
            command="docker run -v /srv/cache:/srv/cache -e HF_HOME=/srv/cache/hf -e TRITON_CACHE_DIR=/srv/cache/triton IMAGE",
            verify="findmnt -T PATH -o TARGET,FSTYPE,OPTIONS",
        ),
    ),
    instead={
        "enroot": {
            **dict.fromkeys(("container-toolkit", "gpus-given", "devices-again", "driver-capabilities"), "enroot-by-hand"),
            **dict.fromkeys(("infiniband", "writable-volume"), "enroot-mounts"),
        },
        "apptainer": dict.fromkeys(("container-toolkit", "gpus-given", "devices-again"), "apptainer-nv"),
        "kubernetes": dict.fromkeys(("container-toolkit", "gpus-given"), "device-plugin"),
    },
    leads_to=("rank-exception", "cumem-host-numa", "device-mapping", "backend-unavailable", "limits"),
    mistaken_for={
        "shm-permission": "there a file in /dev/shm is refused; here a system call or a device",
        "limits": "a count that is reached says 'Resource temporarily unavailable' or 'Cannot allocate memory'",
        "nvlink-nvswitch-fabric": "a missing IMEX channel is also a device that the container lacks; NCCL names it",
        "driver-reboot-needed": "NVML says 'Driver/library version mismatch' there",
        "wsl-limits": "under WSL2 NVML says 'GPU access blocked by the operating system'",
        "ib-config": "on a bare host the same call fails for other reasons",
    },
    sources=(
        "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html",
        "https://github.com/pytorch/pytorch/issues/165685",
        "https://github.com/open-mpi/ompi/issues/4948",
        "https://docs.docker.com/engine/security/seccomp/",
        "https://man7.org/linux/man-pages/man2/pidfd_getfd.2.html",
    ),
    hits=(
        "2026:11:03-09:02:50:(  712) |CCL_ERROR| ze_fd_manager.cpp:214 fill_device_fds: condition fds[dev_idx] > 0 failed",
        "RuntimeError: Bad StatusOr access: UNKNOWN: TPU initialization failed: open(/dev/accel0): Operation not permitted",
        "node7:812:840 [1] misc/nvmlwrap.cc:140 NCCL WARN Failed to open libnvidia-ml.so.1",
        "[rank0]: Failed to open libnvidia-ml.so.1",
        "(WorkerDict pid=812) RuntimeError: pidfd_getfd: Operation not permitted",
        "RuntimeError: pidfd_open:Operation not permitted",
        (
            "RuntimeError: The kernel on this machine does not support the pidfd_open syscall needed to use IPC for CUDA tensors when "
            "expandable_segments:True is set."
        ),
        "Failed to initialize NVML: Unknown Error",
        "Failed to initialize NVML: Insufficient Permissions",
        'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
        "stderr: nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object file",
        "OpenBLAS blas_thread_init: pthread_create failed for thread 35 of 48: Operation not permitted",
        "[node7:812  :0:812]  cma_ep.c:98   UCX  ERROR process_vm_readv(pid=813 length=65536) returned -1: Operation not permitted",
        "node7:812:901 [0] misc/ibvwrap.cc:262 NCCL WARN Call to ibv_open_device failed with error Operation not permitted",
        "libibverbs: failed to open /dev/infiniband/uverbs0: Permission denied",
        "OSError: [Errno 30] Read-only file system: '/opt/app/.cache/huggingface'",
        "[88123.41] audit: python3 (core dumped) due to seccomp",
        ("set_mempolicy: Operation not permitted\nsetting membind: Operation not permitted"),
        ("+ numactl --cpunodebind=0 --membind=0 python train.py\nset_mempolicy: Operation not permitted"),
        ("RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver"),
    ),
    # Open MPI and libnuma print these two in every unprivileged container, and go on.
    near_misses=(
        "[4f1c22ab90de:00812] Read -1, expected 32416, errno = 1",
        "set_mempolicy: Operation not permitted",
        "Failed to initialize NVML: Driver/library version mismatch",
        "Failed to initialize NVML: GPU access blocked by the operating system",
        "OpenBLAS blas_thread_init: pthread_create failed for thread 35 of 48: Resource temporarily unavailable",
        "node7:812:901 [1] include/shm.h:27 NCCL WARN Call to shm_open failed : Permission denied",
        "libibverbs: Warning: couldn't open config directory '/etc/libibverbs.d'.",
        "node7:812:901 [0] NCCL INFO NET/IB : No device found.",
        "node7:812:901 [1] include/alloc.h:228 NCCL WARN Cuda failure 800 'operation not permitted'",
        "OSError: [Errno 30] Read-only file system: '/psm_5a1f20cc'",
        ("get_mempolicy: Operation not permitted"),
        ("WARNING numa: set_mempolicy: Operation not permitted, memory is not bound"),
        ("UserWarning: CUDA initialization: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"),
    ),
    explain={
        "en": (
            "A container sees the kernel of its host through a filter: some capabilities are taken away, some system calls refused, only named "
            "devices shown, and the image may be read-only. Training needs a few of these: ptrace rights to share GPU memory between processes, "
            "SYS_NICE to place memory on NUMA nodes, IPC_LOCK and /dev/infiniband for RDMA, and GPU devices that stay (a systemctl daemon-reload on "
            "the host can remove them from a running container). To be sure, run the failing call on the host, or once with --privileged; then give "
            "the container exactly the capability or device that is named here."
        ),
        "zh": (
            "容器是透过一层过滤看到主机内核的：一些 capability 被去掉，一些系统调用被拒绝，只能看到指定的设备，镜像还可能是只读的。训练需要其中几"
            "样：进程间共享显存需要 ptrace 权限，在 NUMA 节点上放置内存需要 SYS_NICE，RDMA 需要 IPC_LOCK 和 /dev/infiniband，还需要 GPU 设备始终存在"
            "（主机执行 systemctl daemon-reload 可能会把它们从正在运行的容器里拿走）。要确认，可在主机上执行同一操作，或临时用 --privileged 运行一"
            "次；然后只把这里指出的那项权限或设备交给容器。"
        ),
    },
)
