"""config-error: an option of a launcher, a framework or the scheduler is unknown, malformed, or contradicts another.

Long because every program refuses its options in words of its own; most of it is signatures and their lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge import cann, starting, text, words
from unhang.knowledge.caught_exceptions import passed_over
from unhang.knowledge.cause import STANDINGS, Cause, Command, LogView, Signature, command
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Evidence, Finding, HostFinding, Remedy
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot
    from unhang.logs import Hit, Traceback
    from unhang.records.incident_view import IncidentView

# Where frameworks compare what they were given: functions by their names, and what a dataclass of options does once it is filled.
_CHECKS = lazily(
    r"_*(?:verify|validate|check|parse|sanity_check|post_process)\w*_(?:args|arguments|config|configs|options)|(?:get|create|parse)_\w*(?:train_args|_config)|"
    r"verify_with_\w+|_prepare_deepspeed|_prepare_fsdp|_do_(?:error|sanity|arg)_check|set_auto_wrap_policy|trainer_config_\w+|_batch_assertion"
)
_OPTIONS = lazily(r"(?:config\w*|arg_utils|arguments|\w*_?args|hparams|dataclasses)\.py$")
# Two words only of programs that have subcommands, and of scripts behind their interpreter: others may name themselves by a sentence.
_PROGRAM_NAME = lazily(r"(?:(?:accelerate|python|ray|vllm|swift|deepspeed|llamafactory-cli) )?[\w./+-]{1,160}")
_REFUSALS = ("ValueError", "AssertionError", "NotImplementedError", "ValidationError", "ConfigError", "ArgumentError")


def _in_logs(view: LogView) -> Finding | None:
    hits = tuple(h for h in view.hits_of(CAUSE.id) if not _of_others(h, view))
    if not hits:
        return _of_checks(view)
    batch = next((h for h in hits if "world_size" in h.groups), None)
    if batch is None:
        best = min(hits, key=lambda h: STANDINGS.index(h.signature.standing))
        # What raised is the launcher, and none of its lines is at fault.
        launcher = best.signature in starting.BY_OTHERS
        missed = all(h.signature in starting.SIGNATURES for h in hits)
        helper = missed and any(starting.other_failed(view, h) for h in hits)
        # Remedies with the names that the line holds.
        found: dict[str, Command | None] = {}
        if script := best.groups.get("script"):
            folder, _, name = script.rpartition("/")
            found["name-the-script"] = command("ls -la {folder:path}", folder=folder or ("/" if script.startswith("/") else "."))
            runs = {"py": "python", "sh": "bash", "bash": "bash"}.get(name.rpartition(".")[2], "file")
            found["by-the-interpreter"] = command("head -1 {script:path}; {runs:name} {script:program}", script=script, runs=runs)
        program = best.groups.get("program", "").replace(" <command> [<args>]", "")
        if program.endswith(".py"):
            program = f"python {program}"
        if _PROGRAM_NAME.fullmatch(program):
            found["read-help"] = command("{program:program*} --help", program=program.split(" "))
        return CAUSE.of_hits(hits, None if launcher else view, standing="possible" if helper else None, commands=found)
    train, micro, steps, world = (int(batch.groups[k]) for k in ("train", "micro", "steps", "world_size"))
    fits = micro * steps * world
    says = Text(
        "train_batch_size is {train}, but {micro} per GPU × {steps} accumulation steps × {world} ranks is {fits}",
        "train_batch_size 为 {train}，而每 GPU {micro} × 累积步数 {steps} × {world} 个 rank 等于 {fits}",
    ).fill(train=train, micro=micro, steps=steps, world=world, fits=fits)
    if world == 1 and train > fits:
        says += Text(
            "; DeepSpeed sees a single rank: was the script started by its launcher?", "；DeepSpeed 只看到一个 rank：脚本是用它的启动器启动的吗？"
        )
    return CAUSE.of_hits((batch, *(h for h in hits if h is not batch)), view, standing="established", says=says)


def _of_others(hit: Hit, view: LogView) -> bool:
    """Whether a script was missed on one of several hosts, which is filesystem-shared's, or by a batch script that went on without it."""
    if hit.signature == starting.UNREADABLE and hit.host is not None and hit.groups["script"].startswith("/"):
        return True
    return hit.signature in starting.SIGNATURES and (passed_over(view, hit) or starting.trained_behind(view, hit))


def _in_run(picture: IncidentView) -> Finding | None:
    hits = picture.hits_of(CAUSE.id)
    # A rank that took a step, or raised, had been started: what its batch script missed was a helper.
    if picture.raised or any(r.record.step for r in picture.ranks):
        hits = tuple(h for h in hits if h.signature not in starting.SIGNATURES)
    return CAUSE.of_hits(hits)


def _of_checks(view: LogView) -> Finding | None:
    """An exception out of a function that does nothing but check options: whatever it says, it is about them."""
    known = {(h.source, h.line) for hits in view.hits.values() for h in hits}
    refused = [t for t in view.tracebacks if t.frames and (t.source, t.end) not in known and _refuses(t)]
    if not refused:
        return None
    first = refused[0]
    last = first.frames[-1]
    numbers = tuple(sorted({t.rank for t in refused if t.rank is not None}))
    return CAUSE.finding(
        standing="likely",
        says=Text("{who}{name}() refused the options: {said}", "{who}{name}() 拒绝了这些选项：{said}").fill(
            who=Text("{who}: ", "{who}：").fill(who=text.ranks(numbers)) if numbers else NOTHING, name=last.name, said=first.text[:200] or first.type
        ),
        ranks=numbers,
        evidence=(
            first.evidence(),
            Evidence(source=first.source, line=first.line, text=words.frame(last)),
        ),
        remedies=("read-help", "match-versions"),
    )


