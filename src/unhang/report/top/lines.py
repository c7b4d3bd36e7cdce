"""The lines that `unhang top` shows, as rich texts: the job, a line for each rank, and what stands below. Nothing is told by colour alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from unhang import fsio
from unhang.i18n import in_language, msg
from unhang.printable import escape
from unhang.records.run_snapshot import Job, Rank, RunSnapshot, State
from unhang.report import screen
from unhang.report.console import Console, fold
from unhang.report.language import STANDINGS, Language, refusal
from unhang.report.top.choosing import Chosen, choose
from unhang.report.top.words import (
    KINDS,
    LABELS,
    MARKS,
    PHASE_STYLES,
    PHASES,
    STATES,
    STYLES,
    UNKNOWN,
    duration,
    gibibytes,
    gigabytes,
    happened,
    small,
)

_MOST_NOTES = 3
_MOST_SILENT = 8
_MOST_SAID = 2
_ENDED: frozenset[State] = frozenset({"failed", "stopped", "done"})
# Of these a place is no more than where the last heartbeat saw it: where it ended, or is now, nobody has told.
_LAST_SEEN: frozenset[State] = _ENDED | {"unknown", "silent"}
_MOST_RANKS = 64
_MOST_CALLS = 20
_MOST_EVENTS = 10
_MOST_LINES_OF_VERDICT = 3


@dataclass(frozen=True)
class Column:
    """`name` is a label's; what is wider than `width` cells is cut."""

    name: str
    width: int
    right: bool = False


def render(picture: RunSnapshot, console: Console, *, lang: Language = "en", everything: bool = False) -> None:
    """Print one picture, all of it; `everything`: also the ranks of which nothing is to be said, one by one."""
    width, labels = screen.width(console), LABELS[lang]
    console.print_all((Text(clean(picture.run_dir), style="bold"), *head(picture, width, lang, whole=True)))
    if picture.ranks:
        chosen = choose(picture.ranks, everything=everything, at_most=_MOST_RANKS)
        shown = columns(chosen.shown, width)
        console.print_all((Text(), heading(shown, lang), *(row(r, shown, lang) for r in chosen.shown), *folded(chosen, width, lang)))
    console.print_all((Text(), Text(labels["collectives"], style="bold"), *collectives(picture, width, _MOST_CALLS, lang)))
    console.print_all((Text(), Text(labels["events"], style="bold"), *events(picture, width, _MOST_EVENTS, lang)))
    if picture.job.verdict is not None:
        console.print_all((Text(), Text(labels["records"].format(path=fsio.as_argument(clean(picture.run_dir))), style="dim")))


def columns(ranks: Sequence[Rank], width: int) -> tuple[Column, ...]:
    """What fits into so many cells; the last column gets what is left."""
    many_hosts = len({r.host for r in ranks}) > 1
    numbers = max(4, max((len(str(r.rank)) for r in ranks), default=1))
    chosen = [Column("rank", numbers, True), Column("state", 10), Column("step", 8, True), Column("pace", 7, True), Column("beat", 6, True)]
    rest = width - sum(c.width + 1 for c in chosen) - 40
    extra: list[Column] = []
    host = max(4, min(max((cell_len(r.host) for r in ranks), default=0), 24))
    for wanted, column in (
        (many_hosts, Column("host", host)),
        (any(r.memory is not None for r in ranks), Column("memory", 12, True)),
        (True, Column("pid", 8, True)),
        (True, Column("local", 5, True)),
        (not many_hosts, Column("host", host)),
    ):
        # With several hosts a rank's own is worth more than the end of its place.
        if wanted and rest >= column.width + 1 - (12 if column.name == "host" and many_hosts else 0):
            extra.append(column)
            rest -= column.width + 1
    chosen += extra
    chosen.append(Column("in", 18 if width < 110 else 26))
    chosen.append(Column("where", max(width - sum(c.width + 1 for c in chosen), 8)))
    return tuple(chosen)


def heading(of: Sequence[Column], lang: Language) -> Text:
    labels = {**LABELS[lang], "pace": "/s", "step": LABELS[lang]["step"].partition(" ")[0]}
    return Text(" ".join(_sized(labels[c.name], c) for c in of).rstrip(), style="bold", no_wrap=True)


def row(rank: Rank, of: Sequence[Column], lang: Language) -> Text:
    """One rank."""
    line = Text(no_wrap=True)
    for column in of:
        line.append(_sized(_cell(rank, column.name, lang), column), style=STYLES[rank.state] if column.name in ("rank", "state") else "")
        line.append(" ")
    line.rstrip()
    return line


