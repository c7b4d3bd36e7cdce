"""rank-exception: Python raised on one rank, and nothing caught it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from unhang.frames import Frame, place, user_frame
from unhang.knowledge import exceptions, words
from unhang.knowledge.caught_exceptions import closed_pipe, that_ended_something
from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, Found, LogView, RunView
from unhang.knowledge.words import msg
from unhang.logs import Traceback, exits, tracebacks
from unhang.model import Evidence, Finding
from unhang.patterns import lazily
from unhang.user_files import is_user_file

CAUSE = cause("rank-exception")

# What a process raises because somebody asked it to end.
_ASKED = ("KeyboardInterrupt", "SystemExit")
# What launchers and supervisors raise because a process of theirs ended, and what a rank raises because its peers, or the store, went away.
_OF_OTHERS = frozenset(
    (
        "ChildFailedError", "CalledProcessError", "ProcessRaisedException", "ProcessExitedException", "SignalException", "RayActorError",
        "ActorDiedError", "ActorUnavailableError", "WorkerCrashedError", "RayTaskError", "TrainingFailedError", "TuneError", "EngineDeadError",
        "AsyncEngineDeadError", "HorovodInternalError", "DistBackendError", "DistNetworkError", "DistStoreError", "RendezvousTimeoutError",
        "RendezvousConnectionError", "RendezvousClosedError", "RendezvousGracefulExitError", "BrokenProcessPool", "SIGTERMException",
    )
)  # fmt: skip
# Mostly the other end's fault. They speak where nothing else does.
_WEAK = frozenset(("ConnectionResetError", "ConnectionAbortedError", "ConnectionRefusedError", "BrokenPipeError", "EOFError", "CancelledError"))
_SUPERVISOR = lazily(r"WorkerProc initialization failed|Engine core initialization failed|See (?:the )?(?:stack trace|root cause)")
# Where Python itself clears up: what goes wrong there is printed and passed over ("Exception ignored in").
_CLEARING_UP = lazily(r"multiprocessing/(?:resource_tracker|resource_sharer)\.py$|/weakref\.py$|/atexit\.py$")
# What carries an exception from a worker or a replica to the one that uses it; the worker's own traceback stands behind it.
_CARRIED = lazily(r"^Caught \w+ in (?P<where>.{1,80}?)\.?$")
# A file that Python cannot take apart: nobody who reads it gets any further.
_SYNTAX = ("SyntaxError", "IndentationError", "TabError")
# No sample brings these about: the code, or what is installed, is not as it should be.
_OF_CODE = frozenset(
    (*_SYNTAX, "ImportError", "ModuleNotFoundError", "NameError", "UnboundLocalError", "NotImplementedError", "RecursionError", "MemoryError")
)
# One sample alone may bring these about.
_OF_SAMPLES = ("UnidentifiedImageError", "JSONDecodeError", "UnicodeDecodeError", "ArrowInvalid")
_EVERY_RANK = msg("every rank")
_STARTER = lazily(exits.STARTER)
# A message that is cut off behind its file: that a peer did not come, or went away.
_GLOO = lazily(r"\[/?\S{0,200}third_party/gl\S*\s*$")
_NUMBERS = lazily(r"0x[0-9a-f]+|\d+")


def in_run(picture: RunView) -> Answer:
    own = [r for r in picture.raised if r.raised is not None and not r.raised_hits and r.raised.type.rpartition(".")[2] not in _ASKED]
    if not own:
        return _of_logs(picture)
    first = own[0]
    assert first.raised is not None
    raised = first.raised
    same = [r for r in own if r.raised is not None and (r.raised.type, r.raised.text) == (raised.type, raised.text)]
    numbers = [r.number for r in same]
    frame = user_frame(raised.frames) or first.record.last_place
    at = picture.place(frame) if frame is not None else None
    everyone = len(numbers) == len(picture.ranks) and len(numbers) > 1
    who = _EVERY_RANK if everyone else words.ranks(numbers)
    found = CAUSE.told(
        Found(
            "raised",
            standing="established",
            ranks=numbers,
            where=at,
            evidence=_in_the_log(picture, raised.type, first.number),
            remedies=_remedies(raised.type, alike=everyone),
            picture=picture,
            who=who,
            error=_short(raised.type, raised.text),
            alike=False,
            other=None,
            seen=user_frame(raised.frames) is not None,
            file=_file(user_frame(raised.frames)),
            first=first,
            each=[f"{raised.type}: {raised.text}".rstrip(": "), *([words.frame(frame)] if frame is not None else ())],
        )
    )
    return _with_advice(found, raised.type, raised.text, raised.frames, who)


def _with_advice(found: Finding, type: str, text: str, frames: Sequence[Frame], who: str, exits: Sequence[str] = ()) -> Finding:
    """What to do about this very exception, where that is known: more than to correct a line."""
    if (module := exceptions.missing(type, text)) is not None:
        python = exceptions.interpreter(frames, exits)
        return replace(
            found,
            remedies=(exceptions.install_remedy(CAUSE.remedy("install-the-module"), module, python=python, who=who, hosts=found.hosts),),
        )
    advice = exceptions.remedy(type, text, frames)
    if advice is None:
        return found
    left = ("correct-the-line",) if type.rpartition(".")[2] in _OF_SAMPLES else ("correct-the-line", "agree-on-failure")
    return replace(found, remedies=(advice, *(r for r in found.remedies if r.id not in left)))


def _remedies(kind: str, *, alike: bool) -> tuple[str, ...]:
    """What helps against an exception of this type; `alike`: several ranks raised it."""
    name = kind.rpartition(".")[2]
    if name in _SYNTAX:
        return ("correct-the-line", "parse-it")
    if alike:
        return ("correct-the-line", "same-on-all")
    return ("correct-the-line",) if name in _OF_CODE else ("correct-the-line", "agree-on-failure")


def _file(frame: Frame | None) -> str:
    return frame.file if frame is not None and is_user_file(frame.file) else "train.py"


def _in_the_log(picture: RunView, kind: str, rank: int) -> Iterable[Traceback]:
    name = kind.rpartition(".")[2]
    return [t for t in picture.tracebacks if t.type.rpartition(".")[2] == name and t.rank in (rank, None)][:1]


def _of_logs(picture: RunView) -> Finding | None:
    """Launchers without an attached process: what they printed is all there is."""
    failed = [r for r in picture.gone if r.ended and r.ended.exitcode not in (0, None) and r.raised is None]
    if picture.incident.kind != "failure" or (picture.ranks and not failed):
        return None
    numbers = {r.number for r in failed}
    own = [t for t in own_tracebacks(picture.tracebacks, picture) if t.rank is None or not numbers or t.rank in numbers]
    return _of_tracebacks(own, cwd=picture.incident.cwd)


def own_tracebacks(found: Sequence[Traceback], seen: RunView | LogView) -> list[Traceback]:
    """Tracebacks of a process's own failure: no exception that a signature knows (a symptom, a cause with its own name) or that was raised from one,
    none of launchers. `led` are the lines of known ones that were being handled, and of symptoms in the message.
    """
    known = {(h.source, h.line) for cause, hits in seen.hits.items() if cause != CAUSE.id for h in hits}
    roots = {(h.source, h.line) for cause, hits in seen.hits.items() if cause != CAUSE.id for h in hits if h.signature.role == "root"}
    passed_on = any(t.passed_on for t in found)
    return [
        t
        for t in (replace(t, led=tuple(n for n in (*t.led, *t.more) if (t.source, n) in known)) for t in _unwrapped(found, known))
        if (t.source, t.end) not in known
        and not (t.chained == tracebacks.CAUSED and set(t.led) - set(t.more))
        # The rest of a message may quote what others lost.
        and roots.isdisjoint((t.source, n) for n in t.more)
        and not t.ignored
        and (_name(t) not in (*_ASKED, *_OF_OTHERS) or _of_a_tool(t))
        and not (passed_on and _name(t) == "CheckpointException")
        and not _SUPERVISOR.search(t.text)
        and not _GLOO.match(t.text)
        and not (t.frames and (t.frames[0].name in ("__del__", "_shutdown") or _CLEARING_UP.search(t.frames[0].file)))
        and not closed_pipe(t)
    ]


def _of_a_tool(back: Traceback) -> bool:
    """Whether a compiler or the like failed, rather than a training that was started."""
    return _name(back) == "CalledProcessError" and back.text.startswith("Command ") and not _STARTER.match(back.text)


def _unwrapped(found: Sequence[Traceback], known: set[tuple[str, int | None]]) -> list[Traceback]:
    """What a DataLoader worker or a replica raised, once, with its own message and place."""
    originals = {(t.source, t.line): t for t in found}
    kept: list[Traceback] = []
    carried: set[int] = set()
    for t in found:
        where = _CARRIED.match(t.text)
        original = next((o for n in (1, 2) if (o := originals.get((t.source, t.end + n))) is not None), None) if where is not None else None
        if where is None or original is None:
            kept.append(t)
            continue
        carried.add(id(original))
        if (original.source, original.end) not in known:
            text = f"{original.text} (in {where['where']})" if original.text else f"(in {where['where']})"
            kept.append(replace(t, type=original.type, text=text, frames=original.frames))
    return [t for t in kept if id(t) not in carried]


def _name(back: Traceback) -> str:
    return back.type.rpartition(".")[2]


def in_logs(view: LogView) -> Answer:
    own = that_ended_something(own_tracebacks(view.tracebacks, view), view)
    if view.hits_of("launcher-teardown"):
        # The launcher's own pipe to a process that is gone.
        own = [t for t in own if _name(t) not in _WEAK]
    found = _of_tracebacks(own, cwd="", world_size=view.world_size, exits=[e.at.text for e in view.exits])
    return found or CAUSE.of_hits(view.hits_of(CAUSE.id), view)


def _alike(back: Traceback) -> tuple[object, ...]:
    """What two ranks that failed for one reason have in common: numbers in the text (ranks, devices, addresses) may differ."""
    frame = user_frame(back.frames)
    return (_name(back), _NUMBERS.sub("#", back.text)[:200], (frame.file, frame.line) if frame is not None else None)


def _of_tracebacks(own: Sequence[Traceback], *, cwd: str, world_size: int | None = None, exits: Sequence[str] = ()) -> Finding | None:
    """The failures that are alike are one. The first speaks; of separate logs, which have no common order, the one that stands alone does."""
    if not own:
        return None
    strong = [t for t in own if _name(t) not in _WEAK]
    groups: dict[tuple[object, ...], list[Traceback]] = {}
    # An error that a program caught and logged may look like a line that is all there is of an exception.
    for t in [t for t in strong if t.frames] or strong or own:
        groups.setdefault(_alike(t), []).append(t)
    chosen = next(iter(groups.values()))
    if len({t.source for t in own}) > 1:
        sizes = {key: len({(t.source, t.rank) for t in members}) for key, members in groups.items()}
        alone = [key for key, size in sizes.items() if size == 1]
        if len(alone) == 1 and max(sizes.values()) > 1:
            chosen = groups[alone[0]]
    first = chosen[0]
    frame = user_frame(first.frames)
    at = place(frame, cwd) if frame is not None else None
    numbers = sorted({t.rank for t in chosen if t.rank is not None})
    everyone = world_size is not None and len(numbers) == world_size > 1
    processes = len(chosen) if not numbers else 0
    some = msg("{n} processes", n=processes) if processes > 1 else msg("a process")
    who = _EVERY_RANK if everyone else words.ranks(numbers) if numbers else some
    alike = everyone or len(numbers) > 1 or processes > 1
    others = [t for members in groups.values() if members is not chosen for t in members]
    # Frames behind the exception may be another's, and what was being handled, or what the message names, may be why.
    sure = numbers and first.frames and first.line <= first.end and not first.led
    found = CAUSE.told(
        Found(
            "raised",
            standing=("established" if sure else "likely") if strong else "possible",
            ranks=numbers,
            hosts=chosen,
            where=at,
            evidence=(
                first,
                *((Evidence(source=first.source, line=first.line, text=words.frame(frame)),) if frame is not None else ()),
                *others[:1],
            ),
            remedies=_remedies(first.type, alike=alike),
            who=who,
            alike=alike,
            error=_short(first.type, first.text),
            seen=True,
            file=_file(frame),
            others=sorted({t.rank for t in others if t.rank is not None}),
            other=_short(others[0].type, "") if others else None,
        )
    )
    return _with_advice(found, first.type, first.text, first.frames, who, exits)


def _short(kind: str, text: str) -> str:
    told = tracebacks.message(text.strip().splitlines())
    if not told:
        return kind
    more = words.cut(" ".join(line.strip() for line in told[1:]), 200)
    return f"{kind}: {words.cut(told[0], 120 if more else 200)}{' ' if more else ''}{more}".removesuffix(".")