def _refuses(back: Traceback) -> bool:
    last = back.frames[-1]
    checks = _CHECKS.fullmatch(last.name) is not None or (last.name == "__post_init__" and _OPTIONS.search(last.file) is not None)
    return checks and back.type.rpartition(".")[2].endswith(_REFUSALS)


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    """Variables whose values no program takes, that contradict one another or the host, or that cost more than they give."""
    from unhang.facts import variables
    from unhang.variables.examine import nothing_to_scan, of_environment

    seen = host.get(variables.SUBJECT)
    if seen is None:
        return
    # The variables that other areas, where they were looked at, hold against the host by the same rules.
    from unhang.facts import gpu, infiniband, network

    net, rdma, gpus = host.get(network.SUBJECT), host.get(infiniband.SUBJECT), host.get(gpu.SUBJECT)
    told = {
        *(("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if net is not None and net.nccl.interfaces is not None else ()),
        *(("NCCL_IB_HCA",) if rdma is not None else ()),
        *(("CUDA_VISIBLE_DEVICES",) if gpus is not None and gpus.gpus and gpus.nvml_error is None else ()),
    }
    for one in of_environment(seen, nothing_to_scan):
        value = "" if one.value is None else f"={one.value}"
        for said in one.remarks:
            contradicts = said.kind == "contradiction" and not one.name.endswith("NCCL_ASYNC_ERROR_HANDLING")
            of_host = said.kind == "host" and one.name not in told
            if not (contradicts or of_host or said.kind in ("value", "effect")) or said.severity == "note":
                continue
            yield CAUSE.host_finding(
                area="variables",
                # Platforms that count hosts there are healthy otherwise.
                severity="note" if one.name == "WORLD_SIZE" else said.severity,
                says=Text(f"{one.name}{value}: {said.says.en}", f"{one.name}{value}：{said.says.zh}"),
                leads_to=(
                    Text("programs that start from here are run so", "从这里启动的程序都会这样运行")
                    if said.kind == "effect" and said.severity == "warning"
                    else Text(
                        "programs that start from here fail, wait for one another, or go on with another setting than was meant",
                        "从这里启动的程序会失败、互相等待，或以并非本意的设置继续运行",
                    )
                ),
                evidence=(Evidence(source=one.source, line=one.line, text=f"{one.name}{value}"),),
                remedies=("correct-variable",),
                commands={"correct-variable": command("unset {name:variable}", name=one.name)},
            )


# With the place that YAML names below its exception, and without.
_MALFORMED: tuple[tuple[str, str, str], ...] = (
    (
        (
            r"(?:^ {0,4}in \"[^\"\n]{1,300}\", line \d{1,9}, column \d{1,9}\n[^\n]{0,300}\n)?"
            r"^ {0,4}in \"(?P<file>[^\"\n]{1,300})\", line (?P<row>\d{1,9}), column (?P<column>\d{1,9})"
        ),
        "{file} is malformed at line {row}, column {column}: {reason}",
        "{file} 第 {row} 行第 {column} 列格式有误：{reason}",
    ),
    ("", "a YAML file is malformed: {reason}", "某个 YAML 文件格式有误：{reason}"),
)
# Classes of options by their names: what else pydantic refuses may be a sample.
_REFUSED = r"ValidationError: \d+ validation errors? for (?P<model>\w{0,80}(?:Config|Args|Arguments|Options|Settings|Params|Parameters)\w{0,20})$"
_PROGRAM = r"(?<![\w.+-])(?P<program>[\w.+-]{1,80}(?: [\w.+-]{1,80})?)"

CAUSE = Cause(
    id="config-error",
    role="root",
    title="The command, the script or an option is wrong",
    title_zh="命令、脚本或配置项错误",
    what=(
        "A program refused its own configuration: an unknown or malformed option, two that contradict each other, or numbers that do not "
        "fit the ranks."
    ),
    why=(
        "Options that were renamed between releases, a configuration made for another number of GPUs, values that only another layer can "
        "fill in ('auto')."
    ),
    signatures=(
        *(
            cann.message(needle, standing="established", remedies=("correct-variable",))
            for needle in (" for environment variable ", "nvironment variable [")
        ),
        *(
            cann.message(n, codes="00(?:03|04|14|16|17)", standing="established", remedies=("correct-option",))
            for n in ("ranktable", "parameters of operator", " for config ")
        ),
        *starting.BY_PYTHON,
        *starting.BY_OTHERS,
        # torch.distributed.launch passes it; since torch 2.0 with a dash.
        Signature(
            needle="error: unrecognized arguments: ",
            pattern=_PROGRAM + r": error: unrecognized arguments: (?P<arguments>.*--local[-_]rank\b.*)",
            says="{program} does not know --local-rank, which torch.distributed.launch passes to every rank",
            says_zh="{program} 不认识 --local-rank，而 torch.distributed.launch 会把它传给每个 rank",
            remedies=("use-torchrun", "read-help"),
        ),
        Signature(
            needle="error: unrecognized arguments: ",
            pattern=_PROGRAM + r": error: unrecognized arguments: (?P<arguments>(?!.*--local[-_]rank\b).{1,200})",
            says="{program} does not know {arguments}",
            says_zh="{program} 不认识 {arguments}",
            remedies=("read-help",),
        ),
        Signature(
            needle=": error: argument ",
            pattern=_PROGRAM + r": error: argument (?P<option>[^:\s]+(?: [^:]+)?): (?P<reason>.{1,200})",
            says="{program} refused {option}: {reason}",
            says_zh="{program} 拒绝了 {option}：{reason}",
            remedies=("read-help",),
        ),
        Signature(
            needle=": error: the following arguments are required: ",
            pattern=_PROGRAM + r": error: the following arguments are required: (?P<arguments>.{1,200})",
            says="{program} was started without {arguments}",
            says_zh="启动 {program} 时缺少 {arguments}",
            remedies=("read-help",),
        ),
        Signature(
            needle=": error: ",
            pattern=r"(?P<program>torchrun|accelerate|deepspeed|run\.py|launch\.py|llamafactory-cli|vllm|launch_server\.py|"
            r"accelerate <command> \[<args>\] launch): error: (?P<reason>(?!unrecognized|argument |the following).{1,200})",
            says="{program} refused its command line: {reason}",
            says_zh="{program} 拒绝了给它的命令行：{reason}",
            remedies=("read-help",),
        ),
        Signature(
            needle="No such option: ",
            pattern=r"No such option: (?P<option>\S+)",
            says="the command does not know the option {option}",
            says_zh="该命令不认识选项 {option}",
            remedies=("read-help",),
        ),
        # runpy, with the interpreter's own path in front. What comes with every environment of a training is launcher-wrong-env's.
        Signature(
            needle=": No module named ",
            pattern=r"(?:^|[\s:])(?P<python>(?:/[^\s:]{1,200}/)?python[\d.]*): (?:Error while finding module specification for .{1,80})?"
            r"No module named '?(?![\w.]+\.__main__; ')"
            r"(?!(?:torch|deepspeed|accelerate|lightning|pytorch_lightning|transformers|llamafactory|vllm|megatron|ray)\b)"
            r"(?P<module>[\w.]+)",
            says="{python} was to run a module (-m) and finds no {module}",
            says_zh="{python} 要运行模块（-m），却找不到 {module}",
            remedies=("name-the-module",),
        ),
        # Open MPI breaks the line behind the number.
        Signature(
            needle="There are not enough slots available in the system to satisfy the",
            pattern=r"to satisfy the (?P<slots>\d+)",
            says="mpirun was to start {slots} processes, more than its hosts have slots for",
            says_zh="mpirun 要启动 {slots} 个进程，多于它的各主机提供的 slots",
            remedies=("slots",),
        ),
        # Earlier releases, and those that do not find their help.
        *(
            Signature(
                needle=needle,
                says="mpirun was to start more processes than its hosts have slots for",
                says_zh="mpirun 要启动的进程多于它的各主机提供的 slots",
                remedies=("slots",),
            )
            for needle in ("All nodes which are allocated for this job are already filled", "te-rmaps-base:alloc-error")
        ),
        Signature(
            needle="Cannot re-initialize CUDA in forked subprocess",
            pattern=r"Error: Cannot re-initialize CUDA in forked subprocess",
            says="a worker that was started by fork used a GPU, and its parent had used one before: CUDA does not survive a fork",
            says_zh="由 fork 启动的工作进程使用了 GPU，而其父进程此前已用过 GPU：CUDA 在 fork 之后不可用",
            remedies=("spawn",),
        ),
        # Hugging Face: dataclasses as options, accelerate's file.
        Signature(
            needle="are not used by the HfArgumentParser",
            # The line of source that raises stands in tracebacks too.
            pattern=r"Some (?:specified arguments|keys) are not used by the HfArgumentParser: (?P<arguments>(?!\{).{1,200})",
            says="these options are known to no dataclass of the script: {arguments}",
            says_zh="脚本的所有 dataclass 都不认识这些选项：{arguments}",
            remedies=("read-help", "match-versions"),
        ),
        Signature(
            needle="Got unknown args, potentially deprecated",
            pattern=r"potentially deprecated arguments: (?P<arguments>.{1,200})",
            says="LLaMA-Factory does not know {arguments}",
            says_zh="LLaMA-Factory 不认识 {arguments}",
            remedies=("read-help", "match-versions"),
        ),
        Signature(
            needle="had unknown keys (",
            pattern=r"(?:The config file at (?P<file>\S{1,300}) )?had unknown keys \((?P<keys>\[[^\]]{0,500}\])\)",
            says="accelerate's configuration file has keys that this release does not know: {keys}",
            says_zh="accelerate 的配置文件中有此版本不认识的键：{keys}",
            remedies=("match-versions", "new-accelerate-config"),
        ),
        Signature(
            needle="Unknown keys in the config file",
            pattern=r"Unknown keys in the config file: (?P<keys>\[[^\]]*\])",
            says="accelerate's configuration file has keys that this release does not know: {keys}",
            says_zh="accelerate 的配置文件中有此版本不认识的键：{keys}",
            remedies=("match-versions", "new-accelerate-config"),
        ),
        Signature(
            needle="You can only use one of `--",
            pattern=r"You can only use one of (?P<options>`--.{1,160}`)[^`]* at a time",
            says="accelerate was given several of {options}, which exclude each other",
            says_zh="accelerate 同时收到了 {options} 中的几个，而它们互相排斥",
            remedies=("read-help",),
        ),
        Signature(
            needle="You need to use at least 2 processes to use",
            pattern=r"at least 2 processes to use `(?P<option>[^`]+)`",
            says="accelerate was given {option} with a single process",
            says_zh="给了 accelerate {option}，却只有一个进程",
            remedies=("new-accelerate-config",),
        ),
        Signature(
            needle="You need to manually pass in `",
            pattern=r"You need to manually pass in `(?P<option>[^`]+)`",
            says="accelerate's configuration lacks {option}",
            says_zh="accelerate 的配置中缺少 {option}",
            remedies=("new-accelerate-config",),
        ),
        Signature(
            needle="Less than two GPU ids were configured",
            says="accelerate was told to use several GPUs and given fewer than two ids",
            says_zh="要求 accelerate 使用多块 GPU，给出的编号却不足两个",
            remedies=("new-accelerate-config",),
        ),
        Signature(
            needle="The passed configuration file `",
            pattern=r"The passed configuration file `(?P<file>[^`]+)` does not exist",
            says="accelerate's configuration file {file} does not exist",
            says_zh="accelerate 的配置文件 {file} 不存在",
            remedies=("new-accelerate-config",),
        ),
        Signature(
            needle="Could not find the transformer layer class",
            pattern=r"Could not find the transformer layer class (?:(?P<name>\S+) in|to wrap in) the model",
            says="the layer class that FSDP is to wrap is not in this model",
            says_zh="这个模型中没有要由 FSDP 包装的层类",
            remedies=("fsdp-layer-class",),
        ),
        Signature(
            needle="unexpected keyword argument '",
            pattern=(
                r"\b(?P<class>\w{0,60}(?:TrainingArguments|Config|Plugin|Trainer|Accelerator|Parallel)|init_process_group)(?:\.__init__)?\(\) "
                r"got an unexpected keyword argument '(?P<option>\w+)'"
            ),
            standing="likely",
            says="{class} does not know the option {option} in this release",
            says_zh="此版本的 {class} 不认识选项 {option}",
            remedies=("match-versions",),
        ),
        Signature(
            needle="Your setup doesn't support ",
            pattern=r"Your setup doesn't support (?P<what>[\w/]+)",
            says="{what} was asked of a device or a torch that lacks it",
            says_zh="要求使用 {what}，而设备或 torch 不支持它",
            remedies=("read-help",),
        ),
        Signature(
            needle="load_best_model_at_end requires",
            says="save and evaluation strategies differ, and load_best_model_at_end needs them alike",
            says_zh="保存策略与评估策略不同，而 load_best_model_at_end 要求两者一致",
            remedies=("read-help",),
        ),
        Signature(
            needle=" in any distributed mode",
            pattern=r"can't train a model that has been loaded with `?device_map='auto'`? in any distributed mode",
            says="device_map='auto' spreads one model over the GPUs, which distributed training cannot have",
            says_zh="device_map='auto' 会把一个模型分散到各块 GPU，分布式训练不允许这样",
            remedies=("no-device-map",),
        ),
        Signature(
            needle="is not compatible with `low_cpu_mem_usage",
            says="DeepSpeed ZeRO-3 was combined with low_cpu_mem_usage or a device_map",
            says_zh="DeepSpeed ZeRO-3 与 low_cpu_mem_usage 或 device_map 用在了一起",
            remedies=("no-device-map",),
        ),
        # DeepSpeed
        Signature(
            needle="Check batch related parameters",
            pattern=(
                r"not equal to micro_batch_per_gpu \* gradient_acc_step \* world_size ?"
                r"(?P<train>\d+) != (?P<micro>\d+) \* (?P<steps>\d+) \* (?P<world_size>\d+)"
            ),
            says="train_batch_size {train} is not {micro} per GPU × {steps} steps × {world_size} ranks",
            says_zh="train_batch_size {train} 不等于每块 GPU {micro} × {steps} 步 × {world_size} 个 rank",
            remedies=("leave-one-batch-out", "start-by-launcher"),
        ),
        Signature(
            needle="Check batch related parameters",
            pattern=r"Check batch related parameters(?!.* \* \d+ \* \d+)",
            says="DeepSpeed's batch sizes do not multiply to train_batch_size",
            says_zh="DeepSpeed 的各项批大小之积不等于 train_batch_size",
            remedies=("leave-one-batch-out", "start-by-launcher"),
        ),
        Signature(
            needle="arg cannot be set to `",
            pattern=r"`(?P<option>--\w+)` arg cannot be set to `(?P<value>\w+)` when `(?P<other>\w+)` is set in the DeepSpeed config",
            says="{option} is {value}, and DeepSpeed's file sets {other}",
            says_zh="{option} 为 {value}，而 DeepSpeed 的配置文件设了 {other}",
            remedies=("auto-in-both",),
        ),
        Signature(
            needle="Please correct the following DeepSpeed config values that mismatch",
            says="DeepSpeed's file and the Trainer's arguments name different values for the same settings",
            says_zh="DeepSpeed 的配置文件与 Trainer 的参数对同样的设置给出了不同的值",
            remedies=("auto-in-both",),
        ),
        Signature(
            needle="float: 'auto'",
            near=r"(?i)deepspeed",
            says="DeepSpeed met the value 'auto', which only the Hugging Face integration fills in",
            says_zh="DeepSpeed 遇到了值 'auto'，而只有 Hugging Face 的集成会把它换成实际的值",
            remedies=("no-auto-outside-hf",),
        ),
        Signature(
            needle="base 10: 'auto'",
            near=r"(?i)deepspeed",
            says="DeepSpeed met the value 'auto', which only the Hugging Face integration fills in",
            says_zh="DeepSpeed 遇到了值 'auto'，而只有 Hugging Face 的集成会把它换成实际的值",
            remedies=("no-auto-outside-hf",),
        ),
        Signature(
            needle="input_value='auto'",
            says="DeepSpeed met the value 'auto', which only the Hugging Face integration fills in",
            says_zh="DeepSpeed 遇到了值 'auto'，而只有 Hugging Face 的集成会把它换成实际的值",
            remedies=("no-auto-outside-hf",),
        ),
        # pydantic names the option below its exception: DeepSpeed, vLLM, SGLang, Ray.
        Signature(
            needle="validation error",
            pattern=_REFUSED,
            near=(
                r"validation errors? for \w+\n(?P<option>[A-Za-z_][\w.]{0,200})\n"
                r" {0,8}(?P<reason>\S.{0,400}?) \[type=(?!missing)\w+, input_value=(?P<value>(?!'auto').{0,200}?), input_type="
            ),
            says="{model} refused {option}={value}: {reason}",
            says_zh="{model} 拒绝了 {option}={value}：{reason}",
            remedies=("correct-option", "match-versions"),
        ),
        # pydantic 1 names no value.
        Signature(
            needle="validation error",
            pattern=_REFUSED,
            near=r"validation errors? for \w+\n(?P<option>[A-Za-z_][\w.]{0,200})\n {0,8}(?P<reason>(?![Ff]ield required)\S.{0,400}?) \(type=",
            says="{model} refused {option}: {reason}",
            says_zh="{model} 拒绝了 {option}：{reason}",
            remedies=("correct-option", "match-versions"),
        ),
        Signature(
            needle="validation error",
            pattern=_REFUSED,
            near=r"validation errors? for \w+\n(?P<option>[A-Za-z_][\w.]{0,200})\n {0,8}[Ff]ield required\b",
            says="{model} lacks {option}",
            says_zh="{model} 缺少 {option}",
            remedies=("correct-option", "match-versions"),
        ),
        Signature(
            needle="validation error",
            pattern=_REFUSED,
            near=r"validation errors? for \w+\n {0,8}(?:Value|Assertion) error, (?P<reason>\S.{0,400}?)(?: \[type=|$)",
            says="{model} was refused: {reason}",
            says_zh="{model} 被拒绝：{reason}",
            remedies=("correct-option", "match-versions"),
        ),
        Signature(
            needle="train_micro_batch_size_per_gpu",
            pattern=r"accelerate\.prepare\(\)` requires you to pass at least one .{0,40}dataloader.{0,120}train_micro_batch_size_per_gpu",
            says="DeepSpeed's batch size is left open ('auto'), and accelerator.prepare() was given no data loader to take it from",
            says_zh="DeepSpeed 的批大小未定（'auto'），而 accelerator.prepare() 没有收到可据以确定它的 DataLoader",
            remedies=("leave-one-batch-out", "no-auto-outside-hf"),
        ),
        Signature(
            needle="Expected a string path to an existing deepspeed config",
            says="DeepSpeed was given neither an existing file nor a dictionary as its configuration",
            says_zh="给 DeepSpeed 的配置既不是存在的文件，也不是字典",
            remedies=("read-help",),
        ),
        Signature(
            needle="DeepSpeedConfigError",
            pattern=r"DeepSpeedConfigError: (?P<reason>.{1,200})",
            says="DeepSpeed refused its configuration: {reason}",
            says_zh="DeepSpeed 拒绝了它的配置：{reason}",
        ),
        Signature(
            needle="no_sync context manager is incompatible with gradient partitioning",
            pattern=r"logic of ZeRO stage (?P<stage>\d)",
            says="no_sync cannot be combined with ZeRO stage {stage}, which partitions the gradients",
            says_zh="no_sync 不能与 ZeRO stage {stage} 一起使用，后者会切分梯度",
            remedies=("zero-accumulation",),
        ),
        Signature(
            needle="specified on host '",
            pattern=r"No slot '(?P<slot>\d+)' specified on host '(?P<peer>[^']+)'",
            says="the deepspeed launcher was told GPU {slot} of {peer}, which its host file or machine does not have",
            says_zh="为 deepspeed 启动器指定了 {peer} 的 GPU {slot}，而 hostfile 或那台机器上没有它",
            remedies=("host-file",),
        ),
        Signature(
            needle="ostfile is not formatted correctly",
            says="DeepSpeed's host file is malformed",
            says_zh="DeepSpeed 的 hostfile 格式有误",
            remedies=("host-file",),
        ),
        Signature(
            needle=" not found in hostfile",
            pattern=r"[Hh]ost(?:name)? '?(?P<peer>[\w.-]+)'? not found in hostfile",
            says="{peer} is included or excluded on the command line and does not stand in the host file",
            says_zh="命令行中包含或排除了 {peer}，而 hostfile 中没有它",
            remedies=("host-file",),
        ),
        # torchrun, init_process_group
        Signature(
            needle="Unsupported nproc_per_node value",
            pattern=r"Unsupported nproc_per_node value: (?P<value>\S+)",
            says="torchrun does not know --nproc-per-node {value}: a number, cpu, gpu or auto",
            says_zh="torchrun 不认识 --nproc-per-node {value}：应为数字、cpu、gpu 或 auto",
            remedies=("read-help",),
        ),
        Signature(
            needle="number of required GPUs exceeds the total",
            says="vLLM wants more GPUs than the Ray cluster, or the placement group, has",
            says_zh="vLLM 需要的 GPU 多于 Ray 集群（或 placement group）所有",
            remedies=("see-the-cluster",),
        ),
        Signature(
            needle="No available node types can fulfill resource request",
            pattern=r"fulfill resource request (?P<wanted>\{.{1,200}?\})",
            standing="likely",
            says="no node of the Ray cluster can ever give {wanted}: a task waits for it without end",
            says_zh="Ray 集群中没有节点能提供 {wanted}：任务会一直等待",
            remedies=("see-the-cluster",),
        ),
        Signature(
            needle=" is not divisible by min_thread_",
            pattern=r"(?P<what>input_size_per_partition|output_size_per_partition) = (?P<size>\d+) is not divisible by min_thread_\w = (?P<tile>\d+)",
            says="the quantised kernel takes shares of a multiple of {tile}, and this tensor parallel size leaves {size}",
            says_zh="量化内核要求每份是 {tile} 的倍数，而当前张量并行度下是 {size}",
            remedies=("divide-evenly",),
        ),
        Signature(
            needle="Too large swap space",
            pattern=r"Too large swap space\. (?P<wanted>[\d.]+ GiB) out of the (?P<there>[\d.]+ GiB)",
            says="vLLM was asked for {wanted} of swap space in {there} of host memory",
            says_zh="要求 vLLM 使用 {wanted} 的 swap 空间，而主机内存只有 {there}",
            remedies=("correct-option",),
        ),
        Signature(
            needle="mpiSize == tp * pp",
            says="TensorRT-LLM was started with another number of MPI processes than tensor times pipeline parallel ranks of the engine",
            says_zh="启动 TensorRT-LLM 的 MPI 进程数不等于引擎的张量并行数乘以流水线并行数",
            remedies=("divide-evenly",),
        ),
        # Ray Train.
        Signature(
            needle="orker group startup timed out after ",
            pattern=r"startup timed out after (?P<timeout>[\d.]+) seconds(?: waiting for (?P<workers>\d+) workers)?",
            standing="likely",
            says="Ray Train did not get its workers within {timeout} s: the cluster has not that many free GPUs or CPUs, or starts them too slowly",
            says_zh="Ray Train 在 {timeout} s 内没有得到所需的 worker：集群没有那么多空闲的 GPU 或 CPU，或启动太慢",
            remedies=("see-the-cluster",),
        ),
        Signature(
            needle="ValueError: Cuda is not available",
            says="--nproc-per-node gpu was asked of a torch that sees no GPU",
            says_zh="指定了 --nproc-per-node gpu，而 torch 看不到 GPU",
            remedies=("backend-in-build",),
        ),
        Signature(
            needle="The rendezvous backend '",
            pattern=r"The rendezvous backend '(?P<name>[^']*)' is not registered",
            says="torchrun knows no rendezvous backend named {name}: c10d, static or etcd-v2",
            says_zh="torchrun 没有名为 {name} 的 rendezvous 后端：应为 c10d、static 或 etcd-v2",
            remedies=("read-help",),
        ),
        Signature(
            needle=" of the rendezvous endpoint '",
            pattern=r"The (?P<part>port number|hostname) of the rendezvous endpoint '(?P<endpoint>[^']*)' must",
            says="--rdzv-endpoint {endpoint} has an impossible {part}",
            says_zh="--rdzv-endpoint {endpoint} 的 {part} 不合法",
            remedies=("read-help",),
        ),
        Signature(
            needle="backend type ",
            pattern=r"(?:AssertionError: Unknown|ValueError: [Uu]nknown c10d) backend type:? (?P<backend>\w+)",
            says="torch knows no backend named {backend}",
            says_zh="torch 没有名为 {backend} 的后端",
            remedies=("read-help",),
        ),
        Signature(
            needle="Invalid value for environment variable: ",
            pattern=r"Invalid value for environment variable: (?P<name>\w+)",
            says="the environment variable {name} has a value that torch refuses",
            says_zh="环境变量 {name} 的值被 torch 拒绝",
            remedies=("see-the-environment",),
        ),
        Signature(
            needle="Invalid NCCL_COMM_ID",
            says="NCCL_COMM_ID is malformed: it must be host:port",
            says_zh="NCCL_COMM_ID 格式有误：必须是 host:port",
            remedies=("see-the-environment",),
        ),
        Signature(
            needle="no algorithm/protocol available",
            pattern=r"no algorithm/protocol available for function (?P<function>\w+).*?(?P<settings>NCCL_(?:PROTO|ALGO) was set to .{1,120})",
            says="no NCCL algorithm is left for {function}: {settings}",
            says_zh="{function} 已没有可用的 NCCL 算法：{settings}",
            remedies=("let-nccl-tune",),
        ),
        # Up to NCCL 2.19 without a reason: what was forced by NCCL_ALGO or NCCL_PROTO does not exist on this machine, or in this size.
        Signature(
            needle="no algorithm/protocol available",
            pattern=r"no algorithm/protocol available(?!.{0,300} was set to )",
            standing="likely",
            says="NCCL was left without any algorithm: NCCL_ALGO or NCCL_PROTO asks for one that these GPUs and this network do not have",
            says_zh="NCCL 已没有任何可用的算法：NCCL_ALGO 或 NCCL_PROTO 要求的算法，这些 GPU 和这个网络并不具备",
            remedies=("let-nccl-tune",),
        ),
        # Types 3 and 4 are NCCL's socket and InfiniBand transports.
        Signature(
            needle="socketFinalizeAccept",
            pattern=r"socketFinalizeAccept(?: from (?P<peer>\S+))?: wrong type (?P<came>[34]) != (?P<own>[34])",
            standing="likely",
            says="one host speaks InfiniBand (or a plugin) and its peer sockets: their settings, drivers or plugins differ",
            says_zh="一台主机使用 InfiniBand（或某个插件），而对端使用 socket：两边的设置、驱动或插件不同",
            remedies=("same-network-everywhere",),
        ),
        # Numbers that do not divide.
        Signature(
            needle="divisible by",
            pattern=(
                r"(?:Error|Exception): ?(?:\[[^\]]{0,40}\])? ?(?P<what>(?:[\w ./()=×*-]{0,100})(?:batch|heads?|world[_ ]?size|parallel|ranks|GPUs|"
                r"devices|stages|experts|layers|[Ff]irst dimension of the tensor)[^{}]{0,100}? (?:must be|is not|should be|needs to be|not)"
                r"(?: evenly)? divisible by [^{}]{1,120})"
            ),
            says="{what}",
            remedies=("divide-evenly",),
        ),
        # ensure_divisibility() of Megatron and its heirs.
        Signature(
            needle=" is not divisible by ",
            pattern=r"AssertionError: (?P<what>\d+ is not divisible by \d+)\s*$",
            standing="likely",
            says="a dimension of the model (vocabulary, heads, hidden size) does not divide by the number of tensor-parallel ranks: {what}",
            says_zh="模型的某个维度（词表、注意力头、隐藏层大小）不能被张量并行的 rank 数整除：{what}",
            remedies=("divide-evenly",),
        ),
        Signature(
            needle="please ensure that world_size (",
            pattern=r"world_size \((?P<world_size_asked>\d+)\) is less than (?:than )?(?:or equal to )?max local gpu count \((?P<gpus>\d+)\)",
            says="{world_size_asked} ranks were asked of a host with {gpus} GPUs, and of one host alone",
            says_zh="要求在一台有 {gpus} 块 GPU 的主机上运行 {world_size_asked} 个 rank，而且只有这一台",
            remedies=("divide-evenly",),
        ),
        Signature(
            needle="nvalid parallel dims",
            pattern=r"[Ii]nvalid parallel dims: (?P<dims>.{1,160})",
            says="the parallel dimensions do not multiply to the number of ranks: {dims}",
            says_zh="各并行维度之积不等于 rank 数：{dims}",
            remedies=("divide-evenly",),
        ),
        Signature(
            needle="is larger than the number of available GPUs",
            pattern=r"[Ww]orld size \((?P<world_size_asked>\d+)\) is larger than the number of available GPUs \((?P<gpus>\d+)\)",
            says="{world_size_asked} ranks were asked of a host with {gpus} GPUs",
            says_zh="要求在一台有 {gpus} 块 GPU 的主机上运行 {world_size_asked} 个 rank",
            remedies=("divide-evenly",),
        ),
        # Frameworks that say so themselves.
        Signature(
            needle="MisconfigurationException: ",
            pattern=r"MisconfigurationException: (?P<reason>(?!.*(?i:requested gpu))(?!No supported gpu).{1,200})",
            says="Lightning refused the combination of its options: {reason}",
            says_zh="Lightning 拒绝了这样的选项组合：{reason}",
            remedies=("read-help",),
        ),
        Signature(
            needle="hydra.errors.",
            pattern=r"hydra\.errors\.(?P<kind>\w+): (?P<reason>.{1,200})",
            says="Hydra refused the configuration ({kind}): {reason}",
            says_zh="Hydra 拒绝了该配置（{kind}）：{reason}",
            remedies=("read-help",),
        ),
        Signature(
            needle="omegaconf.errors.",
            pattern=r"omegaconf\.errors\.(?P<kind>\w+): (?P<reason>.{1,200})",
            near=r"^ {0,8}full_key: (?P<key>\S{1,200})",
            says="the configuration lacks or misuses {key} ({kind}): {reason}",
            says_zh="配置缺少 {key} 或用错了它（{kind}）：{reason}",
            remedies=("read-help",),
        ),
        Signature(
            needle="omegaconf.errors.",
            pattern=r"omegaconf\.errors\.(?P<kind>\w+): (?P<reason>.{1,200})",
            says="the configuration lacks or misuses a key ({kind}): {reason}",
            says_zh="配置缺少某个键或用错了键（{kind}）：{reason}",
            remedies=("read-help",),
        ),
        Signature(
            needle="Could not override '",
            pattern=r"Could not override '(?P<key>[^']+)'",
            says="Hydra knows no key {key} to override",
            says_zh="Hydra 没有可供覆盖的键 {key}",
            remedies=("read-help",),
        ),
        *(
            Signature(
                needle=f"yaml.{module}.{name}: ",
                pattern=rf"{name}: (?P<reason>.{{1,160}})",
                # Of several places the last one is the fault's.
                near=near,
                says=says,
                says_zh=says_zh,
                remedies=("check-the-syntax",),
            )
            for near, says, says_zh in _MALFORMED
            for module, name in (("scanner", "ScannerError"), ("parser", "ParserError"), ("constructor", "ConstructorError"))
        ),
        # The scheduler refuses the request itself.
        Signature(
            needle="Batch job submission failed: ",
            pattern=r"Batch job submission failed: (?P<reason>.{1,160})",
            says="Slurm refused the job: {reason}",
            says_zh="Slurm 拒绝了该作业：{reason}",
            remedies=("ask-the-scheduler",),
        ),
        Signature(
            needle="Unable to create step for job ",
            pattern=r"Unable to create step for job \d+: (?P<reason>.{1,160})",
            says="Slurm could not start the step: {reason}",
            says_zh="Slurm 无法启动该作业步：{reason}",
            remedies=("ask-the-scheduler",),
        ),
        Signature(
            needle="strict decoding error: ",
            pattern=r"strict decoding error: (?P<reason>.{1,200})",
            says="Kubernetes refused the manifest: {reason}",
            says_zh="Kubernetes 拒绝了该 manifest：{reason}",
            remedies=("ask-the-scheduler",),
        ),
    ),
    in_run=_in_run,
    in_logs=_in_logs,
    on_host=_on_host,
    remedies=(
        Remedy(
            id="correct-variable",
            says="Correct the variable, or take it out; what it takes and what its default is, unhang vars NAME tells.",
            says_zh="改正这个变量，或把它去掉；可取的值和默认值见 unhang vars 变量名。",
            command="unhang vars",
        ),
        Remedy(
            id="see-the-cluster",
            says="See what the cluster has free and what ScalingConfig asks for, or give slow starts more time.",
            says_zh="查看集群的空闲资源与 ScalingConfig 的要求；启动慢就延长等待时间。",
            command="ray status; export RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S=300",
            verify="ray status   # Total Usage while the training starts",
        ),
        Remedy(
            id="read-help",
            says="Compare the option with what the installed release knows.",
            says_zh="对照已安装版本实际支持的选项。",
            command="torchrun --help; accelerate launch --help; deepspeed --help; python train.py --help",
        ),
        Remedy(
            id="correct-option",
            says="Correct the option where it is set: in the configuration file, on the command line, or in the code that computes it.",
            says_zh="在设置该选项的地方改正它：配置文件、命令行，或计算它的代码。",
        ),
        Remedy(
            id="name-the-script",
            says="Correct the path of the script: a relative one begins where the launcher was started, on each host.",
            says_zh="改正脚本路径：相对路径从启动器运行时所在的目录算起，每台主机都如此。",
            command="pwd; ls -la",
        ),
        Remedy(
            id="by-the-interpreter",
            says=(
                "Name the interpreter (python train.py, bash job.sh; torchrun train.py without --no-python), or give the script a first line that "
                "names it (#!/usr/bin/env python3), chmod +x, and its path (./train.py)."
            ),
            says_zh=(
                "写明解释器（python train.py、bash job.sh；torchrun train.py 不加 --no-python），或者给脚本加上指明解释器的首行"
                "（#!/usr/bin/env python3）、执行 chmod +x，并写出路径（./train.py）。"
            ),
            command="head -1 train.py; ls -l train.py; python train.py",
        ),
        Remedy(
            id="same-architecture",
            says="Compare what the program was built for with the machine; a container image is built for one CPU: docker build --platform.",
            says_zh="对照程序的目标架构与本机；容器镜像只针对一种 CPU：docker build --platform。",
            command="uname -m; file -L PROGRAM; docker image inspect --format '{{.Os}}/{{.Architecture}}' IMAGE",
        ),
        Remedy(
            id="unix-line-ends",
            says="Write the script with Unix line ends.",
            says_zh="把脚本改成 Unix 换行符。",
            command="sed -i 's/\\r$//' SCRIPT",
            verify="file SCRIPT",
        ),
        Remedy(
            id="name-the-module",
            says=(
                "Correct the name behind -m, and start where it can be imported: in the project's directory, or with the project installed "
                "(pip install -e .)."
            ),
            says_zh="改正 -m 后面的模块名，并在能导入它的地方启动：在项目目录中，或先安装该项目（pip install -e .）。",
            command="python -c 'import importlib.util; print(importlib.util.find_spec(\"MODULE\"))'",
        ),
        Remedy(
            id="use-torchrun",
            says="Start by torchrun instead of python -m torch.distributed.launch, and read os.environ['LOCAL_RANK'] in the script.",
            says_zh="用 torchrun 代替 python -m torch.distributed.launch，脚本中读取 os.environ['LOCAL_RANK']。",
            command="torchrun --standalone --nproc-per-node N train.py",
        ),
        Remedy(
            id="match-versions",
            says="Use the release for which the configuration was written, or remove and rename what changed since.",
            says_zh="使用编写该配置时的版本，或删除、改名此后发生变化的选项。",
            command="pip list 2>/dev/null | grep -iE '^(torch|transformers|accelerate|deepspeed|trl|peft|lightning|llamafactory) '",
        ),
        Remedy(
            id="new-accelerate-config",
            says="Write accelerate's configuration anew and compare.",
            says_zh="重新生成 accelerate 配置并比较。",
            command="accelerate config --config_file new.yaml && accelerate launch --config_file new.yaml train.py",
            verify="accelerate env",
        ),
        Remedy(
            id="fsdp-layer-class",
            says="Name the block class of this very model (as print(model) shows it), or wrap by size.",
            says_zh="填写该模型真实的层类名（见 print(model)），或改为按参数量包装。",
            command=(
                'python -c "from transformers import AutoConfig, AutoModel as M; '
                "print(M.from_config(AutoConfig.from_pretrained('MODEL'))._no_split_modules)\""
            ),
        ),
        Remedy(
            id="no-device-map",
            says="Remove device_map and low_cpu_mem_usage from from_pretrained(), or give each rank its own GPU: device_map={'': local_rank}.",
            says_zh="从 from_pretrained() 中去掉 device_map 和 low_cpu_mem_usage，或让每个进程用自己的 GPU：device_map={'': local_rank}。",
        ),
        Remedy(
            id="leave-one-batch-out",
            says="Leave train_batch_size out (or 'auto' with the Hugging Face Trainer): DeepSpeed works it out from the other two and the ranks.",
            says_zh="去掉 train_batch_size（使用 Hugging Face Trainer 时可写 'auto'）：DeepSpeed 会由另外两个值和进程数算出。",
        ),
        Remedy(
            id="start-by-launcher",
            says="See that the script is started by a launcher: started by hand it is one rank, whatever the machine has.",
            says_zh="确认脚本由启动器启动：直接用 python 启动时只有一个进程，与机器有几块 GPU 无关。",
            command="deepspeed --num_gpus N train.py   # or torchrun --standalone --nproc-per-node N train.py",
        ),
        Remedy(
            id="auto-in-both",
            says="Write 'auto' in DeepSpeed's file for what the Trainer's arguments say, so that there is one place only.",
            says_zh="凡是 Trainer 参数已指定的，在 DeepSpeed 配置中写 'auto'，只保留一处来源。",
        ),
        Remedy(
            id="no-auto-outside-hf",
            says="Replace every 'auto' by a number where deepspeed.initialize is called without the Hugging Face Trainer or accelerate.",
            says_zh="如果不经过 Hugging Face Trainer 或 accelerate 而直接调用 deepspeed.initialize，把所有 'auto' 换成具体数值。",
            command="grep -n auto ds_config.json",
        ),
        Remedy(
            id="zero-accumulation",
            says="Leave gradient accumulation to DeepSpeed (gradient_accumulation_steps) instead of no_sync, or use ZeRO stage 1.",
            says_zh="梯度累积交给 DeepSpeed（gradient_accumulation_steps），不要用 no_sync；或者使用 ZeRO-1。",
        ),
        Remedy(
            id="host-file",
            says="One line for each host, 'node1 slots=8', and includes as 'node1:0,1@node2:0,1'.",
            says_zh="每台主机一行，如 'node1 slots=8'；--include 写成 'node1:0,1@node2:0,1'。",
            command="cat /job/hostfile; nvidia-smi -L",
        ),
        Remedy(
            id="backend-in-build",
            says="See what this torch was built with, and from which environment it comes; the CPU build has no NCCL, and Windows never does.",
            says_zh="查看这个 torch 的编译内容及所在环境；CPU 版没有 NCCL，Windows 也没有。",
            command='python -c "import torch; print(torch.__file__, torch.__version__, torch.version.cuda, torch.distributed.is_nccl_available())"',
        ),
        Remedy(
            id="see-the-environment",
            says="See what is set, and where: shell, launcher, container image, job script.",
            says_zh="查看设置了什么、在哪里设置：shell、启动器、容器镜像、作业脚本。",
            command="env | grep -E '^(NCCL|TORCH|GLOO|MASTER|RANK|WORLD|LOCAL)_?'; unhang vars",
        ),
        Remedy(
            id="let-nccl-tune",
            says="Unset NCCL_ALGO and NCCL_PROTO: what they leave does not serve this operation or this machine.",
            says_zh="取消 NCCL_ALGO 和 NCCL_PROTO：它们留下的组合无法用于该操作或该机器。",
            command="unset NCCL_ALGO NCCL_PROTO; grep -nE 'NCCL_(ALGO|PROTO)' /etc/nccl.conf ~/.nccl.conf",
        ),
        Remedy(
            id="same-network-everywhere",
            says="Give all hosts the same NCCL_NET, NCCL_IB_DISABLE, NCCL_IB_HCA and plugin path, in the environment of the processes themselves.",
            says_zh="让所有主机使用相同的 NCCL_NET、NCCL_IB_DISABLE、NCCL_IB_HCA 和插件路径，并设在进程自己的环境里。",
            command="NCCL_DEBUG=INFO torchrun ... 2>&1 | grep -E 'Using network|NET/Plugin|set by environment'",
        ),
        Remedy(
            id="divide-evenly",
            says="Choose numbers that divide: ranks = tensor × pipeline × context × data parallel, batch a multiple of micro batch × data parallel.",
            says_zh="选择能整除的数值：进程数 = 张量 × 流水线 × 上下文 × 数据并行，全局批大小是微批 × 数据并行的整数倍。",
        ),
        Remedy(
            id="check-the-syntax",
            says="Check the file: indentation by spaces, a blank after each colon, strings with special characters in quotes.",
            says_zh="检查文件语法：用空格缩进，冒号后有空格，含特殊字符的字符串加引号。",
            command='python -c "import sys, yaml; yaml.safe_load(open(sys.argv[1]))" FILE',
        ),
        Remedy(
            id="slots",
            says="Name the slots of each host (-H node1:8,node2:8, or slots=8 in the host file), or start fewer processes.",
            says_zh="写明每台主机的 slots（-H node1:8,node2:8，或在 hostfile 中写 slots=8），或者启动更少的进程。",
            command="mpirun -np 16 -H node1:8,node2:8 --display-map hostname",
        ),
        Remedy(
            id="spawn",
            says=(
                "Start workers by spawn (DataLoader(multiprocessing_context='spawn'), torch.multiprocessing.set_start_method('spawn'), "
                "VLLM_WORKER_MULTIPROCESSING_METHOD=spawn), or keep CUDA out of the parent and of the data set."
            ),
            says_zh=(
                "用 spawn 启动工作进程（DataLoader(multiprocessing_context='spawn')、torch.multiprocessing.set_start_method('spawn')、"
                "VLLM_WORKER_MULTIPROCESSING_METHOD=spawn），或者不要在父进程和数据集里使用 CUDA。"
            ),
            command="grep -rnE \"cuda|set_start_method|multiprocessing_context\" --include='*.py' .",
        ),
        Remedy(
            id="ask-the-scheduler",
            says="Compare the request with what the partition or the cluster has.",
            says_zh="把请求与分区或集群实际拥有的资源对照。",
            command="sinfo -o '%P %D %c %m %G %l'; scontrol show job JOB; kubectl apply --dry-run=server -f job.yaml",
        ),
    ),
    leads_to=("rendezvous-misconfig", "rank-exception"),
    mistaken_for={
        "rank-exception": "the traceback behind such a line is the program's way of refusing an option",
        "rendezvous-misconfig": "options that every host accepts and that disagree between hosts are no matter of one program",
        "device-mapping": "a GPU that does not exist is refused later, by CUDA",
        "ssh-launcher": "there the shell of another host, whose name stands in front of the line, finds no program that is here",
        "filesystem-shared": "there the script is missing on one host of several, whose name stands in front of the line",
    },
    sources=(
        "https://docs.pytorch.org/docs/stable/elastic/run.html",
        "https://huggingface.co/docs/accelerate/package_reference/cli",
        "https://www.deepspeed.ai/docs/config-json/",
    ),
    hits=(
        "EI0003: [PID: 812] 2026-01-08 Failed to verify parameters of operator HcclAllReduce. Value 17 for parameter dataType is invalid.",
        "EI0016: [PID: 812] 2026-01-08 Value 8 for config hcclBufferSize is invalid. Expected value: 1.",
        "EI0001: [PID: 812] 2026-01-08 Value 9 for environment variable HCCL_CONNECT_TIMEOUT is invalid. Expected value: 120 to 7200.",
        "EI0001: 2026-01-08-11:02:13.441.302 Environment variable [HCCL_IF_IP] is invalid. Reason: it should be an available ip.",
        "EI0004: [PID: 812] 2026-01-08-11:02:13.441.302 The ranktable or rank is invalid. Reason: [The ranktable config is invalid].",
        "[TensorRT-LLM][ERROR] Assertion failed: mpiSize == tp * pp (/app/tensorrt_llm/cpp/tensorrt_llm/runtime/worldConfig.cpp:80)",
        "ValueError: Weight input_size_per_partition = 10944 is not divisible by min_thread_k = 128.",
        "ValueError: Too large swap space. 16.00 GiB out of the 15.01 GiB total CPU memory is allocated for the swap space.",
        "ValueError: The number of required GPUs exceeds the total number of available GPUs in the cluster.",
        "(autoscaler +28s) Error: No available node types can fulfill resource request {'CPU': 1.0, 'GPU': 1.0}.",
        "ValueError: `--mixed_precision` arg cannot be set to `bf16` when `fp16` is set in the DeepSpeed config file.",
        "(TrainController pid=771) The worker group startup timed out after 30.0 seconds waiting for 8 workers. Potential causes include:",
        "/opt/env/bin/python3.12: can't open file '/srv/job/trian.py': [Errno 2] No such file or directory",
        "python: can't open file 'trian.py': [Errno 2] No such file or directory",
        "/opt/env/bin/python: can't open file '/srv/job/train.py': [Errno 13] Permission denied",
        "/opt/env/bin/python: can't find '__main__' module in '/srv/job'",
        "/opt/env/bin/python: No module named accelerate.__main__; 'accelerate' is a package and cannot be directly executed",
        "bash: line 1: train.py: command not found",
        "job.sh: line 4: train.py: command not found",
        "sh: 1: train.py: not found",
        "bash: line 2: ./train.py: No such file or directory",
        "job.sh: line 9: prepare.sh: command not found",
        "sh: 4: ./prepare.sh: not found",
        "run.sh: line 7: ./launch/start.sh: No such file or directory",
        "bash: start.sh: No such file or directory",
        "/var/spool/slurmd/job71/slurm_script: line 12: ./train.py: Permission denied",
        "slurmstepd: error: execve(): /srv/job/start.sh: Permission denied",
        "zsh: permission denied: ./train.py",
        "zsh:1: command not found: train.py",
        "zsh: no such file or directory: ./start.sh",
        "bash: line 1: ./trainer: cannot execute binary file: Exec format error",
        "slurmstepd: error: execve(): /srv/job/trainer: Exec format error",
        "exec /srv/entrypoint.sh: exec format error",
        "standard_init_linux.go:228: exec user process caused: exec format error",
        "OSError: [Errno 8] Exec format error: './trainer'",
        "/usr/bin/env: ‘python3\\r’: No such file or directory",
        (
            '  File "/opt/env/lib/python3.11/subprocess.py", line 1950, in _execute_child\n'
            "FileNotFoundError: [Errno 2] No such file or directory: 'train.py'"
        ),
        (
            '  File "/opt/env/lib/python3.11/subprocess.py", line 1950, in _execute_child\n'
            "PermissionError: [Errno 13] Permission denied: './train.sh'"
        ),
        "node7:812:812 [1] enqueue.cc:422 NCCL WARN Error : no algorithm/protocol available",
        "[rank0]: AssertionError: 50257 is not divisible by 3",
        "RuntimeError: please ensure that world_size (2) is less than than max local gpu count (1)",
        "[rank14]: AssertionError: Number of layers should be divisible by the pipeline-model-parallel size",
        "AssertionError: First dimension of the tensor should be divisible by tensor parallel size",
        (
            "ValueError: When using DeepSpeed `accelerate.prepare()` requires you to pass at least one of training or evaluation dataloaders or "
            "alternatively set an integer value in `train_micro_batch_size_per_gpu` in the deepspeed config file"
        ),
        "train.py: error: unrecognized arguments: --local-rank=0",
        "DETR training script: error: unrecognized arguments: --local_rank=3",
        "torchrun: error: unrecognized arguments: --nproc",
        "usage: train.py [-h] [--lr LR]\ntrain.py: error: argument --lr: invalid float value: 'fast'",
        "torchrun: error: argument --master-port/--master_port: invalid int value: '0x12'",
        "[rank0]: sft.py: error: argument --lr_scheduler_type: invalid choice: 'cosin' (choose from 'linear', 'cosine')",
        "torchrun: error: the following arguments are required: training_script, training_script_args",
        "accelerate <command> [<args>] launch: error: ambiguous option: --mix could match --mixed_precision, --mixture",
        "Error: No such option: --nproc",
        "/opt/env/bin/python3.12: No module named trian",
        "node3: /usr/bin/python3: No module named trainer.sft_",
        "/opt/env/bin/python: No module named trainer.__main__; 'trainer' is a package and cannot be directly executed",
        "/opt/env/bin/python: Error while finding module specification for 'trainr.sft' (ModuleNotFoundError: No module named 'trainr')",
        "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--lora_rnk', '8']",
        "ValueError: Some keys are not used by the HfArgumentParser: ['preprocessing_num_works']",
        "[WARNING|parser.py:120] Got unknown args, potentially deprecated arguments: ['--lora_rnk']",
        (
            "ValueError: The config file at conf/acc.yaml had unknown keys (['backend']), please try upgrading your `accelerate` version or fix (and "
            "potentially remove) these keys from your config file."
        ),
        "ValueError: Unknown keys in the config file: ['backend'], please try upgrading your `accelerate` version or remove them.",
        "ValueError: You can only use one of `--cpu`, `--multi_gpu`, `--tpu`, `--use_deepspeed`, `--use_fsdp` at a time.",
        "ValueError: You need to use at least 2 processes to use `--multi_gpu`.",
        "ValueError: You need to manually pass in `--num_processes` using this config yaml.",
        "ValueError: Less than two GPU ids were configured and tried to run on on multiple GPUs.",
        "FileNotFoundError: The passed configuration file `conf/zero9.yaml` does not exist.",
        "Exception: Could not find the transformer layer class to wrap in the model.",
        "ValueError: Could not find the transformer layer class LlamaDecoderLayr in the model.",
        "[rank3]: TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'evaluation_strategy'",
        "ValueError: Your setup doesn't support bf16/gpu. You need torch>=1.10, using Ampere GPU with cuda>=11.0",
        "ValueError: --load_best_model_at_end requires the save and eval strategy to match, but found",
        "ValueError: You can't train a model that has been loaded with `device_map='auto'` in any distributed mode.",
        "ValueError: DeepSpeed Zero-3 is not compatible with `low_cpu_mem_usage=True` or with passing a `device_map`.",
        (
            "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * "
            "world_size 64 != 4 * 2 * 1"
        ),
        "AssertionError: Check batch related parameters. train_batch_size is not",
        "ValueError: Please correct the following DeepSpeed config values that mismatch TrainingArguments values:",
        (
            '  File "/srv/env/lib/python3.11/site-packages/deepspeed/runtime/config.py", line 901, in _set_batch_related_parameters\n'
            "ValueError: could not convert string to float: 'auto'"
        ),
        (
            '  File "/srv/env/lib/python3.11/site-packages/deepspeed/runtime/zero/stage3.py", line 322, in __init__\n'
            "ValueError: invalid literal for int() with base 10: 'auto'"
        ),
        "  Input should be a valid integer, unable to parse string as an integer [type=int_parsing, input_value='auto', input_type=str]",
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for DeepSpeedZeroConfig\nreduce_bucket_size\n"
            "  Input should be a valid integer, got a number with a fractional part [type=int_from_float, input_value=1.5, input_type=float]"
        ),
        (
            "pydantic.error_wrappers.ValidationError: 1 validation error for DeepSpeedZeroConfig\nstage3_param_persistence_threshold\n"
            "  value is not a valid integer (type=type_error.integer)"
        ),
        ("omegaconf.errors.ConfigAttributeError: Key 'lrr' is not in struct\n    full_key: optim.lrr\n    object_type=dict"),
        'yaml.scanner.ScannerError: mapping values are not allowed here\n  in "conf/a.yaml", line 12, column 9',
        "yaml.constructor.ConstructorError: could not determine a constructor for the tag '!env'\n  in \"conf/a.yaml\", line 3, column 7",
        (
            'yaml.parser.ParserError: while parsing a block mapping\n  in "conf/a.yaml", line 1, column 1\n'
            "expected <block end>, but found '<scalar>'\n  in \"conf/a.yaml\", line 7, column 3"
        ),
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for EngineArgs\nmodel\n"
            "  Field required [type=missing, input_value={'dtype': 'auto'}, input_type=dict]"
        ),
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig\n"
            "  Value error, max_num_batched_tokens (2048) is smaller than max_model_len (8192). "
            "[type=value_error, input_value=ArgsKwargs((), {}), input_type=ArgsKwargs]"
        ),
        "ValueError: Expected a string path to an existing deepspeed config, or a dictionary or a base64 encoded string. Received: ds.jsn",
        "deepspeed.runtime.config.DeepSpeedConfigError: zero_optimization stage 4 is not known",
        "AssertionError: no_sync context manager is incompatible with gradient partitioning logic of ZeRO stage 2",
        "ValueError: No slot '7' specified on host 'localhost'",
        "ValueError: Hostfile is not formatted correctly, unable to proceed with training.",
        "ValueError: Hostname 'node9' not found in hostfile",
        "ValueError: Unsupported nproc_per_node value: gpus",
        "ValueError: Cuda is not available.",
        "ValueError: The rendezvous backend 'foo' is not registered. Did you forget to call `register`?",
        "ValueError: The port number of the rendezvous endpoint '10.0.0.1:abc' must be an integer between 0 and 65536.",
        "AssertionError: Unknown backend type ncll",
        "RuntimeError: Invalid value for environment variable: TORCH_NCCL_BLOCKING_WAIT",
        "node7:1:1 [0] bootstrap.cc:80 NCCL WARN Invalid NCCL_COMM_ID, please use format: <ipv4>:<port> or [<ipv6>]:<port> or <hostname>:<port>",
        (
            "node7:1:1 [0] NCCL WARN Error : no algorithm/protocol available for function AllGather with datatype ncclInt8. NCCL_PROTO was set "
            "to LL128. NCCL_ALGO was set to TREE."
        ),
        "node7:16899:16961 [0] misc/socket.cc:441 NCCL WARN socketFinalizeAccept: wrong type 4 != 3",
        "AssertionError: global batch size (96) is not divisible by micro batch size (4) times data parallel size (10)",
        "ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (8).",
        "AssertionError: Invalid parallel dims: dp_replicate(1) * dp_shard(3) * cp(1) * tp(2) * pp(1) != WORLD_SIZE(8)",
        "ValidationError: World size (16) is larger than the number of available GPUs (8) in this node.",
        "lightning.fabric.utilities.exceptions.MisconfigurationException: `DistributedSampler` cannot be set with IterableDataset",
        "hydra.errors.MissingConfigException: Cannot find primary config 'trian'",
        "omegaconf.errors.ConfigAttributeError: Key 'lerning_rate' is not in struct",
        "Could not override 'trainer.gpus'.",
        "yaml.scanner.ScannerError: mapping values are not allowed here",
        "yaml.parser.ParserError: expected the node content, but found ','",
        "yaml.constructor.ConstructorError: could not determine a constructor for the tag '!env'",
        "sbatch: error: Batch job submission failed: Requested node configuration is not available",
        "srun: error: Unable to create step for job 8123: More processors requested than permitted",
        "All nodes which are allocated for this job are already filled.",
        "Sorry!  You were supposed to get help about:\n    prte-rmaps-base:alloc-error\nBut I couldn't open the help file:",
        "There are not enough slots available in the system to satisfy the 16\nslots that were requested by the application:\n\n  python",
        ("RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method"),
        'Error from server (BadRequest): strict decoding error: unknown field "spec.template.gpus"',
    ),
    near_misses=(
        "Worker group startup took 31 seconds",
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for Sample\nprompt\n"
            "  Field required [type=missing, input_value={'text': 'a'}, input_type=dict]"
        ),
        "FileNotFoundError: [Errno 2] No such file or directory: '/srv/data/prepare.py'",
        "PermissionError: [Errno 13] Permission denied: '/srv/data/train.bin'",
        "grep: src/model.py: No such file or directory",
        "cat: /srv/job/env.sh: Permission denied",
        "job.sh: line 3: nvidia-smi: command not found",
        "the loader retries on: exec format error",
        "INFO 50257 is not divisible by 8, the vocabulary is padded to 50304",
        '    raise RuntimeError(f"world_size ({world_size}) is not divisible by {total_model_size}")',
        '    raise ValueError(f"Some keys are not used by the HfArgumentParser: {sorted(unused_keys)}")',
        "cmake: error: argument list too long",
        "ValueError: could not convert string to float: 'auto'",
        "ModuleNotFoundError: No module named trian",
        "/usr/bin/python3: No module named torch.distributed",
        "WARNING: optional plugin skipped: No module named flash_attn",
        "        raise RuntimeError('Cannot re-initialize CUDA in forked subprocess. ' + msg)",
        "The scheduler has not enough slots available for 16 more requests",
        "W1103 10:00:01 train.py: ignoring unrecognized arguments: --foo",
        "subprocess.CalledProcessError: Command '['torchrun', '--nproc', '2']' returned non-zero exit status 2.",
        "TypeError: forward() got an unexpected keyword argument 'labels'",
        "MisconfigurationException: You requested gpu: [0, 1]\n But your machine only has: [0]",
        "lightning_lite.utilities.exceptions.MisconfigurationException: You requested GPUs: [0]\n But your machine only has: []",
        "The following values were not passed to `accelerate launch` and had defaults used instead:",
        "INFO the vocabulary is not divisible by 64, padding it to 32064",
        "ValueError: could not convert string to float: 'nan%'",
        '{"train_batch_size": "auto", "gradient_accumulation_steps": "auto"}',
    ),
    explain={
        "en": (
            "A program read its options and refused to go on: nothing of the training has happened yet, and it would fail with one rank as "
            "well. The line itself names the option. Options move between releases (--local_rank became --local-rank and then an environment "
            "variable; accelerate's file gains keys), and a configuration for eight GPUs does not fit four: batch sizes and parallel degrees "
            "have to multiply to the number of ranks. The launcher's CalledProcessError or ChildFailedError behind it is only the echo."
        ),
        "zh": (
            "程序读取自己的选项后拒绝继续：训练还没有开始，只用一个进程也会同样失败。出错的那一行已经点名了选项。选项会随版本变化（"
            "--local_rank 变成 --local-rank，后来又变成环境变量；accelerate 的配置文件会增加键），而为八块 GPU 写的配置不适用于四块：批大小和各"
            "种并行度必须与进程数相乘吻合。后面启动器抛出的 CalledProcessError 或 ChildFailedError 只是回声。"
        ),
    },
)
