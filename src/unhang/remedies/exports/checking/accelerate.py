"""accelerate's YAML. An unknown key makes `accelerate launch` abort; the keys are those of 1.15.0."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from unhang.knowledge.text import NOTHING, Text, same
from unhang.remedies.exports.checking.documents import Key
from unhang.remedies.exports.checking.problem import Layout, Problem

KEYS = frozenset(
    {
        "compute_environment",
        "distributed_type",
        "mixed_precision",
        "use_cpu",
        "debug",
        "num_processes",
        "machine_rank",
        "num_machines",
        "gpu_ids",
        "main_process_ip",
        "main_process_port",
        "rdzv_backend",
        "same_network",
        "main_training_function",
        "enable_cpu_affinity",
        "fp8_config",
        "deepspeed_config",
        "fsdp_config",
        "parallelism_config",
        "megatron_lm_config",
        "mpirun_config",
        "downcast_bf16",
        "tpu_name",
        "tpu_zone",
        "tpu_use_cluster",
        "tpu_use_sudo",
        "command_file",
        "commands",
        "tpu_vm",
        "tpu_env",
        "dynamo_config",
    }
)
_GLOO = Text(
    'Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")]) in the script, ddp_backend="gloo" with the Trainer, '
    "or unhang run --set backend=gloo accelerate launch ...",
    '在脚本中写 Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")])，使用 Trainer 时写 ddp_backend="gloo"，'
    "或用 unhang run --set backend=gloo accelerate launch ...",
)


def check(keys: tuple[Key, ...], layout: Layout) -> Iterator[Problem]:
    top = {str(k.path[0]): k for k in keys if len(k.path) == 1}
    for name, key in top.items():
        if name == "backend":
            says = Text("accelerate has no key `backend`, and aborts on it", "accelerate 没有 backend 这个键，遇到会中止")
            yield Problem(line=key.line, says=says, instead=_GLOO)
        elif name not in KEYS:
            near = difflib.get_close_matches(name, KEYS, 1)
            says = Text(f"accelerate has no key `{name}`, and aborts on it", f"accelerate 没有 {name} 这个键，遇到会中止")
            yield Problem(line=key.line, says=says, instead=same(near[0]) if near else NOTHING)
    machines = top.get("num_machines")
    processes = top.get("num_processes")
    hosts = machines.value if machines is not None and isinstance(machines.value, int) else None
    total = processes.value if processes is not None and isinstance(processes.value, int) else None
    if machines is not None and hosts is not None and hosts > 1:
        for name in ("main_process_ip", "main_process_port"):
            if name not in top or top[name].value is None:
                says = Text(f"{hosts} machines, and no {name}: they do not find one another", f"{hosts} 台机器，却没有 {name}：彼此找不到")
                yield Problem(line=machines.line, says=says, instead=same(f"{name}: {'first-host' if name.endswith('ip') else 29500}"))
    if processes is not None and hosts and total is not None and total % hosts:
        says = Text(
            f"num_processes counts those of all hosts: {total} does not divide by {hosts}",
            f"num_processes 是所有主机的总数：{total} 不能被 {hosts} 整除",
        )
        yield Problem(line=processes.line, says=says)
    if processes is not None and layout.world is not None and total is not None and total != layout.world:
        says = Text(
            f"num_processes is {total}, and the job has {layout.world} (it counts those of all hosts)",
            f"num_processes 为 {total}，而作业共有 {layout.world} 个进程（它是所有主机的总数）",
        )
        yield Problem(line=processes.line, says=says, instead=same(f"num_processes: {layout.world}"))
