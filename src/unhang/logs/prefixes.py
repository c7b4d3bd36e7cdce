"""What launchers, containers, loggers and machines print in front of a line, and what it tells of the writer.

Two kinds: a prefix is taken off; a marker belongs to what the line says (torch's `[E321 ... ProcessGroupNCCL.cpp:607]`, NCCL's `host:pid:tid [0]`):
it is read and stays, and ends the reading. Whether a prefix is taken off depends on the text behind it alone, so that taking off is idempotent. A new
form is one entry of _FORMS: it is tried on lines that begin with one of its first characters, in the order of the table.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from unhang.logs.owner import IP_ADDRESS, NODE_NAME
from unhang.logs.timestamps import Stamp, counted, glog, wall
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

    def at(self, time: Stamp | None) -> None:
        """The outermost time counts, for all lines of a file have it; but one with a date does before one without, and a clock before an uptime."""
        if time is not None and (self.time is None or _worth(time) > _worth(self.time)):
            self.time = time


def _worth(time: Stamp) -> int:
    return 2 if time.has_year else 1 if time.clock == "wall" else 0


def strip(text: str, said: Said) -> str:
    """`text` without its prefixes; `said` takes what they tell."""
    start = 0
    while first := text[start : start + 1]:
        for form in _forms(first):
            if found := form.pattern.match(text, start):
                form.tell(said, found)
                if form.stays:
                    return text[start:]
                start = found.end()
                break
        else:
            break
    text = text[start:]
    if said.edge:
        text = text.removesuffix(f" {said.edge}").rstrip()
    if start and said.level is None and (found := _LEVEL_AHEAD.match(text)):
        said.level = _LEVELS[found[1]]
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
_LEVEL = r"(TRACE|DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)"
_MONTHS = {m: i for i, m in enumerate(("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1)}
_MONTH = rf"({'|'.join(_MONTHS)})"
_WEEKDAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_CLOCK = r"((?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60))"
_FRACTION = r"(?:[.,](\d{1,9}))?"
# Six groups: year, month, day, clock, fraction, zone.
_DATE = (
    rf"(\d{{4}})[-/](0[1-9]|1[0-2])[-/](0[1-9]|[12]\d|3[01])[T _]{_CLOCK}{_FRACTION}"
    r"(?: ?(Z|UTC|GMT|[+-](?:0\d|1[0-4]):?[0-5]\d)(?![\w:]))?(?![\d.])"
)
# Some writers put a space behind their prefix, torchrun's tee puts none, and Python indents by even numbers: an odd space is the prefix's.
_SPACE = r"(?: (?=(?:  )*(?! )))?"
_END = r"(?: |$)"
_HOST = r"([A-Za-z0-9][\w.-]{0,252})"
_NCCL = r"(?:\[-?\d{1,4}\] |(?=NCCL ))"
# What leaves no doubt that a prefix stands before it.
_SURE = (
    rf"(?:\[(?:rank|default)\d|\[[EWIF](?:\d{{3,4}})? |\[?20\d\d-\d\d-\d\d[T ]|Traceback \(most recent|  File \"|\((?:\w+ )?pid=\d"
    rf"|[EWIF]\d{{4}} \d\d:|[\w.-]{{1,253}}:\d+:\d+ {_NCCL})"
)
# In a group other than the default one torch prints the rank within the group, which names nobody.
GROUP = r"(?:PG (?:(?:ID )?0 |[^\]\[]{0,200}?\(default_pg\) )[^\]\[]{0,200}?)?"
# `[Rank 3]`, `[Rank 03/16]`, `[rank=3]`, `[RANK 3 ERROR]`.
IN_BRACKETS = rf"\[{GROUP}(?:[Rr]ank|RANK)[:=_]? ?(\d{{1,7}})(?:/\d{{1,7}})?(?: (?:{_LEVEL[1:-1]}))?\]"
# nccl2, torch 2.15: the rank within the group, which for the default group is the job's.
_NCCL2 = r" (?:\[TC\] ?)?\[rank=(\d{1,7})\]\[name=(?:0|default_pg|nccl2?|)\]"
# Daemons that act by themselves: their names are part of what they say.
_DAEMON = r"(?:earlyoom|oomd|systemd-oomd|slurmd|slurmstepd|slurmctld|kubelet|nv-fabricmanager|nvidia-fabricmanager|nvidia-imex)\b"
# Two groups: host, process.
_SYSLOG = rf"{_HOST} (?:kernel: |(?={_DAEMON}[\[:])|(?!{_DAEMON})[\w./@-]{{1,64}}\[(\d{{1,8}})\]: )"

_ROLE = r"(?:worker|master|launcher|chief|head|trainer|node|server|ps|replica)"
_POD = rf"(?:[a-z0-9]{{1,63}}-){{1,12}}(?:{_ROLE}-\d{{1,6}}(?:-[a-z0-9]{{5}})?|[a-f0-9]{{8,10}}-[a-z0-9]{{5}})"
_CONTAINER = rf"(?:[a-z0-9]{{1,63}}-){{0,8}}(?:{_ROLE}|pytorch|tensorflow|train|training|main|container|torch|app|vllm|sglang)(?:-\d{{1,3}})?"

Tell = Callable[[Said, "re.Match[str]"], None]


@dataclass(frozen=True)
class _Form:
    pattern: re.Pattern[str]
    tell: Tell
    stays: bool


def _edge(said: Said, found: re.Match[str]) -> None:
    said.edge = found[0].strip("> \t")[-1:]


def _torch_rank(said: Said, found: re.Match[str]) -> None:
    said.rank = int(found[1])


def _local_rank(said: Said, found: re.Match[str]) -> None:
    said.local_rank = int(found[1])


def _label(said: Said, found: re.Match[str]) -> None:
    if said.label is None:
        said.label = int(found[1])


def _mpi(said: Said, found: re.Match[str]) -> None:
    _label(said, found)
    said.task, said.launcher = int(found[1]), "mpirun"
    said.host = found[2] or said.host


def _host(said: Said, found: re.Match[str]) -> None:
    said.host = found[1]


def _process(said: Said, found: re.Match[str]) -> None:
    said.host, said.pid = found[1], int(found[2])


def _nccl(said: Said, found: re.Match[str]) -> None:
    _process(said, found)
    said.level = _LEVELS.get(found[3], said.level)


def _ray(said: Said, found: re.Match[str]) -> None:
    name = found[1] or ""
    said.pid = int(found[2])
    said.host = found[3] or said.host
    # vLLM names a worker by those of its ranks that count more than one: with tensor parallelism alone that is its rank.
    if named := _VLLM_RANK.fullmatch(name):
        said.task = int(named[1])
    elif named := _RAY_RANK.search(name):
        said.rank = int(named[1])


_VLLM_RANK = lazily(r"[A-Za-z]*Worker_TP(\d{1,5})(?:_EP\d+)?", re.ASCII)
_RAY_RANK = lazily(r"\brank=(\d{1,7})", re.ASCII)


def _date(said: Said, found: re.Match[str]) -> None:
    said.at(wall(found[1], found[2], found[3], found[4], found[5], found[6]))


def _date_bare(said: Said, found: re.Match[str]) -> None:
    _date(said, found)
    said.host = found[7] or said.host
    if found[8]:
        said.pid = int(found[8])


def _date_us(said: Said, found: re.Match[str]) -> None:
    said.at(wall(found[3], found[1], found[2], found[4]))


def _date_ray(said: Said, found: re.Match[str]) -> None:
    _date(said, found)
    said.level = _LEVELS[found[7]]
    said.pid = int(found[8])


def _date_sglang(said: Said, found: re.Match[str]) -> None:
    _date(said, found)
    if found[7]:
        said.task = int(found[7])


def _date_c(said: Said, found: re.Match[str]) -> None:
    said.at(wall(found[4], _MONTHS[found[1]], found[2], found[3]))


def _date_ccl(said: Said, found: re.Match[str]) -> None:
    said.at(wall(found[1], found[2], found[3], found[4]))
    said.pid = int(found[5])


def _uptime(said: Said, found: re.Match[str]) -> None:
    said.at(counted(found[1]))


def _syslog(said: Said, found: re.Match[str]) -> None:
    said.at(wall(found[3], _MONTHS[found[1]], found[2], found[4], found[5]))
    said.host = found[6]
    if found[7]:
        said.pid = int(found[7])


def _glog(said: Said, found: re.Match[str]) -> None:
    said.level = _LEVELS[found[1]]
    if found[2]:
        said.at(glog(found[2], found[3], found[4]))
    # torch 2.3 and 2.4 print the thread's number, which is longer than any process's.
    if found[5] and int(found[5]) <= _MAX_PID:
        said.pid = int(found[5])


def _glog_torch(said: Said, found: re.Match[str]) -> None:
    _glog(said, found)
    if (rank := found[6] or found[7]) and said.rank is None:
        said.rank = int(rank)


_MAX_PID = 1 << 22


def _rank_kept(said: Said, found: re.Match[str]) -> None:
    if said.rank is None:
        said.rank = int(found[1])


def _composer(said: Said, found: re.Match[str]) -> None:
    said.rank, said.pid = int(found[1]), int(found[2])


def _vllm(said: Said, found: re.Match[str]) -> None:
    said.level = _LEVELS[found[1]]
    said.at(wall(None, found[2], found[3], found[4], found[5]))


def _nemo(said: Said, found: re.Match[str]) -> None:
    said.level = _LEVELS[found[1]]
    said.at(wall(found[2], found[3], found[4], found[5], found[6], found[7]))


def _level(said: Said, found: re.Match[str]) -> None:
    said.level = _LEVELS[found[1]]


def _cancelled(said: Said, found: re.Match[str]) -> None:
    said.host = found[1]
    said.at(wall(found[2], found[3], found[4], found[5], found[6], found[7]))


def _nothing(said: Said, found: re.Match[str]) -> None:
    pass


_LEVEL_AHEAD = lazily(rf"(?:[\w.]{{1,100}}(?: - |: ?| \| ?))?\[?{_LEVEL}(?=[\]:| ]|$)", re.ASCII)
_DIGITS, _LOWER, _UPPER = string.digits, string.ascii_lowercase, string.ascii_uppercase
_LETTERS = _LOWER + _UPPER
_PREFIX, _MARKER = False, True

# (first characters, pattern, reader, stays)
_FORMS: tuple[tuple[str, str, Tell, bool], ...] = (
    ("\ufeff", "\ufeff+", _nothing, _PREFIX),
    # torch's exception hook and C++ log: the rank. torchrun's --tee: the role's name and the local rank.
    ("[", rf"\[rank(\d{{1,7}})\]:{_SPACE}", _torch_rank, _PREFIX),
    ("[", rf"\[(?:default|trainer|worker)(\d{{1,7}})\]:{_SPACE}", _local_rank, _PREFIX),
    # Open MPI 4 and 5, Horovod, SageMaker.
    ("[", rf"\[(?:[^\],\s\[<]{{1,300}},)?(?:mpirank:)?(\d{{1,7}})(?:,([\w.-]+))?\]<std(?:out|err|diag)>:{_SPACE}", _mpi, _PREFIX),
    ("[", rf"\[pod/([^/\]\s]+)/[^/\]\s]+\]{_END}", _host, _PREFIX),
    ("[", rf"\[{_DATE} ([DIWEFC]) (\d{{1,8}}) \d+\]{_END}", _date_ray, _PREFIX),
    ("[", rf"\[{_DATE} (?:DP\d+ )?TP(\d{{1,5}})(?: EP\d+)?\]{_END}", _date_sglang, _PREFIX),
    ("[ ", rf" ?\[{_DATE}(?: (?:[DPTEC]P\d+ ?)+)?\](?: |(?=\[)|$)", _date, _PREFIX),
    ("[", rf"\[{_WEEKDAY} {_MONTH} +(\d\d?) {_CLOCK} (\d{{4}})\]{_END}", _date_c, _PREFIX),
    ("[", rf"\[ *(\d{{1,12}}\.\d{{2,9}})\](?:\[ *[TC]\d+\])?{_END}", _uptime, _PREFIX),
    ("[", rf"\[NeMo ([DIWEC]) {_DATE}[^\]]{{0,200}}\]{_END}", _nemo, _PREFIX),
    ("[", rf"\[{_LEVEL}\|{_DATE}\]{_END}", _nemo, _PREFIX),
    ("[", rf"\[{_LEVEL}\|[^\]|]{{1,200}}\] {_DATE} >>{_END}", _nemo, _PREFIX),
    ("[", r"\[titan\] (?=20\d\d-)", _nothing, _PREFIX),
    # mpirun -l and Hydra: `[0] ` opens many other lines too.
    ("[", rf"\[(\d{{1,5}})\] (?={_SURE})", _label, _PREFIX),
    # torch's C++ log: no time up to 2.3.
    (
        "[",
        rf"\[([EWIFC])(?:(\d{{3,4}}) {_CLOCK}{_FRACTION})?(?: +(\d+))? [\w./+-]{{1,300}}:\d+\](?: \[{GROUP}Rank (\d{{1,7}})\]|{_NCCL2})?",
        _glog_torch,
        _MARKER,
    ),
    ("[", IN_BRACKETS, _rank_kept, _MARKER),
    ("[", _NCCL2[1:], _rank_kept, _MARKER),
    (" ", rf"  what\(\):  \[{GROUP}Rank (\d{{1,7}})\]", _rank_kept, _MARKER),
    # Open MPI's and UCX's own messages.
    ("[", rf"\[{_HOST}:(\d{{1,8}})\] (?=\*\*\* |PMIX |PRTE |\[ ?\d+\] )", _process, _MARKER),
    ("[", rf"\[{_HOST}:(\d{{1,8}}) *:\d+(?::\d+)?\]", _process, _MARKER),
    ("[", rf"\[{_LEVEL}\]", _level, _MARKER),
    # Ray, vLLM: a class, often with more of its name.
    (
        "(",
        rf"\((?:([^()]{{1,200}}(?:\([^()]{{0,200}}\))?[^()]{{0,100}}) )?pid=(\d{{1,8}})(?:, ip=([\w.:-]+))?(?:, [^()]{{0,200}})?\){_END}",
        _ray,
        _PREFIX,
    ),
    ("(", rf"\(raylet, ip=([\w.:-]+)\) (?={_SURE})", _host, _PREFIX),
    # The kernel's own stream marks the level.
    # Quoted in a report.
    ("`", r"`(?=\[rank\d)", _nothing, _PREFIX),
    (">", r"> (?=[\w\[(/]| +\S)", _nothing, _PREFIX),
    # Quoted once more, indented, in a column of a table.
    (" \t>│|", r"[\s>│|]{1,80}(?=\[(?:rank|default)\d{1,7}\]:)", _edge, _PREFIX),
    ("<", r"<\d{1,3}>(?=\[ *\d+\.\d|[A-Z][a-z]{2} [ \d]\d )", _nothing, _PREFIX),
    # `cat -n`, `nl`.
    (_DIGITS + " ", r" {0,6}\d{1,8}\t", _nothing, _PREFIX),
    # srun --label, padded to the width of the highest; deeper spaces are indentation.
    # Horovod lists what a rank did not submit: "3: [grads.w, grads.b ...]".
    (_DIGITS + " ", rf"(?=.{{1,5}}:) {{0,3}}(\d{{1,5}}):(?! \[[^\[\]]{{1,2000}}\]$){_END}", _label, _PREFIX),
    # oneCCL.
    (_DIGITS, rf"(\d{{4}}):(\d\d):(\d\d)-{_CLOCK}:\((\d{{1,8}})\) (?=\|CCL_)", _date_ccl, _PREFIX),
    (_DIGITS, rf"{_DATE} std(?:out|err) [FP]{_END}()()", _date_bare, _PREFIX),
    (_DIGITS, rf"{_DATE}(?: - | \| |: | {_SYSLOG}| |(?=\[)|$)", _date_bare, _PREFIX),
    (_DIGITS, rf"(0[1-9]|1[0-2])/(0[1-9]|[12]\d|3[01])/(\d{{4}}) {_CLOCK} -{_END}", _date_us, _PREFIX),
    ("FMTWS", rf"{_WEEKDAY} {_MONTH} +(\d\d?) {_CLOCK} (\d{{4}})(?: |(?=\[))", _date_c, _PREFIX),
    ("ADFJMNOS", rf"{_MONTH} ([ 0-3]?\d)(?: (\d{{4}}))? {_CLOCK}(?:\.(\d{{1,9}}))? {_SYSLOG}", _syslog, _PREFIX),
    ("CDEFITW", rf"{_LEVEL} +(\d\d)-(\d\d) {_CLOCK}{_FRACTION} (?:\[[^\]]{{1,200}}\]|[\w./-]{{1,200}}:\d+\]){_END}", _vllm, _PREFIX),
    # glog, absl, torch's Python log.
    ("CDEFIW", rf"([CDEFIW])(\d{{4}}|\d{{8}}) {_CLOCK}{_FRACTION} +(\d+) [^\s\]]{{1,300}}:\d+\]", _glog, _MARKER),
    ("CDEFITW", rf"{_LEVEL}(?=[: ])", _level, _MARKER),
    ("s", rf"std(?:err|out):{_END}", _nothing, _PREFIX),
    ("s", rf"slurmstepd(?:-[\w.-]{{1,253}})?: error: \*\*\* (?:STEP|JOB) \S{{1,64}} ON (\S{{1,253}}) CANCELLED AT {_DATE}", _cancelled, _MARKER),
    ("s", rf"slurmstepd-{_HOST}: ", _host, _MARKER),
    ("r", r"rank(\d{1,7})\[(\d{1,8})\]\[\w+\]: ", _composer, _PREFIX),
    ("rR", rf"(?:[Rr]ank|RANK)[ _]?(\d{{1,7}})(?::| ?\|){_END}", _torch_rank, _PREFIX),
    ("t", rf"torch[\w.]{{1,100}}: \[{_LEVEL}\]", _level, _MARKER),
    (_LETTERS + _DIGITS, rf"{_HOST}:(\d{{1,8}}):\d{{1,8}} {_NCCL}(?:[^\s\[]{{1,200}}:\d+ (?:\([^)]{{0,200}}\) )?)?(?:NCCL (\w+))?", _nccl, _MARKER),
    # NCCL_RUN_DIAGNOSTICS, of 2.31 on.
    (_LETTERS + _DIGITS, rf"{_HOST}:(\d{{1,8}}) (?=NCCL DIAG )", _process, _MARKER),
    # pdsh and DeepSpeed over several hosts, docker compose.
    (_LOWER + _DIGITS, rf"({NODE_NAME}|{IP_ADDRESS}):{_END}", _host, _PREFIX),
    (_LOWER + _DIGITS, rf"([a-z0-9](?=[a-z0-9.-]{{0,252}}\d)[a-z0-9.-]{{0,252}}): (?={_SURE})", _host, _PREFIX),
    (_LOWER, rf"({NODE_NAME}) +\|{_END}", _host, _PREFIX),
    # stern: <pod> <container>.
    (_LOWER, rf"({_POD}) (?:{_CONTAINER}{_END}|[a-z0-9-]{{1,63}} (?={_SURE}))", _host, _PREFIX),
)


@lru_cache(maxsize=512)
def _forms(first: str) -> tuple[_Form, ...]:
    """The forms that begin with a character. Compiled when they are met: a log has few of them."""
    return tuple(_Form(lazily(pattern, re.ASCII), tell, stays) for chars, pattern, tell, stays in _FORMS if first in chars)


@dataclass(frozen=True, kw_only=True)
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
