"""Shell around launchers: flags that are gone, hosts that do not find one another, two launchers at once, what Slurm starts."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from unhang.knowledge.words import NOTHING, Text, joined, msg, same
from unhang.remedies.lint.documents import Problem
from unhang.remedies.lint.starts import Script, Start, Value, host_and_port, read

_ONE = ("1", "1:1")
NODES = ("--nnodes", "--num-machines", "--num-nodes")
_NODE_RANK = ("--node-rank", "--machine-rank")
PORT = ("--master-port", "--main-process-port")
ADDRESS = ("--master-addr", "--main-process-ip")
_LOOPBACK = re.compile(r"localhost|127\.0\.0\.1|0\.0\.0\.0")
# Another value in each shell, or on each host by its number.
_BY_CHANCE = re.compile(r"\bRANDOM\b|\$\$|\bshuf\b|free_port|\.bind\(|getsockname")
_BY_HOST = re.compile(
    r"NODE_RANK|SLURM_NODEID|SLURM_PROCID|GROUP_RANK|JOB_COMPLETION_INDEX|SKYPILOT_NODE_RANK|\bHOSTNAME\b|\bhostname\b|(?<!_)\bRANK\b"
)
_OWN_NAME = re.compile(r"\$\{?(?:HOSTNAME|SLURMD_NODENAME)\b|(?:\$\(|`)\s*(?:hostname|uname -n)\b")
_OWN_ADDRESSES = re.compile(r"\bhostname (?:-[A-Za-z]*[iI]|--ip-address|--all-ip-addresses)\b(?![^)`]*\|)")
_FALLS_BACK = re.compile(r"\$\{(?P<name>\w+):?-(?:localhost|127\.0\.0\.1)\}|\|\|\s*echo\s+[\"']?(?:localhost|127\.0\.0\.1)")
# Set in the batch script and in its steps alike, as the number of hosts is.
_OF_JOB = re.compile(r"\bSLURM_(?:JOB_)?NODELIST\b")
_OF_STEP = re.compile(r"\bSLURM_STEP_NODELIST\b")
_BY_SLURM = re.compile(r"\$\{SLURM_(?:JOB_NUM_|N)NODES:?-1\}")
_PROCESS = re.compile(r"\$[({]?(?P<name>LOCAL_RANK|RANK)\b")
_UNSET_BY_SLURM = re.compile(r"\$[({]?(?P<name>NODE_RANK|GROUP_RANK|MACHINE_RANK|NODEID|NODE_ID)\b")
_OF_SLURM = re.compile(r"\$\{?(?P<name>SLURM_NODEID|SLURM_PROCID)\b")
_BY_HOSTS = re.compile(r"\$\{?(?P<name>NNODES|SLURM_NNODES|SLURM_JOB_NUM_NODES|NUM_NODES|SKYPILOT_NUM_NODES)\b")
_SBATCH = re.compile(r"^#SBATCH[ \t]+(?P<words>[^\n]*)", re.MULTILINE)
_MOST_PORTS = 8
_SHORT = {"-N": "--nodes", "-G": "--gpus"}
# What hosts agree on where nobody names a port: torch/distributed/run.py, deepspeed/constants.py, accelerate/utils/launch.py.
_DEFAULT_PORT = "29500"
_MISCOUNTED = ("--nproc-per-node", "--nnodes")
# What starts a command on other hosts.
_ON_HOSTS = frozenset(("srun", "mpirun", "mpiexec", "ssh", "pdsh", "clush", "pssh", "ibrun", "jsrun", "aprun", "prun", "parallel"))
_BASH_TIMEOUT_S = 5.0
_BY_BASH = re.compile(r"#!.*\b(?:ba|da)?sh\b")
# Without a first line that names a shell it is bash that is given them, as a rule.
_NAMES_OF_SCRIPTS = re.compile(r"-|(?:.*/)?(?:[^./]+|.+\.(?:sh|bash|sbatch|slurm|job))", re.DOTALL)
# What shopt turns on is not on for who only reads.
_ELSEWHERE = re.compile(r"extglob|\r")
_SAID_BY_BASH = re.compile(r"line (?P<line>\d{1,9}): (?P<what>.*)")


class _Remark(NamedTuple):
    """`on`: what of the script it is about."""

    on: Value | Start
    says: Text
    instead: str = ""
    note: bool = False


def check_syntax(name: str, text: str) -> Iterator[Problem]:
    """Whether bash takes a script at all: `bash -n` reads it, and runs nothing of it. Without bash, nothing is reported."""
    is_bash = _BY_BASH.match(text) if text.startswith("#!") else _NAMES_OF_SCRIPTS.fullmatch(name)
    if not is_bash or _ELSEWHERE.search(text):
        return
    try:
        # -p: no file that the environment names is read before. As input: everyone may read the words of a command.
        ran = subprocess.run(
            ("env", "LC_ALL=C", "bash", "-p", "-n"), input=os.fsencode(text), capture_output=True, timeout=_BASH_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return
    said = _SAID_BY_BASH.search(ran.stderr.decode(errors="replace"))
    if ran.returncode and said is not None:
        line = min(int(said["line"]), text.rstrip("\n").count("\n") + 1)
        yield Problem(line=line, says=msg("bash cannot read it: {said}", said=said["what"]))


def check(
    text: str, *, first: int = 1, given: Collection[str] = (), rank_is_of_host: bool = False, hosts_are_alike: bool = False
) -> Iterator[Problem]:
    """`first` is the line in the file that the text begins on, `given` are variables that are set elsewhere.

    `rank_is_of_host`: what starts it sets RANK by host. `hosts_are_alike`: none has a file of its own that would tell accelerate its number, as
    Slurm's hosts have not, which share their home.
    """
    ends = [m.start() for m in re.finditer("\n", text)]
    for one in _remarks(text, given=given, rank_is_of_host=rank_is_of_host, hosts_are_alike=hosts_are_alike):
        instead = same(one.instead) if one.instead else NOTHING
        yield Problem(line=bisect_left(ends, one.on.offset) + first, says=one.says, instead=instead, note=one.note)


def _remarks(text: str, *, given: Collection[str], rank_is_of_host: bool, hosts_are_alike: bool) -> Iterator[_Remark]:
    by_slurm = "#SBATCH" in text
    asked = _asked(text)
    hosts = _count(asked, "--nodes")
    script = read(text, (("SLURM_NNODES", hosts.text), ("SLURM_JOB_NUM_NODES", hosts.text))) if hosts else read(text)
    # What calls the number of hosts WORLD_SIZE calls that of the host RANK: PyTorchJob, PAI, Baidu.
    by_platform = rank_is_of_host or any((n := _nodes(one)) is not None and "WORLD_SIZE" in n.text for one in script.starts)
    # Whoever says something of it anywhere has thought of it.
    port_said = "MASTER_PORT" in text or "MASTER_PORT" in given
    for one in script.starts:
        yield from _launchers(one)
        yield from _counts(one)
        if (several := _several(one)) is not None or _is_by_slurm(one):
            yield from _addresses(one, script.assigned, by_slurm)
        if several is not None:
            yield from _meeting(one, several, port_said, by_slurm)
            yield from _rendezvous(one, several, given)
            if not by_platform:
                yield from _numbered(one, several, given, by_slurm, hosts_are_alike or by_slurm)
    yield from _ports(script.starts)
    yield from _ranks(script, by_platform, by_slurm)
    if by_slurm and script.starts:
        yield from _slurm(text, script.starts, asked)


def _asked(text: str) -> Mapping[str, Value]:
    """Options of #SBATCH lines by their long names, the last of each, as sbatch takes them: several may stand on one line."""
    found: dict[str, Value] = {}
    for line in _SBATCH.finditer(text):
        try:
            words = shlex.split(line["words"], comments=True)
        except ValueError:
            words = line["words"].split()
        for i, word in enumerate(words):
            name, joined, given = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
            following = words[i + 1] if i + 1 < len(words) and not words[i + 1].startswith("-") else ""
            if word.startswith("-"):
                found[_SHORT.get(name, name)] = Value(given if joined else following, line.start())
    return found