def folded(chosen: Chosen, width: int, lang: Language) -> list[Text]:
    """A line for each state of which ranks are not shown one by one."""
    labels = LABELS[lang]
    lines = []
    for state, ranks in chosen.folded.items():
        said = [labels["folded"].format(n=len(ranks), state=STATES[lang][state])]
        steps = [(r.step, r.rank) for r in ranks if r.step is not None]
        if steps:
            said.append(labels["steps"].format(a=min(steps)[0], b=max(steps)[0]))
            said.append(labels["slowest"].format(n=min(steps)[1]))
        lines.append(_cut("  ... " + ", ".join(said), width, style=STYLES[state]))
    return lines


def head(picture: RunSnapshot, width: int, lang: Language, *, whole: bool = False) -> list[Text]:
    """The job. `whole`: with what is cut or left out on a small screen."""
    job, labels = picture.job, LABELS[lang]
    first = Text(no_wrap=True)
    if not whole:
        first.append(f"{clean(Path(picture.run_dir).resolve().name)}  ")
    first.append(PHASES[lang][job.phase], style=PHASE_STYLES.get(job.phase, "bold"))
    said = _of_attempts(job, lang)
    if job.elapsed_s is not None:
        said.append(labels["took" if job.phase in ("ended", "gone") else "since"].format(t=duration(job.elapsed_s)))
    elif job.phase == "gone":
        said.append(msg("how long it took is not known").of(lang))
    first.append("".join(f"  {s}" for s in said))
    lines = [_fit(first, width), *(_cut(s, width) for s in _in_lines(_of_supervisor(job, lang), width))]
    if left := [r for r in picture.ranks if r.alive]:
        named = [labels["left_rank"].format(n=r.rank, pid=r.pid, host=r.host) for r in left[:_MOST_SILENT]]
        more = [labels["more"].format(n=len(left) - _MOST_SILENT)] if len(left) > _MOST_SILENT else []
        who = clean(labels["left_running"].format(who=", ".join([*named, *more])))
        lines += [Text(line, style="yellow") for line in fold(who, width, deeper="  ")]
    lines += [_cut(s, width) for s in _in_lines([*_of_speed(job, lang), *_of_counts(picture, lang)], width)]
    if job.command:
        command = f"{labels['command']}  {shlex.join(job.command)}"
        lines += [Text(line) for line in fold(clean(command), width, deeper="  ")] if whole else [_cut(command, width, style="dim")]
    if job.settings or job.preset:
        asked = [*([labels["preset"].format(name=job.preset)] if job.preset else []), *(f"{k}={v}" for k, v in job.settings.items())]
        lines.append(_cut(f"{labels['settings']}  {' '.join(asked)}", width, style="dim"))
    lines += _of_trouble(picture, width, lang, whole=whole)
    most = len(picture.notes) if whole else _MOST_NOTES
    lines += [_cut(f"{MARKS['unknown']} {refusal(note) if lang == 'zh' else note}", width, style="yellow") for note in picture.notes[:most]]
    if len(picture.notes) > most:
        lines.append(_cut(f"{MARKS['unknown']} {labels['more'].format(n=len(picture.notes) - most)}", width, style="yellow"))
    return lines


def detail(rank: Rank, width: int, lang: Language) -> list[Text]:
    """Two lines with all that is known of one rank."""
    labels = LABELS[lang]
    who = [f"{labels['rank']} {rank.rank}", rank.host, f"{labels['local']} {_or(rank.local_rank)}", f"pid {rank.pid}"]
    who += [_or(rank.device), *([rank.gpu] if rank.gpu else []), *([f"{_memory(rank)} GiB"] if rank.memory else [])]
    who += [_or(rank.backend), f"world {_or(rank.world_size)}"]
    if rank.blamed and _why(rank, lang) != labels["blamed"]:
        who.append(labels["blamed"])
    stands = [_why(rank, lang)] if _why(rank, lang) else []
    if rank.waits_s is not None or rank.call is not None:
        of_group = f" [{rank.group}#{_or(rank.number)}]" if rank.group is not None else ""
        stands.append(f"{rank.call or labels['collective']}{of_group} {duration(rank.waits_s)}")
    at = f"{rank.place.file}:{rank.place.line} {rank.place.name}" if rank.place is not None else UNKNOWN
    stands.append(labels["last_seen"].format(at=at) if rank.state in _LAST_SEEN else at)
    if rank.quiet_s is not None:
        stands.append(labels["moved"].format(t=duration(rank.quiet_s)))
    return [_cut("  ".join(who), width), _cut("  ".join(stands), width)]


