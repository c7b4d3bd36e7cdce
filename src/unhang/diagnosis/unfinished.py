"""What may be said of a run whose end is not recorded: whether `unhang run` lives, and where its ranks were by its last record of them.

Whether it lives is told as `unhang top` tells it (`records.run_snapshot`). A run that goes on is never called healthy: nobody has judged it yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from unhang.diagnosis import run_history
from unhang.diagnosis.remains import remedy
from unhang.diagnosis.rerun_command import seen_from_here
from unhang.diagnosis.run_history import RunHistory, Unfinished
from unhang.errors import RunDirError
from unhang.facts import processes
from unhang.knowledge import seen, words
from unhang.knowledge.words import COMMA, NOTHING, Text, joined, msg
from unhang.model import Evidence, ProcessId, Remedy, frozen
from unhang.records.run_follower import Looker
from unhang.records.run_snapshot import Phase, Rank, RunSnapshot
from unhang.records.rundir import RunDir
from unhang.records.status import Now, RankNow, Seen, together

_MOST_EVIDENCE = 8
_MOST_NAMED = 8
_GOES_ON: tuple[Phase, ...] = ("starting", "running", "standing", "wrong", "between", "trying")
_EITHER = msg("unhang itself was killed, or the run still goes on")
_OR_LOST = msg(", or its end was recorded in what is lost here")


@frozen
class _Run:
    """run.json, as far as it matters here."""

    supervisor: ProcessId | None = None


def look(
    rundir: RunDir, went: RunHistory, *, called: str, logs: str | None, is_alive: Callable[[ProcessId], bool | None] = seen_from_here
) -> Unfinished:
    """How a run stands whose end is not recorded in the course that it `went`. `called`: where it is, for whoever is to look into it; `logs`: those
    of the last attempt.
    """
    looker = Looker(rundir.path, is_alive=is_alive)
    lost = not went.exists or went.cut
    try:
        picture = looker.look()
    except RunDirError:
        why = _EITHER + _OR_LOST if lost else _EITHER
        says = msg("no end of the run is recorded: {why}", why=why)
        return Unfinished(why=why, says=says, evidence=(), remedies=() if logs is None else (run_history.read_logs(logs),))
    # Where the supervisor has said its last word on the attempt, and no event follows, the end of the run may have come next.
    lost = lost or (looker.now is not None and looker.now.last and went.last_s < looker.now.at_s)
    return told(
        picture,
        looker.now,
        called=called,
        logs=logs,
        lost=lost,
        kernels_pids=_pid_namespace(rundir) == processes.FIRST_PID_NAMESPACE,
        source=rundir.relative(rundir.now),
    )


def _pid_namespace(rundir: RunDir) -> str | None:
    try:
        supervisor = rundir.read(rundir.run, _Run).supervisor
    except RunDirError:
        return None
    return None if supervisor is None else supervisor.pid_namespace


def told(
    picture: RunSnapshot,
    now: Now | None,
    *,
    called: str,
    logs: str | None,
    lost: bool = False,
    kernels_pids: bool = False,
    source: str = "now.json",
) -> Unfinished:
    """The same of a picture, and of the record of the ranks that it was drawn from. `lost`: events are missing or damaged, and the end may be among
    them; `kernels_pids`: the supervisor's pid is known to be the one that the kernel's log has for it.
    """
    why = _why(picture, lost=lost)
    parts = [msg("no end of the run is recorded: {why}", why=why), *_ranks(picture, now)]
    return Unfinished(
        why=why,
        says=joined(parts),
        evidence=() if now is None else tuple(_evidence(r, now, source) for r in now.ranks[:_MOST_EVIDENCE]),
        remedies=_remedies(picture, now, called=called, logs=logs, lost=lost, kernels_pids=kernels_pids),
    )


# -- who watches it


def _why(picture: RunSnapshot, *, lost: bool) -> Text:
    supervisor = picture.job.supervisor
    or_lost = _OR_LOST if lost else NOTHING
    if supervisor.pid is None:
        return _EITHER + or_lost
    who = msg("unhang run (pid {pid} on {host})", pid=supervisor.pid, host=str(supervisor.host))
    if supervisor.alive is None:
        unseen = msg("{who} cannot be seen from here: it was killed, or the run still goes on")
        return unseen.fill(who=who) + or_lost
    if not supervisor.alive:
        said = msg("no word is left here that the run was over") if lost else msg("has not said that the run was over")
        gone = msg("{who} lives no longer, and {said}: it was killed, or failed itself")
        return gone.fill(who=who, said=said) + or_lost
    if picture.job.phase in _GOES_ON:
        return msg("the run still goes on, {who} lives", who=who)
    return msg("{who} lives, but has not written for so long that it is not known how the run stands", who=who)


# -- where the ranks were


def _ranks(picture: RunSnapshot, now: Now | None) -> list[Text]:
    job = picture.job
    if now is None:
        return [msg("where the ranks were is not known: no record of it is here")]
    if not now.ranks:
        return [msg("no rank had reported to it")]
    living = [r for r in now.ranks if r.ended_s is None]
    said = []
    if living:
        age_s = job.supervisor.silent_s
        ago = msg(" ({s} ago)", s=words.seconds(age_s)) if age_s is not None else NOTHING
        said.append(msg("by its last record{ago} and their last heartbeats: {where}", ago=ago, where=seen.told(_seen(living, now))))
    if ended := _ended([r for r in now.ranks if r.ended_s is not None]):
        said.append(ended)
    if job.trouble is None:
        said.append(_whether(now) if living else msg("nothing was judged yet"))
    if running := [r for r in picture.ranks if r.alive]:
        said.append(msg("still running, unwatched: {who}", who=_processes(running)))
    if gone := [r.rank for r in picture.ranks if r.alive is False]:
        said.append(msg("no longer alive: {who}", who=words.ranks(gone)))
    return said


def _processes(ranks: Sequence[Rank]) -> Text:
    one = msg("rank {n} (pid {pid} on {host})")
    named = [one.fill(n=r.rank, pid=r.pid, host=r.host) for r in ranks[:_MOST_NAMED]]
    if len(ranks) > _MOST_NAMED:
        named.append(msg("{n} more ranks", n=len(ranks) - _MOST_NAMED))
    return joined(named, COMMA)


def _whether(now: Now) -> Text:
    stands = now.standstill
    if stands is None:
        return msg("nothing was judged yet: a hang was not found, and is not ruled out")
    for_s = now.at_s - stands.since_s
    said = msg("nothing had moved for {s} then", s=words.seconds(for_s))
    if for_s < now.hang_after_s:
        why = msg(", less than the {s} after which it is taken for a hang")
        return said + why.fill(s=words.seconds(now.hang_after_s))
    return said + msg(", and it was not judged yet")


def _seen(living: Sequence[RankNow], now: Now) -> tuple[Seen, ...]:
    return together(
        Seen(
            ranks=(r.rank,),
            place=r.place,
            call=r.waiting.call if r.waiting is not None else None,
            least_step=r.step or None,
            step=r.step or None,
            silent_s=None if r.beat_s is None else now.at_s - r.beat_s,
        )
        for r in living
    )


def _ended(ranks: Sequence[RankNow]) -> Text:
    how: dict[Text, list[int]] = {}
    for rank in ranks:
        how.setdefault(_how(rank), []).append(rank.rank)
    return joined((msg("{who} {how}", who=words.ranks(numbers), how=said) for said, numbers in how.items()), COMMA)


def _how(rank: RankNow) -> Text:
    if rank.raised is not None:
        return msg("had raised {what}", what=rank.raised)
    if rank.by_launcher:
        return msg("had been ended")
    if rank.exitcode is not None and rank.exitcode < 0:
        return msg("had been ended by {signal}", signal=words.signal_name(rank.exitcode))
    if rank.exitcode:
        return msg("had ended with exit code {n}", n=rank.exitcode)
    return msg("had ended")


def _evidence(rank: RankNow, now: Now, source: str) -> Evidence:
    beat = msg("no heartbeat")
    if rank.beat_s is not None:
        before = words.seconds(max(now.at_s - rank.beat_s, 0.0))
        beat = msg("heartbeat {s} before this record", s=before)
    says = msg(
        "rank {n} (pid {pid}) last seen at {at}, {beat}",
        n=rank.rank,
        pid=rank.pid,
        at="?" if rank.place is None else f"{rank.place.file}:{rank.place.line} in {rank.place.name}",
        beat=beat,
    )
    return words.stated(source, says)


# -- what to do


def _remedies(picture: RunSnapshot, now: Now | None, *, called: str, logs: str | None, lost: bool, kernels_pids: bool) -> tuple[Remedy, ...]:
    supervisor, read = picture.job.supervisor, () if logs is None else (run_history.read_logs(logs),)
    if supervisor.pid is None:
        return read
    if supervisor.alive:
        watch = remedy("watch-it", path=called)
        return (watch, remedy("interrupt-it", pid=supervisor.pid)) if picture.job.phase == "standing" else (watch,)
    if supervisor.alive is None:
        return remedy("look-there", host=supervisor.host, pid=supervisor.pid), *read
    # Whether these still run is said above, of the others it is not known.
    seen_from_here = {r.rank for r in picture.ranks if r.alive is not None}
    pids = [r.pid for r in now.ranks if r.ended_s is None and r.rank not in seen_from_here] if now is not None else []
    running = [r.pid for r in picture.ranks if r.alive]
    left = (
        *((remedy("end-what-is-left", pids=running),) if running else ()),
        *((remedy("look-for-what-is-left", pids=pids),) if pids else ()),
    )
    killed = remedy("who-killed-it", pid=supervisor.pid)
    if not kernels_pids:
        counted = msg(
            " Its log has the machine's pids, and a container its own pids: pid {pid} may be another one there. Go by the name and the time.",
            pid=supervisor.pid,
        )
        anything = remedy("who-killed-anything", id="who-killed-it")
        killed = replace(anything, says=anything.says + counted)
    if lost:
        # Perhaps nobody did.
        return *left, *read, *((killed,) if left or read else ())
    return *left, killed, *read
