"""ineffective-setting: the setting that was meant to prevent the failure is read by nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Cause, LogView, Signature, command
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Evidence, Finding, HostFinding, Remedy

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot
    from unhang.records.incident_view import IncidentView

# A setting that nothing reads is harmless until what it was to prevent happens.
_PREVENTED = {"timeout": ("collective-timeout", "store-disconnect"), "backend": ("collective-timeout", "unhandled-generic", "peer-lost")}


def _in_logs(view: LogView) -> Finding | None:
    hits = view.hits_of(CAUSE.id)
    if any(view.hits_of(c) for c in _PREVENTED["timeout"]) or view.timeouts:
        timeouts = tuple(h for h in hits if h.signature in _TIMEOUTS)
        named = next((h for h in timeouts if h.groups.get("seconds", "").isdigit()), None)
        ran = next((t.timeout_ms for t in view.timeouts), None)
        if named is not None and ran is not None and int(named.groups["seconds"]) * 1000 != ran:
            return CAUSE.of_hits(
                timeouts,
                view,
                standing="likely",
                says=Text(
                    "{name}={value} had no effect: the collective was given up after its group's own timeout of {s} s",
                    "{name}={value} 没有生效：集合通信按所在组自己的超时 {s} 秒被放弃",
                ).fill(name=named.groups["name"], value=named.groups["seconds"], s=f"{ran / 1000:g}"),
            )
        if timeouts:
            return CAUSE.of_hits(timeouts, view)
    others = tuple(h for h in hits if h.signature not in _TIMEOUTS)
    return CAUSE.of_hits(others, view) if any(view.hits_of(c) for c in _PREVENTED["backend"]) or view.timeouts else None


def _in_run(picture: IncidentView) -> Finding | None:
    hits = picture.hits_of(CAUSE.id)
    return CAUSE.of_hits(hits) if any(picture.hits_of(c) for c in _PREVENTED["backend"]) else None


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import variables
    from unhang.variables.examine import nothing_to_scan, of_environment
    from unhang.variables.known import entries

    seen = host.get(variables.SUBJECT)
    if seen is None:
        return
    for one in of_environment(seen, nothing_to_scan):
        value = "" if one.value is None else f"={one.value}"
        see = {"see-who-reads": command("unhang vars {name:variable}", name=one.name)}
        evidence = (Evidence(source=one.source, line=one.line, text=f"{one.name}{value}"),)
        if renamed := next((r for r in one.remarks if r.kind == "renamed"), None):
            yield CAUSE.host_finding(
                area="variables",
                severity=renamed.severity,
                says=Text(f"{one.name}{value}: {renamed.says.en}", f"{one.name}{value}：{renamed.says.zh}"),
                leads_to=Text(
                    "it still holds; a release that drops the old name passes over it in silence", "目前仍然有效；不再支持旧名称的版本会悄悄忽略它"
                ),
                evidence=evidence,
                remedies=("see-who-reads",),
                commands=see,
            )
        said = next((r for r in one.remarks if r.kind in ("not-read", "typo") or (r.kind == "contradiction" and one.name in _HANDLING)), None)
        if said is None:
            continue
        known = one.name in entries() or said.kind == "typo"
        is_open = said.severity == "note"
        by_others = one.state == "unknown" or (one.name in entries() and entries()[one.name].owner == "nobody")
        remedy = _FOR_WHAT.get(entries()[one.name].what.en) if one.name in entries() else None
        yield CAUSE.host_finding(
            area="variables",
            severity="warning" if known and not is_open else "note",
            says=Text(f"{one.name}{value}: {said.says.en}", f"{one.name}{value}：{said.says.zh}")
            if is_open or by_others
            else Text(f"{one.name}{value} has no effect: {said.says.en}", f"{one.name}{value} 不起作用：{said.says.zh}"),
            leads_to=(Text("if so, ", "若是如此，") if is_open else NOTHING)
            + Text("what it was meant to prevent happens as if it were not set", "它本应防止的问题照样发生，如同没有设置"),
            evidence=evidence,
            remedies=(remedy, "see-who-reads") if remedy else ("unset-blocking-wait",) if said.kind == "contradiction" else ("see-who-reads",),
            commands=see,
        )


_HANDLING = ("NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
_FOR_WHAT = {"meant as the timeout of collectives": "timeout-as-argument", "meant to choose the backend": "gloo-as-argument"}
# Names that no release of NCCL, torch or a framework reads, however often they are recommended; a training script may, to make its group with.
_TIMEOUTS = (
    Signature(
        needle="NCCL_TIMEOUT",
        pattern=r"(?<![A-Z_])(?P<name>NCCL_TIMEOUT|TORCH_NCCL_TIMEOUT|PYTORCH_NCCL_TIMEOUT)['\"]?(?:\]| ?= ?|: ?)[ =]*['\"]?(?P<seconds>\d+)",
        standing="possible",
        says="{name}={seconds} is read by neither NCCL nor torch: the timeout of a collective is an argument of its group",
        says_zh="NCCL 和 torch 都不读取 {name}={seconds}：集合通信的超时是其进程组的参数",
        remedies=("timeout-as-argument", "see-who-reads"),
    ),
    Signature(
        needle="TORCH_DISTRIBUTED_TIMEOUT",
        pattern=r"(?P<name>TORCH_DISTRIBUTED_TIMEOUT)['\"]?(?:\]| ?= ?|: ?)[ =]*['\"]?(?P<seconds>\d+)",
        standing="possible",
        says="{name}={seconds} is read by neither NCCL nor torch: the timeout of a collective is an argument of its group",
        says_zh="NCCL 和 torch 都不读取 {name}={seconds}：集合通信的超时是其进程组的参数",
        remedies=("timeout-as-argument", "see-who-reads"),
    ),
)

CAUSE = Cause(
    id="ineffective-setting",
    role="root",
    title="A setting has no effect",
    title_zh="设置没有生效",
    what=(
        "A variable or option was set to prevent this failure, and no program here reads it under that name, so the failure came as if it "
        "were not set."
    ),
    why=(
        "Names passed on from thread to thread that never existed (NCCL_TIMEOUT, ACCELERATE_USE_GLOO), names that were replaced, or a "
        "launcher that does not hand the environment on."
    ),
    signatures=(
        *_TIMEOUTS,
        Signature(
            needle="ACCELERATE_USE_GLOO",
            pattern=r"(?P<name>ACCELERATE_USE_GLOO)['\"]?(?:\]| ?= ?|: ?)[ =]*['\"]?(?P<value>\w+)",
            standing="possible",
            says="{name}={value} is read by nothing: accelerate takes the backend from InitProcessGroupKwargs, the Trainer from ddp_backend",
            says_zh="没有任何程序读取 {name}={value}：accelerate 的后端取自 InitProcessGroupKwargs，Trainer 的取自 ddp_backend",
            remedies=("gloo-as-argument", "see-who-reads"),
        ),
        # torch 1.13 to 2.1: with blocking wait the other one is left aside.
        Signature(
            needle="should not both be enabled",
            pattern=(
                r"(?P<used>(?:TORCH_)?NCCL_BLOCKING_WAIT) and (?P<name>(?:TORCH_)?NCCL_(?:ASYNC_ERROR_HANDLING|DESYNC_DEBUG)\S*) should not both "
                r"be enabled"
            ),
            standing="possible",
            says="{name} was set and is not used, because {used} is set too",
            says_zh="设置了 {name} 却不被使用，因为同时设置了 {used}",
            remedies=("unset-blocking-wait", "see-who-reads"),
        ),
        # NCCL reads integers with strtoll and says so where one overflows.
        Signature(
            needle=", using default ",
            pattern=r"Invalid value (?P<value>\S+) for (?P<name>NCCL_\w+), using default (?P<default>-?\d+)",
            standing="possible",
            says="NCCL refused {name}={value} and went on with {default}",
            says_zh="NCCL 拒绝了 {name}={value}，改用 {default} 继续运行",
            remedies=("see-who-reads",),
        ),
    ),
    in_run=_in_run,
    in_logs=_in_logs,
    on_host=_on_host,
    remedies=(
        Remedy(
            id="timeout-as-argument",
            says=(
                "Give the timeout where the group is made: init_process_group(timeout=timedelta(hours=1)), InitProcessGroupKwargs(timeout=...) in "
                "accelerate, ddp_timeout in the Trainer and LLaMA-Factory, DDPStrategy(timeout=...) in Lightning."
            ),
            says_zh=(
                "在创建进程组的地方传入超时：init_process_group(timeout=timedelta(hours=1))；accelerate 用 InitProcessGroupKwargs(timeout=...)，"
                "Trainer 和 LLaMA-Factory 用 ddp_timeout，Lightning 用 DDPStrategy(timeout=...)。"
            ),
            command="python train.py --ddp_timeout 7200   # the Hugging Face Trainer and what is built on it",
            verify="grep -o 'Timeout(ms)=[0-9]*' LOG | sort | uniq -c   # after the next time-out; flight-recorder dumps name it as timeout_ms",
        ),
        Remedy(
            id="gloo-as-argument",
            says="Ask for gloo in code: Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend='gloo')]), or ddp_backend: gloo for the Trainer.",
            says_zh="在代码中指定 gloo：Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend='gloo')])；Trainer 用 ddp_backend: gloo。",
            command="python train.py --ddp_backend gloo   # the Hugging Face Trainer and what is built on it",
        ),
        Remedy(
            id="unset-blocking-wait",
            says="Unset NCCL_BLOCKING_WAIT and TORCH_NCCL_BLOCKING_WAIT: without it torch's watchdog does its work.",
            says_zh="取消 NCCL_BLOCKING_WAIT 和 TORCH_NCCL_BLOCKING_WAIT：不设置时 torch 的看门狗才正常工作。",
            command="unset NCCL_BLOCKING_WAIT TORCH_NCCL_BLOCKING_WAIT",
        ),
        Remedy(
            id="see-who-reads",
            says="See which of the variables that are set anything installed here reads, and what it is called today.",
            says_zh="查看已设置的变量中哪些真正被此处安装的程序读取，以及它们现在的名称。",
            command="unhang vars",
        ),
    ),
    leads_to=("straggler-timeout", "rank-exception"),
    mistaken_for={
        "straggler-timeout": "who was slow, and why, is the other half: a longer timeout only helps where the rank would have come",
        "config-error": "an option that a program refuses is at least seen; this one is passed over in silence",
    },
    sources=(
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
        "https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html",
        "https://huggingface.co/docs/accelerate/package_reference/kwargs#accelerate.utils.InitProcessGroupKwargs",
    ),
    hits=(
        "+ export NCCL_TIMEOUT=3600",
        "[rank0]: INFO env: {'NCCL_TIMEOUT': '1800', 'NCCL_DEBUG': 'INFO'}",
        "export TORCH_DISTRIBUTED_TIMEOUT=7200",
        "+ ACCELERATE_USE_GLOO=1",
        (
            "[W ProcessGroupNCCL.cpp:653] NCCL_BLOCKING_WAIT and NCCL_ASYNC_ERROR_HANDLING should not both be enabled. Only NCCL_BLOCKING_WAIT "
            "is being used in this process."
        ),
        "node7:2144:2144 [0] NCCL INFO Invalid value 99999999999999999999 for NCCL_BUFFSIZE, using default -2.",
    ),
    near_misses=(
        "Setting the NCCL timeout to 1800 s through init_process_group",
        "node7:2144:2144 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.",
        "export TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=1200",
        "export MY_TRAINER_NCCL_TIMEOUT_SEC=1200",
        "[W Utils.hpp:166] Warning: Environment variable NCCL_ASYNC_ERROR_HANDLING is deprecated; use TORCH_NCCL_ASYNC_ERROR_HANDLING instead",
    ),
    explain={
        "en": (
            "The failure was foreseen and something was set against it, but under a name that nothing reads. Programs pass over unknown "
            "variables in silence. NCCL_TIMEOUT is the best known: neither NCCL nor torch has ever read it; the timeout of a collective "
            "belongs to its group and is an argument (600 s for nccl, 1800 s for gloo and in the Trainer). Look at the Timeout(ms) of the "
            "watchdog's line: it shows what was in force. unhang vars tells for each variable who reads it. Variables set on the submitting "
            "host alone also have no effect: DeepSpeed's launcher hands on only some."
        ),
        "zh": (
            "这个故障事先有人想到，也设置了应对，但用的名字没有任何程序读取。程序对不认识的变量一概默不作声。最典型的是 NCCL_TIMEOUT：NCCL 和 "
            "torch 从来都不读它；集合通信的超时属于进程组，是一个参数（nccl 默认 600 秒，gloo 和 Trainer 为 1800 秒）。看门狗那一行的 "
            "Timeout(ms) 才是实际生效的值。unhang vars 会说明每个变量由谁读取。只在提交任务的主机上设置的变量同样不起作用：DeepSpeed 的启动器只"
            "转发其中一部分。"
        ),
    },
)
