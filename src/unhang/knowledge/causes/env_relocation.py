"""env-relocation: an environment was moved, copied or half deleted, and its recorded paths lead nowhere."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Cause, Command, Signature, command
from unhang.knowledge.text import NOTHING, Text, joined, same
from unhang.model import Evidence, HostFinding, Remedy

if TYPE_CHECKING:
    from unhang.facts.python_env import Environment, Script
    from unhang.facts.snapshot import Snapshot

_PROGRAMS = r"torchrun|accelerate|deepspeed|llamafactory-cli|uv|ray|vllm|pip|conda|python[\d.]*"
_PATH = r"(?<![\w./+-])/[^\s:'\"]{1,200}"
_FAULTS = {
    "gone": Text("an interpreter that is not there", "一个不存在的解释器"),
    "too-long": Text("a path that is longer than this kernel takes", "一个超过内核长度限制的路径"),
    "carriage-return": Text("an interpreter whose name ends in a carriage return", "一个名称以回车符结尾的解释器"),
}
# What stands below these is not of one environment.
_SYSTEM = ("", "/", "/usr", "/usr/local", "/opt", "/opt/local", "/home", "/root", "/srv", "/mnt", "/var", "/tmp")
_TORCHRUN = "{python:program} -m torch.distributed.run ARGS train.py"
# Part of a name that goes on.
_NAME = "[:alnum:]._-"


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import python_env

    seen = host.get(python_env.SUBJECT)
    if seen is None:
        return
    for env in seen.environments:
        yield from _interpreter(env)
        yield from _scripts(env)
        yield from _leads(env)
    # Launchers on the PATH that cannot start and are not of the environment that was looked at.
    from unhang.facts.python_env import LAUNCHERS

    inside = {(s.path.rpartition("/")[2], s.interpreter) for env in seen.environments for s in env.broken_scripts}
    for p in seen.programs:
        if p.name not in LAUNCHERS or p.fault is None or (p.name, p.interpreter) in inside or p.dead_links:
            continue
        yield CAUSE.host_finding(
            area="python_env",
            severity="error",
            says=Text(
                "{name} on the PATH is {path}, which begins with {what}: {interpreter}", "PATH 上的 {name} 是 {path}，它以{what}开头：{interpreter}"
            ).fill(name=p.name, path=p.path, what=_FAULTS[p.fault], interpreter=str(p.interpreter)),
            leads_to=Text(f"{p.name} does not start", f"{p.name} 无法启动"),
            evidence=(Evidence(source=p.path, text=f"#!{p.interpreter}"),),
            remedies=("through-the-interpreter",),
            commands={"through-the-interpreter": command(_TORCHRUN, python=seen.training.python)} if p.name == "torchrun" else None,
        )
    if seen.python_home_wrong:
        yield CAUSE.host_finding(
            area="python_env",
            severity="error",
            says=Text(
                f"PYTHONHOME is {seen.python_home}, which holds no standard library of Python {seen.training.version}",
                f"PYTHONHOME 为 {seen.python_home}，其中没有 Python {seen.training.version} 的标准库",
            ),
            leads_to=Text("Python does not start: No module named 'encodings'", "Python 无法启动：No module named 'encodings'"),
            evidence=(Evidence(source="the environment", text=f"PYTHONHOME={seen.python_home}"),),
            remedies=("no-pythonhome",),
            commands={"no-pythonhome": command("env -u PYTHONHOME {python:program} -c 'import sys; print(sys.prefix)'", python=seen.training.python)},
        )


def _interpreter(env: Environment) -> Iterable[HostFinding]:
    if env.python_gone:
        says = (
            Text(f"{env.python} leads to {env.python_target}, which is not there", f"{env.python} 指向 {env.python_target}，而它不存在")
            if env.python_target
            else Text(f"there is no {env.python}", f"没有 {env.python}")
        )
        leads_to = Text(
            "nothing in this environment starts; a shell goes on to the next python on the PATH, which lacks its packages",
            "此环境中的程序都无法启动；shell 会改用 PATH 上的下一个 python，它没有这些软件包",
        )
    elif env.left_behind:
        says = Text(
            "{prefix} holds packages for Python {old}, and its python is {new} now", "{prefix} 中是 Python {old} 的软件包，而它的 python 现在是 {new}"
        ).fill(prefix=env.prefix, old=", ".join(env.left_behind), new=str(env.version))
        leads_to = Text("Python starts and finds none of them: No module named 'torch'", "Python 能启动，却找不到它们：No module named 'torch'")
    else:
        return
    yield CAUSE.host_finding(
        area="python_env",
        severity="error",
        says=says,
        leads_to=leads_to,
        evidence=(Evidence(source=env.python, text=f"-> {env.python_target}" if env.python_target else ""),),
        remedies=("rebuild-here", "on-every-node"),
        commands={"rebuild-here": _rebuild(env)},
    )


def _rebuild(env: Environment) -> Command | None:
    """Beside it, and without its own interpreter: what is installed is told by the names of the records.

    What PyPI does not have is left to be done by hand: packages of another index (`+cu121`), and those that came from a directory or a repository
    (direct_url.json, which conda's own packages have, too).
    """
    conda = env.kind == "conda"
    by_hand = [f"{n} {v}" for n, v in sorted(env.packages.items()) if "+" in v] + [e.name for e in env.editables_gone if e.name]
    records = "{prefix:program}/lib/python" + ("{old:name}" if env.left_behind else "3*") + "/site-packages/*.dist-info"
    of_elsewhere = '[ -e "$i/direct_url.json" ]' + (' && ! grep -qsx conda "$i/INSTALLER"' if conda else "")
    listed = "for i in " + records + "; do if " + of_elsewhere + '; then echo "# by hand: ${{i##*/}}"; else echo "${{i##*/}}"; fi; done'
    pinned = r"sed -E '/^#/b; s/^(.+)-([^-+]+)\.dist-info$/\1==\2/; t; s/^/# by hand: /'"
    made = "conda create -y -p {new:path} python={version:name}" if conda else "python3 -m venv {new:path}"
    install = "{new:path}/bin/python -m pip install --no-deps -r {kept:path}" + ("   # by hand: {by_hand:name*}" if by_hand else "")
    return command(
        listed + " | " + pinned + " > {kept:path} && " + made + " && " + install,
        prefix=env.prefix,
        old=env.left_behind[-1] if env.left_behind else None,
        kept=f"{env.prefix}.packages.txt",
        new=f"{env.prefix}.new",
        version=env.version or 3,
        by_hand=", ".join(dict.fromkeys(by_hand)).split(" "),
    )


def _scripts(env: Environment) -> Iterable[HostFinding]:
    moved = Text(f"; its activate script names {env.recorded}", f"；它的 activate 脚本写的是 {env.recorded}") if env.recorded is not None else NOTHING
    for fault, what in _FAULTS.items():
        broken = [s for s in env.broken_scripts if s.fault == fault]
        if broken:
            begin = Text(
                "{n} of {all} scripts in {prefix}/bin begin with {what}{moved}", "{prefix}/bin 的 {all} 个脚本中有 {n} 个以{what}开头{moved}"
            )
            yield _of_scripts(
                env,
                broken,
                begin.fill(n=len(broken), all=env.scripts, prefix=env.prefix, what=what, moved=moved if fault == "gone" else NOTHING),
            )
    if env.foreign_scripts:
        others = joined(map(same, sorted({s.prefix for s in env.foreign_scripts if s.prefix})), Text(" and ", " 和 "))
        run = Text("{names} in {prefix}/bin {run} the Python of {others}{moved}", "{prefix}/bin 中的 {names} 运行的是 {others} 的 Python{moved}")
        verb = "runs" if len(env.foreign_scripts) == 1 else "run"
        yield _of_scripts(
            env, env.foreign_scripts, run.fill(names=_names(env.foreign_scripts), prefix=env.prefix, run=verb, others=others, moved=moved)
        )
    elif env.recorded is not None and not env.broken_scripts:
        rewrite = _rewrite(env.recorded, env.prefix)
        yield CAUSE.host_finding(
            area="python_env",
            severity="warning",
            says=Text(
                f"{env.prefix}/bin/activate leads to {env.recorded}: the environment was moved or copied",
                f"{env.prefix}/bin/activate 指向 {env.recorded}：环境被移动或复制过",
            ),
            leads_to=Text(
                "activating it puts the other place on the PATH, so that another Python starts, or none",
                "激活它会把另一个位置放进 PATH，于是启动的是另一个 Python，或者根本没有",
            ),
            evidence=(Evidence(source=f"{env.prefix}/bin/activate", text=f"VIRTUAL_ENV={env.recorded}"),),
            remedies=("rebuild-here", *(("rewrite-the-paths",) if rewrite else ())),
            commands={"rebuild-here": _rebuild(env)} | ({"rewrite-the-paths": rewrite} if rewrite else {}),
        )


def _of_scripts(env: Environment, scripts: Iterable[Script], says: Text) -> HostFinding:
    from unhang.facts.python_env import LAUNCHERS

    scripts = tuple(scripts)
    old = env.recorded or Counter(s.interpreter.rpartition("/bin/")[0] for s in scripts).most_common(1)[0][0]
    rewrite = _rewrite(old, env.prefix)
    commands = {"rebuild-here": _rebuild(env), "through-the-interpreter": command(_TORCHRUN, python=env.python)}
    return CAUSE.host_finding(
        area="python_env",
        severity="error" if any(s.path.rpartition("/")[2] in LAUNCHERS for s in scripts) else "warning",
        says=says,
        leads_to=Text(
            "what is started by these names fails as 'bad interpreter' or 'not found', or runs elsewhere; python -m does not go through them",
            "用这些名字启动的程序会报 'bad interpreter' 或 'not found'，或在别处运行；python -m 不经过它们",
        ),
        evidence=tuple(Evidence(source=s.path, text=f"#!{s.interpreter}") for s in _launchers_first(scripts)[:3]),
        remedies=("rebuild-here", *(("rewrite-the-paths",) if rewrite else ()), "through-the-interpreter"),
        commands=commands | ({"rewrite-the-paths": rewrite} if rewrite else {}),
    )


def _rewrite(old: str, new: str) -> Command | None:
    """First lines, the second ones that stand in for them where a path is too long, and what activates; None where that could hit something else."""
    old = old.rstrip("/")
    # The first line of a script has no way to hold a space; the comma parts sed's commands.
    if old in _SYSTEM or re.search(r"[\s,]", old + new):
        return None
    was, is_now, now = _literal(old), _literal(new), new.replace("&", r"\&")
    steps = (
        # Where the new place is inside of the old one, a second run would find the old one again.
        *((f"\\,{is_now},b",) if new.startswith(f"{old}/") else ()),
        f"1s,^(#! ?){was}/,\\1{now}/,",
        f"2s,^(...exec. [^/]?){was}/,\\1{now}/,",
        f"/VIRTUAL_ENV/I s,(^|[^/{_NAME}]){was}([^{_NAME}]|$),\\1{now}\\2,g",
    )
    return command("grep -rIlZF {old:path} {bin:path} | xargs -0r sed -i -E {steps:text}", old=old, bin=f"{new}/bin", steps="; ".join(steps))


def _literal(path: str) -> str:
    """For sed -E."""
    return re.sub(r"[][{}()*+?^$|.\\]", r"\\\g<0>", path)


def _launchers_first(scripts: Iterable[Script]) -> list[Script]:
    from unhang.facts.python_env import LAUNCHERS

    return sorted(scripts, key=lambda s: s.path.rpartition("/")[2] not in LAUNCHERS)


def _names(scripts: Iterable[Script]) -> str:
    return ", ".join(s.path.rpartition("/")[2] for s in scripts)


def _leads(env: Environment) -> Iterable[HostFinding]:
    from unhang.facts.python_env import TRAINING

    if env.editables_gone:
        named = ", ".join(f"{e.name or e.file.rpartition('/')[2]} ({e.target})" for e in env.editables_gone[:4])
        yield CAUSE.host_finding(
            area="python_env",
            severity="error" if any(e.name in TRAINING for e in env.editables_gone) else "warning",
            says=Text(
                f"{_count(env.editables_gone, 'editable install leads', 'editable installs lead')} to sources that are gone: {named}",
                f"{len(env.editables_gone)} 个可编辑安装（editable install）指向已不存在的源码：{named}",
            ),
            leads_to=Text(
                "the package is listed by pip, and importing it fails with No module named ...", "pip 列出了该软件包，导入却失败：No module named ..."
            ),
            evidence=tuple(Evidence(source=e.file, text=e.target) for e in env.editables_gone[:3]),
            remedies=("install-again",),
            commands={"install-again": command("{python:program} -m pip install --no-deps --force-reinstall -e PATH_TO_SOURCES", python=env.python)},
        )
    if env.lines_gone:
        yield CAUSE.host_finding(
            area="python_env",
            severity="note",
            says=Text(
                f"{_count(env.lines_gone, 'line of a .pth file leads', 'lines of .pth files lead')} nowhere: {env.lines_gone[0].target}",
                f".pth 文件中有 {len(env.lines_gone)} 行指向不存在的位置：{env.lines_gone[0].target}",
            ),
            leads_to=Text(
                "modules that used to be found there are missing; Python says nothing about it", "原来在那里能找到的模块没有了；Python 不作任何提示"
            ),
            evidence=tuple(Evidence(source=e.file, text=e.target) for e in env.lines_gone[:3]),
            remedies=("install-again",),
        )


def _count(things: tuple[object, ...], one: str, many: str) -> str:
    return f"{len(things)} {one if len(things) == 1 else many}"


CAUSE = Cause(
    id="env-relocation",
    role="root",
    title="The environment was moved or is incomplete",
    title_zh="环境被移动或不完整",
    what="Scripts, links and records in a Python environment name absolute paths that do not exist here.",
    why=(
        "A virtual or conda environment was copied or renamed, built in a directory of one node only, unpacked without its repair step, or its "
        "base Python was upgraded or removed."
    ),
    signatures=(
        Signature(
            needle=": bad interpreter: ",
            pattern=rf"(?P<script>{_PATH}|\./\S{{1,200}}): (?P<interpreter>{_PATH}): bad interpreter: "
            r"(?:[Nn]o such file|Stale file handle|Permission denied|没有那个文件)",
            says="{script} begins with an interpreter that is not there: {interpreter}",
            says_zh="{script} 首行的解释器不存在：{interpreter}",
            remedies=("rebuild-here", "rewrite-the-paths", "through-the-interpreter"),
        ),
        # dash and bash 5.2 name the script only, though it is the interpreter in its first line that is missing.
        Signature(
            needle="cannot execute: required file not found",
            pattern=rf"(?P<script>{_PATH}): cannot execute: required file not found",
            says="{script} begins with an interpreter that is not there",
            says_zh="{script} 首行的解释器不存在",
            remedies=("rebuild-here", "rewrite-the-paths", "through-the-interpreter"),
        ),
        Signature(
            needle=": not found",
            pattern=rf"sh: (?:line )?(?:\d+: )?(?P<script>/[^\s:'\"]{{0,200}}/bin/(?:{_PROGRAMS})): not found",
            standing="likely",
            says="{script} or the interpreter that it begins with is not there",
            says_zh="{script} 或它首行的解释器不存在",
            remedies=("rebuild-here", "through-the-interpreter"),
        ),
        Signature(
            needle="/bin/python",
            pattern=r"(?P<interpreter>(?<![\w./+-])/[^\s:'\"]{1,200}/bin/python[\d.]*)['\"]?: (?:No such file or directory|没有那个文件或目录)",
            says="the interpreter {interpreter} is not there",
            says_zh="解释器 {interpreter} 不存在",
            remedies=("rebuild-here", "on-every-node"),
        ),
        Signature(
            needle="No such file or directory: '/",
            pattern=rf"(?:FileNotFoundError|NotADirectoryError): \[Errno 2\d?\] .{{1,40}}: '(?P<interpreter>/[^']{{0,200}}/bin/(?:{_PROGRAMS}))'",
            says="the program {interpreter} is not there",
            says_zh="程序 {interpreter} 不存在",
            remedies=("rebuild-here", "on-every-node"),
        ),
        # Slurm looks the program up on each node; environments in $TMPDIR exist on the first one only.
        Signature(
            needle="execve(): ",
            pattern=rf"execve\(\): (?P<program>(?:\S{{1,200}}/)?(?:{_PROGRAMS})|/\S{{1,200}}/bin/\S{{1,80}}): No such file or directory",
            standing="likely",
            says="Slurm found no {program} on a node: the environment is missing there or points elsewhere",
            says_zh="Slurm 在某个节点上找不到 {program}：那里没有该环境，或者环境指向别处",
            remedies=("on-every-node", "rebuild-here"),
        ),
        Signature(
            needle="run was unable to find the specified executable file",
            standing="likely",
            says="MPI found the program on the first host and not on another one",
            says_zh="MPI 在第一台主机上找到了该程序，在另一台上却没有",
            remedies=("on-every-node",),
        ),
        Signature(
            needle="broken symbolic link to ",
            pattern=r"(?P<link>(?<!\S)\S{0,200}/(?:bin|site-packages|lib)/\S{1,100}): broken symbolic link to [`'‘]?(?P<target>[^\s'`’]{1,200})",
            says="the link {link} leads to {target}, which is not there",
            says_zh="链接 {link} 指向 {target}，而它不存在",
            remedies=("rebuild-here",),
        ),
        Signature(
            needle="non-existent Python interpreter",
            says="the environment is linked to a base Python that is not there",
            says_zh="环境链接到的基础 Python 不存在",
            remedies=("rebuild-here",),
        ),
        Signature(
            needle="was the underlying Python interpreter removed",
            says="the environment is linked to a base Python that was removed",
            says_zh="环境链接到的基础 Python 已被删除",
            remedies=("rebuild-here",),
        ),
        Signature(
            needle="Python interpreter not found at ",
            pattern=r"Python interpreter not found at [`'\"](?P<interpreter>[^`'\"]{1,200})",
            says="the environment is linked to an interpreter that is not there: {interpreter}",
            says_zh="环境链接到的解释器不存在：{interpreter}",
            remedies=("rebuild-here",),
        ),
        Signature(
            needle="No module named 'encodings'",
            says="Python starts and does not find its own standard library: PYTHONHOME or the recorded prefix is wrong",
            says_zh="Python 能启动，却找不到自己的标准库：PYTHONHOME 或环境记录的 prefix 有误",
            remedies=("no-pythonhome", "rebuild-here"),
        ),
        Signature(
            needle="Could not find platform independent libraries",
            standing="likely",
            says="Python starts and does not find its own standard library: PYTHONHOME or the recorded prefix is wrong",
            says_zh="Python 能启动，却找不到自己的标准库：PYTHONHOME 或环境记录的 prefix 有误",
            remedies=("no-pythonhome", "rebuild-here"),
        ),
        Signature(
            needle="No module named '__editable__",
            says="an editable install is broken: the file that leads to its sources is gone",
            says_zh="一个可编辑安装已损坏：指向其源码的文件不见了",
            remedies=("install-again",),
        ),
        Signature(
            needle="No package metadata was found for ",
            pattern=r"PackageNotFoundError: No package metadata was found for (?P<package>[\w.-]{1,80})",
            standing="possible",
            says="the script of {package} is there and its package is not: the install is incomplete or was moved",
            says_zh="{package} 的脚本在，软件包却不在：安装不完整，或者被移动过",
            remedies=("install-again",),
        ),
        Signature(
            needle="Not a conda environment: ",
            pattern=r"Not a conda environment: (?P<path>\S{1,200})",
            says="there is no conda environment at {path} on this host",
            says_zh="本机的 {path} 处没有 conda 环境",
            remedies=("on-every-node", "rebuild-here"),
        ),
        Signature(
            needle="Could not find conda environment",
            pattern=r"Could not find conda environment: (?P<path>\S{1,200})",
            says="there is no conda environment {path} on this host",
            says_zh="本机没有 conda 环境 {path}",
            remedies=("on-every-node", "rebuild-here"),
        ),
        Signature(
            needle="/bin/activate: No such file",
            pattern=r"(?P<path>(?<!\S)\S{1,200}/bin/activate): No such file or directory",
            says="the environment is not there on this host: {path}",
            says_zh="本机没有该环境：{path}",
            remedies=("on-every-node", "rebuild-here"),
        ),
    ),
    on_host=_on_host,
    remedies=(
        Remedy(
            id="rebuild-here",
            says=(
                "Build the environment anew beside the old one, from the list of its packages, and start from there; virtual environments are not "
                "made to be moved. Packages of another index (+cu121), local ones, those from git and editable ones have to be installed by hand."
            ),
            says_zh=(
                "按软件包清单在旧环境旁边重新创建环境，并改用新环境；虚拟环境本来就不支持移动。来自其他索引（如 +cu121）、本地目录、git 的软件包以及"
                "可编辑安装需要手动安装。"
            ),
            command=(
                "python3 -m pip freeze --path ENV/lib/python3*/site-packages | grep -vE '^-e| @ |[+]' > ENV.packages.txt && "
                "python3 -m venv ENV.new && ENV.new/bin/python -m pip install --no-deps -r ENV.packages.txt"
            ),
            verify="ENV.new/bin/python -c 'import sys, torch; print(sys.prefix, torch.__file__)' && head -1 ENV.new/bin/torchrun",
        ),
        Remedy(
            id="rewrite-the-paths",
            says=(
                "Or repair what names the old place: the first lines of the scripts, and activate; conda-unpack does so in a packed environment. "
                "Never with a prefix of the system as the old place (/usr)."
            ),
            says_zh=(
                "或者修复仍写着旧路径的文件：各脚本首行和 activate；conda-pack 打包的环境可用 conda-unpack 修复。旧路径绝不能是 /usr 之类的系统前缀。"
            ),
            command="grep -rIlZF OLD_PREFIX ENV/bin | xargs -0r sed -i '1s,^#!OLD_PREFIX/,#!NEW_PREFIX/,; /VIRTUAL_ENV/s,OLD_PREFIX,NEW_PREFIX,'",
            verify="grep -rIl OLD_PREFIX ENV/bin; ENV/bin/torchrun --help | head -1",
        ),
        Remedy(
            id="through-the-interpreter",
            says="As a stopgap go round the scripts: the interpreter itself works from any place where its base Python exists.",
            says_zh="临时办法是绕开这些脚本：只要基础 Python 存在，直接用解释器即可。",
            command="ENV/bin/python -m torch.distributed.run ARGS train.py",
        ),
        Remedy(
            id="on-every-node",
            says="Put the environment where every node sees it, or create it on each node; $SLURM_TMPDIR and /tmp belong to one node.",
            says_zh="把环境放在所有节点都能访问的位置，或在每个节点上分别创建；$SLURM_TMPDIR 和 /tmp 只属于单个节点。",
            command="srun --ntasks-per-node=1 --label bash -c 'hostname; ls -l ENV/bin/python ENV/bin/torchrun'",
            verify="srun --ntasks-per-node=1 --label ENV/bin/python -c 'import torch; print(torch.__file__)'",
        ),
        Remedy(
            id="no-pythonhome",
            says="Start without PYTHONHOME and PYTHONPATH, which outvote what the interpreter knows of itself.",
            says_zh="去掉 PYTHONHOME 和 PYTHONPATH 再启动，它们会覆盖解释器自身的路径信息。",
            command="env -u PYTHONHOME -u PYTHONPATH ENV/bin/python -c 'import sys; print(sys.prefix, sys.base_prefix)'",
            verify="env -u PYTHONHOME -u PYTHONPATH ENV/bin/python -c 'import encodings'",
        ),
        Remedy(
            id="install-again",
            says="Install the package again from where its sources are now.",
            says_zh="从源码现在所在的位置重新安装该软件包。",
            command="python -m pip install --no-deps --force-reinstall -e PATH_TO_SOURCES",
            verify="python -m pip show -f PACKAGE | head -12",
        ),
    ),
    leads_to=("rank-exception", "launcher-wrong-env"),
    mistaken_for={
        "launcher-wrong-env": "there a launcher of another environment is found, or none; here the right one is there and points to a missing place",
        "filesystem-shared": "an environment that is whole on one node and absent on another may be a mount that is missing",
        "library-link": "libraries that were found by recorded paths are missing after a move as well",
        "ssh-launcher": "there the other host is not reached",
    },
    sources=(
        "https://docs.python.org/3/library/venv.html",
        "https://conda.github.io/conda-pack/",
        "https://slurm.schedmd.com/srun.html",
        "https://setuptools.pypa.io/en/latest/userguide/development_mode.html",
    ),
    hits=(
        "bash: /srv/env/bin/torchrun: /home/ann/env/bin/python3.11: bad interpreter: No such file or directory",
        "sh: /srv/env/bin/accelerate: /old/env/bin/python: bad interpreter: No such file or directory",
        "zsh: /srv/env/bin/deepspeed: /old/env/bin/python: bad interpreter: no such file or directory",
        "bash: /srv/env/bin/torchrun: cannot execute: required file not found",
        "sh: 1: /srv/miniconda/envs/train/bin/torchrun: not found",
        "run.sh: line 3: /scratch/51/env/bin/python: No such file or directory",
        "FileNotFoundError: [Errno 2] No such file or directory: '/scratch/51/env/bin/python3'",
        "slurmstepd: error: execve(): accelerate: No such file or directory",
        "1: slurmstepd-node8: error: execve(): /scratch/51/env/bin/python: No such file or directory",
        "mpirun was unable to find the specified executable file, and therefore did not launch the job.",
        "/srv/env/bin/python: broken symbolic link to /opt/python/3.11.6/bin/python3.11",
        "warning: Ignoring existing virtual environment linked to non-existent Python interpreter: .venv/bin/python3 -> python",
        "error: Broken symlink at `.venv/bin/python3`, was the underlying Python interpreter removed?",
        "  Caused by: Python interpreter not found at `/srv/job/.venv/bin/python3`",
        "ModuleNotFoundError: No module named 'encodings'",
        "Could not find platform independent libraries <prefix>",
        "[rank0]: ModuleNotFoundError: No module named '__editable___trainer_0_3_0_finder'",
        "importlib.metadata.PackageNotFoundError: No package metadata was found for accelerate",
        "EnvironmentLocationNotFound: Not a conda environment: /srv/miniconda/envs/train",
        "Could not find conda environment: train",
        "/var/spool/slurmd/job51/slurm_script: line 9: /scratch/51/env/bin/activate: No such file or directory",
    ),
    near_misses=(
        "slurmstepd: error: execve(): mkdir: No such file or directory",
        "slurmstepd: error: couldn't chdir to `/home/ann': No such file or directory: going to /tmp instead",
        "FileNotFoundError: [Errno 2] No such file or directory: '/srv/data/train.jsonl'",
        "/bin/sh: 1: torchrun: not found",
        "python: can't open file '/srv/job/train.py': [Errno 2] No such file or directory",
        "ModuleNotFoundError: No module named 'trainer'",
        "ImportError: libnccl.so.2: cannot open shared object file: No such file or directory",
    ),
    explain={
        "en": (
            "A Python environment is full of absolute paths: the first line of every script in bin, the links to its base Python, editable "
            "installs, activate. Copy or rename it and they still name the old place; remove or upgrade the base Python and its links dangle; "
            'create it in a node\'s own /tmp and the other nodes have nothing. The shell then says "bad interpreter" or, misleadingly, that the '
            "script itself is not found. head -1 on the script shows where it points. Build the environment where it is to be used, on storage "
            "that all nodes share; as a stopgap, start through the interpreter with python -m."
        ),
        "zh": (
            "Python 环境里到处是绝对路径：bin 下每个脚本的首行、指向基础 Python 的链接、可编辑安装、activate 脚本。复制或改名之后，它们仍指向旧位"
            "置；删除或升级基础 Python 后，链接就悬空了；建在某个节点的 /tmp 里，其他节点就什么也没有。于是 shell 报 bad interpreter，或者误导性"
            "地说脚本本身不存在。用 head -1 查看脚本首行就知道它指向哪里。应在实际使用的位置、所有节点共享的存储上创建环境；临时办法是用 python "
            "-m 通过解释器启动。"
        ),
    },
)
