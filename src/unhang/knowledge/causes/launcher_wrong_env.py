"""launcher-wrong-env: the launcher or the Python that answers belongs to another environment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Cause, Command, LogView, Signature, command
from unhang.knowledge.text import COMMA, NOTHING, Text, joined, same
from unhang.model import Evidence, Finding, HostFinding, Remedy
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.python_env import Program, PythonEnv, Shadow
    from unhang.facts.snapshot import Snapshot

_LAUNCHERS = r"torchrun|accelerate|deepspeed|llamafactory-cli|swift|xtuner|colossalai|composer|horovodrun|ray|vllm|torchx"
_PYTHON_AND = rf"(?P<program>{_LAUNCHERS}|python[\d.]*)"
# What comes with the environment of a training and with no system: its absence says that another environment answers.
_TRAINING = r"torch|deepspeed|accelerate|lightning|pytorch_lightning|transformers|llamafactory|vllm|megatron|ray"
# What extensions, torch.compile and Triton build with as the training starts. A shell's line alone may be of a tool that only looks for one.
_COMPILER = r"(?P<program>(?:[cg]\+\+|gcc|cc|clang(?:\+\+)?|nvcc|hipcc|ninja)(?:-\d{1,2})?)"
_BUILDING = r"Error building extension|\bFAILED: (?:\[code=\d+\] )?\S+\.s?o\b|^ninja: (?:error|fatal|build stopped)"
_SHELL = ("{program} is not on the PATH of the shell that was to start it", "要启动 {program} 的 shell，其 PATH 中没有它")
_CONTAINER = ("{program} is not on the PATH of the container", "容器的 PATH 中没有 {program}")
_CALLER = ("{program} is not on the PATH of the program that was to start it", "要启动 {program} 的程序，其 PATH 中没有它")
_BUILD = (
    "{program} is missing, which builds what the training compiles as it starts (an extension, torch.compile, Triton)",
    "缺少 {program}：训练启动时要用它编译（扩展、torch.compile、Triton）",
)
_ELSEWHERE = r"(?:未找到命令|找不到命令|Kommando nicht gefunden|commande introuvable|orden no encontrada)"
# zsh turns it round; other languages have their own words.
_ABSENT = (
    ("command not found", rf"(?:^|[\s:'\"])(?<![/\w.-]){_PYTHON_AND}: command not found", "", _SHELL),
    (": not found", rf"sh: (?:line )?(?:\d+: )?{_PYTHON_AND}: not found", "", _SHELL),
    ("command not found: ", rf"command not found: {_PYTHON_AND}\b", "", _SHELL),
    ("torchrun", rf"(?<![/\w.-])(?P<program>torchrun)\s?[:：]\s?{_ELSEWHERE}", "", _SHELL),
    ("executable file not found in ", rf"exec: \\?\"{_PYTHON_AND}\\?\": executable file not found in \$PATH", "", _CONTAINER),
    ("FileNotFoundError: [Errno 2] No such file or directory: '", rf"No such file or directory: '{_PYTHON_AND}'", "", _CALLER),
    (": not found", rf"sh: (?:line )?(?:\d+: )?{_COMPILER}: not found", _BUILDING, _BUILD),
    ("command not found", rf"sh: (?:line )?(?:\d+: )?{_COMPILER}: command not found", _BUILDING, _BUILD),
    ("FileNotFoundError: [Errno 2] No such file or directory: '", rf"directory: '(?:/[^']{{0,200}}/)?{_COMPILER}'", "", _BUILD),
    ("Command '['which', '", rf"\['which', '{_COMPILER}'\]' returned non-zero", "", _BUILD),
    ("is required to load C++ extensions", r"Error: (?P<program>Ninja) is required", "", _BUILD),
    ("Failed to find C compiler", r"Error: Failed to find (?P<program>C compiler)", "", _BUILD),
    ("No working C++ compiler found", r"No working (?P<program>C\+\+ compiler) found", "", _BUILD),
)

_MISSING = lazily(r"No module named '?(?P<module>[\w.]+)")
_PACKAGES = lazily(r"^(?P<prefix>/.{1,160}?)/lib(?:64)?/python3(?:\.\d+)?/(?:site|dist)-packages/")
_SCRIPT = lazily(rf"^(?P<prefix>/.{{1,160}}?)/bin/(?:{_LAUNCHERS})$")
_BINARY = lazily(r"of binary: (?P<binary>/\S+)")
_MODULES = {
    "torchrun": ("torch", "torch.distributed.run"),
    "accelerate": ("accelerate", "accelerate.commands.launch"),
    "deepspeed": ("deepspeed", "deepspeed.launcher.runner"),
    "llamafactory-cli": ("llamafactory", "llamafactory.cli"),
}
# Made to stand apart: what they hold is meant to be used from beside any environment.
_ISOLATED = lazily(r"/(?:pipx/venvs|uv/tools)/")


def _in_logs(view: LogView) -> Finding | None:
    """A module is missing, and the frames of the log come from two environments: one started what the other holds."""
    own = view.hits_of(CAUSE.id)
    missing = next((t for t in view.tracebacks if _MISSING.search(t.says)), None)
    found = _MISSING.search(missing.says) if missing is not None else None
    if missing is None or found is None or any(h.signature.standing == "established" for h in own):
        return CAUSE.of_hits(own, view)
    script = next((f for t in view.tracebacks for f in t.frames if (m := _SCRIPT.match(f.file)) and m["prefix"].endswith("/.local")), None)
    prefixes = sorted({m["prefix"] for f in missing.frames if (m := _PACKAGES.match(f.file))})
    if script is not None:
        says = Text(
            "{module} is missing because {script}, a launcher of the user site, was run instead of the one of the environment",
            "缺少 {module}，因为运行的是用户目录（user site）里的启动器 {script}，而不是环境里的那个",
        ).fill(module=found["module"], script=script.file)
    elif len(prefixes) > 1 and any(p.endswith("/.local") for p in prefixes):
        says = Text("{module} is missing, and packages come from two places at once: {places}", "缺少 {module}，而软件包同时来自两处：{places}")
        says = says.fill(module=found["module"], places=joined(map(same, prefixes), Text(" and ", " 和 ")))
    else:
        return CAUSE.of_hits(own, view)
    binary = next((m["binary"] for e in view.exits if (m := _BINARY.search(e.at.text))), None)
    return CAUSE.finding(
        standing="likely",
        says=says + (Text("; the ranks ran {binary}", "；各 rank 运行的是 {binary}").fill(binary=binary) if binary else NOTHING),
        ranks=tuple(sorted({t.rank for t in view.tracebacks if t.rank is not None and t.says == missing.says})),
        evidence=(missing.evidence(),),
        remedies=("through-the-interpreter", "no-user-site"),
    )


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import python_env

    seen = host.get(python_env.SUBJECT)
    if seen is None:
        return
    python = next((p for p in seen.programs if p.name in ("python", "python3") and p.prefix is not None), None)
    if python is not None:
        yield from _not_activated(seen, python)
        for program in seen.programs:
            yield from _elsewhere(seen, python, program)
    for env in seen.environments:
        places: dict[str, list[Shadow]] = {}
        for shadow in env.shadows:
            places.setdefault(shadow.place, []).append(shadow)
        for place, shadows in places.items():
            first = sorted(shadows, key=lambda s: s.name != "torch")[:4]
            told = joined((Text(f"{s.name} {s.version} before {s.hidden}", f"{s.name} {s.version} 遮住 {s.hidden}") for s in first), COMMA)
            by_path = place in seen.python_path
            yield CAUSE.host_finding(
                area="python_env",
                severity="warning",
                says=Text("{which} {place} comes before the packages of {prefix}: {told}", "{which} {place} 排在 {prefix} 的软件包之前：{told}").fill(
                    which="PYTHONPATH" if by_path else Text("the user site", "用户 site 目录"), place=place, prefix=env.prefix, told=told
                ),
                leads_to=Text(
                    "a mixture of two sets of packages: missing modules, undefined symbols, or another release than the other hosts run",
                    "两套软件包混用：缺少模块、未定义符号，或与其他主机的版本不同",
                ),
                evidence=(Evidence(source=place, text=", ".join(f"{s.name}-{s.version}" for s in shadows[:8])),),
                remedies=("no-python-path",) if by_path else ("no-user-site",),
            )
    torch = seen.training.packages.get("torch")
    if torch and seen.own is not None and "torch" in seen.own.packages:
        yield CAUSE.host_finding(
            area="python_env",
            severity="note",
            says=Text(
                "unhang lives in {prefix} with torch {own}, and the training's Python is {python} with torch {torch}",
                "unhang 位于 {prefix}，带有 torch {own}；训练的 Python 是 {python}，带有 torch {torch}",
            ).fill(prefix=seen.own.prefix, own=seen.own.packages["torch"], python=seen.training.python, torch=torch),
            leads_to=Text("unhang run train.py trains with the torch beside unhang", "unhang run train.py 使用 unhang 旁边的 torch 训练"),
            remedies=("through-the-interpreter",),
            commands={"through-the-interpreter": command("unhang run --python {python:program} train.py", python=seen.training.python)},
        )


def _not_activated(seen: PythonEnv, python: Program) -> Iterable[HostFinding]:
    name, prefix = ("VIRTUAL_ENV", seen.virtual_env) if seen.virtual_env else ("CONDA_PREFIX", seen.conda_prefix)
    if prefix is not None and prefix != python.prefix and not seen.training.python_gone:
        yield CAUSE.host_finding(
            area="python_env",
            severity="warning",
            says=Text(
                f"{name} is {prefix}, and {python.name} on the PATH is {python.path}",
                f"{name} 为 {prefix}，而 PATH 上的 {python.name} 是 {python.path}",
            ),
            leads_to=Text(
                "the training starts under a Python that lacks the packages of the environment that seems to be active",
                "训练在另一个 Python 下启动，它缺少看似已激活的环境里的软件包",
            ),
            evidence=(Evidence(source="the environment", text=f"{name}={prefix}"), Evidence(source="PATH", text=python.path)),
            remedies=("through-the-interpreter", "activate-everywhere"),
            commands=_through(f"{prefix}/bin/python"),
        )


def _through(python: str) -> dict[str, Command | None]:
    return {"through-the-interpreter": command("{python:program} -m torch.distributed.run --nproc-per-node auto train.py", python=python)}


def _elsewhere(seen: PythonEnv, python: Program, program: Program) -> Iterable[HostFinding]:
    """A launcher that another environment answers for, although python's has it too or is the one that holds torch."""
    env = seen.training
    if program.prefix is None or program.prefix == python.prefix or env.python_gone:
        return
    # A launcher of the environment itself that runs elsewhere: a copied environment, env-relocation's.
    if any(s.path.rpartition("/")[2] == program.name and s.prefix == program.prefix for s in env.foreign_scripts):
        return
    if program.name in _MODULES:
        package, module = _MODULES[program.name]
        if package not in env.packages and ("torch" not in env.packages or _ISOLATED.search(program.prefix)):
            return
        yield CAUSE.host_finding(
            area="python_env",
            severity="warning",
            says=Text(
                f"{program.name} on the PATH is {program.path} and runs {program.interpreter}; {python.name} is {python.path}",
                f"PATH 上的 {program.name} 是 {program.path}，运行的是 {program.interpreter}；{python.name} 却是 {python.path}",
            ),
            leads_to=Text(
                f"what {program.name} starts runs with the packages of {program.prefix}, not with those of {env.prefix}",
                f"{program.name} 启动的程序使用 {program.prefix} 的软件包，而不是 {env.prefix} 的",
            ),
            evidence=(Evidence(source=program.path, text=f"#!{program.interpreter}"), Evidence(source="PATH", text=python.path)),
            remedies=("through-the-interpreter", "activate-everywhere", "no-user-site"),
            commands={"through-the-interpreter": command("{python:program} -m {module:name} ARGS train.py", python=env.python, module=module)},
        )
    elif "pip" in env.packages if program.name == "pip" else "torch" in env.packages:
        yield CAUSE.host_finding(
            area="python_env",
            severity="note",
            says=Text(
                f"{program.name} on the PATH is {program.path}, of another environment than {python.name}, {python.path}",
                f"PATH 上的 {program.name} 是 {program.path}，与 {python.name}（{python.path}）不属于同一环境",
            ),
            leads_to=Text(f"pip installs into {program.prefix}", f"pip 会安装到 {program.prefix}")
            if program.name == "pip"
            else Text(f"scripts that ask for {program.name} find no torch, or another one", f"使用 {program.name} 的脚本找不到 torch，或找到另一个"),
            evidence=(Evidence(source="PATH", text=program.path),),
            remedies=("activate-everywhere",),
        )


