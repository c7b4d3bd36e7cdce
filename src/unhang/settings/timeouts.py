"""How long anything waits: one timeout for all layers, that of InfiniBand's packets, and the recorder that tells what was waited for."""

from __future__ import annotations

from unhang.settings import support, values
from unhang.settings.communication import HOOK
from unhang.settings.setting import Installed, Setting, Spelled, Value
from unhang.text import Text

# Read by the hook in the training's processes, see attach/protocol.
TIMEOUT = "UNHANG_TIMEOUT_S"

# torch's own defaults in seconds: for the watchdog's heartbeat (600 in old releases), and for ranks to come together under torchrun.
_HEARTBEAT_S = 480
_JOIN_S = 600


def _timeout(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
    """The hook sets it for every group and its store, also over what accelerate, the Trainer (ddp_timeout) and Lightning ask for.

    Layers that only end what is longer are raised to it and never lowered: a short timeout of collectives must not end a slow start.
    """
    if installed.torch is None:
        return support.no_torch(installed)
    seconds = int(value)
    env = {TIMEOUT: str(seconds)}
    readers = {TIMEOUT: HOOK}
    options: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()
    if support.reads(installed, "deepspeed", "DEEPSPEED_TIMEOUT"):
        # Whole minutes; a part of one is an error when deepspeed is imported.
        env["DEEPSPEED_TIMEOUT"] = str(-(-seconds // 60))
        readers["DEEPSPEED_TIMEOUT"] = support.said(installed, "deepspeed")
    heartbeat = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
    if seconds > _HEARTBEAT_S and installed.nccl is not None and support.reads(installed, "torch", heartbeat):
        env[heartbeat] = str(seconds)
        readers[heartbeat] = support.said(installed, "torch")
    if support.takes_overrides(installed, launcher):
        arguments = (f"ddp_timeout={seconds}",)
        readers["ddp_timeout"] = support.said(installed, "llamafactory")
    if seconds > _JOIN_S:
        # join_timeout is the c10d rendezvous', timeout that of the static one.
        conf = f"join_timeout={seconds},timeout={seconds}"
        if launcher in ("torchrun", "llamafactory"):
            env["PET_RDZV_CONF"] = conf
            readers["PET_RDZV_CONF"] = "torchrun"
        elif launcher == "accelerate":
            options = (("--rdzv_conf", conf),)
            readers["--rdzv_conf"] = support.said(installed, "accelerate")
    return Spelled.by_several(readers, env=env, options=options, arguments=arguments)


def _ib_timeout(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
    if not support.reads(installed, "nccl", "NCCL_IB_TIMEOUT"):
        return support.refusal(installed, "nccl", "NCCL_IB_TIMEOUT")
    return Spelled(env={"NCCL_IB_TIMEOUT": str(value)}, read_by=support.said(installed, "nccl"))


def _trace(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
    # 2.8 brought the first name; the second one is older, and an alias since.
    name = support.first(installed, "torch", ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"))
    if name is None:
        return support.refusal(installed, "torch", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    return Spelled(env={name: str(value)}, read_by=support.said(installed, "torch"))


SETTINGS = (
    Setting(
        key="timeout",
        title="how long collectives and the meeting of ranks may take, in seconds, for all layers",
        title_zh="集合通信和 rank 会合允许的时间（秒），对各层一致",
        cost="a real hang is ended that much later; unhang's own watching does not wait for it",
        cost_zh="真正的挂起会更晚才被结束；unhang 自己的监视不受其影响",
        layer="timeouts",
        forms="1800, 30m or 2h",
        forms_zh="1800、30m 或 2h",
        example="30m",
        parse=values.duration,
        spelling=_timeout,
    ),
    Setting(
        key="ib-timeout",
        title="how long an InfiniBand packet waits for its acknowledgement: 4.096 µs × 2^value; no timeout of collectives",
        title_zh="InfiniBand 报文等待确认的时间：4.096 微秒 × 2^值；不是集合通信的超时",
        cost="an adapter or link that is broken is noticed later",
        cost_zh="更晚发现网卡或链路故障",
        layer="timeouts",
        forms="1 to 31",
        forms_zh="1 到 31",
        example="22",
        # 0 waits for ever.
        parse=values.whole(1, 31),
        spelling=_ib_timeout,
    ),
    Setting(
        key="trace-entries",
        title="how many collectives the flight recorder keeps",
        title_zh="flight recorder 保留多少条集合通信",
        cost="some kilobytes of host memory for each",
        cost_zh="每条占用数 KB 主机内存",
        layer="timeouts",
        forms="0 or more",
        forms_zh="0 或更大",
        example="16384",
        parse=values.whole(0, 10_000_000),
        spelling=_trace,
    ),
)
