"""Variables that launchers set and read: ranks and addresses, accelerate, DeepSpeed, Lightning, LLaMA-Factory; and what CUDA and OpenMP read."""

from __future__ import annotations

from unhang.variables.variable import GPUS, HOSTS, NUMBER, PATH, TEXT, THREADS, Kind, Owner, Text, Trap, Variable, error, note, one_of, warning


def _of(owner: Owner, name: str, kind: Kind, default: str, en: str, zh: str, *traps: Trap, since: str = "", secret: bool = False) -> Variable:
    return Variable(name=name, owner=owner, kind=kind, default=default, what=Text(en, zh), traps=traps, since=since, secret=secret)


_PORT = Kind("python-int", 0, 65535, refused=True)
_ONE = Kind("python-int", 1)
_PYTHON_SWITCH = Kind("choice", choices=("1", "0", "true", "false", "yes", "no", "y", "n", "t", "f", "on", "off"))

VARIABLES = (
    # Who is who
    _of(
        "torch",
        "MASTER_ADDR",
        TEXT,
        "set by the launcher",
        "the host of rank 0",
        "rank 0 所在主机",
        note(r"localhost|127\..*|::1", "only right while all ranks are on one host", "只有所有 rank 都在同一台主机时才正确"),
        error(r"0\.0\.0\.0|::", "no address that can be connected to", "不是可以连接的地址"),
    ),
    _of("torch", "MASTER_PORT", _PORT, "29500, or set by the launcher", "the port of rank 0's store", "rank 0 的 store 端口"),
    _of("torch", "RANK", NUMBER, "set by the launcher", "this process among all", "本进程的全局序号"),
    _of("torch", "WORLD_SIZE", _ONE, "set by the launcher", "how many processes there are", "进程总数"),
    _of("torch", "LOCAL_RANK", NUMBER, "set by the launcher", "this process among those of its host", "本进程在主机内的序号"),
    _of("torch", "LOCAL_WORLD_SIZE", _ONE, "set by the launcher", "processes of this host", "本机进程数"),
    _of("torch", "GROUP_RANK", NUMBER, "set by torchrun", "this host among all", "本机序号"),
    _of("torch", "ROLE_RANK", NUMBER, "set by torchrun", "this process in its role", "本进程在角色内的序号"),
    _of("torch", "ROLE_WORLD_SIZE", _ONE, "set by torchrun", "processes of the role", "角色内进程数"),
    _of("torch", "GROUP_WORLD_SIZE", _ONE, "set by torchrun", "how many hosts there are", "主机数"),
    _of("torch", "PET_NNODES", HOSTS, "1:1", "torchrun --nnodes", "torchrun --nnodes"),
    _of("torch", "PET_NPROC_PER_NODE", TEXT, "1", "torchrun --nproc-per-node", "torchrun --nproc-per-node"),
    _of("torch", "PET_NODE_RANK", NUMBER, "0", "torchrun --node-rank", "torchrun --node-rank"),
    _of("torch", "PET_MASTER_ADDR", TEXT, "127.0.0.1", "torchrun --master-addr", "torchrun --master-addr"),
    _of("torch", "PET_MASTER_PORT", _PORT, "29500", "torchrun --master-port", "torchrun --master-port"),
    _of("torch", "PET_RDZV_BACKEND", TEXT, "static", "torchrun --rdzv-backend", "torchrun --rdzv-backend"),
    _of("torch", "PET_RDZV_ENDPOINT", TEXT, "", "torchrun --rdzv-endpoint", "torchrun --rdzv-endpoint"),
    _of("torch", "PET_RDZV_ID", TEXT, "none", "torchrun --rdzv-id", "torchrun --rdzv-id"),
    _of("torch", "PET_MAX_RESTARTS", NUMBER, "0", "torchrun --max-restarts", "torchrun --max-restarts"),
    _of(
        "lightning",
        "NODE_RANK",
        NUMBER,
        "set by the user",
        "this host among all (Lightning, LLaMA-Factory since 0.9.1)",
        "本机序号（Lightning，以及 0.9.1 起的 LLaMA-Factory）",
    ),
    _of(
        "llamafactory",
        "NNODES",
        HOSTS,
        "1",
        "how many hosts",
        "主机数",
        note(
            r"\d+:\d+",
            "torchrun --nnodes takes such a range; LLaMA-Factory since 0.9.3 wants a number here, and MIN_NNODES, MAX_NNODES and RDZV_ID for a range",
            "torchrun --nnodes 接受这样的范围；LLaMA-Factory 0.9.3 起此处只接受一个数字，范围要用 MIN_NNODES、MAX_NNODES 和 RDZV_ID",
        ),
    ),
    _of("llamafactory", "NPROC_PER_NODE", TEXT, "the GPUs of the host", "processes of each host", "每台主机的进程数"),
    _of(
        "llamafactory",
        "FORCE_TORCHRUN",
        _PYTHON_SWITCH,
        "0",
        "start by torchrun even with one GPU",
        "即使只有一块 GPU 也用 torchrun 启动",
        since="0.8",
    ),
    _of("llamafactory", "RDZV_ID", TEXT, "none", "elastic start by the c10d rendezvous", "用 c10d rendezvous 弹性启动", since="0.9.3"),
    _of("llamafactory", "MIN_NNODES", _ONE, "", "fewest hosts", "最少主机数", since="0.9.3"),
    _of("llamafactory", "MAX_NNODES", _ONE, "", "most hosts", "最多主机数", since="0.9.3"),
    _of("llamafactory", "MAX_RESTARTS", NUMBER, "0", "how often to start again", "重启次数", since="0.9.3"),
    _of("llamafactory", "USE_RAY", _PYTHON_SWITCH, "0", "start by Ray", "用 Ray 启动"),
    _of(
        "llamafactory",
        "OPTIM_TORCH",
        _PYTHON_SWITCH,
        "1",
        "sets PYTORCH_CUDA_ALLOC_CONF and TORCH_NCCL_AVOID_RECORD_STREAMS",
        "会设置 PYTORCH_CUDA_ALLOC_CONF 和 TORCH_NCCL_AVOID_RECORD_STREAMS",
    ),
    # DeepSpeed
    _of(
        "deepspeed",
        "DEEPSPEED_TIMEOUT",
        _ONE,
        "10 since 0.19.6; 30 before",
        "timeout of its groups, in whole minutes",
        "其进程组超时，单位为整分钟",
        warning(r"\d{3,}", "these are minutes, not seconds", "单位是分钟，不是秒"),
    ),
    _of(
        "deepspeed",
        "DS_ACCELERATOR",
        one_of("cuda", "cpu", "xpu", "npu", "mps", "hpu", "mlu", "sdaa", "supa"),
        "detected",
        "kind of device",
        "设备类型",
    ),
    _of("deepspeed", "DS_ENV_FILE", PATH, "~/.deepspeed_env", "variables that are handed to other hosts", "传给其他主机的变量文件"),
    # accelerate
    _of("accelerate", "ACCELERATE_USE_CPU", _PYTHON_SWITCH, "0", "train on CPUs", "在 CPU 上训练"),
    _of("accelerate", "ACCELERATE_USE_DEEPSPEED", _PYTHON_SWITCH, "set by accelerate launch", "use DeepSpeed", "使用 DeepSpeed"),
    _of("accelerate", "ACCELERATE_USE_FSDP", _PYTHON_SWITCH, "set by accelerate launch", "use FSDP", "使用 FSDP"),
    _of("accelerate", "ACCELERATE_USE_MEGATRON_LM", _PYTHON_SWITCH, "set by accelerate launch", "use Megatron-LM", "使用 Megatron-LM"),
    _of("accelerate", "ACCELERATE_MIXED_PRECISION", one_of("no", "fp16", "bf16", "fp8"), "no", "precision", "精度"),
    _of("accelerate", "ACCELERATE_NUM_PROCESSES", _ONE, "", "processes of a notebook's launcher", "notebook 启动器的进程数"),
    _of(
        "accelerate",
        "ACCELERATE_DEBUG_MODE",
        _PYTHON_SWITCH,
        "0",
        "compare shapes before each collective of accelerate",
        "accelerate 每次集合通信前比较形状",
        note("1|true|yes|on|y|t", "one more exchange for each collective: slower", "每次集合通信多一次交换：较慢"),
    ),
    _of("accelerate", "ACCELERATE_CPU_AFFINITY", _PYTHON_SWITCH, "0", "bind processes to CPUs", "把进程绑定到 CPU"),
    _of("accelerate", "ACCELERATE_LOG_LEVEL", TEXT, "WARNING", "how much accelerate tells", "accelerate 日志级别"),
    _of("accelerate", "ACCELERATE_TORCH_DEVICE", TEXT, "by rank", "the device", "设备"),
    _of("accelerate", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", _ONE, "1", "steps between updates", "梯度累积步数"),
    # CUDA, OpenMP
    _of(
        "cuda",
        "CUDA_LAUNCH_BLOCKING",
        Kind("choice", choices=("0", "1")),
        "0",
        "wait for every kernel",
        "每个内核都等待完成",
        warning(
            "1",
            "every launch waits for the one before it: far slower, and it can deadlock with NCCL; to find a faulty kernel, no optimisation",
            "每次启动都等待前一个完成：慢得多，且可能与 NCCL 死锁；只用于定位出错的内核，不是优化",
        ),
        note("0", "0 is the default: it changes nothing", "0 就是默认值：没有任何作用"),
    ),
    _of(
        "cuda",
        "CUDA_VISIBLE_DEVICES",
        GPUS,
        "all",
        "which GPUs a process sees",
        "进程可见的 GPU",
        note(r"|-\d+(?:,.*)?|none|nodevfiles|void", "no GPU at all", "看不到任何 GPU"),
    ),
    _of("cuda", "CUDA_DEVICE_ORDER", one_of("FASTEST_FIRST", "PCI_BUS_ID"), "FASTEST_FIRST", "how GPUs are numbered", "GPU 编号顺序"),
    _of(
        "cuda",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        TEXT,
        "8",
        "hardware queues of a device",
        "设备的硬件队列数",
        note("1", "needed by Megatron's tensor parallelism; it keeps FSDP from overlapping", "Megatron 张量并行需要它；但会妨碍 FSDP 的重叠"),
    ),
    _of(
        "cuda",
        "CUDA_MODULE_LOADING",
        one_of("LAZY", "EAGER", "DEFAULT"),
        "LAZY",
        "when kernels are loaded",
        "何时加载内核",
        note("lazy", "a kernel that is first loaded while a collective runs can deadlock", "在集合通信进行中首次加载内核可能死锁"),
    ),
    _of(
        "openmp",
        "OMP_NUM_THREADS",
        THREADS,
        "1 under torchrun with several processes, else all cores",
        "threads of each process on the CPU",
        "每个进程的 CPU 线程数",
    ),
    _of("system", "TOKENIZERS_PARALLELISM", _PYTHON_SWITCH, "true", "threads of tokenizers", "tokenizers 的多线程"),
    # Names that belong to other programs
    _of("mpi", "OMPI_COMM_WORLD_RANK", NUMBER, "set by mpirun", "rank, as Open MPI gives it", "Open MPI 给出的序号"),
    _of("mpi", "OMPI_COMM_WORLD_SIZE", _ONE, "set by mpirun", "ranks, as Open MPI gives it", "Open MPI 给出的进程数"),
    _of("mpi", "OMPI_COMM_WORLD_LOCAL_RANK", NUMBER, "set by mpirun", "local rank, as Open MPI gives it", "Open MPI 给出的本机序号"),
    _of("ucx", "UCX_NET_DEVICES", TEXT, "all", "UCX's devices", "UCX 使用的设备"),
    _of("ucx", "UCX_TLS", TEXT, "all", "UCX's transports", "UCX 使用的传输"),
    _of("libfabric", "FI_PROVIDER", TEXT, "the best", "libfabric's provider", "libfabric 的 provider"),
    _of(
        "libfabric", "FI_EFA_USE_DEVICE_RDMA", Kind("choice", choices=("0", "1")), "by device", "RDMA of GPU memory on EFA", "EFA 上的 GPU 内存 RDMA"
    ),
    _of("libfabric", "FI_EFA_FORK_SAFE", Kind("choice", choices=("0", "1")), "0", "allow fork() with EFA", "EFA 下允许 fork()"),
    _of("libfabric", "RDMAV_FORK_SAFE", TEXT, "unset", "allow fork() with RDMA", "RDMA 下允许 fork()"),
)

# Names that are passed on from thread to thread, and that no release of NCCL, torch or a framework here has ever read. Some training scripts do, to
# make a group with.
_TIMEOUT = Text(
    "the timeout of a collective is an argument: init_process_group(timeout=...), ddp_timeout in the Trainer and LLaMA-Factory, "
    "InitProcessGroupKwargs(timeout=...) in accelerate, DDPStrategy(timeout=...) in Lightning, DEEPSPEED_TIMEOUT (minutes) in DeepSpeed",
    "集合通信的超时是参数：init_process_group(timeout=...)；Trainer 和 LLaMA-Factory 用 ddp_timeout；accelerate 用 "
    "InitProcessGroupKwargs(timeout=...)；Lightning 用 DDPStrategy(timeout=...)；DeepSpeed 用 DEEPSPEED_TIMEOUT（分钟）",
)
_GLOO = Text(
    "InitProcessGroupKwargs(backend='gloo') in accelerate, ddp_backend='gloo' in the Trainer",
    "accelerate 用 InitProcessGroupKwargs(backend='gloo')；Trainer 用 ddp_backend='gloo'",
)


def _nobody(name: str, instead: Text, en: str, zh: str) -> Variable:
    return Variable(name=name, owner="nobody", kind=TEXT, default="", what=Text(en, zh), instead=instead)


NOBODY = (
    *(
        _nobody(name, _TIMEOUT, "meant as the timeout of collectives", "本意是集合通信的超时")
        for name in (
            "NCCL_TIMEOUT",
            "NCCL_TIMEOUT_MS",
            "NCCL_TIMEOUT_SEC",
            "NCCL_COMM_TIMEOUT",
            "TORCH_NCCL_TIMEOUT",
            "PYTORCH_NCCL_TIMEOUT",
            "TORCH_DISTRIBUTED_TIMEOUT",
            "TORCH_DIST_TIMEOUT",
            "DDP_TIMEOUT",
            "GLOO_TIMEOUT",
            "ACCELERATE_TIMEOUT",
            "TORCH_NCCL_TIMEOUT_SEC",
        )
    ),
    *(
        _nobody(name, _GLOO, "meant to choose the backend", "本意是选择后端")
        for name in (
            "ACCELERATE_USE_GLOO",
            "ACCELERATE_BACKEND",
            "ACCELERATE_DDP_BACKEND",
            "ACCELERATE_DISTRIBUTED_BACKEND",
            "TORCH_DISTRIBUTED_BACKEND",
            "DDP_BACKEND",
        )
    ),
    _nobody(
        "NCCL_ENABLE", Text("NCCL is used wherever the backend is nccl", "只要后端是 nccl 就会使用 NCCL"), "meant to turn NCCL on", "本意是启用 NCCL"
    ),
    _nobody(
        "NCCL_SHM_ENABLE",
        Text("NCCL_SHM_DISABLE=0, which is the default", "NCCL_SHM_DISABLE=0，即默认值"),
        "meant to turn shared memory on",
        "本意是启用共享内存",
    ),
    _nobody(
        "NCCL_IB_ENABLE",
        Text("NCCL_IB_DISABLE=0, which is the default", "NCCL_IB_DISABLE=0，即默认值"),
        "meant to turn InfiniBand on",
        "本意是启用 InfiniBand",
    ),
    _nobody(
        "NCCL_P2P_ENABLE",
        Text("NCCL_P2P_DISABLE=0, which is the default", "NCCL_P2P_DISABLE=0，即默认值"),
        "meant to turn direct copies on",
        "本意是启用 GPU 直连",
    ),
    _nobody(
        "NCCL_ABORT_ON_ERROR",
        Text("nothing: torch's watchdog ends the process on an error", "无需设置：出错时 torch 的看门狗会结束进程"),
        "meant to end on an error",
        "本意是出错即结束",
    ),
    _nobody(
        "NCCL_DETERMINISTIC",
        Text("NCCL_ALGO, the same on all ranks, if bits must not differ", "若要求逐位一致，在所有 rank 上设置相同的 NCCL_ALGO"),
        "meant to give equal bits",
        "本意是逐位一致",
    ),
    _nobody(
        "NCCL_RETRY_COUNT",
        Text("NCCL_IB_RETRY_CNT, NCCL_SOCKET_RETRY_CNT", "NCCL_IB_RETRY_CNT、NCCL_SOCKET_RETRY_CNT"),
        "meant as a number of retries",
        "本意是重试次数",
    ),
)