def events(picture: RunSnapshot, width: int, most: int, lang: Language) -> list[Text]:
    """The last ones, oldest first."""
    recent = picture.events[-most:] if most > 0 else ()
    if not recent:
        return [_cut(LABELS[lang]["no_events"], width, style="dim")]
    return [_cut(f"{duration(e.s):>8}  {happened(e, lang)}", width) for e in recent]


def collectives(picture: RunSnapshot, width: int, most: int, lang: Language) -> list[Text]:
    """What unhang.Monitor told last."""
    labels, monitor = LABELS[lang], picture.monitor
    if monitor is None:
        # Whether the script makes one is not known before it has told something.
        return [_cut(labels["no_monitor" if picture.job.phase in ("ended", "gone") else "no_monitor_yet"], width, style="dim")]
    said = [labels["heard"].format(n=monitor.heard_from, of=monitor.world_size, t=duration(picture.monitor_age_s))]
    if picture.monitor_of_before:
        said.append(labels["before"])
    said.append(labels["evaluations"].format(n=monitor.evaluations, failed=monitor.evaluation_failures))
    lines = [_cut("  ".join(said), width, style="yellow" if picture.monitor_of_before or monitor.heard_from < monitor.world_size else "")]
    if monitor.store_lost is not None:
        lines.append(_cut(f"{MARKS['silent']} {labels['store_lost']}: {monitor.store_lost}", width, style="yellow"))
    if monitor.silent:
        quiet = ", ".join(labels["silent_for"].format(n=s.rank, t=duration(s.for_s)) for s in monitor.silent[:_MOST_SILENT])
        more = ", " + labels["more"].format(n=len(monitor.silent) - _MOST_SILENT) if len(monitor.silent) > _MOST_SILENT else ""
        lines.append(_cut(f"{MARKS['silent']} {labels['silent']}: {quiet}{more}", width, style="yellow"))
    if monitor.failures:
        failed = "  ".join(f"{f.group} {f.collective} {f.cause} {f.count}" for f in monitor.failures)
        lines.append(_cut(f"{MARKS['failed']} {labels['failures']}: {failed}", width, style="red"))
        lines += [_cut(f"  {f.collective} {f.cause}: {f.says}", width) for f in [f for f in monitor.failures if f.says][:_MOST_SAID]]
    if monitor.evaluation_failures and monitor.evaluation_says:
        lines.append(_cut(f"{MARKS['failed']} {labels['evaluation']}: {monitor.evaluation_says}", width, style="red"))
    if monitor.torch_collectives is not None:
        missed = "  " + labels["unread"].format(n=sum(monitor.unread.values())) if monitor.unread else ""
        read = not monitor.torch_collectives.startswith("not read")
        told = f"{labels['of_torch']}: {labels.get(monitor.torch_collectives, monitor.torch_collectives)}"
        lines.append(_cut(told + missed, width, style="" if read and not missed else "yellow"))
    lately = labels["stragglers_lately"].format(t=duration(monitor.interval_s))
    for name, stragglers in ((lately, monitor.interval_stragglers), (labels["stragglers"], monitor.stragglers)):
        if stragglers:
            worst = sorted(stragglers, key=lambda s: (-s.share, s.group, s.rank))[:3]
            told = ", ".join(labels["straggler"].format(n=s.rank, share=f"{s.share:.0%}", t=small(s.waited_s), group=s.group) for s in worst)
            lines.append(_cut(f"{name}: {told}", width))
    if monitor.deadlines_s:
        lines.append(_cut(f"{labels['deadlines']}: " + ", ".join(f"{kind} {small(s)}" for kind, s in monitor.deadlines_s.items()), width))
    if monitor.calls:
        # A number that is cut is another number: where it is narrow some are left out, and where it is wide names get more.
        numbers = {"count": 8, "p50": 8, "p95": 8, "p99": 8, "busbw": 7}
        for left_out in ("p95", "p99"):
            if _GROUP + _CALL + sum(n + 1 for n in numbers.values()) + 1 > width:
                del numbers[left_out]
        spare = width - (_GROUP + _CALL + sum(n + 1 for n in numbers.values()) + 1)
        names = Column("group", _GROUP), Column("call", _CALL + min(max(spare, 0), _MOST_SPARE))
        of_calls = *names, *(Column(name, cells, right=True) for name, cells in numbers.items())
        titles = {"p50": "p50", "p95": "p95", "p99": "p99", "busbw": "GB/s"} | {name: labels[name] for name in ("group", "call", "count")}
        lines.append(_cut(_call_row(titles, of_calls), width, style="bold"))
        late = {(c.group, c.collective): c for c in monitor.interval_calls}
        for every in sorted(monitor.calls, key=lambda c: -c.count):
            # How long they took of late, where that is known: since the start a day hides an hour.
            c = replace(late.get((every.group, every.collective), every), count=every.count)
            latencies = {"p50": small(c.latency_p50_s), "p95": small(c.latency_p95_s), "p99": small(c.latency_p99_s)}
            cells = {"group": c.group, "call": c.collective, "count": str(c.count), **latencies, "busbw": gigabytes(c.busbw_p50_gbps)}
            lines.append(_cut(_call_row(cells, of_calls), width))
    if len(lines) > most:
        lines = (
            [*lines[: most - 1], _cut("  ... " + labels["more"].format(n=len(lines) - most + 1), width, style="dim")] if most > 1 else lines[:most]
        )
    return lines


