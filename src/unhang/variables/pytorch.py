"""torch's variables: process groups on NCCL and gloo, the flight recorder, what torch.distributed logs.

Integers go through std::stoi and switches through y, yes, 1, t, true and their opposites: anything else raises, where other ranks may already be
waiting.
"""

from __future__ import annotations

from unhang.variables.variable import NUMBER, PATH, TEXT, TORCH_INT, TORCH_SWITCH, ZERO_OR_ONE, Kind, Text, Trap, Variable, note, one_of, warning


def _torch(
    name: str,
    kind: Kind,
    default: str,
    en: str,
    zh: str,
    *traps: Trap,
    since: str = "",
    removed: str = "",
    now: str = "",
    now_since: str = "",
    instead: Text | None = None,
) -> Variable:
    return Variable(
        name=name,
        owner="torch",
        kind=kind,
        default=default,
        what=Text(en, zh),
        traps=traps,
        since=since,
        removed=removed,
        now=now,
        now_since=now_since,
        instead=instead,
    )


_ON = r"1|y|yes|t|true"
_OFF = r"0|n|no|f|false"
_ALLOCATOR = Kind("torch-allocator")
_ASYNC = note(
    r".*cudamallocasync.*",
    "CUDA's own allocator: max_split_size_mb, garbage_collection_threshold, roundup_power2_divisions and expandable_segments do nothing with it",
    "使用 CUDA 自己的分配器：max_split_size_mb、garbage_collection_threshold、roundup_power2_divisions、expandable_segments 都不起作用",
)
_MODES = Kind("torch-int", 0, 3)
_BLOCKING = warning(
    _ON,
    "wait() blocks the CPU, and newer torch then makes no watchdog thread: nothing reports or ends a hang; leave it unset",
    "wait() 会阻塞 CPU，新版 torch 还会因此不创建看门狗线程：没有任何东西会报告或结束挂起；不要设置",
)
_HANDLING = (
    note(
        "1",
        "ends the process on an error, it recovers nothing; torchrun and torch.distributed.launch set "
        "TORCH_NCCL_ASYNC_ERROR_HANDLING=1 in every worker, and that name wins; leave it unset",
        "出错时结束进程，并不能恢复；torchrun 和 torch.distributed.launch "
        "会在每个工作进程中设置 TORCH_NCCL_ASYNC_ERROR_HANDLING=1，且以该名称为准；不必设置",
    ),
    warning("0", "after an error or a timeout nothing ends: the job hangs", "出错或超时后什么都不会结束：作业一直挂起"),
    note("2", "aborts the communicator and goes on: the program must handle that", "中止通信器但继续运行：需要程序自己处理"),
)
_RECORDER = (warning("0", "the flight recorder is off: after a hang there is no dump", "关闭了 flight recorder：挂起后没有转储"),)

