"""What the trials of `unhang run --fallback` found, as the first remedy of a verdict: here from two lines in the log of a terminal.

A run directory has more of it, see `solved`, which needs what nobody loads for a log.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace

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
    pattern=r"^(?:unhang: )?with [a-z-]+=\S.{0,300}? it failed (?:before its first step: taken back|all the same: that is forgotten)",
    role="context",
)
SIGNATURES = (CLIMBING, FELL_BACK, TAKEN_BACK)


def told_by_logs(found: Verdict, hits: Iterable[Hit]) -> Verdict:
    """The verdict on logs that hold what unhang wrote to the terminal; of what was found for another cause nothing is told."""
    seen = tuple(hits)
    last = _last(seen)
    causes = {h.groups["cause"] for h in seen if h.signature == CLIMBING}
    if last is None or found.primary is None or found.primary.cause not in causes:
        return found
    what = last.groups["what"]
    says = Text(
        "Proven on the machine of this log by unhang run: {what} ({set}); it passed twice in trials, and the next attempt ran with it ({source}).",
        "unhang run 已在该日志所属的机器上证明：{what}（{set}）；测试中通过两次，下一次尝试即以此运行（{source}）。",
    ).fill(what=what, set=last.groups["set"], source=f"{last.source}:{last.line}")
    return first(found, remedy(says, what.split(", "), ()))


def repaired(hits: Iterable[Hit]) -> str:
    """ "interface=auto", the last change that was taken, in logs of several attempts; "" where there is none."""
    last = _last(tuple(hits))
    return "" if last is None else last.groups["what"]


def _last(hits: Sequence[Hit]) -> Hit | None:
    """The change that was taken last, and not taken back."""
    last = next((h for h in reversed(hits) if h.signature in (FELL_BACK, TAKEN_BACK)), None)
    return last if last is not None and last.signature == FELL_BACK else None


def remedy(says: Text, sets: Iterable[str], command: Iterable[str]) -> Remedy:
    """`sets` as `--set` takes them; `command` is what is run."""
    options = " ".join(f"--set {shlex.quote(one)}" for one in sets)
    return Remedy(id="proven-here", says=says.en, says_zh=says.zh, command=f"unhang run {options} {shlex.join(command) or 'COMMAND'}", trial="passed")


def first(found: Verdict, remedy: Remedy) -> Verdict:
    assert found.primary is not None
    return replace(found, primary=replace(found.primary, remedies=(remedy, *found.primary.remedies)))