def _call_row(told: Mapping[str, str], of: Sequence[Column]) -> str:
    return " ".join(_sized(told[column.name], column) for column in of)


_GROUP, _CALL, _MOST_SPARE = 10, 12, 12


# -- the job


def _of_attempts(job: Job, lang: Language) -> list[str]:
    labels = LABELS[lang]
    said = []
    if job.phase == "ended":
        said.append(labels["exitcode"].format(n=_or(job.exitcode)))
        if job.attempts is not None and job.attempts > 1:
            said.append(labels["attempts"].format(n=job.attempts))
    elif job.attempt is not None:
        said.append(labels["attempt"].format(n=job.attempt + 1))
        if job.on_failure in (None, "restart"):
            said.append(labels["restarts"].format(n=job.attempt, of=_or(job.max_restarts)))
        else:
            said.append(labels["no_restarts"].format(what=job.on_failure))
    return said


def _of_supervisor(job: Job, lang: Language) -> list[str]:
    labels, supervisor = LABELS[lang], job.supervisor
    if job.phase == "ended":
        return []
    key = "unseen" if supervisor.alive is None else "lives" if supervisor.alive else "died"
    said = [labels[key].format(pid=_or(supervisor.pid), host=_or(supervisor.host))]
    if supervisor.silent_s is not None:
        said.append(labels["wrote"].format(t=duration(supervisor.silent_s)))
    return said


def _of_speed(job: Job, lang: Language) -> list[str]:
    labels = LABELS[lang]
    said = []
    if job.step is not None:
        said.append(labels["step"].format(n=job.step))
        if job.phase not in ("ended", "gone"):
            said.append(labels["pace"].format(n=f"{job.steps_per_s:.2f}") if job.steps_per_s is not None else labels["pace_unknown"])
    if job.phase in ("ended", "gone"):
        return said
    if job.hang_after_s is not None:
        said.append(labels["gap"].format(t=small(job.usual_gap_s)))
        said.append(labels["hang"].format(t=duration(job.hang_after_s)))
    if job.timeout_s is not None:
        said.append(labels["timeout"].format(t=duration(job.timeout_s)))
    return said


def _of_counts(picture: RunSnapshot, lang: Language) -> list[str]:
    labels, seen = LABELS[lang], len(picture.ranks)
    if not seen:
        return [labels["no_ranks"]]
    expected = picture.job.expected
    how_many = labels["ranks"].format(n=seen, of=expected) if expected is not None else labels["ranks_only"].format(n=seen)
    states = [s for s in STATES["en"] if s in picture.counts]
    return [how_many + ": " + ", ".join(labels["folded"].format(n=picture.counts[s], state=STATES[lang][s]) for s in states)]


