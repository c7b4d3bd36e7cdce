"""Where the ranks of a job stand, by stacks that faulthandler or py-spy wrote into its logs: who waits in a collective, and whom for.

A stack is one moment. That a rank stays where it was seen is told by others that gave up waiting, by nothing else in a log. One that was taken before
they began to wait, or behind which the training goes on, tells nothing of the failure.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from unhang.frames import Frame, inside, op_of_stack, place
from unhang.knowledge import words
from unhang.knowledge.words import Text, joined, msg, ranks
from unhang.model import Evidence, Finding, frozen
from unhang.user_files import is_user_file

if TYPE_CHECKING:
    from unhang.knowledge.cause import Cause, LogView
    from unhang.logs.log_facts import Stack

Kind = Literal["loader", "executes", "stands"]

# So long before anybody began to wait, a rank may have stood already.
_SLACK_S = 60
# What a wait lasts where nobody tells it: Gloo's timeout, the longer one of torch's two.
_WAIT_S = 1800
_SHOWN = 4
_GAVE_UP = ("collective-timeout", "peer-lost")
_LOADER = "torch/utils/data"
# What py-spy names without its directory, as it does with all that lies on sys.path.
_LIBRARIES = frozenset(
    ("torch", "numpy", "transformers", "accelerate", "datasets", "deepspeed", "lightning", "pytorch_lightning", "megatron", "ray", "fsspec")
)


@frozen
class Apart:
    """A rank that stands outside any collective while others wait, with its stack and the user's line."""

    stack: Stack
    frame: Frame
    kind: Kind


@frozen
class Scene:
    """`inside` are the ranks in each collective, by its name and the line that called it; `apart` those in none. `waited` are ranks that gave up."""

    inside: tuple[tuple[str, Frame | None, tuple[Stack, ...]], ...]
    apart: tuple[Apart, ...]
    waited: tuple[int, ...]


def scene(view: LogView) -> Scene:
    """What the stacks of ranks show, without those that are older than the failure."""
    waited = {t.at.rank for t in view.timeouts} | {h.rank for cause in _GAVE_UP for h in view.hits_of(cause)}
    # Who raised or ended by himself was no longer there.
    gone = {t.rank for t in view.tracebacks} | {e.at.rank for e in view.exits if e.code not in (0, -15)}
    within: dict[tuple[str, str, int], list[Stack]] = {}
    apart: list[Apart] = []
    for stack in recent(view):
        if stack.rank is None:
            continue
        if op := op_of(stack):
            frame = _own(stack.frames)
            within.setdefault((op, frame.file if frame else "", frame.line if frame else 0), []).append(stack)
        elif stack.rank not in waited | gone:
            apart.append(apart_of(stack))
    groups = sorted(within.items(), key=lambda item: (-len(item[1]), item[0]))
    return Scene(
        inside=tuple((key[0], _own(found[0].frames), tuple(found)) for key, found in groups),
        apart=tuple(apart),
        waited=tuple(sorted(r for r in waited if r is not None)),
    )


def recent(view: LogView) -> tuple[Stack, ...]:
    """The stacks of the failure: the last of each rank, and those of nobody known."""
    since_s = _since_s(view)
    found = [s for s in view.stacks if _age(s, view, since_s) is None]
    return (*{s.rank: s for s in found if s.rank is not None}.values(), *(s for s in found if s.rank is None))


def failing(view: LogView) -> dict[str, set[int]]:
    """The lines of each log at which ranks give up waiting, or end."""
    found: dict[str, set[int]] = {}
    told = [(at.source, at.line) for at in (*(t.at for t in view.timeouts), *(e.at for e in view.exits))]
    told += [(h.source, h.line) for cause in _GAVE_UP for h in view.hits_of(cause)]
    for source, line in told:
        if line is not None:
            found.setdefault(source, set()).add(line)
    return found


def passed_over(view: LogView) -> tuple[tuple[Text, Text], ...]:
    """What stacks are not taken for those of the failure, and why, of ranks of which there is no other one."""
    since_s, known = _since_s(view), {s.rank for s in recent(view)}
    of_reason: dict[str, tuple[Text, list[Stack]]] = {}
    for stack in view.stacks:
        if (stack.rank is None or stack.rank not in known) and (why := _age(stack, view, since_s)) is not None:
            of_reason.setdefault(why, (why, []))[1].append(stack)
    return tuple((_which(stacks), why) for why, stacks in of_reason.values())


def _which(stacks: Sequence[Stack]) -> Text:
    at = msg(" ({source}:{line})", source=stacks[0].source, line=stacks[0].line)
    if numbers := {s.rank for s in stacks if s.rank is not None}:
        plural = "" if len(numbers) == 1 else "s"
        return msg("the stack{s} of {who}", s=plural, who=ranks(numbers)) + at
    n = len(stacks)
    some = "a stack" if n == 1 else f"{n} stacks"
    return msg("{some} of processes whose rank is not told", some=some, n=n) + at


_WENT_ON = msg("taken earlier: training steps follow it")
_EARLIER = msg("taken earlier: what follows it is dated before anybody began to wait")
_FAR = msg("much of the log follows it before anything fails: how old it is is not known")


def _age(stack: Stack, view: LogView, since_s: float | None) -> Text | None:
    """Why a stack is not one of the failure; None where nothing speaks against it."""
    if stack.went_on is not None:
        return _WENT_ON
    if since_s is not None and stack.later_s is not None and stack.later_s < since_s - _SLACK_S:
        return _EARLIER
    return _FAR if stack.far else None


