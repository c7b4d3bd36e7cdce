"""YAML of accelerate and LLaMA-Factory. Keys and values of accelerate are those of 1.15.0.

`accelerate launch` aborts at an unknown key, and ignores one of a section.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from unhang.knowledge.words import msg
from unhang.remedies.lint.documents import ABSENT, Key, Layout, Problem, known, nearest, table

_TYPE_OF = {"deepspeed_config": "DEEPSPEED", "fsdp_config": "FSDP", "megatron_lm_config": "MEGATRON_LM"}
# accelerate puts these in front of the section's keys where they lack them.
_PREFIX = {"fsdp_config": "fsdp_", "fp8_config": "fp8_", "dynamo_config": "dynamo_"}
# Compared as they are; the others in any case of letters.
_EXACT = ("compute_environment", "distributed_type")
_BY_NUMBER = ("fsdp_sharding_strategy", "fsdp_backward_prefetch", "fsdp_state_dict_type")
# From the least to the most; -1 processes are those that the command line tells (ClusterConfig's default).
_NUMBERS = {"num_processes": (1, None), "num_machines": (1, None), "machine_rank": (0, None), "main_process_port": (0, 65535)}


def check(keys: tuple[Key, ...], layout: Layout) -> Iterator[Problem]:
    # The command's options come before the keys of the file that it reads.
    options = layout.options or {}
    lines = {str(k.path[0]): k.line for k in keys if len(k.path) == 1}
    given = {
        name: text
        for option, text in options.items()
        if (name := option.strip("-").replace("-", "_")) in known("accelerate")["top"] - {"rdzv_backend"}
    }
    values = {name: int(text) if text.isdecimal() else None if "$" in text and name in _NUMBERS else text for name, text in given.items()}
    more = (Key(path=(name,), line=lines.get(name, 1), value=value) for name, value in values.items())
    keys = (*(k for k in keys if k.path[0] not in given), *more)
    by_path = {_whole(k.path): k for k in keys}
    top = {path[0]: key for path, key in by_path.items() if len(path) == 1}
    if top.get("compute_environment", ABSENT).value == "AMAZON_SAGEMAKER":
        # Another file with other keys, for jobs that SageMaker starts.
        return
    names = known("accelerate")
    for key in keys:
        path = _whole(key.path)
        if len(path) == 1 and path[0] == "backend":
            says = msg("accelerate has no key `backend`, and aborts on it")
            yield key.problem(
                says,
                msg(
                    'Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")]) in the script, ddp_backend="gloo" with the Trainer, '
                    "or unhang run --set backend=gloo accelerate launch ..."
                ),
            )
        elif len(path) == 1 and path[0] not in names["top"] | names["legacy"]:
            says = msg("accelerate has no key `{path}`, and aborts on it", path=path[0])
            home = next((section for section in _TYPE_OF if path[0] in names[section]), None)
            yield key.problem(says, msg("{path} in {home}", path=path[0], home=home) if home else nearest(path[0], names["top"]))
        elif len(path) == 2 and path[0] in names and path[1] not in names[path[0]]:
            says = msg("accelerate has no key `{path}` in {path2}, and ignores it", path=key.path[1], path2=path[0])
            yield key.problem(says, msg("{path} at the top level", path=path[1]) if path[1] in names["top"] else nearest(path[1], names[path[0]]))
    yield from _values(by_path)
    yield from _sections(by_path, top)
    yield from _kind(top, "mpirun_hostfile" in {path[-1] for path in by_path})
    yield from _hosts(top, layout)


def _whole(path: tuple[str | int, ...]) -> tuple[str, ...]:
    section, *rest = map(str, path)
    if rest and not rest[0].startswith(_PREFIX.get(section, "")):
        rest[0] = _PREFIX[section] + rest[0]
    return section, *rest


def _values(by_path: Mapping[tuple[str, ...], Key]) -> Iterator[Problem]:
    for path, words in table("accelerate", "values").items():
        key, name, valid = by_path.get(tuple(path.split(".")), ABSENT), path.rpartition(".")[2], words.split()
        if not key.is_leaf:
            yield _holds_more(key, name)
        if key.value is None:
            continue
        value = str(key.value)
        if key.value is False and name == "mixed_precision":
            # YAML 1.1 takes a bare no for false.
            yield key.problem(msg("mixed_precision: no without quotes is false in YAML, and accelerate fails on it"), 'mixed_precision: "no"')
        elif (key.value is False and name == "distributed_type") or (name in _BY_NUMBER and value.isdigit() and 1 <= int(value) <= len(valid)):
            continue
        elif value not in valid and (name in _EXACT or value.lower() not in {v.lower() for v in valid}):
            says = msg("{name} is {value}: accelerate knows no such one", name=name, value=value)
            near = next((v for v in valid if v.lower() == value.lower()), None)
            yield key.problem(says, near or nearest(value, valid) or ", ".join(valid))
    for name, (least, most) in _NUMBERS.items():
        key = by_path.get((name,), ABSENT)
        if not key.is_leaf:
            yield _holds_more(key, name)
        elif type(key.value) is int:
            if (name, key.value) != ("num_processes", -1) and (key.value < least or (most is not None and key.value > most)):
                span = msg("{least} or more", least=least) if most is None else msg("from {least} to {most}", least=least, most=most)
                yield key.problem(msg("{name} is {value}: it is {span}", name=name, value=key.value, span=span))
        elif key.value is not None:
            yield key.problem(msg("{name} is a whole number, not {value!r}", name=name, value=key.value))
    backend = by_path.get(("rdzv_backend",), ABSENT)
    if backend.value in ("c10d", "etcd", "etcd-v2"):
        says = msg("rdzv_backend: {value} is not read from the file, which leaves static", value=backend.value)
        yield backend.problem(says, f"accelerate launch --rdzv_backend {backend.value} ...")


def _holds_more(key: Key, name: str) -> Problem:
    kind = msg("a list") if key.is_list else msg("a mapping")
    return key.problem(msg("{name} is {kind}, where one value belongs", name=name, kind=kind))


def _sections(by_path: Mapping[tuple[str, ...], Key], top: Mapping[str, Key]) -> Iterator[Problem]:
    kind = top.get("distributed_type")
    for section, wanted in _TYPE_OF.items():
        filled = any(path[0] == section and len(path) > 1 for path in by_path)
        if filled and kind is not None and kind.value != wanted and kind.value in table("accelerate", "values")["distributed_type"].split():
            says = msg("{section} is not read with distributed_type: {value}", section=section, value=kind.value)
            yield top[section].problem(says, f"distributed_type: {wanted}")
    if ("deepspeed_config", "deepspeed_config_file") in by_path:
        refused = {("deepspeed_config", name) for name in known("accelerate")["of_deepspeed_file"]} | {("mixed_precision",)}
        for path in refused & set(by_path):
            if by_path[path].value is None:
                continue
            says = msg("{path} beside deepspeed_config_file: accelerate refuses both", path=path[-1])
            yield by_path[path].problem(says, msg("in DeepSpeed's file"))
    stage = by_path.get(("deepspeed_config", "zero_stage"), ABSENT)
    for name, lowest in (("offload_optimizer", 1), ("offload_param", 3)):
        device = by_path.get(("deepspeed_config", f"{name}_device"), ABSENT)
        if str(device.value) in ("cpu", "nvme") and str(stage.value).isdigit() and int(stage.value) < lowest:
            says = msg("{name}_device has no effect with zero_stage {value}", name=name, value=stage.value)
            yield device.problem(says, f"zero_stage: {max(lowest, 2)}")
    version = by_path.get(("fsdp_config", "fsdp_version"), ABSENT)
    prefetch = by_path.get(("fsdp_config", "fsdp_forward_prefetch"), ABSENT)
    if str(version.value) == "2" and prefetch.value in (True, "true"):
        yield prefetch.problem(msg("fsdp_forward_prefetch is refused with fsdp_version: 2"), "fsdp_forward_prefetch: false")


def _kind(top: Mapping[str, Key], by_mpi: bool) -> Iterator[Problem]:
    kind, count = top.get("distributed_type"), top.get("num_processes", ABSENT)
    if kind is None:
        says = msg("there is no distributed_type: accelerate refuses the file")
        yield min(top.values(), key=lambda k: k.line).problem(says, "distributed_type: MULTI_GPU")
        return
    if count is ABSENT and kind.value != "NO":
        says = msg("there is no num_processes: accelerate asks for --num_processes")
        hosts = top["num_machines"].value if "num_machines" in top else 1
        each = hosts * (1 if hosts > 1 else 2) if isinstance(hosts, int) and hosts > 0 else 2
        yield kind.problem(says, f"num_processes: {each}")
    if not isinstance(count.value, int) or count.value < 2:
        return
    if kind.value in ("NO", False):
        yield kind.problem(msg("distributed_type NO starts one process, not {value}", value=count.value), "distributed_type: MULTI_GPU")
    elif kind.value == "MULTI_CPU" and not by_mpi:
        says = msg("distributed_type MULTI_CPU starts one process, not {value}: others are left to mpirun", value=count.value)
        yield kind.problem(says, msg("distributed_type: MULTI_GPU with the variable ACCELERATE_USE_CPU=true"))


def _hosts(top: Mapping[str, Key], layout: Layout) -> Iterator[Problem]:
    machines, processes, rank, address = (top.get(name, ABSENT) for name in ("num_machines", "num_processes", "machine_rank", "main_process_ip"))
    hosts = machines.value if isinstance(machines.value, int) and machines.value > 0 else None
    total = processes.value if isinstance(processes.value, int) else None
    if hosts is not None and hosts > 1:
        # A port needs no key: all take 29500.
        if address.value is None:
            says = msg("{hosts} machines, and no main_process_ip: they do not find one another", hosts=hosts)
            yield machines.problem(says, "main_process_ip: first-host")
        elif address.value in ("localhost", "127.0.0.1", "0.0.0.0"):
            says = msg("{hosts} machines, and each takes itself for the first: {value}", hosts=hosts, value=address.value)
            yield address.problem(says, msg("the first host's name or address"))
    if isinstance(rank.value, int) and hosts is not None and not 0 <= rank.value < hosts:
        says = msg("machine_rank is {value}, and {hosts} machines count from 0", value=rank.value, hosts=hosts)
        yield rank.problem(says, f"machine_rank: {hosts - 1}")
    if hosts and total is not None and total % hosts:
        yield processes.problem(msg("num_processes counts those of all hosts: {total} does not divide by {hosts}", total=total, hosts=hosts))
    if layout.world is not None and total is not None and total != layout.world:
        says = msg("num_processes is {total}, and the job has {world} (it counts those of all hosts)", total=total, world=layout.world)
        yield processes.problem(says, f"num_processes: {layout.world}")


def check_llamafactory(keys: tuple[Key, ...]) -> Iterator[Problem]:
    """LLaMA-Factory's own fields and the Trainer's. A field of neither is refused, unless ALLOW_EXTRA_ARGS is set."""
    top = {str(k.path[0]): k for k in keys if len(k.path) == 1}
    fields, others = known("llamafactory")["own"] | known("llamafactory")["trainer"], table("llamafactory", "instead")
    # A file for `llamafactory-cli eval` has others.
    for name, key in () if "task" in top else top.items():
        if name not in fields:
            yield key.problem(msg("LLaMA-Factory has no field `{name}`, and refuses the file", name=name), others.get(name) or nearest(name, fields))
    for name, words in table("llamafactory", "values").items():
        key, valid = top.get(name, ABSENT), words.split()
        if key.value is not None and key.value not in valid:
            yield key.problem(msg("{name} is {value}: there is no such one", name=name, value=key.value), ", ".join(valid))
    if top.get("fp16", ABSENT).value is True and top.get("bf16", ABSENT).value is True:
        yield top["fp16"].problem(msg("bf16 and fp16 are both on: the Trainer refuses that"))
    workers = top.get("dataloader_num_workers", ABSENT).value
    for name in ("dataloader_prefetch_factor", "dataloader_persistent_workers"):
        if top.get(name, ABSENT).value and not workers:
            yield top[name].problem(msg("{name} without workers: DataLoader raises ValueError", name=name), "dataloader_num_workers: 2")
