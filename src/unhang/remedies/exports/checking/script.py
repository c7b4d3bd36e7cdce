"""Shell around launchers: flags that are gone, hosts that do not find one another, two launchers at once, what Slurm starts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from unhang.knowledge.text import Text, same
from unhang.remedies.exports.checking.problem import Problem

_CONTINUED = re.compile(r"\\\n")
_OLD = re.compile(r"torch\.distributed\.launch\b")
_LOCAL_RANK = re.compile(r"(?:^|\s)--local_rank\b")
_NODES = re.compile(
    r"(?<![\w-])--?nnodes[= ]+[\"']?(?P<n>[^\s\"']+)|\bNNODES=[\"']?(?P<m>\d+)|--num_machines[= ]+(?P<k>\d+)|--num_nodes[= ]+(?P<d>\d+)"
)
_STARTS = re.compile(
    r"(?<![\w./-])(?P<name>torchrun|accelerate\s+launch|deepspeed|llamafactory-cli\s+train|python3?\s+-m\s+torch\.distributed\.run)\s"
)
_RANK = re.compile(r"(?:^|[\s;])(?:export\s+)?RANK=")
_PORT = re.compile(r"(?:MASTER_PORT=|--(?:master[-_]port|main[-_]process[-_]port)[= ]+|--rdzv[-_]endpoint[= ]+\S+:)[\"']?(?P<port>\d{2,5})\b")
_PORT_SAID = re.compile(r"MASTER_PORT|--master[-_]port|--rdzv[-_]endpoint|--main[-_]process[-_]port|--config_file|--rdzv[-_]backend")
_RANDOM = re.compile(
    r"(?:MASTER_PORT=|--(?:master[-_]port|main[-_]process[-_]port)[= ]+)\S*?(?:\$RANDOM|\$\{RANDOM|\$\(shuf|NODE_RANK|SLURM_NODEID|SLURM_PROCID)"
)
_WORLD = re.compile(r"\bWORLD_SIZE=[\"']?\$\{?(?P<name>NNODES|SLURM_NNODES|SLURM_JOB_NUM_NODES|NUM_NODES|SKYPILOT_NUM_NODES)\b")
_TASKS = re.compile(r"^#SBATCH\s+--ntasks-per-node[= ](?P<n>\d+)", re.MULTILINE)
_GPUS = re.compile(r"^#SBATCH\s+(?:--gres[= ]\S*gpu|--gpus|-G\b)", re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*#(?!SBATCH).*|(?<=\s)#[^\n\"']*$", re.MULTILINE)


def check(text: str, *, first: int = 1) -> Iterator[Problem]:
    """`first` is the line in the file that the text begins on."""
    # Of the same length, so that lines stay where they are.
    plain = _CONTINUED.sub("  ", _COMMENT.sub(lambda m: " " * len(m[0]), text))

    def at(offset: int) -> int:
        return text.count("\n", 0, offset) + first

    for found in _OLD.finditer(plain):
        says = Text("torch.distributed.launch is replaced by torchrun", "torch.distributed.launch 已由 torchrun 取代")
        yield Problem(line=at(found.start()), says=says, instead=same("torchrun"))
    for found in _LOCAL_RANK.finditer(plain):
        says = Text(
            "--local_rank: launchers pass --local-rank, or the variable LOCAL_RANK only (torchrun)",
            "--local_rank：启动器传递的是 --local-rank，torchrun 只提供环境变量 LOCAL_RANK",
        )
        yield Problem(line=at(found.start() + 1), says=says, instead=same('int(os.environ["LOCAL_RANK"])'))
    starts = list(_STARTS.finditer(plain))
    for line in {plain.count("\n", 0, s.start()) for s in starts}:
        of_line = [s for s in starts if plain.count("\n", 0, s.start()) == line]
        kinds = {re.sub(r"\s+", " ", s["name"]) for s in of_line}
        between = plain[of_line[0].end() : of_line[-1].start()]
        if len(kinds) > 1 and not re.search(r"[;&|\n]", between):
            says = Text(f"one launcher inside of another: {', '.join(sorted(kinds))}", f"启动器嵌套：{'、'.join(sorted(kinds))}")
            yield Problem(line=at(of_line[0].start()), says=says, instead=Text("one of them", "只用其中一个"))
    several = next((m for m in _NODES.finditer(plain) if (m["n"] or m["m"] or m["k"] or m["d"]) not in ("1", "1:1")), None)
    if several is not None and starts and not _PORT_SAID.search(plain):
        says = Text(
            "several hosts, and no MASTER_PORT: they take different ports, or one that another job has",
            "多台主机却没有 MASTER_PORT：各主机端口不同，或与其他作业冲突",
        )
        yield Problem(line=at(several.start()), says=says, instead=same("export MASTER_PORT=29500"))
    factory = next((s for s in starts if s["name"].startswith("llamafactory")), None)
    if factory is not None and (rank := _RANK.search(plain)) and "NODE_RANK=" not in plain:
        says = Text(
            "LLaMA-Factory reads NODE_RANK: with RANK every host takes itself for the first",
            "LLaMA-Factory 读取 NODE_RANK；写 RANK 时各主机都以为自己是 0 号",
        )
        yield Problem(line=at(rank.end() - 1), says=says, instead=same("NODE_RANK="))
    for found in _RANDOM.finditer(plain):
        says = Text("the port differs by host: they do not find one another", "各主机的端口不同：彼此找不到")
        yield Problem(line=at(found.start()), says=says, instead=Text("one number for all hosts", "所有主机用同一个端口"))
    ports = list(_PORT.finditer(plain))
    if several is not None and len({p["port"] for p in ports}) > 1:
        shown = ", ".join(sorted({p["port"] for p in ports}))
        says = Text(f"ports of one job differ: {shown}", f"同一作业的端口不同：{shown}")
        yield Problem(line=at(ports[-1].start()), says=says, instead=same(ports[0]["port"]))
    for found in _WORLD.finditer(plain):
        says = Text(f"WORLD_SIZE counts processes, and {found['name']} hosts", f"WORLD_SIZE 是进程总数，而 {found['name']} 是主机数")
        yield Problem(
            line=at(found.start()),
            says=says,
            instead=Text("hosts x processes of each; torchrun sets it itself", "主机数 × 每机进程数；torchrun 会自行设置"),
        )
    yield from _slurm(text, plain, bool(starts), at)


def _slurm(text: str, plain: str, starts: bool, at: object) -> Iterator[Problem]:
    if "#SBATCH" not in text or not starts:
        return
    tasks = _TASKS.search(text)
    if tasks is not None and int(tasks["n"]) > 1 and re.search(r"torchrun|accelerate\s+launch|llamafactory-cli|torch\.distributed\.run", plain):
        says = Text(
            f"{tasks['n']} tasks on each host, and each starts a launcher with all its processes",
            f"每台主机 {tasks['n']} 个任务，每个都会启动带全部进程的启动器",
        )
        yield Problem(line=text.count("\n", 0, tasks.start()) + 1, says=says, instead=same("#SBATCH --ntasks-per-node=1"))
    on_cpus = re.search(r"--set\s+backend=gloo|use_cpu|--cpu\b|CUDA_VISIBLE_DEVICES=['\"]{2}|unhang export", text)
    if not _GPUS.search(text) and not on_cpus:
        line = text.count("\n", 0, text.index("#SBATCH")) + 1
        yield Problem(line=line, says=Text("no GPUs are asked for", "没有申请 GPU"), instead=same("#SBATCH --gpus-per-node=8"))