VARIABLES = (
    _torch(
        "TORCH_DIST_USE_NCCL2",
        ZERO_OR_ONE,
        "1",
        "the backend nccl is nccl2; 0: nccl-legacy, the older one",
        "后端 nccl 即 nccl2；0：改用旧后端 nccl-legacy",
        since="2.15",
    ),
    # Errors and time-outs
    _torch(
        "TORCH_NCCL_BLOCKING_WAIT",
        TORCH_SWITCH,
        "0",
        "wait() blocks the CPU until the collective ends",
        "wait() 阻塞 CPU 直到集合通信结束",
        _BLOCKING,
        since="2.2",
    ),
    _torch(
        "NCCL_BLOCKING_WAIT",
        TORCH_SWITCH,
        "0",
        "wait() blocks the CPU (torch's, not NCCL's)",
        "wait() 阻塞 CPU（由 torch 而非 NCCL 读取）",
        _BLOCKING,
        now="TORCH_NCCL_BLOCKING_WAIT",
        now_since="2.2",
    ),
    _torch(
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        _MODES,
        "3",
        "after an error: 0 nothing, 1 abort and end the process, 2 abort only, 3 end only",
        "出错后：0 不处理，1 中止并结束进程，2 只中止，3 只结束",
        *_HANDLING,
        since="2.2",
    ),
    _torch(
        "NCCL_ASYNC_ERROR_HANDLING",
        _MODES,
        "3",
        "after an error: 0 nothing, 1 abort and end the process, 2 abort only, 3 end only (torch's, not NCCL's)",
        "出错后：0 不处理，1 中止并结束进程，2 只中止，3 只结束（由 torch 而非 NCCL 读取）",
        *_HANDLING,
        now="TORCH_NCCL_ASYNC_ERROR_HANDLING",
        now_since="2.2",
    ),
    _torch(
        "TORCH_NCCL_PROPAGATE_ERROR",
        TORCH_SWITCH,
        "0",
        "tell the other ranks of an error through the store",
        "通过 store 把错误告知其他 rank",
        since="2.7",
    ),
    _torch("TORCH_NCCL_TEARDOWN_ON_TIMEOUT", TORCH_SWITCH, "by release", "end the process on a timeout", "超时后结束进程", since="2.15"),
    _torch("TORCH_NCCL_RETHROW_CUDA_ERRORS", TORCH_SWITCH, "1", "the watchdog raises CUDA errors again", "看门狗再次抛出 CUDA 错误", since="2.4"),
    _torch(
        "TORCH_NCCL_ENABLE_MONITORING",
        TORCH_SWITCH,
        "1",
        "end the process when the watchdog itself is stuck",
        "看门狗自身卡住时结束进程",
        warning(_OFF, "a watchdog that is stuck hangs the job for ever", "看门狗卡住时作业会永远挂起"),
        since="2.2",
    ),
    _torch(
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
        TORCH_INT,
        "480; 600 in old releases",
        "how long a watchdog may be stuck",
        "看门狗允许卡住多久（秒）",
        note(r"\d+", "no timeout of collectives: that is the group's", "不是集合通信的超时：那属于进程组"),
        since="2.2",
    ),
    _torch(
        "TORCH_NCCL_COORD_CHECK_MILSEC",
        TORCH_INT,
        "1000",
        "how often other ranks' signals are looked for",
        "检查其他 rank 信号的间隔（毫秒）",
        since="2.3",
    ),
    _torch("TORCH_NCCL_DESYNC_DEBUG", TORCH_SWITCH, "0", "on a timeout, name the ranks that differ", "超时时指出不一致的 rank", since="2.2"),
    _torch(
        "NCCL_DESYNC_DEBUG",
        TORCH_SWITCH,
        "0",
        "on a timeout, name the ranks that differ",
        "超时时指出不一致的 rank",
        now="TORCH_NCCL_DESYNC_DEBUG",
        now_since="2.2",
    ),
    _torch("TORCH_ENABLE_NCCL_HEALTH_CHECK", TORCH_SWITCH, "0", "try a collective at the start", "启动时先试一次集合通信", removed="2.3"),
    _torch("ENABLE_NCCL_HEALTH_CHECK", TORCH_SWITCH, "0", "try a collective at the start", "启动时先试一次集合通信", removed="2.3"),
    _torch("TORCH_NCCL_ABORT_IN_DESTROY_PG", TORCH_SWITCH, "", "abort when a group is destroyed", "销毁进程组时中止", removed="2.4"),
    # The flight recorder
    _torch(
        "TORCH_FR_BUFFER_SIZE",
        TORCH_INT,
        "2000 since 2.11; 0 before",
        "how many collectives the flight recorder keeps",
        "flight recorder 保留多少条记录",
        *_RECORDER,
        since="2.8",
    ),
    _torch(
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
        TORCH_INT,
        "2000 since 2.11; 0 before",
        "how many collectives the flight recorder keeps",
        "flight recorder 保留多少条记录",
        *_RECORDER,
        now="TORCH_FR_BUFFER_SIZE",
        now_since="2.8",
        since="2.2",
    ),
    _torch(
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        TORCH_SWITCH,
        "1 in new releases, 0 in old ones",
        "write the flight recorder on a timeout",
        "超时时写出 flight recorder",
        now="TORCH_FR_DUMP_ON_TIMEOUT",
        now_since="2.15",
        since="2.2",
    ),
    _torch("TORCH_FR_DUMP_ON_TIMEOUT", TORCH_SWITCH, "1", "write the flight recorder on a timeout", "超时时写出 flight recorder", since="2.15"),
    _torch(
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC",
        TORCH_INT,
        "15000 or more",
        "how long the dump may take before the process ends",
        "结束进程前等待转储多久（毫秒）",
        now="TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC",
        now_since="2.15",
        since="2.3",
    ),
    _torch(
        "TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC",
        TORCH_INT,
        "15000 or more",
        "how long the dump may take before the process ends",
        "结束进程前等待转储多久（毫秒）",
        since="2.15",
    ),
    _torch(
        "TORCH_NCCL_TRACE_CPP_STACK",
        TORCH_SWITCH,
        "0",
        "C++ stacks in the flight recorder",
        "flight recorder 包含 C++ 栈",
        now="TORCH_FR_CPP_STACK",
        now_since="2.8",
        since="2.3",
    ),
    _torch("TORCH_FR_CPP_STACK", TORCH_SWITCH, "0", "C++ stacks in the flight recorder", "flight recorder 包含 C++ 栈", since="2.8"),
    _torch(
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
        PATH,
        "/tmp/nccl_trace_rank_",
        "file of the dump; the rank is appended",
        "转储文件名，后接 rank",
        now="TORCH_FR_DUMP_TEMP_FILE",
        now_since="2.8",
        since="2.2",
    ),
    _torch("TORCH_FR_DUMP_TEMP_FILE", PATH, "/tmp/nccl_trace_rank_", "file of the dump; the rank is appended", "转储文件名，后接 rank", since="2.8"),
    _torch("TORCH_FR_DUMP_DYNAMIC_FILE_NAME", TORCH_SWITCH, "0", "a new file for each dump", "每次转储用新文件名", since="2.8"),
    _torch("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", PATH, "none", "pipe that asks for a dump (NCCL only)", "写入即触发转储的管道（仅 NCCL）", since="2.2"),
    _torch("TORCH_NCCL_EXTRA_DUMP_ON_EXEC", TORCH_SWITCH, "0", "a further dump on an exception", "异常时额外转储", since="2.10"),
    _torch("TORCH_INCLUDE_STACK_TRACE", TORCH_SWITCH, "1", "stacks in the dump", "转储包含调用栈", since="2.10"),
    _torch("TORCH_INCLUDE_ONLY_ACTIVE", TORCH_SWITCH, "0", "only collectives that have not ended", "只转储未结束的集合通信", since="2.10"),
    _torch(
        "TORCH_NCCL_ENABLE_TIMING",
        TORCH_SWITCH,
        "0",
        "times of each collective",
        "记录每次集合通信的耗时",
        warning(_ON, "queries of CUDA events can hang the watchdog", "查询 CUDA 事件可能卡住看门狗"),
        since="2.2",
    ),
    _torch(
        "NCCL_ENABLE_TIMING", TORCH_SWITCH, "0", "times of each collective", "记录每次集合通信的耗时", now="TORCH_NCCL_ENABLE_TIMING", now_since="2.2"
    ),
    _torch(
        "TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN",
        TORCH_SWITCH,
        "1",
        "C++ stacks when a process ends badly",
        "异常退出时打印 C++ 栈",
        since="2.5",
    ),
    # Behaviour
    _torch("TORCH_NCCL_HIGH_PRIORITY", TORCH_SWITCH, "0", "streams of high priority", "使用高优先级流", since="2.4"),
    _torch(
        "TORCH_NCCL_NAN_CHECK",
        TORCH_SWITCH,
        "0",
        "look for NaN in what is sent",
        "检查发送数据中的 NaN",
        warning(_ON, "each collective reads all its data once more", "每次集合通信都要再读一遍数据"),
        since="2.4",
    ),
    _torch(
        "TORCH_NCCL_AVOID_RECORD_STREAMS",
        TORCH_SWITCH,
        "0; 1 in later releases",
        "keep tensors alive instead of recording streams",
        "保留张量引用而不记录流",
        removed="2.15",
        instead=Text("nothing: torch always does so", "无需设置：torch 一直这样做"),
    ),
    _torch(
        "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
        TORCH_SWITCH,
        "0",
        "register the allocator's memory with NCCL",
        "把分配器的内存注册到 NCCL",
        since="2.2",
    ),
    _torch(
        "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
        TORCH_SWITCH,
        "0",
        "register the allocator's memory with NCCL",
        "把分配器的内存注册到 NCCL",
        now="TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
        now_since="2.2",
    ),
    _torch("TORCH_NCCL_CUDA_EVENT_CACHE", TORCH_SWITCH, "1", "use CUDA events again", "复用 CUDA 事件", since="2.5"),
    _torch("TORCH_NCCL_BCAST_UNIQUEID", TORCH_SWITCH, "1", "hand the communicator's id round by the store", "通过 store 分发通信器 id", since="2.5"),
    _torch("TORCH_NCCL_RANKS_PER_ROOT", TORCH_INT, "128", "ranks that each bootstrap root serves", "每个引导根节点服务的 rank 数", since="2.7"),
    _torch(
        "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING",
        TORCH_SWITCH,
        "0",
        "warn of send and receive that wait for one another",
        "点对点操作被串行化时告警",
        since="2.9",
    ),
    _torch("TORCH_NCCL_USE_COMM_NONBLOCKING", ZERO_OR_ONE, "0", "communicators that do not block", "使用非阻塞通信器", since="2.2"),
    _torch("TORCH_NCCL_NONBLOCKING_TIMEOUT", NUMBER, "1800", "how long they may take (seconds)", "非阻塞操作的时限（秒）", since="2.5"),
    _torch("TORCH_GLOO_LAZY_INIT", TORCH_SWITCH, "0", "gloo connects at the first use", "gloo 首次使用时才连接", since="2.8"),
    _torch(
        "TORCH_DISTRIBUTED_DEBUG",
        # Importing torch.distributed raises ValueError, also where it is empty.
        Kind("choice", choices=("OFF", "INFO", "DETAIL"), refused=True),
        "OFF",
        "checks and logs of torch.distributed",
        "torch.distributed 的检查与日志",
        warning(
            "detail",
            "a check goes in front of every collective: several times slower for small ones; turn it off once the fault is found",
            "每次集合通信前都要检查：小消息慢数倍；找到问题后请关闭",
        ),
    ),
    _torch("TORCH_DIST_INIT_BARRIER", ZERO_OR_ONE, "0", "a barrier at the end of init_process_group", "init_process_group 结束时做一次 barrier"),
    _torch(
        "TORCH_DIST_NAN_CHECK", ZERO_OR_ONE, "0", "look for NaN in what is sent, with any backend", "检查发送数据中的 NaN（任何后端）", since="2.14"
    ),
    _torch(
        "TORCH_CPP_LOG_LEVEL",
        one_of("INFO", "WARNING", "ERROR", "FATAL", "0", "1", "2", "3"),
        "WARNING",
        "how much torch's C++ tells",
        "torch C++ 日志级别",
    ),
    _torch("TORCH_SHOW_CPP_STACKTRACES", ZERO_OR_ONE, "0", "C++ stacks in exceptions", "异常中包含 C++ 栈"),
    _torch("USE_LIBUV", ZERO_OR_ONE, "1 since 2.4", "the store's event loop", "store 使用 libuv"),
    _torch("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", ZERO_OR_ONE, "0", "a store of one's own beside the rendezvous", "不与 rendezvous 共用 store"),
    _torch(
        "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES",
        ZERO_OR_ONE,
        "0",
        "several ranks on one device with symmetric memory",
        "对称内存允许多个 rank 共用设备",
    ),
    # The allocator: its entries end a run before the first collective
    _torch(
        "PYTORCH_CUDA_ALLOC_CONF",
        _ALLOCATOR,
        "unset",
        "options of the allocator of GPU memory; it goes before PYTORCH_ALLOC_CONF",
        "显存分配器的选项；优先于 PYTORCH_ALLOC_CONF",
        _ASYNC,
    ),
    _torch(
        "PYTORCH_ALLOC_CONF",
        _ALLOCATOR,
        "unset",
        "options of the allocator of device memory",
        "设备内存分配器的选项",
        _ASYNC,
        # pytorch/pytorch#183387
        note(
            r".*expandable_segments\s*:\s*true.*",
            "torch 2.9.1 passes over expandable_segments under this name, on CUDA; PYTORCH_CUDA_ALLOC_CONF is read by all releases",
            "在 CUDA 上 torch 2.9.1 会忽略此名称下的 expandable_segments；PYTORCH_CUDA_ALLOC_CONF 各版本都读取",
        ),
        since="2.9",
        instead=Text("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
    ),
    # gloo and tensorpipe
    _torch(
        "GLOO_SOCKET_IFNAME", Kind("text"), "that of the host's name", "gloo's interfaces, names separated by commas", "gloo 使用的网络接口，逗号分隔"
    ),
    _torch("TP_SOCKET_IFNAME", TEXT, "that of the host's name", "tensorpipe's interface (RPC)", "tensorpipe（RPC）使用的网络接口"),
    _torch("GLOO_DEVICE_TRANSPORT", one_of("TCP", "TCP_TLS", "UV", "IBVERBS"), "TCP", "gloo's transport", "gloo 的传输方式"),
    _torch("GLOO_LOG_LEVEL", one_of("DEBUG", "INFO", "WARN", "ERROR"), "WARN", "how much gloo tells", "gloo 日志级别"),
    _torch("GLOO_DISABLE_CONNECTION_RETRIES", ZERO_OR_ONE, "0", "gloo does not try a connection again", "gloo 不重试连接"),
    _torch("GLOO_ENABLE_STORE_V2_API", ZERO_OR_ONE, "1", "gloo exchanges addresses in fewer requests", "gloo 用更少请求交换地址"),
    _torch("GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER", ZERO_OR_ONE, "1", "gloo numbers connections by rank", "gloo 按 rank 给连接编号"),
    # torchrun
    _torch("TORCHELASTIC_ERROR_FILE", PATH, "set by torchrun", "where a worker leaves its exception", "工作进程写出异常的文件"),
    _torch("TORCHELASTIC_RUN_ID", TEXT, "set by torchrun", "the job's id", "作业 id"),
    _torch("TORCHELASTIC_MAX_RESTARTS", NUMBER, "set by torchrun", "how often they may be", "最多可重启的次数"),
    _torch("TORCHELASTIC_RESTART_COUNT", NUMBER, "set by torchrun", "how often the workers were started again", "工作进程已重启的次数"),
    _torch("TORCHELASTIC_ENABLE_FILE_TIMER", ZERO_OR_ONE, "0", "torchrun watches its workers' timers", "torchrun 监视工作进程的计时器"),
    _torch("TORCHELASTIC_TIMER_FILE", PATH, "chosen", "the pipe of those timers", "这些计时器所用的管道"),
    _torch("TORCHELASTIC_HEALTH_CHECK_PORT", NUMBER, "unset", "where torchrun answers health checks", "torchrun 响应健康检查的端口"),
    _torch("TORCHELASTIC_USE_AGENT_STORE", TEXT, "set by torchrun", "workers use the agent's store", "工作进程使用 agent 的 store"),
    _torch("TORCHELASTIC_SIGNALS_TO_HANDLE", TEXT, "SIGTERM,SIGINT,SIGHUP,SIGQUIT", "signals that end torchrun", "结束 torchrun 的信号"),
    _torch("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", NUMBER, "30", "seconds until torchrun kills its workers", "torchrun 强制结束工作进程前的秒数"),
    _torch("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", TEXT, "[role rank]:", "prefix of lines", "日志行前缀模板"),
)
