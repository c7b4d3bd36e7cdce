"""What launchers, containers, loggers and machines print in front of a line, and what it tells of the writer.

Two kinds: a prefix is taken off; a marker belongs to what the line says (torch's `[E321 ... ProcessGroupNCCL.cpp:607]`, NCCL's `host:pid:tid [0]`):
it is read and stays, and ends the reading. Whether a prefix is taken off depends on the text behind it alone, so that taking off is idempotent. A new
form is one entry of _FORMS: it is tried on lines that begin with one of its first characters, in the order of the table. What it tells is what its
groups are called.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from functools import lru_cache

from unhang.logs.owner import IP_ADDRESS, NODE_NAME
from unhang.logs.timestamps import Stamp, counted, glog, wall
from unhang.model import frozen
from unhang.patterns import lazily


class Said:
    """What the prefixes of one line have told so far. Of ranks, hosts, processes and levels the innermost counts: it is the writer's own."""

    __slots__ = ("edge", "host", "label", "launcher", "level", "local_rank", "pid", "rank", "task", "time")

    def __init__(self) -> None:
        self.rank: int | None = None
        # A rank as another than torch counts it: used where torch says nothing.
        self.task: int | None = None
        self.label: int | None = None
        self.launcher: str | None = None
        self.local_rank: int | None = None
        self.host: str | None = None
        self.pid: int | None = None
        self.time: Stamp | None = None
        self.level: str | None = None
        # What closes the column of a table that the line stands in.
        self.edge = ""

    def take(self, found: re.Match[str]) -> None:
        """What a form tells by the names of its groups."""
        told = {name: said for name, said in found.groupdict().items() if said}
        numbers = {name: int(told[name]) for name in _NUMBERS if name in told}
        self.rank = numbers.get("rank", self.rank)
        if self.rank is None:
            self.rank = numbers.get("marked_rank", numbers.get("nccl2_rank"))
        self.task = numbers.get("task", numbers.get("mpirun", self.task))
        if self.label is None:
            self.label = numbers.get("label", numbers.get("mpirun"))
        if "mpirun" in numbers:
            self.launcher = "mpirun"
        self.local_rank = numbers.get("local_rank", self.local_rank)
        # torch 2.3 and 2.4 print the thread's number, which is longer than any process's.
        if numbers.get("pid", _MAX_PID) < _MAX_PID:
            self.pid = numbers["pid"]
        self.host = told.get("host", self.host)
        self.level = _LEVELS.get(told.get("level", ""), self.level)
        self.edge = told.get("edge", self.edge)
        # vLLM names a worker by those of its ranks that count more than one: with tensor parallelism alone that is its rank.
        if named := _VLLM_RANK.fullmatch(told.get("actor", "")):
            self.task = int(named[1])
        elif named := _RAY_RANK.search(told.get("actor", "")):
            self.rank = int(named[1])
        time = counted(told["uptime"]) if "uptime" in told else _wall(told) if "clock" in told else None
        # The outermost time counts, for all lines of a file have it; but one with a date does before one without, and a clock before an uptime.
        if time is not None and (self.time is None or _worth(time) > _worth(self.time)):
            self.time = time


def _wall(told: Mapping[str, str]) -> Stamp | None:
    if "digits" in told:
        return glog(told["digits"], told["clock"], told.get("fraction"))
    month = told["month"]
    return wall(told.get("year"), _MONTHS.get(month, month), told["day"], told["clock"], told.get("fraction"), told.get("zone"))


def _worth(time: Stamp) -> int:
    return 2 if time.has_year else 1 if time.clock == "wall" else 0


def strip(text: str, said: Said) -> str:
    """`text` without its prefixes; `said` takes what they tell."""
    start = 0
    while first := text[start : start + 1]:
        for form in _forms(first):
            if found := form.match(text, start):
                said.take(found)
                if found.end() == start:
                    return text[start:]
                start = found.end()
                break
        else:
            break
    text = text[start:]
    if said.edge:
        text = text.removesuffix(f" {said.edge}").rstrip()
    if start and said.level is None and (found := _LEVEL_AHEAD.match(text)):
        said.level = _LEVELS[found["level"]]
    return text