def _of_trouble(picture: RunSnapshot, width: int, lang: Language, *, whole: bool) -> list[Text]:
    job, labels = picture.job, LABELS[lang]
    lines = []
    if job.trouble is not None:
        trouble = job.trouble
        said = labels["trouble"].format(kind=KINDS[lang].get(trouble.kind, trouble.kind), n=trouble.number, t=duration(trouble.for_s))
        lines.append(_cut(f"{MARKS['failed']} {said}, {labels['judged' if trouble.judged else 'evidence']}", width, style="bold red"))
    if job.verdict is not None:
        told = job.verdict
        says = in_language(told.says, lang)
        standing = f" ({STANDINGS[lang][told.standing]})" if told.standing else ""
        of_attempt = f" ({labels['attempt'].format(n=told.attempt + 1)})" if told.attempt != job.attempt and told.attempt is not None else ""
        of_verdict = fold(clean(f"{labels['verdict']}{of_attempt}  {told.cause}{standing}: {says}"), width, deeper="  ")
        most = len(of_verdict) if whole else _MOST_LINES_OF_VERDICT
        lines += [Text(line) for line in of_verdict[:most]]
        if len(of_verdict) > most:
            lines[-1] = _cut(of_verdict[most - 1] + " ...", width)
    if job.gave_up is not None:
        lines.append(_cut(labels["gave_up"].format(why=refusal(job.gave_up) if lang == "zh" else job.gave_up), width))
    return lines


# -- a rank


def _cell(rank: Rank, name: str, lang: Language) -> str:
    if name == "rank":
        return str(rank.rank)
    if name == "state":
        mark = MARKS["failed"] if rank.blamed else MARKS.get(rank.state, " ")
        return f"{mark} {STATES[lang][rank.state]}"
    if name == "step":
        return _or(rank.step)
    if name == "pace":
        return "-" if rank.state in _ENDED else UNKNOWN if rank.steps_per_s is None else f"{rank.steps_per_s:.2f}"
    if name == "beat":
        # Of a process that is no more nobody expects one.
        return "-" if rank.state in _ENDED else duration(rank.age_s)
    if name == "memory":
        return _memory(rank) if rank.memory is not None else UNKNOWN
    if name == "in":
        return "-" if rank.waits_s is None and rank.call is None else f"{rank.call or LABELS[lang]['collective']} {duration(rank.waits_s)}"
    if name == "where":
        where = f"{Path(rank.place.file).name}:{rank.place.line} {rank.place.name}" if rank.place is not None else UNKNOWN
        if rank.state in _LAST_SEEN and rank.place is not None:
            where = f"{where} {LABELS[lang]['seen']}"
        return "; ".join(s for s in (_why(rank, lang), where) if s)
    return {"host": rank.host, "pid": str(rank.pid), "local": _or(rank.local_rank)}[name]


def _why(rank: Rank, lang: Language) -> str:
    """What is to be said of it beside where it stands."""
    if rank.raised is not None:
        return rank.raised
    if rank.exitcode is not None and rank.exitcode < 0:
        return LABELS[lang]["signal"].format(n=-rank.exitcode)
    if rank.exitcode:
        return LABELS[lang]["exitcode"].format(n=rank.exitcode)
    if rank.alive is not None:
        return LABELS[lang]["still_runs" if rank.alive else "runs_no_more"]
    if rank.process in ("T", "t"):
        return LABELS[lang]["stopped_process"]
    return LABELS[lang]["blamed"] if rank.blamed else ""


def _memory(rank: Rank) -> str:
    return UNKNOWN if rank.memory is None else f"{gibibytes(rank.memory.used_bytes)}/{gibibytes(rank.memory.total_bytes)}"


# -- text


def _or(value: object) -> str:
    return UNKNOWN if value is None else str(value)


def clean(text: str) -> str:
    """On one line, and nothing of it steers a terminal: what files hold may be anybody's."""
    return escape(text.replace("\n", " ").replace("\t", " "))


def _sized(text: str, column: Column) -> str:
    text = clean(text)
    if cell_len(text) > column.width:
        text = set_cell_size(text, column.width - 1) + "…"
    space = " " * max(column.width - cell_len(text), 0)
    return space + text if column.right else text + space


def _in_lines(parts: Iterable[str], width: int) -> list[str]:
    """Side by side, as many as fit into a line."""
    lines: list[str] = []
    for part in parts:
        if lines and cell_len(lines[-1]) + 2 + cell_len(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines.append(part)
    return lines


def _cut(text: str, width: int, *, style: str = "") -> Text:
    return _fit(Text(clean(text), style=style), width)


def _fit(line: Text, width: int) -> Text:
    line.no_wrap = True
    if line.cell_len > width:
        line.truncate(width, overflow="ellipsis")
    return line
