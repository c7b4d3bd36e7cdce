"""What the trials of `unhang run --fallback` found, as the first remedy of a verdict: here from a few lines in the log of a terminal.

A run directory has more of it, see `solved`, which needs what nobody loads for a log.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace

from unhang.knowledge.text import Text
from unhang.model import Remedy, Verdict
from unhang.records.logs import Hit, Signature

CLIMBING = Signature(
    needle=": settings may answer it; trying ", pattern=r"(?P<cause>[\w-]{1,60}): settings may answer it; trying them on this machine", role="context"
)
FELL_BACK = Signature(
    needle=": from here on ",
    pattern=(
        r"^(?:unhang: )?(?P<what>[a-z-]+=\S.{0,300}?) (?:is the smallest change that works here|works here, and passed twice|was chosen)"
        r"[;,:].{0,200}?: from here on (?P<set>.{1,600})$"
    ),
    role="context",
)
TAKEN_BACK = Signature(
    needle=" it failed ",
    pattern=r"^(?:unhang: )?with [a-z-]+=\S.{0,300}? it failed (?:before its first step: taken back|all the same: that is (?:forgotten|taken back))",
    role="context",
)
FINISHED = Signature(needle="unhang: training finished after ", role="context")
SIGNATURES = (CLIMBING, FELL_BACK, TAKEN_BACK, FINISHED)


def told_by_logs(found: Verdict, hits: Iterable[Hit]) -> Verdict:
    """The verdict on logs that hold what unhang wrote to the terminal; of what was found for another cause nothing is told."""
    change = taken(hits)
    if change is None or found.primary is None or found.primary.cause != change.cause:
        return found
    says = Text(
        "Proven on the machine of this log by unhang run: {what} ({set}); it passed twice in trials, and {then} ({source}).",
        "unhang run 已在该日志所属的机器上证明：{what}（{set}）；测试中通过两次，{then}（{source}）。",
    ).fill(
        what=change.what,
        set=change.sets,
        then=Text("the training then ended well with it", "此后训练以此正常结束")
        if change.ended_well
        else Text("the next attempt ran with it", "下一次尝试即以此运行"),
        source=change.place,
    )
    return first(found, remedy(says, change.what.split(", "), ()))


@dataclass(frozen=True, kw_only=True)
class Change:
    """`what` as `--set` takes it, `sets` what came of it, `cause` what it answers; `place` is the line that tells it."""

    cause: str
    what: str
    sets: str
    place: str
    ended_well: bool

    @property
    def course(self) -> Text:
        """How the training went on behind the failure."""
        if self.ended_well:
            return Text("; with {what} the training then finished", "；此后以 {what} 训练正常结束").fill(what=self.what)
        return Text("; it then went on with {what}", "；此后以 {what} 继续").fill(what=self.what)


def taken(hits: Iterable[Hit]) -> Change | None:
    """The change that was taken last, and not taken back."""
    told = [h for h in hits if h.signature in SIGNATURES]
    last = next((n for n in reversed(range(len(told))) if told[n].signature in (FELL_BACK, TAKEN_BACK)), None)
    climb = next((h for h in reversed(told[:last]) if h.signature == CLIMBING), None)
    if last is None or climb is None or told[last].signature == TAKEN_BACK:
        return None
    at = told[last]
    ended_well = any(h.signature == FINISHED and h.source == at.source for h in told[last + 1 :])
    return Change(cause=climb.groups["cause"], what=at.groups["what"], sets=at.groups["set"], place=f"{at.source}:{at.line}", ended_well=ended_well)


def remedy(says: Text, sets: Iterable[str], command: Iterable[str]) -> Remedy:
    """`sets` as `--set` takes them; `command` is what is run."""
    options = " ".join(f"--set {shlex.quote(one)}" for one in sets)
    return Remedy(id="proven-here", says=says.en, says_zh=says.zh, command=f"unhang run {options} {shlex.join(command) or 'COMMAND'}", trial="passed")


def first(found: Verdict, remedy: Remedy) -> Verdict:
    assert found.primary is not None
    return replace(found, primary=replace(found.primary, remedies=(remedy, *found.primary.remedies)))