def _count(asked: Mapping[str, Value], name: str) -> Value | None:
    """None where it is not said, or is no number: --nodes=2-4."""
    found = asked.get(name)
    return found if found is not None and re.fullmatch(r"[0-9]{1,9}", found.text) else None


def _asks_for_gpus(asked: Mapping[str, Value], started: Sequence[Start]) -> bool:
    options = [*((name, value.text) for name, value in asked.items()), *(word.partition("=")[::2] for one in started for word in one.before)]
    return any(name.startswith("--gpus") or (name.startswith(("--gres", "--tres")) and "gpu" in value) for name, value in options)


def _number(one: Start, *names: str) -> int | None:
    found = one.option(*names)
    return int(text) if found is not None and re.fullmatch(r"[0-9]{1,9}", text := one.filled(found).text) else None


def _gpus_of_each_host(started: Sequence[Start]) -> str:
    """As many as the script starts processes there; N where it does not tell."""
    for one in started:
        if (each := _number(one, "--nproc-per-node", "--num-gpus")) is not None:
            return str(each)
        total, hosts = _number(one, "--num-processes"), _number(one, *NODES) or 1
        if total is not None and total % hosts == 0:
            return str(total // hosts)
    return "N"


def _launchers(one: Start) -> Iterator[_Remark]:
    if "torch.distributed.launch" in one.names:
        yield _Remark(one, msg("torch.distributed.launch is replaced by torchrun"), "torchrun")
    if len(one.names) > 1:
        shown = " > ".join(one.names)
        says = msg("one launcher inside of another ({shown}): each process of the outer one starts all of the inner one's", shown=shown)
        yield _Remark(one, says, msg("one of them", "script"))
    count = one.option("--num-nodes")
    if one.names[0] == "deepspeed" and count is not None and count.text != "1" and one.option("--hostfile", "-H") is None:
        says = msg("deepspeed --num_nodes {text} without --hostfile: DeepSpeed refuses it where there is no /job/hostfile", text=count.text)
        yield _Remark(one, says, "--hostfile=hosts")
    for name in _MISCOUNTED if _is_torchrun(one) else ():
        number = one.option(name)
        if number is not None and re.fullmatch(r"-[0-9]+|0+", shown := one.filled(number).text):
            yield _Remark(number, msg("{name} is {shown}: it is at least 1", name=name, shown=shown))
    for word in one.words:
        if word.text.partition("=")[0] == "--local_rank":
            says = msg("--local_rank: launchers pass --local-rank, or the variable LOCAL_RANK only (torchrun)")
            yield _Remark(word, says, 'int(os.environ["LOCAL_RANK"])')


def _counts(one: Start) -> Iterator[_Remark]:
    """What does not go together, and what is not read."""
    total, hosts, rank = _number(one, "--num-processes"), _number(one, *NODES), _number(one, *_NODE_RANK)
    if total is not None and hosts and total % hosts:
        fits = [f"--num_processes={n}" for n in (total // hosts * hosts, (total // hosts + 1) * hosts) if n]
        says = msg("--num_processes counts those of all machines: {total} does not divide by {hosts}", total=total, hosts=hosts)
        yield _Remark(one, says, joined(fits, msg(" or ")))
    if hosts and rank is not None and rank >= hosts and not _by_store(one):
        says = msg("{one} is {rank}, and {hosts} hosts count from 0", one=_rank_option(one), rank=rank, hosts=hosts)
        yield _Remark(one, says, f"{_rank_option(one)}={hosts - 1}")
    given = one.option(*_NODE_RANK)
    if given is not None and _is_torchrun(one) and (backend := _backend(one)) not in (None, "static"):
        says = msg("--node-rank has no effect with --rdzv-backend={backend}: hosts are numbered as they come", backend=backend)
        yield _Remark(given, says, note=True)


def _is_torchrun(one: Start) -> bool:
    return one.names[0] in ("torchrun", "torch.distributed.launch")


def _is_factory(one: Start) -> bool:
    return any(name.startswith(("llamafactory", "lmf")) for name in one.names)


def _nodes(one: Start) -> Value | None:
    by_variable = one.variables.get("PET_NNODES") if _is_torchrun(one) else one.variables.get("NNODES") if _is_factory(one) else None
    return one.option(*NODES) or by_variable


def _several(one: Start) -> Value | None:
    """What says that there is more than one host."""
    count = _nodes(one)
    return None if count is None or one.filled(count).text in _ONE else count


def _is_by_slurm(one: Start) -> bool:
    """Whether Slurm, where the script runs under it, tells how many hosts there are, and the script itself does not."""
    count = _nodes(one)
    behind = count and one.variables.get(count.text.strip("${}"), count)
    return behind is not None and _BY_SLURM.fullmatch(behind.text) is not None and not {"SLURM_NNODES", "SLURM_JOB_NUM_NODES"} & set(one.variables)


def _rank_option(one: Start) -> str:
    return "--machine_rank" if one.names[0] == "accelerate launch" else "--node-rank"


def _by_node(one: Start) -> str:
    """On each host, in single quotes, lest the batch script fills it in."""
    return f"srun bash -c '{one.names[0]} {_rank_option(one)}=$SLURM_NODEID ...'"


def _by_store(one: Start) -> bool:
    """Whether hosts are numbered as they come. torchrun's own --rdzv-backend is static, also with an endpoint, and numbers by --node-rank alone."""
    return "--standalone" in one.options or _backend(one) not in (None, "static")


def _backend(one: Start) -> str | None:
    backend = one.option("--rdzv-backend") or one.variables.get("PET_RDZV_BACKEND")
    return None if backend is None else one.filled(backend).text


def _address_and_port(one: Start) -> tuple[Value | None, Value | None]:
    """The launcher's own options come before variables. Of the launchers only LLaMA-Factory reads MASTER_PORT; torchrun sets it for its ranks."""
    address = one.option(*ADDRESS) or one.variables.get("PET_MASTER_ADDR") or one.variables.get("MASTER_ADDR")
    port = one.option(*PORT) or one.variables.get("MASTER_PORT" if _is_factory(one) else "PET_MASTER_PORT")
    if (endpoint := one.option("--rdzv-endpoint")) is not None:
        address, port = host_and_port(one.filled(endpoint))
    return address and one.filled(address), port and one.filled(port)


def _meeting(one: Start, several: Value, port_said: bool, by_slurm: bool) -> Iterator[_Remark]:
    port = _address_and_port(one)[1]
    # A batch script of Slurm runs once, on its first host; what is in single quotes runs on each.
    if port is not None and (_BY_HOST.search(port.text) or _BY_CHANCE.search(port.text)) and (not by_slurm or port.each):
        yield _Remark(port, msg("the port differs by host: they do not find one another"), msg("one number for all hosts"))
    if port is None and not port_said and _is_factory(one):
        says = msg("several hosts, and no MASTER_PORT: LLaMA-Factory takes a free port on each, and they do not find one another")
        yield _Remark(several, says, f"export MASTER_PORT={_DEFAULT_PORT}")


def _addresses(one: Start, assigned: Sequence[tuple[str, Value]], by_slurm: bool) -> Iterator[_Remark]:
    """Addresses of which each host makes another one, or one that nobody else reaches."""
    address, _ = _address_and_port(one)
    # What is assigned twice is so in branches, one of them for the first host.
    name = None if address is None else next((n for n, value in assigned if value == address), None)
    if address is None or (name is not None and sum(n == name for n, _ in assigned) > 1):
        return
    instead: str = msg("the first host's name or address")
    of_slurm = by_slurm or "SLURM_" in address.text
    if _LOOPBACK.fullmatch(address.text):
        yield _Remark(address, msg("several hosts, and each takes itself for the first: {text}", text=address.text), instead)
    elif (fallback := _FALLS_BACK.search(address.text)) and not _OF_JOB.search(address.text):
        outside = msg(", as outside of a job step") if _OF_STEP.search(address.text) else NOTHING
        missing = msg("{name} is not set{outside}") if fallback["name"] else msg("that fails")
        says = msg(
            "where {missing}, every host falls back to localhost and meets only itself",
            missing=missing.fill(name=fallback["name"] or "", outside=outside),
        )
        if of_slurm:
            instead = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
        yield _Remark(address, says, instead)
    elif found := _OWN_ADDRESSES.search(address.text):
        says = msg("{found} gives what the host's own name stands for: the loopback on some systems, several addresses on others", found=found[0])
        host = re.search(r"(?:-w|--nodelist|ssh)[ =]*\"?(?P<host>\$\{?\w+\}?)", address.text)
        yield _Remark(address, says, host["host"] if host else instead)
    # A batch script of Slurm, and what starts the launcher on others, runs on the first host alone.
    elif (own := _OWN_NAME.search(address.text)) and _number(one, *_NODE_RANK) != 0 and (address.each or not (by_slurm or _is_on_hosts(one))):
        name = own[0].strip("$({` ")
        yield _Remark(address, msg("each host gives its own name ({name}): it takes itself for the first", name=name), instead)


def _rendezvous(one: Start, several: Value, given: Collection[str]) -> Iterator[_Remark]:
    """Where torchrun's hosts meet: what it takes where nothing is said, and what it does not read."""
    known = {*given, *one.variables}
    if not _is_torchrun(one) or "--standalone" in one.options:
        return
    endpoint = one.option("--rdzv-endpoint")
    if endpoint is None and "PET_RDZV_ENDPOINT" not in known:
        if _by_store(one):
            # etcd has a store of its own, which stands elsewhere.
            if _backend(one) == "c10d":
                says = msg("several hosts, and no --rdzv-endpoint: each takes itself for the first (localhost:29400)")
                number = "$MASTER_PORT" if "MASTER_PORT" in one.variables else "29400"
                yield _Remark(several, says, f"--rdzv-endpoint=$MASTER_ADDR:{number}")
        elif one.option(*PORT) is None and not {"PET_MASTER_PORT", "PET_RDZV_BACKEND"} & set(given):
            port = one.variables.get("MASTER_PORT")
            if port is not None and "PET_MASTER_PORT" not in known and one.filled(port).text != _DEFAULT_PORT:
                says = msg("torchrun does not read MASTER_PORT: without --master-port its hosts meet on {DEFAULT_PORT}", DEFAULT_PORT=_DEFAULT_PORT)
                yield _Remark(port, says, "--master-port=$MASTER_PORT")


def _numbered(one: Start, several: Value, given: Collection[str], by_slurm: bool, hosts_are_alike: bool) -> Iterator[_Remark]:
    """Hosts that a launcher is to number by what it is told."""
    by_accelerate = one.names[0] == "accelerate launch" and hosts_are_alike and "--config-file" not in one.options
    if not (_is_torchrun(one) or by_accelerate) or _by_store(one):
        return
    known = {*given, *one.variables}
    by_endpoint = "--rdzv-endpoint" in one.options or "PET_RDZV_ENDPOINT" in known
    if one.option(*_NODE_RANK) is None and not {"PET_NODE_RANK", "PET_RDZV_BACKEND"} & known:
        name, option = one.names[0], _rank_option(one)
        # int(None) in accelerate 1.15, unless a file of its defaults holds a number: the same one for all.
        fails = msg("fails, or ") if by_accelerate else NOTHING
        says = msg("several hosts, and no {option}: {name} {fails}takes each for number 0", option=option, name=name, fails=fails)
        yield _Remark(several, says, "--rdzv-backend=c10d" if by_endpoint else _by_node(one) if by_slurm else f"{option}=$NODE_RANK")
    if one.option(*ADDRESS) is None and "PET_MASTER_ADDR" not in known and not by_endpoint:
        option = "--main_process_ip" if by_accelerate else "--master-addr"
        unread = msg(" ({name} does not read MASTER_ADDR)", name=one.names[0]) if "MASTER_ADDR" in known else NOTHING
        says = msg("several hosts, and no {option}: each takes itself for the first{unread}", option=option, unread=unread)
        yield _Remark(several, says, f"{option}=$MASTER_ADDR")


def _ports(started: Sequence[Start]) -> Iterator[_Remark]:
    """Of hosts that one script starts one by one. Runs that come one after the other have the same number of the host."""
    first: dict[str, Value] = {}
    others: dict[str, None] = {}
    for one in started:
        rank, (_, port) = one.option(*_NODE_RANK), _address_and_port(one)
        if rank is None or not rank.text.isdigit() or port is None or not port.text.isdigit() or _several(one) is None:
            continue
        if others and port.text not in others and rank.text not in first:
            shown = ", ".join(sorted({port.text, *islice(others, _MOST_PORTS)}))
            yield _Remark(port, msg("ports of one job differ: {shown}", shown=shown), next(iter(others)))
        others[first.setdefault(rank.text, port).text] = None


def _ranks(script: Script, by_platform: bool, by_slurm: bool) -> Iterator[_Remark]:
    assigned = {name for name, _ in script.assigned}
    named = [value for name, value in script.assigned if name in ("NODE_RANK", "PET_NODE_RANK")]
    given = [(one, rank) for one in script.starts if (rank := one.option(*_NODE_RANK)) is not None and not _by_store(one)]
    starts: list[tuple[Start | None, Value]] = [*((None, value) for value in named), *given]
    for one, number in () if by_platform else starts:
        if found := _PROCESS.match(number.text):
            says = msg("{found} is a process's number, not the host's: where it is unset every host takes itself for the first", found=found["name"])
            yield _Remark(number, says, "$SLURM_NODEID" if by_slurm else "$NODE_RANK")
        elif by_slurm and (found := _UNSET_BY_SLURM.match(number.text)) and found["name"] not in assigned:
            says = msg("nothing sets {found}: Slurm calls a host's number SLURM_NODEID", found=found["name"])
            yield _Remark(number, says, _by_node(one) if one is not None else "$SLURM_NODEID")
    if any(map(_is_factory, script.starts)) and "NODE_RANK" not in assigned:
        for name, value in script.assigned:
            if name == "RANK":
                yield _Remark(value, msg("LLaMA-Factory reads NODE_RANK: with RANK every host takes itself for the first"), "NODE_RANK=")
                break
    for name, value in script.assigned:
        if name == "WORLD_SIZE" and (found := _BY_HOSTS.match(value.text)) and "*" not in value.text:
            says = msg("WORLD_SIZE counts processes, and {found} hosts", found=found["name"])
            yield _Remark(value, says, msg("hosts x processes of each; torchrun sets it itself"))


def _slurm(text: str, started: Sequence[Start], asked: Mapping[str, Value]) -> Iterator[_Remark]:
    tasks, hosts = _count(asked, "--ntasks-per-node"), _count(asked, "--nodes")
    by_tasks = [one for one in started if _is_on_hosts(one) and one.names[0] != "deepspeed"]
    if tasks is not None and int(tasks.text) > 1 and by_tasks:
        says = msg("{text} tasks on each host, and each starts a launcher with all its processes", text=tasks.text)
        yield _Remark(tasks, says, "#SBATCH --ntasks-per-node=1")
    if hosts is not None and int(hosts.text) > 1:
        if any(map(_is_torchrun, started)) and all(_nodes(one) is None for one in started if _is_torchrun(one)):
            alone = msg("each trains by itself") if by_tasks else msg("it trains on one of them")
            yield _Remark(hosts, msg("{text} hosts, and torchrun without --nnodes: {alone}", text=hosts.text, alone=alone), "--nnodes=$SLURM_NNODES")
            if not any(map(_is_on_hosts, started)):
                yield _without_srun(next(filter(_is_torchrun, started)), hosts.text)
        for one in started:
            yield from _on_all_hosts(one, hosts.text)
    on_cpus = re.search(r"--set\s+backend=gloo|use_cpu|--cpu\b|CUDA_VISIBLE_DEVICES=['\"]{2}|unhang export", text)
    if not _asks_for_gpus(asked, started) and not on_cpus:
        yield _Remark(Value("", text.index("#SBATCH")), msg("no GPUs are asked for"), f"#SBATCH --gpus-per-node={_gpus_of_each_host(started)}")


def _on_all_hosts(one: Start, hosts: str) -> Iterator[_Remark]:
    if not _is_on_hosts(one):
        # DeepSpeed goes to the other hosts itself.
        if _several(one) is not None and one.names[0] != "deepspeed":
            yield _without_srun(one, hosts)
        return
    given = one.option(*_NODE_RANK)
    rank = given and one.filled(given)
    if rank is not None and not _by_store(one) and not rank.each and (found := _OF_SLURM.match(rank.text)):
        if _in_script(one) and found["name"] not in rank.once:
            return
        says = msg("{found} is filled in once, by the batch script on the first host: every host is number 0", found=found["name"])
        yield _Remark(rank, says, _by_node(one))


def _without_srun(one: Start, hosts: str) -> _Remark:
    says = msg("{names} without srun: a batch script runs on the first of its {hosts} hosts only", names=one.names[0], hosts=hosts)
    return _Remark(one, says, f"srun {one.names[0]} ...")


def _is_on_hosts(one: Start) -> bool:
    return bool(_ON_HOSTS & {word.rpartition("/")[2] for word in one.before})


def _in_script(one: Start) -> bool:
    """In a script of a shell of its own; whether $ was escaped there is not told."""
    return "-c" in one.before or any(word in ("ssh", "pdsh", "clush", "pssh") for word in one.before)