def of_the_wait(stacks: Iterable[Stack], view: LogView) -> bool:
    """Whether stacks count as those of a wait: not where their writers go on, and nothing tells whether that was before it."""
    return _since_s(view) is not None or all(s.later_s is None for s in stacks)


def _since_s(view: LogView) -> float | None:
    """When the first of those that gave up began to wait; None where no time is told."""
    told = [t.at.at_s - (t.ran_ms or t.timeout_ms) / 1000 for t in view.timeouts if t.at.at_s is not None]
    if not told:
        given_up = (h for cause in _GAVE_UP for h in view.hits_of(cause) if h.at_s is not None)
        told = [(h.at_s or 0) - (int(h.groups["timeout_ms"]) / 1000 if "timeout_ms" in h.groups else _WAIT_S) for h in given_up]
    return min(told, default=None)


def op_of(stack: Stack) -> str:
    """The collective that a stack is inside of, "" where it is in none."""
    return op_of_stack([f if f.file.startswith(("/", "<")) else replace(f, file=f"/{f.file}") for f in stack.frames])


def stands(stack: Stack) -> Text:
    """ "rank 2 stands at plain.py:10 in load"."""
    frame = _own(stack.frames) or stack.frames[-1]
    who = msg("a process", "collective_waits") if stack.rank is None else ranks((stack.rank,))
    return msg("{who} stands at {at}", who=who, at=place(frame, ""))


def within(found: Scene) -> Text:
    """ "ranks 0 and 1 are in all_reduce (plain.py:14 in main)"; who gave up waiting where no stack shows it; "" without either."""
    told = [
        msg(
            "{who} {are} in {op}",
            who=ranks(s.rank for s in stacks if s.rank is not None),
            are=words.verb([s.rank or 0 for s in stacks], "is", "are"),
            op=op if frame is None else f"{op} ({place(frame, '')})",
        )
        for op, frame, stacks in found.inside
    ]
    if not told and found.waited:
        told = [msg("{who} gave up waiting", who=ranks(found.waited))]
    return joined(told, msg(", ", "collective_waits"))


def evidence(stacks: Sequence[Stack]) -> tuple[Evidence, ...]:
    """The innermost lines that tell where each stack stands."""
    found = []
    for stack in stacks:
        who = msg("a process") if stack.rank is None else ranks((stack.rank,))
        frames = [_own(stack.frames) or stack.frames[-1]]
        if op := op_of(stack):
            frames.insert(0, next(f for f in reversed(stack.frames) if f.name == op))
        says = msg("{who}: {places}", who=who, places=", ".join(place(f, "") for f in frames))
        found.append(words.stated(stack.source, says, stack.line))
    return tuple(found)


def held(view: LogView, cause: Cause, kind: Kind, remedies: tuple[str, ...]) -> Finding | None:
    """A finding of `cause` on the ranks that keep others waiting, where their stacks are of `kind`; None where nobody is seen to wait."""
    if not view.stacks:
        return None
    found = scene(view)
    waiting = within(found)
    chosen = tuple(a for a in found.apart if a.kind == kind)
    if not chosen or not waiting:
        return None
    besides = msg(" while {waiting}", waiting=waiting)
    others = evidence([s for _, _, stacks in found.inside for s in stacks[:1]][:2])
    waited = bool(found.waited) and of_the_wait([a.stack for a in chosen], view)
    return told(cause, chosen, besides, remedies, waited=waited, others=others)


def told(
    cause: Cause, chosen: Sequence[Apart], besides: Text, remedies: tuple[str, ...], *, waited: bool, others: Sequence[Evidence] = ()
) -> Finding:
    """The finding on ranks that stand apart: likely where others are known to have `waited`, and where there are stacks alone, possible."""
    idle = chosen[0].kind == "stands" and all(a.stack.executes is False for a in chosen)
    says = joined((stands(a.stack) for a in chosen[:_SHOWN]), msg(", ", "collective_waits")) + (_IDLE if idle else _LOOKS[chosen[0].kind]) + besides
    if not waited:
        says += _ONE_LOOK
    return cause.finding(
        standing="likely" if waited else "possible",
        says=says,
        ranks=tuple(a.stack.rank for a in chosen if a.stack.rank is not None),
        where=place(chosen[0].frame, ""),
        evidence=(*evidence([a.stack for a in chosen[:3]]), *others),
        remedies=remedies,
    )


_LOOKS: dict[Kind, Text] = {
    "stands": msg(", outside any collective (whether it executes is not known)"),
    "loader": msg(", in its data loader"),
    "executes": msg(", outside any collective, and executes"),
}
_IDLE = msg(", outside any collective, and does not execute")
_ONE_LOOK = msg("; that is one look at each, and whether it stays there is not in evidence")


def apart_of(stack: Stack) -> Apart:
    """What a rank outside any collective is seen to do, and where."""
    return Apart(stack=stack, frame=_own(stack.frames) or stack.frames[-1], kind=_kind(stack))


def _kind(stack: Stack) -> Kind:
    if any(inside(f if f.file.startswith("/") else replace(f, file=f"/{f.file}"), _LOADER) for f in stack.frames):
        return "loader"
    return "executes" if stack.executes else "stands"


def _own(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the user's code."""
    return next((f for f in reversed(frames) if _is_users(f.file)), None)


def _is_users(file: str) -> bool:
    if file.startswith(("/", "<")) or not file:
        return is_user_file(file)
    top = file.replace("\\", "/").partition("/")[0].removesuffix(".py")
    return top not in _LIBRARIES and top not in sys.stdlib_module_names
