"""limits: a limit of the system was reached: open files, locked memory, processes, mappings."""

from __future__ import annotations

from unhang.knowledge.cause import Cause, Signature
from unhang.model import Remedy

_FILES = ("open-files", "file-system-sharing", "fewer-sockets")
_LOADER_FILES = ("open-files", "file-system-sharing")
_MEMLOCK = ("locked-memory", "adapter-limits")
_PROCESSES = ("processes", "fewer-threads")
_NO_MEMORY = r"(?:Cannot allocate memory|ENOMEM)"

CAUSE = Cause(
    id="limits",
    role="root",
    title="A limit of the system was reached",
    title_zh="达到了系统资源上限",
    what="The kernel refused a file, a locked page, a process or a mapping, because this user, process or container has used up its share.",
    why=(
        "ulimit -n of 1024 with many data loader workers or sockets, ulimit -l of 64 KiB with InfiniBand, ulimit -u or a container's pids limit "
        "with many threads. Limits of ssh, Slurm and system services differ from those of a login shell."
    ),
    signatures=(
        Signature(
            needle="unable to open shared memory object",
            pattern=r"unable to open shared memory object <(?P<path>[^>]{1,120})> in read-write mode: Too many open files",
            says="torch could not open the shared tensor {path}: too many open files (ulimit -n)",
            remedies=_LOADER_FILES,
        ),
        # Older torch prints no reason; with the file_descriptor strategy each shared tensor keeps a file open, and that limit is the usual one.
        Signature(
            needle="unable to open shared memory object",
            pattern=r"unable to open shared memory object <(?P<path>/torch_[^>]{1,120})> in read-write mode(?!:)",
            standing="likely",
            says="torch could not open the shared tensor {path}; the usual reason is the limit of open files (ulimit -n)",
            remedies=_LOADER_FILES,
        ),
        Signature(
            needle="items of ancdata",
            pattern=r"received (?P<items>\d+) items of ancdata",
            standing="likely",
            says="a data loader could not receive the file handle of a tensor ({items} arrived): the limit of open files (ulimit -n) is reached",
            remedies=_LOADER_FILES,
        ),
        Signature(
            needle="Communication with the workers is no longer possible",
            says="a data loader has too many open files to talk to its workers (ulimit -n)",
            remedies=_LOADER_FILES,
        ),
        Signature(
            needle="Too many open files",
            pattern=r"NCCL WARN .{0,200}?(?:Call to|[Ff]ailed|[Aa]ccept|socket|open|pipe|epoll).{0,200}?Too many open files",
            says="NCCL could not open another socket or file: too many open files (ulimit -n)",
            remedies=_FILES,
        ),
        Signature(
            needle="Too many open files",
            pattern=(
                r"\[Errno 24\] Too many open files(?:: '[^']{0,200}')?|Too many open files \((?:24|os error 24)\)|errno(?:: | = "
                r"|=)24\b.{0,40}Too many open files"
            ),
            unless=r"inotify",
            says="a process has too many open files (ulimit -n)",
            remedies=_FILES,
        ),
        Signature(
            needle="Too many open files",
            pattern=r"^(?!.*NCCL WARN).*?Too many open files",
            unless=r"inotify|\[Errno 24\]|shared memory object|\((?:24|os error 24)\)",
            standing="likely",
            says="a process has too many open files (ulimit -n)",
            remedies=_FILES,
        ),
        Signature(
            needle="inotify watch limit reached",
            says="the limit of inotify watches is reached",
            remedies=("inotify",),
        ),
        Signature(
            needle="Too many open files",
            near=r"inotify",
            standing="likely",
            says="the limit of inotify instances is reached",
            remedies=("inotify",),
        ),
        Signature(
            needle="Call to ibv_",
            pattern=(
                r"Call to (?P<call>ibv_(?:reg_mr\w*|create_cq|create_qp|create_srq|alloc_pd|open_device)) failed(?: with error)?:? "
                rf"{_NO_MEMORY}(?: errno \d+)?"
            ),
            says="{call} could not lock memory: the limit of locked memory (ulimit -l) is too small",
            standing="likely",
            remedies=_MEMLOCK,
        ),
        Signature(
            needle="RLIMIT_MEMLOCK",
            pattern=r"RLIMIT_MEMLOCK is (?P<size_bytes>\d+) bytes",
            near=r"Cannot allocate memory|ibv_\w+\b.{0,80}failed|NCCL WARN",
            says="locked memory is limited to {size_bytes} bytes (ulimit -l), too few for RDMA",
            standing="likely",
            remedies=_MEMLOCK,
        ),
        Signature(
            needle="max locked memory",
            pattern=r"[Pp]lease set max locked memory \(ulimit -l\) to 'unlimited' \(current: (?P<limit>[^)]{1,40})\)",
            says="locked memory is limited to {limit} (ulimit -l), too little for RDMA",
            remedies=_MEMLOCK,
        ),
        Signature(
            needle="to allocate some locked memory",
            standing="likely",
            says="Open MPI could not lock memory for InfiniBand: the limit of locked memory (ulimit -l) is too small",
            remedies=_MEMLOCK,
        ),
        Signature(
            needle="Resource temporarily unavailable",
            pattern=r"(?:pthread_create|[Tt]hread creation|blas_thread_init)[^\n]{0,160}?Resource temporarily unavailable",
            says="no further thread could be started: the limit of processes (ulimit -u, or the container's pids limit) is reached",
            remedies=_PROCESSES,
        ),
        Signature(
            needle="Resource temporarily unavailable",
            pattern=r"fork: (?:retry: )?Resource temporarily unavailable|fork failed[^\n]{0,60}Resource temporarily unavailable",
            says="no further process could be started: the limit of processes (ulimit -u, or the container's pids limit) is reached",
            remedies=_PROCESSES,
        ),
        Signature(
            needle="[Errno 11] Resource temporarily unavailable",
            pattern=r"BlockingIOError: \[Errno 11\] Resource temporarily unavailable",
            near=r"os\.fork\(|fork_exec|popen_fork|subprocess\.py|multiprocessing/process\.py",
            says="no further process could be started: the limit of processes (ulimit -u, or the container's pids limit) is reached",
            remedies=_PROCESSES,
        ),
        Signature(
            needle="Resource temporarily unavailable",
            pattern=r"(?:what\(\): +|thread: )Resource temporarily unavailable",
            says="no further thread could be started: the limit of processes (ulimit -u, or the container's pids limit) is reached",
            standing="likely",
            remedies=_PROCESSES,
        ),
        Signature(
            needle="can't start new thread",
            says="no further thread could be started: the limit of processes (ulimit -u, or the container's pids limit) is reached",
            standing="likely",
            remedies=_PROCESSES,
        ),
        Signature(
            needle="Thread creation via pthread_create() failed",
            says="no further thread could be started: the limit of processes (ulimit -u, or the container's pids limit) is reached",
            remedies=_PROCESSES,
        ),
        Signature(
            needle="fork rejected by pids controller",
            pattern=r"cgroup: fork rejected by pids controller in (?P<cgroup>\S{1,300})",
            says="the kernel refused a new process in {cgroup}: its pids limit is reached",
            remedies=("pids-limit",),
        ),
        Signature(
            needle="from file </torch_",
            pattern=r"unable to mmap (?P<size_bytes>\d+) bytes from file <(?P<path>/torch_[^>]{1,120})>: Cannot allocate memory",
            standing="likely",
            says=(
                "the shared tensor {path} ({size_bytes} bytes) could not be mapped: most often the number of mappings of one process "
                "(vm.max_map_count) is reached"
            ),
            remedies=("mappings", "file-system-sharing"),
        ),
        Signature(
            needle="io_setup",
            pattern=r"io_setup\b.{0,120}(?:Resource temporarily unavailable|EAGAIN|failed with error: ?-?11)",
            standing="likely",
            says="asynchronous I/O could not be set up: fs.aio-max-nr is used up",
            remedies=("aio",),
        ),
        Signature(
            needle="Cannot allocate memory",
            pattern=r"(?P<call>ibv_(?:reg_mr|create_qp|create_cq|create_srq)\w*)(?:\([^)\n]{0,200}\))? ?(?:failed|FAILED): Cannot allocate memory",
            standing="likely",
            says="{call} could not lock memory: the limit of locked memory (ulimit -l) is too small",
            remedies=_MEMLOCK,
        ),
        Signature(
            needle="error: out of memory",
            near=r"\.pin_memory\(|cudaHostAlloc|cudaMallocHost|cudaHostRegister|CachingHostAllocator",
            unless=r"microsoft-standard|\bWSL\d?\b",
            standing="possible",
            says="CUDA could not pin host memory: the limit of locked memory, or the memory of the host, is used up",
            remedies=("locked-memory",),
        ),
        # Type 1 is memory of the host; libfabric's other types are memory of an accelerator.
        Signature(
            needle="NET/OFI Unable to register memory",
            pattern=r"NET/OFI Unable to register memory \(type = 1\)[^\n]{0,40}RC: -?12\b",
            standing="likely",
            says="libfabric could not register host memory: the limit of locked memory (ulimit -l) is too small, or memory is used up",
            remedies=_MEMLOCK,
        ),
    ),
    remedies=(
        Remedy(
            id="open-files",
            says=(
                "Raise the limit of open files for the processes of the job, where they are started: ulimit -n in the launching shell, LimitNOFILE= "
                "of a service, --ulimit nofile of a container."
            ),
            says_zh="在启动任务进程的地方提高打开文件数上限：启动 shell 里的 ulimit -n、服务的 LimitNOFILE=、容器的 --ulimit nofile。",
            command="ulimit -n 65536   # container: docker run --ulimit nofile=65536:65536 IMAGE",
            verify="srun bash -c 'ulimit -n'   # or: grep 'open files' /proc/PID/limits; ls /proc/PID/fd | wc -l",
        ),
        Remedy(
            id="file-system-sharing",
            says="Share tensors by name instead of by open file; call this first in every process, or keep fewer tensors alive from the loader.",
            says_zh="按文件名而不是按打开的文件共享张量；在每个进程开头调用，或者减少从 loader 中长期保留的张量。",
            command="python -c 'import torch.multiprocessing as mp; mp.set_sharing_strategy(\"file_system\"); print(mp.get_sharing_strategy())'",
        ),
        Remedy(
            id="fewer-sockets",
            says="Where NCCL runs over TCP, use fewer sockets per connection.",
            says_zh="NCCL 走 TCP 时，减少每个连接使用的 socket 数。",
            env={"NCCL_NSOCKS_PERTHREAD": "1", "NCCL_SOCKET_NTHREADS": "1"},
            verify=(
                "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET torchrun --nproc-per-node N train.py 2>&1 | grep -E "
                "'NSOCKS_PERTHREAD|SOCKET_NTHREADS'"
            ),
        ),
        Remedy(
            id="locked-memory",
            says=(
                "Allow unlimited locked memory where the processes start: limits.conf needs a new login, Slurm needs LimitMEMLOCK=infinity in "
                "slurmd's service, a container needs --ulimit."
            ),
            says_zh=(
                "在进程启动处允许无限制的锁定内存：limits.conf 需要重新登录才生效，Slurm 需要在 slurmd 服务里设 LimitMEMLOCK=infinity，容器需要 "
                "--ulimit。"
            ),
            command="docker run --ulimit memlock=-1:-1 IMAGE   # host: echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/90-rdma.conf",
            verify="mpirun -np 1 --host HOST bash -c 'ulimit -l'   # under Slurm: srun bash -c 'ulimit -l'; must say unlimited",
        ),
        Remedy(
            id="adapter-limits",
            says=(
                "Where the limit is already unlimited, the adapter has no queues or registrations left: use fewer connections "
                "(NCCL_IB_QPS_PER_CONNECTION, fewer channels), or raise the limits of its driver; the kernel log names them."
            ),
            says_zh=(
                "如果上限已经是 unlimited，说明网卡的队列或注册资源耗尽：减少连接数（NCCL_IB_QPS_PER_CONNECTION、减少 channel），或调大驱动限制；内"
                "核日志会写明。"
            ),
            command="dmesg -T | grep -E 'mlx5_cmd|limits exceeded|syndrome'; ibv_devinfo -v | grep -E 'max_(qp|cq|mr)'",
        ),
        Remedy(
            id="processes",
            says="Raise the limit of processes and threads where the job starts, and the container's pids limit.",
            says_zh="在任务启动处提高进程/线程数上限，并提高容器的 pids 限制。",
            command="ulimit -u; cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids.current; docker run --pids-limit=-1 --ulimit nproc=-1 IMAGE",
            verify="grep processes /proc/PID/limits; ps -eLf | wc -l",
        ),
        Remedy(
            id="fewer-threads",
            says="Start fewer threads: every rank and worker otherwise starts one per core.",
            says_zh="减少线程：否则每个进程和 worker 都会按核数启动线程。",
            env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            verify="python -c 'import torch; print(torch.get_num_threads())'",
        ),
        Remedy(
            id="pids-limit",
            says="Raise the pids limit of that cgroup: --pids-limit for a container, podPidsLimit of the kubelet, TasksMax= of a service.",
            says_zh="提高该 cgroup 的 pids 限制：容器用 --pids-limit，kubelet 用 podPidsLimit，服务用 TasksMax=。",
            command="docker update --pids-limit=-1 CONTAINER",
            verify="cat /sys/fs/cgroup/pids.max",
        ),
        Remedy(
            id="mappings",
            says="Allow more memory mappings per process.",
            says_zh="允许每个进程有更多内存映射。",
            command="sudo sysctl -w vm.max_map_count=1048576",
            verify="sysctl vm.max_map_count; wc -l /proc/PID/maps",
        ),
        Remedy(
            id="inotify",
            says="Allow more inotify watches and instances.",
            says_zh="提高 inotify 监视数和实例数。",
            command="sudo sysctl -w fs.inotify.max_user_watches=1048576 fs.inotify.max_user_instances=8192",
            verify="sysctl fs.inotify",
        ),
        Remedy(
            id="aio",
            says="Allow more asynchronous I/O requests on the host.",
            says_zh="提高主机上异步 I/O 请求的上限。",
            command="sudo sysctl -w fs.aio-max-nr=1048576",
            verify="cat /proc/sys/fs/aio-nr /proc/sys/fs/aio-max-nr",
        ),
    ),
    leads_to=("rank-exception", "dataloader-deadlock", "ib-config"),
    mistaken_for={
        "wsl-limits": "under WSL2 only a part of host memory can be pinned, whatever the limit says",
        "shm-exhausted": "a full /dev/shm says 'No space left' or gives a bus error; open files say 'Too many open files'",
        "host-oom-or-killed": "'Cannot allocate memory' from ibv_reg_mr is the limit of locked memory; free shows plenty",
        "ib-config": "verbs calls that fail with another error than 'Cannot allocate memory' are about the ports and their settings",
        "gdr-peer-memory": "registering GPU memory fails with 'Bad address' or 'Invalid argument', locking host memory with 'Cannot allocate memory'",
        "container-capability": "'Operation not permitted' from pthread_create is a seccomp profile, not a count",
    },
    sources=(
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#infiniband",
        "https://docs.pytorch.org/docs/stable/multiprocessing.html#sharing-strategies",
        "https://man7.org/linux/man-pages/man2/getrlimit.2.html",
        "https://slurm.schedmd.com/faq.html#memlock",
        "https://docs.kernel.org/admin-guide/cgroup-v2.html#pid",
    ),
    hits=(
        "RuntimeError: unable to open shared memory object </torch_4711_2093847561_118> in read-write mode: Too many open files (24)",
        "RuntimeError: unable to open shared memory object </torch_16550_876314950> in read-write mode",
        "RuntimeError: received 0 items of ancdata",
        (
            "RuntimeError: Too many open files. Communication with the workers is no longer possible. Please increase the limit using `ulimit -n` "
            "in the shell or change the sharing strategy by calling `torch.multiprocessing.set_sharing_strategy('file_system')` at the beginning of "
            "your code"
        ),
        "node7:812:901 [3] misc/socket.cc:412 NCCL WARN Call to socket failed : Too many open files",
        "[2026-11-03 10:00:01] node7:812:901 [3] misc/socket.cc:480 NCCL WARN socketTryAccept: Accept failed: Too many open files",
        "[rank3]: OSError: [Errno 24] Too many open files: '/srv/data/shard_0173.tar'",
        "curl: (23) Failed to open the file /tmp/x: Too many open files\nnode7:812:901 [1] misc/socket.cc:46 NCCL WARN connection closed",
        "OSError: [Errno 28] inotify watch limit reached",
        "OSError: [Errno 24] inotify instance limit reached\nfailed to create fsnotify watcher: Too many open files",
        "node7:812:901 [2] misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
        "node7:812:901 [2] misc/ibvwrap.cc:188 NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory errno 12",
        "node7:812:901 [2] misc/ibvwrap.cc:150 NCCL WARN Call to ibv_reg_mr failed: Cannot allocate memory",
        (
            "libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes.\n"
            "    This will severely limit memory registrations.\n"
            "node7:812:901 [2] misc/ibvwrap.cc:188 NCCL WARN Call to ibv_create_cq failed"
        ),
        (
            "[1730628001.120] [node7:812:0] ib_md.c:293 UCX ERROR ibv_reg_mr(address=0x7f1c00000000, length=8323072, access=0xf) failed: Cannot "
            "allocate memory : Please set max locked memory (ulimit -l) to 'unlimited' (current: 64 kbytes)"
        ),
        "The OpenFabrics (openib) BTL failed to initialize while trying to allocate some locked memory.",
        "OpenBLAS blas_thread_init: pthread_create failed for thread 34 of 64: Resource temporarily unavailable",
        "libgomp: Thread creation failed: Resource temporarily unavailable",
        "bash: fork: retry: Resource temporarily unavailable",
        (
            '  File "/usr/lib/python3.10/multiprocessing/popen_fork.py", line 66, in _launch\n'
            "    self.pid = os.fork()\n"
            "BlockingIOError: [Errno 11] Resource temporarily unavailable"
        ),
        "terminate called after throwing an instance of 'std::system_error'\n  what():  Resource temporarily unavailable",
        "RuntimeError: can't start new thread",
        "F tensorflow/core/platform/default/env.cc:72] Check failed: ret == 0 (11 vs. 0)Thread creation via pthread_create() failed.",
        "[88123.41] cgroup: fork rejected by pids controller in /kubepods/burstable/pod7c1e/4f1c22ab",
        "RuntimeError: unable to mmap 4096 bytes from file </torch_4711_2093847561_31998>: Cannot allocate memory (12)",
        "io_setup failed with error: -11",
        ("[1730628001.120] [node7:812  :0]          ib_device.c:1201 UCX  ERROR ibv_create_cq(cqe=4096) failed: Cannot allocate memory"),
        ("ERROR mlx5_1: ibv_create_cq() failed: Cannot allocate memory."),
        ("    return tensor.pin_memory()\nRuntimeError: CUDA error: out of memory"),
        (
            "node7:93:151 [0] register_mr_buffers:545 NCCL WARN NET/OFI Unable to register memory (type = 1) for device 0. RC: -12, Error:"
            " Cannot allocate memory"
        ),
    ),
    near_misses=(
        "libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes.\n    This will severely limit memory registrations.",
        "Stack size limit (unlimited) is unsafe; will use 8192KB for newly launched threads",
        "RuntimeError: unable to write to file </torch_4711_2093847561_118>: No space left on device (28)",
        "node7:812:901 [2] misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Bad address",
        "OpenBLAS blas_thread_init: pthread_create failed for thread 35 of 48: Operation not permitted",
        "open files                          (-n) 1024",
        "RuntimeError: unable to mmap 9999802720 bytes from file </srv/models/pytorch_model-00001.bin>: Cannot allocate memory (12)",
        "node7:812:901 [0] NCCL INFO Call to accept returned Resource temporarily unavailable, retrying",
        ("node7:812:901 [0] NCCL INFO ibv_create_cq with 256 entries"),
        ("UCX  ERROR ibv_open_device(mlx5_1) failed: No such device"),
        ("    x = x.cuda()\nRuntimeError: CUDA error: out of memory"),
        (
            "node7:93:151 [0] register_mr_buffers:545 NCCL WARN NET/OFI Unable to register memory (type = 2) for device 0. RC: -12, Error:"
            " Cannot allocate memory"
        ),
    ),
    explain={
        "en": (
            "Every process has limits that the kernel enforces: files and sockets it may hold open, memory it may lock for RDMA, processes and "
            "threads of its user, mappings. Distributed training reaches them early: data loader workers keep a file open per shared tensor, NCCL "
            "opens many sockets, and each rank starts a thread per core. What counts is the limit of the running process, which a service, ssh or "
            "Slurm sets, not what ulimit says in your shell: read /proc/PID/limits. Raise the named limit where the processes are started, and "
            "check it through the same launcher."
        ),
        "zh": (
            "每个进程都受内核限制：能同时打开的文件和 socket 数、能为 RDMA 锁定的内存、所属用户的进程和线程数、内存映射数。分布式训练很容易触及："
            "DataLoader 的 worker 为每个共享张量保持一个打开的文件，NCCL 要开很多 socket，每个进程还按核数启动线程。真正起作用的是正在运行的进程的限"
            "制，它由服务、ssh 或 Slurm 设定，而不是你当前 shell 里 ulimit 的值：请看 /proc/PID/limits。在启动进程的地方提高相应限制，并通过同一个启"
            "动器验证。"
        ),
    },
)
