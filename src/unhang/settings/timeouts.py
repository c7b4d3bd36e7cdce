"""How long anything waits: one timeout for all layers, and the recorder that tells what was waited for."""

from __future__ import annotations

from collections.abc import Mapping

from unhang.settings import support
from unhang.settings.communication import HOOK
from unhang.settings.setting import Installed, Spell, Spelled, Value
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


def _trace(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
    # 2.8 brought the first name; the second one is older, and an alias since.
    name = support.first(installed, "torch", ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"))
    if name is None:
        return support.refusal(installed, "torch", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    return Spelled(env={name: str(value)}, read_by=support.said(installed, "torch"))


SPELLINGS: Mapping[str, Spell] = {"timeout": _timeout, "trace-entries": _trace}
