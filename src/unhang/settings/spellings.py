"""How settings are spelt that are no single variable, for what is installed: what the ranks talk over, how long anything waits, the run itself.

NCCL reads its switches as numbers (`true` is 0), and a list of interfaces or adapters as prefixes, where `=` in front makes names of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from unhang.i18n import Text, msg, same
from unhang.settings import support
from unhang.settings.setting import Installed, Spell, Spelled, Value, worded

# Read by the hook in the training's processes, see attach/protocol.
BACKEND = "UNHANG_BACKEND"
TIMEOUT = "UNHANG_TIMEOUT_S"
LOADER_WORKERS = "UNHANG_LOADER_WORKERS"
LOADER_WORKERS_MOST = "UNHANG_LOADER_WORKERS_MOST"
CUDNN_BENCHMARK = "UNHANG_CUDNN_BENCHMARK"
# torch/_dynamo/config.py reads it in 2.4 and later; 2.4 takes any text for yes, "0" as well.
COMPILE_DISABLE = "TORCH_COMPILE_DISABLE"

# The release whose DETAIL and DDP do not go together over Gloo.
_DETAIL_ENDS_DDP = (2, 13)


_UNMAPPED = msg("only the script can do this, and [arguments] of unhang.toml has no flag for it")
HOOK = msg("unhang's hook", "reader")
# Of `interface`: none is named, whatever the environment says.
AUTO = "auto"
# torch's own defaults in seconds: for the watchdog's heartbeat (600 in old releases), and for ranks to come together under torchrun.
_HEARTBEAT_S = 480
_JOIN_S = 600


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
        return msg("only gloo is put in place of what the script asks for; for NCCL leave backend out")
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
        readers["GLOO_SOCKET_IFNAME"] = msg("Gloo of {what}", what=support.said(installed, "torch"))
    return Spelled.by_several(readers, env=env) if env else support.no_torch(installed)


def _hca(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
    return support.by_variable(installed, "nccl", "NCCL_IB_HCA", _exact(value))


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
            readers["PET_RDZV_CONF"] = same("torchrun")
        elif launcher == "accelerate":
            options = (("--rdzv_conf", conf),)
            readers["--rdzv_conf"] = support.said(installed, "accelerate")
    return Spelled.by_several(readers, env=env, options=options, arguments=arguments)


def _trace(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
    # 2.8 brought the first name; the second one is older, and an alias since.
    name = "TORCH_FR_BUFFER_SIZE" if support.reads(installed, "torch", "TORCH_FR_BUFFER_SIZE") else "TORCH_NCCL_TRACE_BUFFER_SIZE"
    return support.by_variable(installed, "torch", name, str(value))


def by_script(of_llamafactory: str | None = None) -> Spell:
    def spell(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
        if of_llamafactory is not None and support.takes_overrides(installed, launcher):
            return Spelled(arguments=(f"{of_llamafactory}={worded(value)}",), read_by=support.said(installed, "llamafactory"))
        return _UNMAPPED

    return spell


def by_hook(name: str) -> Spell:
    def spell(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
        if installed.torch is None:
            return support.no_torch(installed)
        return Spelled(env={name: str(int(value))}, read_by=HOOK)

    return spell


def _cudnn(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
    if not installed.gpus:
        return support.NO_GPU
    return by_hook(CUDNN_BENCHMARK)(value, installed, launcher)


def _compile(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
    if installed.torch is None:
        return support.no_torch(installed)
    return _UNMAPPED if value else Spelled(env={COMPILE_DISABLE: "1"}, read_by=support.said(installed, "torch"))


def _accumulation(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
    name = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
    if launcher == "accelerate" and support.reads(installed, "accelerate", name):
        # Accelerator() takes it over what the script gives; the script has to use accelerator.accumulate().
        return Spelled(env={name: str(value)}, read_by=support.said(installed, "accelerate"))
    return by_script("gradient_accumulation_steps")(value, installed, launcher)


def _precision(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
    if launcher == "accelerate" and "accelerate" in installed.packages:
        return Spelled(options=(("--mixed_precision", str(value)),), read_by=support.said(installed, "accelerate"))
    if support.takes_overrides(installed, launcher) and value != "fp8":
        chosen = {"bf16": value == "bf16", "fp16": value == "fp16"}
        return Spelled(arguments=tuple(f"{k}={worded(v)}" for k, v in chosen.items()), read_by=support.said(installed, "llamafactory"))
    return _UNMAPPED


def _processes(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
    count = str(value)
    if launcher == "llamafactory":
        return support.by_variable(installed, "llamafactory", "NPROC_PER_NODE", count)
    flag = {"torchrun": "--nproc-per-node", "accelerate": "--num_processes", "deepspeed": "--num_gpus"}.get(launcher)
    if flag is None:
        return msg("this command has no flag for its number of processes that is known here")
    return Spelled(options=((flag, count),), read_by=same(launcher))


def _launch_blocking(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
    if installed.torch is None:
        return support.no_torch(installed)
    if installed.nccl is None and not installed.gpus:
        return msg("only the CUDA runtime reads it, and this torch is built without CUDA")
    return Spelled(env={"CUDA_LAUNCH_BLOCKING": str(int(value))}, read_by=msg("the CUDA runtime", "reader"))


def _detail(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
    # torch 2.13, CPU: SIGSEGV in DDP's constructor (set_construction_data_and_log); plain collectives go well, and so does INFO.
    crashes = installed.torch == _DETAIL_ENDS_DDP and (installed.nccl is None or not installed.gpus)
    return support.by_variable(installed, "torch", "TORCH_DISTRIBUTED_DEBUG", "OFF" if not value else "INFO" if crashes else "DETAIL")


SPELLINGS: Mapping[str, Spell] = {
    "accumulation": _accumulation,
    "backend": _backend,
    "compile": _compile,
    "cudnn-benchmark": _cudnn,
    "detail": _detail,
    "hca": _hca,
    "interface": _interface,
    "launch-blocking": _launch_blocking,
    "precision": _precision,
    "processes": _processes,
    "timeout": _timeout,
    "trace-entries": _trace,
}