_LEVELS = {
    "D": "DEBUG",
    "I": "INFO",
    "W": "WARNING",
    "E": "ERROR",
    "F": "CRITICAL",
    "C": "CRITICAL",
    "WARN": "WARNING",
    "FATAL": "CRITICAL",
} | {x: x for x in ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")}
_WORD = r"(?:TRACE|DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)"
_LEVEL = rf"(?P<level>{_WORD})"
_MONTHS = {m: i for i, m in enumerate(("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1)}
_MONTH = rf"(?P<month>{'|'.join(_MONTHS)})"
_WEEKDAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_CLOCK = r"(?P<clock>(?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60))"
_FRACTION = r"(?:[.,](?P<fraction>\d{1,9}))?"
_DATE = (
    rf"(?P<year>\d{{4}})[-/](?P<month>0[1-9]|1[0-2])[-/](?P<day>0[1-9]|[12]\d|3[01])[T _]{_CLOCK}{_FRACTION}"
    r"(?: ?(?P<zone>Z|UTC|GMT|[+-](?:0\d|1[0-4]):?[0-5]\d)(?![\w:]))?(?![\d.])"
)
# Some writers put a space behind their prefix, torchrun's tee puts none, and Python indents by even numbers: an odd space is the prefix's.
_SPACE = r"(?: (?=(?:  )*(?! )))?"
_END = r"(?: |$)"
_HOST = r"(?P<host>[A-Za-z0-9][\w.-]{0,252})"
_NCCL = r"(?:\[-?\d{1,4}\] |(?=NCCL ))"
# What leaves no doubt that a prefix stands before it.
_SURE = (
    rf"(?:\[(?:rank|default)\d|\[[EWIF](?:\d{{3,4}})? |\[?20\d\d-\d\d-\d\d[T ]|Traceback \(most recent|  File \"|\((?:\w+ )?pid=\d"
    rf"|[EWIF]\d{{4}} \d\d:|[\w.-]{{1,253}}:\d+:\d+ {_NCCL})"
)
# In a group other than the default one torch prints the rank within the group, which names nobody.
GROUP = r"(?:PG (?:(?:ID )?0 |[^\]\[]{0,200}?\(default_pg\) )[^\]\[]{0,200}?)?"
# `[Rank 3]`, `[Rank 03/16]`, `[rank=3]`, `[RANK 3 ERROR]`.
IN_BRACKETS = rf"\[{GROUP}(?:[Rr]ank|RANK)[:=_]? ?(?P<marked_rank>\d{{1,7}})(?:/\d{{1,7}})?(?: {_WORD})?\]"
# nccl2, torch 2.15: the rank within the group, which for the default group is the job's.
_NCCL2 = r" (?:\[TC\] ?)?\[rank=(?P<nccl2_rank>\d{1,7})\]\[name=(?:0|default_pg|nccl2?|)\]"
# Daemons that act by themselves: their names are part of what they say.
_DAEMON = r"(?:earlyoom|oomd|systemd-oomd|slurmd|slurmstepd|slurmctld|kubelet|nv-fabricmanager|nvidia-fabricmanager|nvidia-imex)\b"
_SYSLOG = rf"{_HOST} (?:kernel: |(?={_DAEMON}[\[:])|(?!{_DAEMON})[\w./@-]{{1,64}}\[(?P<pid>\d{{1,8}})\]: )"

_ROLE = r"(?:worker|master|launcher|chief|head|trainer|node|server|ps|replica)"
_POD = rf"(?:[a-z0-9]{{1,63}}-){{1,12}}(?:{_ROLE}-\d{{1,6}}(?:-[a-z0-9]{{5}})?|[a-f0-9]{{8,10}}-[a-z0-9]{{5}})"
_CONTAINER = rf"(?:[a-z0-9]{{1,63}}-){{0,8}}(?:{_ROLE}|pytorch|tensorflow|train|training|main|container|torch|app|vllm|sglang)(?:-\d{{1,3}})?"

_LEVEL_AHEAD = lazily(rf"(?:[\w.]{{1,100}}(?: - |: ?| \| ?))?\[?{_LEVEL}(?=[\]:| ]|$)", re.ASCII)
_DIGITS, _LOWER, _UPPER = string.digits, string.ascii_lowercase, string.ascii_uppercase
_LETTERS = _LOWER + _UPPER

# (first characters, pattern). A marker is a lookahead: it takes nothing off.
_FORMS = (
    ("\ufeff", "\ufeff+"),
    # torch's exception hook and C++ log: the rank. torchrun's --tee: the role's name and the local rank.
    ("[", rf"\[rank(?P<rank>\d{{1,7}})\]:{_SPACE}"),
    ("[", rf"\[(?:default|trainer|worker)(?P<local_rank>\d{{1,7}})\]:{_SPACE}"),
    # Open MPI 4 and 5, Horovod, SageMaker.
    ("[", rf"\[(?:[^\],\s\[<]{{1,300}},)?(?:mpirank:)?(?P<mpirun>\d{{1,7}})(?:,(?P<host>[\w.-]+))?\]<std(?:out|err|diag)>:{_SPACE}"),
    ("[", rf"\[pod/(?P<host>[^/\]\s]+)/[^/\]\s]+\]{_END}"),
    ("[", rf"\[{_DATE} (?P<level>[DIWEFC]) (?P<pid>\d{{1,8}}) \d+\]{_END}"),
    ("[", rf"\[{_DATE} (?:DP\d+ )?TP(?P<task>\d{{1,5}})(?: EP\d+)?\]{_END}"),
    ("[ ", rf" ?\[{_DATE}(?: (?:[DPTEC]P\d+ ?)+)?\](?: |(?=\[)|$)"),
    ("[", rf"\[{_WEEKDAY} {_MONTH} +(?P<day>\d\d?) {_CLOCK} (?P<year>\d{{4}})\]{_END}"),
    ("[", rf"\[ *(?P<uptime>\d{{1,12}}\.\d{{2,9}})\](?:\[ *[TC]\d+\])?{_END}"),
    ("[", rf"\[NeMo (?P<level>[DIWEC]) {_DATE}[^\]]{{0,200}}\]{_END}"),
    ("[", rf"\[{_LEVEL}\|{_DATE}\]{_END}"),
    ("[", rf"\[{_LEVEL}\|[^\]|]{{1,200}}\] {_DATE} >>{_END}"),
    ("[", r"\[titan\] (?=20\d\d-)"),
    # mpirun -l and Hydra: `[0] ` opens many other lines too.
    ("[", rf"\[(?P<label>\d{{1,5}})\] (?={_SURE})"),
    # torch's C++ log: no time up to 2.3.
    (
        "[",
        (
            rf"(?=\[(?P<level>[EWIFC])(?:(?P<digits>\d{{3,4}}) {_CLOCK}{_FRACTION})?(?: +(?P<pid>\d+))? [\w./+-]{{1,300}}:\d+\]"
            rf"(?: \[{GROUP}Rank (?P<marked_rank>\d{{1,7}})\]|{_NCCL2})?)"
        ),
    ),
    ("[", rf"(?={IN_BRACKETS})"),
    ("[", rf"(?={_NCCL2[1:]})"),
    (" ", rf"(?=  what\(\):  \[{GROUP}Rank (?P<marked_rank>\d{{1,7}})\])"),
    # Open MPI's and UCX's own messages.
    ("[", rf"(?=\[{_HOST}:(?P<pid>\d{{1,8}})\] (?:\*\*\* |PMIX |PRTE |\[ ?\d+\] ))"),
    ("[", rf"(?=\[{_HOST}:(?P<pid>\d{{1,8}}) *:\d+(?::\d+)?\])"),
    ("[", rf"(?=\[{_LEVEL}\])"),
    # Ray, vLLM: a class, often with more of its name.
    (
        "(",
        (
            rf"\((?:(?P<actor>[^()]{{1,200}}(?:\([^()]{{0,200}}\))?[^()]{{0,100}}) )?pid=(?P<pid>\d{{1,8}})(?:, ip=(?P<host>[\w.:-]+))?"
            rf"(?:, [^()]{{0,200}})?\){_END}"
        ),
    ),
    ("(", rf"\(raylet, ip=(?P<host>[\w.:-]+)\) (?={_SURE})"),
    # Quoted in a report.
    ("`", r"`(?=\[rank\d)"),
    (">", r"> (?=[\w\[(/]| +\S)"),
    # Quoted once more, indented, in a column of a table.
    (" \t>│|", r"(?:[\s>│|]{0,80}(?P<edge>[│|]))?[\s>]{0,80}(?=\[(?:rank|default)\d{1,7}\]:)"),
    # The kernel's own stream marks the level.
    ("<", r"<\d{1,3}>(?=\[ *\d+\.\d|[A-Z][a-z]{2} [ \d]\d )"),
    # `cat -n`, `nl`.
    (_DIGITS + " ", r" {0,6}\d{1,8}\t"),
    # srun --label, padded to the width of the highest; deeper spaces are indentation.
    # Horovod lists what a rank did not submit: "3: [grads.w, grads.b ...]".
    (_DIGITS + " ", rf"(?=.{{1,5}}:) {{0,3}}(?P<label>\d{{1,5}}):(?! \[[^\[\]]{{1,2000}}\]$){_END}"),
    # oneCCL.
    (_DIGITS, rf"(?P<year>\d{{4}}):(?P<month>\d\d):(?P<day>\d\d)-{_CLOCK}:\((?P<pid>\d{{1,8}})\) (?=\|CCL_)"),
    (_DIGITS, rf"{_DATE} std(?:out|err) [FP]{_END}"),
    (_DIGITS, rf"{_DATE}(?: - | \| |: | {_SYSLOG}| |(?=\[)|$)"),
    (_DIGITS, rf"(?P<month>0[1-9]|1[0-2])/(?P<day>0[1-9]|[12]\d|3[01])/(?P<year>\d{{4}}) {_CLOCK} -{_END}"),
    ("FMTWS", rf"{_WEEKDAY} {_MONTH} +(?P<day>\d\d?) {_CLOCK} (?P<year>\d{{4}})(?: |(?=\[))"),
    ("ADFJMNOS", rf"{_MONTH} (?P<day>[ 0-3]?\d)(?: (?P<year>\d{{4}}))? {_CLOCK}(?:\.(?P<fraction>\d{{1,9}}))? {_SYSLOG}"),
    (
        "CDEFITW",
        rf"{_LEVEL} +(?P<month>\d\d)-(?P<day>\d\d) {_CLOCK}{_FRACTION} (?:\[[^\]]{{1,200}}\]|[\w./-]{{1,200}}:\d+\]){_END}",
    ),
    # glog, absl, torch's Python log.
    ("CDEFIW", rf"(?=(?P<level>[CDEFIW])(?P<digits>\d{{4}}|\d{{8}}) {_CLOCK}{_FRACTION} +(?P<pid>\d+) [^\s\]]{{1,300}}:\d+\])"),
    ("CDEFITW", rf"(?={_LEVEL}[: ])"),
    ("s", rf"std(?:err|out):{_END}"),
    (
        "s",
        rf"(?=slurmstepd(?:-[\w.-]{{1,253}})?: error: \*\*\* (?:STEP|JOB) \S{{1,64}} ON (?P<host>\S{{1,253}}) CANCELLED AT {_DATE})",
    ),
    ("s", rf"(?=slurmstepd-{_HOST}: )"),
    ("r", r"rank(?P<rank>\d{1,7})\[(?P<pid>\d{1,8})\]\[\w+\]: "),
    ("rR", rf"(?:[Rr]ank|RANK)[ _]?(?P<rank>\d{{1,7}})(?::| ?\|){_END}"),
    ("t", rf"(?=torch[\w.]{{1,100}}: \[{_LEVEL}\])"),
    (
        _LETTERS + _DIGITS,
        rf"(?={_HOST}:(?P<pid>\d{{1,8}}):\d{{1,8}} {_NCCL}(?:[^\s\[]{{1,200}}:\d+ (?:\([^)]{{0,200}}\) )?)?(?:NCCL (?P<level>\w+))?)",
    ),
    # NCCL_RUN_DIAGNOSTICS, of 2.31 on.
    (_LETTERS + _DIGITS, rf"(?={_HOST}:(?P<pid>\d{{1,8}}) NCCL DIAG )"),
    # pdsh and DeepSpeed over several hosts, docker compose.
    (_LOWER + _DIGITS, rf"(?P<host>{NODE_NAME}|{IP_ADDRESS}):{_END}"),
    (_LOWER + _DIGITS, rf"(?P<host>[a-z0-9](?=[a-z0-9.-]{{0,252}}\d)[a-z0-9.-]{{0,252}}): (?={_SURE})"),
    (_LOWER, rf"(?P<host>{NODE_NAME}) +\|{_END}"),
    # stern: <pod> <container>.
    (_LOWER, rf"(?P<host>{_POD}) (?:{_CONTAINER}{_END}|[a-z0-9-]{{1,63}} (?={_SURE}))"),
)
_NUMBERS = ("rank", "marked_rank", "nccl2_rank", "task", "mpirun", "label", "local_rank", "pid")
_MAX_PID = 1 << 22
_VLLM_RANK = lazily(r"[A-Za-z]*Worker_TP(\d{1,5})(?:_EP\d+)?", re.ASCII)
_RAY_RANK = lazily(r"\brank=(\d{1,7})", re.ASCII)


@lru_cache(maxsize=512)
def _forms(first: str) -> tuple[re.Pattern[str], ...]:
    """The forms that begin with a character. Compiled when they are tried: a log has few of them."""
    return tuple(lazily(pattern, re.ASCII) for chars, pattern in _FORMS if first in chars)


@frozen
class Writer:
    """Who wrote a place in a line, as its own marker names that process.

    `group_rank` is the number inside `[Rank 1]`, which in any group but the default one is not the rank.
    """

    rank: int | None = None
    group_rank: int | None = None
    host: str | None = None
    pid: int | None = None


_WRITTEN_BY = lazily(
    r"\[rank(\d{1,7})\]:"
    rf"|{IN_BRACKETS}:?"
    # NCCL: host:pid:tid [device]
    r"|(?<![\w.-])([\w.-]{1,253}):(\d{1,8}):\d{1,8} \[-?\d{1,4}\]"
    # Ray and vLLM
    r"|\((?:[^()]{1,200} )?pid=(\d{1,8})(?:, ip=([\w.:-]{1,64}))?[^()]{0,100}\)",
    re.ASCII,
)
# Between markers of one writer stand spaces and the time at most.
_BETWEEN = lazily(r"[\s:]*(?:\[[EWIF]?[\d:. ,/T-]{4,40}[^\]]{0,80}\][\s:]*)?", re.ASCII)

# How far before a place its marker may stand, and the length of one.
_REACH, _LONGEST = 4096, 400


def writer_at(text: str, position: int) -> Writer:
    """Whose text stands at `position`: what the nearest marker at or before it says, and the markers that stand with it.

    The empty Writer where there is none; without rank where the nearest marker is NCCL's alone, though another writer's rank stands farther left.
    """
    found: re.Match[str] | None = None
    rank: int | None = None
    group_rank: int | None = None
    host: str | None = None
    pid: int | None = None
    for marker in _WRITTEN_BY.finditer(text, max(0, position - _REACH), position + _LONGEST):
        if marker.start() > position:
            break
        if found is None or not _BETWEEN.fullmatch(text, found.end(), marker.start()):
            rank = group_rank = host = pid = None
        torch, group, nccl_host, nccl_pid, ray_pid, ray_ip = marker.groups()
        if torch:
            rank = int(torch)
        if group:
            group_rank = int(group)
        host = nccl_host or ray_ip or host
        if process := nccl_pid or ray_pid:
            pid = int(process)
        found = marker
    return Writer(rank=rank, group_rank=group_rank, host=host, pid=pid)


def rank_at(text: str, position: int) -> int | None:
    """The rank whose text stands at `position`; None where the nearest marker before it names none."""
    writer = writer_at(text, position)
    return writer.group_rank if writer.rank is None else writer.rank
