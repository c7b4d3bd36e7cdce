"""Shell around launchers: flags that are gone, hosts that do not find one another, two launchers at once, what Slurm starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence

from unhang.knowledge.text import Text, same
from unhang.remedies.exports.checking.problem import Problem
from unhang.remedies.exports.checking.starts import Start, assigned, starts

_CONTINUED = re.compile(r"\\\n")
_COMMENT = re.compile(r"^[ \t]*#(?!SBATCH).*|(?<=\s)#[^\n\"']*$", re.MULTILINE)
_LOCAL_RANK = re.compile(r"(?:^|\s)--local_rank\b")
_NODES = re.compile(r"(?<![\w-])(?:--?nnodes[= ]+|(?:PET_)?NNODES=|--num[-_]machines[= ]+|--num_nodes[= ]+)[\"']?(?P<n>[^\s\"';]+)")
_ONE = ("1", "1:1")
_IN_PARENTHESES = r"\$\((?:[^()\n]|\((?:[^()\n]|\([^()\n]*\))*\))*\)"
_VALUE = r"[\"']?(?P<value>(?:" + _IN_PARENTHESES + r"|`[^`\n]*`|\$\{[^}\n]*\}|[^\s\"';])+)"
_PORT = re.compile(r"(?<![\w-])(?:(?:PET_)?MASTER_PORT=|--(?:master|main[-_]process)[-_]port[= ]+|--rdzv[-_]endpoint[= ]+[^\s:]+:)" + _VALUE)
_ADDRESS = re.compile(
    r"(?<![\w-])(?:(?:PET_)?MASTER_ADDR=|--(?:master[-_]addr|main[-_]process[-_]ip|rdzv[-_]endpoint)[= ]+)[\"']?"
    r"(?P<host>localhost|127\.0\.0\.1|0\.0\.0\.0)\b"
)
_PORT_SAID = re.compile(r"MASTER_PORT|--master[-_]port|--rdzv[-_]endpoint|--main[-_]process[-_]port|--config_file|--standalone")
# Another value in each shell, or on each host by its number.
_BY_CHANCE = re.compile(r"\bRANDOM\b|\$\$|\bshuf\b|free_port|\.bind\(|getsockname")
_BY_HOST = re.compile(
    r"NODE_RANK|SLURM_NODEID|SLURM_PROCID|GROUP_RANK|JOB_COMPLETION_INDEX|SKYPILOT_NODE_RANK|\bHOSTNAME\b|\bhostname\b|(?<!_)\bRANK\b"
)
_AS_NODE_RANK = re.compile(r"(?<![\w-])(?:--(?:node|machine)[-_]rank[= ]+|(?:PET_)?NODE_RANK=)[\"']?\$[({]?(?P<name>LOCAL_RANK|RANK)\b")
_RANK = re.compile(r"(?:^|[\s;])(?:export\s+)?RANK=")
# What calls the number of hosts WORLD_SIZE calls that of the host RANK: PyTorchJob, PAI, Baidu.
_HOSTS_BY_WORLD = re.compile(r"(?:--nnodes[= ]+|NNODES=|--num_machines[= ]+)[\"']?\$[({]?WORLD_SIZE\b")
_WORLD = re.compile(r"\bWORLD_SIZE=[\"']?\$\{?(?P<name>NNODES|SLURM_NNODES|SLURM_JOB_NUM_NODES|NUM_NODES|SKYPILOT_NUM_NODES)\b")
_TASKS = re.compile(r"^#SBATCH\s+--ntasks-per-node[= ](?P<n>\d+)", re.MULTILINE)
_HOSTS = re.compile(r"^#SBATCH\s+(?:--nodes[= ]|-N[ ]?)(?P<n>\d+)\b(?!-)", re.MULTILINE)
_GPUS = re.compile(r"^#SBATCH\s+(?:--gres[= ]\S*gpu|--gpus|-G\b)", re.MULTILINE)

_At = Callable[[int], int]


def check(text: str, *, first: int = 1, given: Collection[str] = (), rank_is_of_host: bool = False) -> Iterator[Problem]:
    """`first` is the line in the file that the text begins on, `given` are variables that are set elsewhere.

    `rank_is_of_host`: what starts it sets RANK by host.
    """
    # Of the same length, so that lines stay where they are.
    plain = _CONTINUED.sub("  ", _COMMENT.sub(lambda m: " " * len(m[0]), text))

    def at(offset: int) -> int:
        return text.count("\n", 0, offset) + first

    started = list(starts(plain))
    yield from _launchers(plain, started, at)
    several = _several(plain)
    by_slurm = "#SBATCH" in text
    if started:
        yield from _meeting(plain, several, given, by_slurm, at)
    yield from _ranks(plain, started, rank_is_of_host, at)
    if by_slurm and started:
        yield from _slurm(text, plain, started)


def _launchers(plain: str, started: Sequence[Start], at: _At) -> Iterator[Problem]:
    for one in started:
        if "torch.distributed.launch" in one.names:
            says = Text("torch.distributed.launch is replaced by torchrun", "torch.distributed.launch 已由 torchrun 取代")
            yield Problem(line=at(one.offset), says=says, instead=same("torchrun"))
        if len(one.names) > 1:
            shown = " > ".join(one.names)
            says = Text(
                f"one launcher inside of another ({shown}): each process of the outer one starts all of the inner one's",
                f"启动器嵌套（{shown}）：外层的每个进程都会启动内层的全部进程",
            )
            yield Problem(line=at(one.offset), says=says, instead=Text("one of them", "只用其中一个"))
        if one.names[0] == "deepspeed" and (count := _value(one.words, "--num_nodes")) not in (None, "1") and _value(one.words, "--hostfile") is None:
            says = Text(
                f"deepspeed --num_nodes {count} without --hostfile: DeepSpeed refuses it where there is no /job/hostfile",
                f"deepspeed --num_nodes {count} 却没有 --hostfile：没有 /job/hostfile 时 DeepSpeed 会拒绝",
            )
            yield Problem(line=at(one.offset), says=says, instead=same("--hostfile=hosts"))
    for found in _LOCAL_RANK.finditer(plain):
        says = Text(
            "--local_rank: launchers pass --local-rank, or the variable LOCAL_RANK only (torchrun)",
            "--local_rank：启动器传递的是 --local-rank，torchrun 只提供环境变量 LOCAL_RANK",
        )
        yield Problem(line=at(found.start() + 1), says=says, instead=same('int(os.environ["LOCAL_RANK"])'))


def _value(words: Sequence[str], option: str) -> str | None:
    """Of an option before the script, as `--option value` or `--option=value`."""
    for word, after in zip(words, (*words[1:], ""), strict=True):
        if word.endswith(".py"):
            return None
        if word == option:
            return after
        if word.startswith(f"{option}="):
            return word.partition("=")[2].strip("\"'")
    return None


def _several(plain: str) -> re.Match[str] | None:
    """What says that there is more than one host."""
    variables = assigned(plain)
    for found in _NODES.finditer(plain):
        name = re.fullmatch(r"\$\{?([A-Za-z_]\w*)(?::?-(\d+))?\}?", found["n"])
        value = variables.get(name[1], found["n"]) if name else found["n"]
        if value.strip("\"'") not in _ONE:
            return found
    return None


def _meeting(plain: str, several: re.Match[str] | None, given: Collection[str], by_slurm: bool, at: _At) -> Iterator[Problem]:
    ports = list(_PORT.finditer(plain))
    for found in ports if several is not None else ():
        own = _BY_HOST.search(found["value"])
        # A batch script of Slurm runs once, on its first host; what is in single quotes runs on each.
        chance = _BY_CHANCE.search(found["value"]) and (not by_slurm or plain.count("'", 0, found.start()) % 2 == 1)
        if own or chance:
            says = Text("the port differs by host: they do not find one another", "各主机的端口不同：彼此找不到")
            yield Problem(line=at(found.start()), says=says, instead=Text("one number for all hosts", "所有主机用同一个端口"))
    if several is None:
        return
    if not ports and not _PORT_SAID.search(plain) and not {"MASTER_PORT", "PET_MASTER_PORT", "PET_RDZV_ENDPOINT"} & set(given):
        says = Text(
            "several hosts, and no MASTER_PORT: they take different ports, or one that another job has",
            "多台主机却没有 MASTER_PORT：各主机端口不同，或与其他作业冲突",
        )
        yield Problem(line=at(several.start()), says=says, instead=same("export MASTER_PORT=29500"))
    numbers = [p for p in ports if p["value"].isdigit()]
    if len({p["value"] for p in numbers}) > 1:
        shown = ", ".join(sorted({p["value"] for p in numbers}))
        says = Text(f"ports of one job differ: {shown}", f"同一作业的端口不同：{shown}")
        yield Problem(line=at(numbers[-1].start()), says=says, instead=same(numbers[0]["value"]))
    for found in _ADDRESS.finditer(plain):
        says = Text(f"several hosts, and each takes itself for the first: {found['host']}", f"多台主机，却各自把自己当作第一台：{found['host']}")
        yield Problem(line=at(found.start()), says=says, instead=Text("the first host's name or address", "第一台主机的名称或地址"))


def _ranks(plain: str, started: Sequence[Start], rank_is_of_host: bool, at: _At) -> Iterator[Problem]:
    by_platform = rank_is_of_host or _HOSTS_BY_WORLD.search(plain)
    for found in () if by_platform else _AS_NODE_RANK.finditer(plain):
        says = Text(
            f"{found['name']} is a process's number, not the host's: where it is unset every host takes itself for the first",
            f"{found['name']} 是进程编号，不是主机编号；未设置时各主机都以为自己是 0 号",
        )
        yield Problem(line=at(found.start()), says=says, instead=same("$NODE_RANK"))
    by_factory = any(name.startswith(("llamafactory", "lmf")) for one in started for name in one.names)
    if by_factory and (rank := _RANK.search(plain)) and "NODE_RANK=" not in plain:
        says = Text(
            "LLaMA-Factory reads NODE_RANK: with RANK every host takes itself for the first",
            "LLaMA-Factory 读取 NODE_RANK；写 RANK 时各主机都以为自己是 0 号",
        )
        yield Problem(line=at(rank.end() - 1), says=says, instead=same("NODE_RANK="))
    for found in _WORLD.finditer(plain):
        says = Text(f"WORLD_SIZE counts processes, and {found['name']} hosts", f"WORLD_SIZE 是进程总数，而 {found['name']} 是主机数")
        yield Problem(
            line=at(found.start()),
            says=says,
            instead=Text("hosts x processes of each; torchrun sets it itself", "主机数 × 每机进程数；torchrun 会自行设置"),
        )


def _slurm(text: str, plain: str, started: Sequence[Start]) -> Iterator[Problem]:
    def line(offset: int) -> int:
        return text.count("\n", 0, offset) + 1

    outer = {one.names[0] for one in started}
    tasks = _TASKS.search(text)
    if tasks is not None and int(tasks["n"]) > 1 and outer - {"deepspeed"}:
        says = Text(
            f"{tasks['n']} tasks on each host, and each starts a launcher with all its processes",
            f"每台主机 {tasks['n']} 个任务，每个都会启动带全部进程的启动器",
        )
        yield Problem(line=line(tasks.start()), says=says, instead=same("#SBATCH --ntasks-per-node=1"))
    hosts = _HOSTS.search(text)
    if hosts is not None and int(hosts["n"]) > 1 and "torchrun" in outer and not re.search(r"--?nnodes|NNODES", plain):
        says = Text(
            f"{hosts['n']} hosts, and torchrun without --nnodes: each trains by itself",
            f"{hosts['n']} 台主机，torchrun 却没有 --nnodes：各自单独训练",
        )
        yield Problem(line=line(hosts.start()), says=says, instead=same("--nnodes=$SLURM_NNODES"))
    on_cpus = re.search(r"--set\s+backend=gloo|use_cpu|--cpu\b|CUDA_VISIBLE_DEVICES=['\"]{2}|unhang export", text)
    if not _GPUS.search(text) and not on_cpus:
        says = Text("no GPUs are asked for", "没有申请 GPU")
        yield Problem(line=line(text.index("#SBATCH")), says=says, instead=same("#SBATCH --gpus-per-node=8"))
