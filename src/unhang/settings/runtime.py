"""Settings of the run itself: what torch checks, what loaders do, how much is done at once, and in how many processes."""

from __future__ import annotations

from collections.abc import Mapping

from unhang.i18n import Text, msg
from unhang.settings import support
from unhang.settings.communication import HOOK
from unhang.settings.setting import Installed, Spell, Spelled, Value, worded

# Read by the hook in the training's processes, see attach/protocol.
LOADER_WORKERS = "UNHANG_LOADER_WORKERS"
LOADER_WORKERS_MOST = "UNHANG_LOADER_WORKERS_MOST"
CUDNN_BENCHMARK = "UNHANG_CUDNN_BENCHMARK"
# torch/_dynamo/config.py reads it in 2.4 and later; 2.4 takes any text for yes, "0" as well.
COMPILE_DISABLE = "TORCH_COMPILE_DISABLE"

# The release whose DETAIL and DDP do not go together over Gloo.
_DETAIL_ENDS_DDP = (2, 13)


_UNMAPPED = msg("only the script can do this, and [arguments] of unhang.toml has no flag for it")


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
    return Spelled(options=((flag, count),), read_by=launcher)


def _launch_blocking(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
    if installed.torch is None:
        return support.no_torch(installed)
    if installed.nccl is None and not installed.gpus:
        return msg("only the CUDA runtime reads it, and this torch is built without CUDA")
    return Spelled(env={"CUDA_LAUNCH_BLOCKING": str(int(value))}, read_by="the CUDA runtime")


def _detail(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
    # torch 2.13, CPU: SIGSEGV in DDP's constructor (set_construction_data_and_log); plain collectives go well, and so does INFO.
    crashes = installed.torch == _DETAIL_ENDS_DDP and (installed.nccl is None or not installed.gpus)
    return support.by_variable(installed, "torch", "TORCH_DISTRIBUTED_DEBUG", "OFF" if not value else "INFO" if crashes else "DETAIL")


SPELLINGS: Mapping[str, Spell] = {
    "accumulation": _accumulation,
    "compile": _compile,
    "cudnn-benchmark": _cudnn,
    "detail": _detail,
    "launch-blocking": _launch_blocking,
    "precision": _precision,
    "processes": _processes,
}