CAUSE = Cause(
    id="launcher-wrong-env",
    role="root",
    title="A program is missing, or that of another environment answers",
    title_zh="找不到程序，或响应的是另一个环境里的程序",
    what="torchrun, accelerate, deepspeed or python is found in another environment than the one that holds the training, or not found at all.",
    why=(
        "PATH differs: sudo resets it, ssh and pdsh start shells without conda's set-up, ~/.local/bin comes before the environment, or the "
        "environment is not activated on that host."
    ),
    signatures=(
        *(
            Signature(
                needle=needle,
                pattern=pattern,
                near=near,
                standing="likely" if says == _BUILD and not near else "established",
                says=says[0],
                says_zh=says[1],
                remedies=("install-the-compiler",) if says == _BUILD else ("through-the-interpreter", "activate-everywhere"),
            )
            for needle, pattern, near, says in _ABSENT
        ),
        Signature(
            needle="/usr/bin/env: ",
            pattern=r"/usr/bin/env: ['‘’“”]?(?P<program>[\w.+-]{1,80})['‘’“”]?: No such file or directory",
            says="no {program} is on the PATH, which the first line of a script asks for",
            says_zh="PATH 中没有 {program}，而某个脚本的第一行要求它",
            remedies=("through-the-interpreter", "activate-everywhere"),
        ),
        # `python -m torch.distributed.run` under an interpreter without torch.
        Signature(
            needle=": No module named ",
            pattern=rf"(?P<python>/(?:usr/(?:local/)?)?bin/python[\d.]*): (?:Error while finding module specification for .{{1,80}})?No module named "
            rf"'?(?![\w.]+\.__main__; ')(?P<module>(?:{_TRAINING})\b[\w.]*)",
            says="{python} answers, the interpreter of the system, and it has no {module}",
            says_zh="响应的是系统的解释器 {python}，它没有 {module}",
            remedies=("through-the-interpreter", "activate-everywhere", "keep-path-under-sudo"),
        ),
        Signature(
            needle="No module named ",
            pattern=rf"^(?:(?!/(?:usr/(?:local/)?)?bin/python).){{0,300}}?No module named '?"
            rf"(?P<module>(?:{_TRAINING})(?:\.(?:distributed|launcher|commands)[\w.]*)?)(?:'|\)|$)",
            standing="likely",
            says="the Python that was started has no {module}: it is not the one of the training's environment",
            says_zh="启动的 Python 没有 {module}：它不是训练环境里的那个",
            remedies=("through-the-interpreter", "activate-everywhere"),
        ),
    ),
    in_logs=_in_logs,
    on_host=_on_host,
    remedies=(
        Remedy(
            id="through-the-interpreter",
            says=(
                "Start through the interpreter of the environment, by its full path; what it starts runs under the same one: python -m "
                "torch.distributed.run, python -m accelerate.commands.launch."
            ),
            says_zh=(
                "用环境中解释器的完整路径启动，它启动的进程也会使用同一个解释器：python -m torch.distributed.run、python -m "
                "accelerate.commands.launch。"
            ),
            command="/path/to/env/bin/python -m torch.distributed.run --nproc-per-node auto train.py",
            verify=(
                "/path/to/env/bin/python -m torch.distributed.run --standalone --no-python python -c 'import sys, torch; print(sys.executable, "
                "torch.__file__)'"
            ),
        ),
        Remedy(
            id="install-the-compiler",
            says="Install it on every host (for ninja: pip install ninja; for nvcc the CUDA toolkit), and remove what half a build has left.",
            says_zh="在每台主机上安装它（ninja：pip install ninja；nvcc：CUDA 工具包），并删除未完成的编译留下的文件。",
            command='sudo apt-get install -y g++; rm -rf "${TORCH_EXTENSIONS_DIR:-$HOME/.cache/torch_extensions}"',
            verify="command -v c++ ninja",
        ),
        Remedy(
            id="activate-everywhere",
            says=(
                "Activate the environment in the script that every host runs, not in .bashrc, which ssh, pdsh, srun and sh do not read in this case. "
                "Look what answers on each host (under Slurm with srun --label in front)."
            ),
            says_zh=(
                "在每台主机都会执行的脚本里激活环境，不要依赖 .bashrc：ssh、pdsh、srun 和 sh 在这种情形下不会读取它。在每台主机上查看实际响应的是哪个"
                "（Slurm 下在前面加 srun --label）。"
            ),
            command="bash -c 'hostname; type -a torchrun python; python -c \"import torch; print(torch.__file__)\"'",
            verify="ssh HOST 'command -v torchrun; python -c \"import sys; print(sys.executable)\"'",
        ),
        Remedy(
            id="no-user-site",
            says="Keep the user site out, and remove launchers that were once installed with pip --user.",
            says_zh="排除用户目录中的包，并删除以前用 pip --user 安装的启动器。",
            command="type -a torchrun accelerate deepspeed; ls ~/.local/bin; export PYTHONNOUSERSITE=1",
            verify="PYTHONNOUSERSITE=1 python -c 'import site; print(site.ENABLE_USER_SITE)'",
        ),
        Remedy(
            id="no-python-path",
            says="Start without PYTHONPATH, or take directories of installed packages out of it: it comes before everything that is installed.",
            says_zh="不带 PYTHONPATH 启动，或从中去掉存放已安装软件包的目录：它排在所有已安装的包之前。",
            command="env -u PYTHONPATH torchrun ARGS train.py",
            verify="env -u PYTHONPATH python -c 'import torch; print(torch.__file__)'",
        ),
        Remedy(
            id="keep-path-under-sudo",
            says="Do not start the training with sudo, or hand PATH over: sudo replaces it by its own.",
            says_zh="不要用 sudo 启动训练，或者显式传递 PATH：sudo 会换成它自己的 PATH。",
            command='sudo env "PATH=$PATH" torchrun ARGS train.py',
            verify="sudo env \"PATH=$PATH\" sh -c 'command -v torchrun python'",
        ),
    ),
    leads_to=("rank-exception",),
    mistaken_for={
        "env-relocation": "there the right launcher is found and points to an interpreter that is gone",
        "ssh-launcher": "there the other host is not reached at all; here it is, with another PATH",
        "filesystem-shared": "an environment that exists on the first host only looks the same from the second",
        "rank-exception": "a package that is missing in the right environment just has to be installed: compare sys.executable first",
        "config-error": "a script that is named wrongly is missing, too; here it is the launcher",
    },
    sources=(
        "https://docs.pytorch.org/docs/stable/elastic/run.html",
        "https://github.com/pytorch/pytorch/issues/92132",
        "https://docs.python.org/3/library/site.html",
        "https://www.sudo.ws/docs/man/sudoers.man/",
    ),
    hits=(
        "RuntimeError: Error building extension 'cpu_adam': [1/3] c++ -MMD\n/bin/sh: 1: c++: not found\nninja: build stopped: subcommand failed.",
        "FAILED: [code=127] shm.o \n/bin/sh: line 1: g++: command not found",
        "[rank1]: FileNotFoundError: [Errno 2] No such file or directory: '/usr/local/cuda/bin/nvcc'",
        "subprocess.CalledProcessError: Command '['which', 'c++']' returned non-zero exit status 1.",
        "RuntimeError: Ninja is required to load C++ extensions (pip install ninja to get it)",
        "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
        "InductorError: InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')",
        "/usr/bin/env: ‘python3.11’: No such file or directory",
        "/usr/bin/env: 'python': No such file or directory",
        "bash: line 1: torchrun: command not found",
        "./run.sh: line 14: accelerate: command not found",
        "node8: bash: deepspeed: command not found",
        "sudo: torchrun: command not found",
        "/bin/sh: 1: torchrun: not found",
        "sh: 1: llamafactory-cli: not found",
        "zsh: command not found: torchrun",
        "run.sh: 行 84: torchrun：未找到命令",
        'Error: failed to start container: exec: "torchrun": executable file not found in $PATH: unknown',
        "[rank0]: FileNotFoundError: [Errno 2] No such file or directory: 'torchrun'",
        "/usr/bin/python: No module named torch.distributed",
        "node8: /usr/bin/python3: No module named deepspeed",
        "/usr/bin/python3: Error while finding module specification for 'torch.distributed.run' (ModuleNotFoundError: No module named 'torch')",
        "ModuleNotFoundError: No module named 'torch'",
        "[rank2]: ModuleNotFoundError: No module named 'accelerate'",
    ),
    near_misses=(
        "ModuleNotFoundError: No module named 'my_project'",
        "bash: line 3: foo: command not found",
        "sh: 1: nvcc: not found",
        "sh: 1: nvcc: not found\nninja: no work to do.\n[rank1]: AssertionError: gradient check FAILED: max error 0.3",
        "/bin/sh: 1: nvcc: not found\nFAILED: tests/test_a.py",
        "torchrun --nproc-per-node 8 train.py: configuration not found",
        "FileNotFoundError: [Errno 2] No such file or directory: '/srv/data/train.jsonl'",
        "sh: 1: /srv/env/bin/torchrun: not found",
        "ModuleNotFoundError: No module named 'torch_geometric'",
        "/srv/env/bin/torchrun: /old/env/bin/python: bad interpreter: No such file or directory",
    ),
    explain={
        "en": (
            "A launcher script begins with the path of the interpreter that it was installed for, and it starts the ranks with that one, "
            "whatever environment is active. So a torchrun from ~/.local/bin or /usr/bin runs the training under a Python that lacks its "
            "packages, and a host where nothing was activated has no torchrun at all. sudo, ssh, pdsh and sh do not read the set-up that an "
            "interactive shell has. To be sure, print sys.executable on every rank. The cure is to start through the environment's own "
            "interpreter, python -m torch.distributed.run. Installing the missing package into the wrong Python only moves the error."
        ),
        "zh": (
            "启动脚本第一行写着安装时所用解释器的路径，无论当前激活了哪个环境，它都会用那个解释器启动各个进程。因此 ~/.local/bin 或 /usr/bin 里的"
            " torchrun 会在缺少相关包的 Python 下运行训练；而没有激活环境的主机上则根本没有 torchrun。sudo、ssh、pdsh 和 sh 都不会读取交互式 "
            "shell 的配置。确认方法：在每个进程上打印 sys.executable。解决办法是用环境自己的解释器启动：python -m torch.distributed.run。把缺少的"
            "包装进错误的 Python 里，只会换一个报错。"
        ),
    },
)
