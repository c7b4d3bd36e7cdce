"""How a shell, Python and launchers say that a script could not be started: its name is wrong, or it is no program.

What a batch script misses may be a helper as well as the training. Where a training ran behind the line, the line tells nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.logs import Signature
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.knowledge.cause import LogView
    from unhang.logs import Hit, Traceback
    from unhang.model import Standing

# The remedies of config-error for these.
_NAME = ("name-the-script", "by-the-interpreter")
_RUN = ("by-the-interpreter",)
_SCRIPT = r"(?P<script>(?:[^\s:'\"]{0,300}/)?[^\s:'\"/]{1,100}\.(?:py|sh|bash))"
# `bash: line 3: x`, `job.sh: line 3: x`, `sh: 3: x`, `bash: x`: a shell, and not a program that tells of its own files.
_SHELL = r"(?<!\S)(?:(?:[^\s:]{0,200}/)?(?:ba|da|k|z)?sh: (?:line )?(?:\d+: )?|[^\s:]{1,200}: line \d+: |[^\s:]{1,200}\.sh: \d+: )"
# A batch script goes on behind a helper that it does not find.
_KINDS: tuple[tuple[str, Standing], ...] = (("py", "established"), ("sh", "likely"))
_LAUNCHED = r"subprocess_handler\.py\", line \d+, in _popen|_execute_child"
# Python's own words: nobody but the interpreter that was to run it says so.
UNREADABLE = Signature(
    needle=": can't open file '",
    pattern=r"can't open file '(?P<script>[^'\n]{1,400})': \[Errno 2\]",
    says="the script does not exist: {script}",
    says_zh="脚本不存在：{script}",
    remedies=("name-the-script",),
)

# What Python says of the script, or of the module, that it was to run.
BY_PYTHON = (
    UNREADABLE,
    Signature(
        needle=": can't open file '",
        pattern=r"can't open file '(?P<script>[^'\n]{1,400})': \[Errno (?!2\])\d{1,3}\] (?P<why>.{1,80})",
        says="the script cannot be read: {script}: {why}",
        says_zh="脚本无法读取：{script}：{why}",
        remedies=("name-the-script",),
    ),
    Signature(
        needle="can't find '__main__' module in ",
        pattern=r"can't find '__main__' module in '(?P<script>[^'\n]{0,400})'",
        says="{script} was started as a script; it is a directory or an archive, and holds no __main__.py",
        says_zh="{script} 被当作脚本启动；它是目录或归档文件，其中没有 __main__.py",
        remedies=("name-the-script",),
    ),
    Signature(
        needle="is a package and cannot be directly executed",
        pattern=r"No module named (?P<module>[\w.]{1,200})\.__main__; '",
        says="{module} was to be run as a module (-m); it is a package, and holds no __main__.py",
        says_zh="要把 {module} 作为模块（-m）运行；它是一个包，其中没有 __main__.py",
        remedies=("name-the-module",),
    ),
)
# What a shell says of it, and what Python's subprocess does for a launcher (torchrun --no-python).
BY_OTHERS = (
    *(
        Signature(
            needle=f".{kind}: {words}",
            pattern=_SHELL + _SCRIPT + f": {words}",
            standing=standing,
            says="{script} was started as a command, and there is none of that name"
            if words.startswith("command")
            else "the script does not exist, or the interpreter that its first line names: {script}",
            says_zh="{script} 被当作命令启动，而没有这个名称的命令"
            if words.startswith("command")
            else "脚本不存在，或其首行指明的解释器不存在：{script}",
            remedies=_NAME,
        )
        for kind, standing in _KINDS
        for words in ("command not found", "not found", "No such file or directory")
    ),
    *(
        Signature(
            needle=f".{kind}: Permission denied",
            pattern=rf"(?:{_SHELL}|execve\(\): ){_SCRIPT}: Permission denied",
            standing=standing,
            says="{script} was started by its name and is not executable",
            says_zh="{script} 被直接按名称启动，而它不可执行",
            remedies=_RUN,
        )
        for kind, standing in _KINDS
    ),
    # zsh turns it round.
    *(
        Signature(
            needle=f" {why}: ",
            pattern=rf"(?<!\S)zsh:(?:\d+:)? (?P<why>{why}): {_SCRIPT}",
            says="the shell could not start {script}: {why}",
            says_zh="shell 无法启动 {script}：{why}",
            remedies=_NAME,
        )
        for why in ("command not found", "no such file or directory", "permission denied")
    ),
    Signature(
        needle="xec format error",
        pattern=r"(?<!\S)(?=[^\s:'\"./]{0,300}[./])(?P<script>[^\s:'\"]{1,400}): (?:cannot execute binary file: )?[Ee]xec format error(?!: ')",
        says="{script} is nothing that this machine can run: it has no first line that names an interpreter (#!), or was built for another CPU",
        says_zh="{script} 无法在本机运行：它没有指明解释器的首行（#!），或者是为另一种 CPU 构建的",
        remedies=("by-the-interpreter", "same-architecture"),
    ),
    Signature(
        needle="xec format error",
        pattern=r"OSError: \[Errno 8\] Exec format error: '(?P<script>[^'\n]{1,400})'",
        says="{script} is nothing that this machine can run: it has no first line that names an interpreter (#!), or was built for another CPU",
        says_zh="{script} 无法在本机运行：它没有指明解释器的首行（#!），或者是为另一种 CPU 构建的",
        remedies=("by-the-interpreter", "same-architecture"),
    ),
    Signature(
        needle="user process caused",
        pattern=r"user process caused:? \\?\"?exec format error",
        says="the container's program is nothing that this machine can run: it was built for another CPU, or has no first line that names an "
        "interpreter (#!)",
        says_zh="容器的程序无法在本机运行：它是为另一种 CPU 构建的，或者没有指明解释器的首行（#!）",
        remedies=("same-architecture", "by-the-interpreter"),
    ),
    # coreutils writes a carriage return so.
    Signature(
        needle="/usr/bin/env: ",
        pattern=r"/usr/bin/env: ['‘’“”]?(?P<program>[^\s'‘’“”\\]{1,80})\\r['’”]?: No such file or directory",
        says="the first line of a script ends as on Windows (CR LF), and asks for a program whose name ends in a carriage return: {program}",
        says_zh="某个脚本的首行以 Windows 换行（CR LF）结尾，要找的程序名因此以回车符结尾：{program}",
        remedies=("unix-line-ends",),
    ),
    Signature(
        needle="FileNotFoundError: [Errno 2] No such file or directory: '",
        pattern=rf"No such file or directory: '{_SCRIPT}'",
        near=_LAUNCHED,
        says="the script does not exist, is not on the PATH, or its first line names an interpreter that does not: {script}",
        says_zh="脚本不存在，或不在 PATH 上，或其首行指明的解释器不存在：{script}",
        remedies=_NAME,
    ),
    Signature(
        needle="PermissionError: [Errno 13] Permission denied: '",
        pattern=rf"Permission denied: '{_SCRIPT}'",
        near=_LAUNCHED,
        says="{script} was started by its name and is not executable",
        says_zh="{script} 被直接按名称启动，而它不可执行",
        remedies=_RUN,
    ),
)
SIGNATURES = frozenset((*BY_PYTHON, *BY_OTHERS))

# What is raised because somebody else ended, was not there, or asked for an end: whoever waits for a rank that could not be started raises it.
_OF_OTHERS = lazily(
    r"(?:.*\.)?(?:(?:ChildFailed|CalledProcess|Dist\w*|Rendezvous\w*|Timeout|Connection\w*|BrokenPipe|EOF|Ray\w*|Actor\w*)Error"
    r"|Process(?:Raised|Exited)Exception|Sign\w*Exception|SIGTERMException|KeyboardInterrupt|SystemExit)"
)
_LAUNCHERS = lazily(r"/torch/distributed/(?:run|launch|launcher/.+|elastic/.+)\.py$|/accelerate/commands/|/deepspeed/launcher/|/bin/[^/]+$")


def trained_behind(view: LogView, hit: Hit) -> bool:
    """Whether a training ran behind the line of a hit, in the same log: it counts steps, a rank raises what is its own, a collective times out."""
    gave_up = (*(t.at for t in view.timeouts), *(s.at for s in view.statuses))
    if hit.steps or any(_is_behind(at.source, at.line, hit) for at in gave_up):
        return True
    return any(
        _is_behind(t.source, t.line, hit) and (t.rank is not None or t.local_rank is not None) and _may_be_the_same(t, hit) for t in _failures(view)
    )


def other_failed(view: LogView, hit: Hit) -> bool:
    """Whether a program that was started failed as well: which of the two was the training, the logs do not tell."""
    if any(e.code < 0 and e.code not in (-2, -15) for e in view.exits):
        return True
    alone = hit.rank is None and hit.host is None
    return any(alone or (t.source == hit.source and _may_be_the_same(t, hit)) for t in _failures(view))


def _failures(view: LogView) -> list[Traceback]:
    """The exceptions of programs that were started: not those of launchers, nor of ranks that lost or missed another one."""
    missed = {(h.source, h.line) for hits in view.hits.values() for h in hits if h.signature in SIGNATURES}
    return [
        t
        for t in view.tracebacks
        if not (t.ignored or _OF_OTHERS.fullmatch(t.type) or (t.source, t.end) in missed or any(_LAUNCHERS.search(f.file) for f in t.frames[:1]))
    ]


def _is_behind(source: str, line: int | None, hit: Hit) -> bool:
    return source == hit.source and line is not None and hit.line is not None and line > hit.line


def _may_be_the_same(back: Traceback, hit: Hit) -> bool:
    """Whether nothing tells that a traceback is of another rank or host than a hit."""
    return (hit.rank is None or back.rank == hit.rank) and (hit.host is None or back.host in (None, hit.host))
