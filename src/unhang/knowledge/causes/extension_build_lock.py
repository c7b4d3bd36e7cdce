"""extension-build-lock: ranks wait for the lock file of a torch extension's build, and nobody builds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.frames import inside
from unhang.knowledge import text, words
from unhang.knowledge.blocked_threads import polls_a_lock, standstill
from unhang.knowledge.cause import cause
from unhang.knowledge.text import Text
from unhang.model import Finding

if TYPE_CHECKING:
    from unhang.records.incident_view import IncidentView

_BUILD = "torch/utils/cpp_extension"


def _in_run(picture: IncidentView) -> Finding | None:
    if not standstill(picture):
        return None
    waiting = [r for r in picture.ranks if polls_a_lock(r)]
    # Who builds has torch's build below it, and not its wait: the others wait for that one rightly.
    if not waiting or any(inside(f, _BUILD) for r in picture.ranks if r not in waiting for f in r.frames):
        return None
    first, numbers = waiting[0], [r.number for r in waiting]
    some = len(waiting) < len(picture.ranks)
    rest = (
        Text("no rank builds it", "没有 rank 在编译") if some else Text("all of them wait, and none builds it", "全部 rank 都在等待，没有一个在编译")
    )
    return CAUSE.finding(
        standing="likely",
        says=Text(
            "{who} {wait} for the lock file of a torch extension's build{at}, and {rest}: the file was left by a process that has ended, or another "
            "job builds at this moment",
            "{who} 在等待 torch 扩展编译的锁文件{at}，而{rest}：锁文件是已经结束的进程留下的，或者此刻有别的任务在编译",
        ).fill(who=text.ranks(numbers), wait=words.verb(numbers, "waits", "wait"), at=text.at(picture, first), rest=rest),
        ranks=tuple(numbers),
        hosts=words.hosts(picture, numbers),
        where=picture.where(first),
        evidence=(*words.stack_evidence(picture, first), *words.activity_evidence(picture, first)),
    )


CAUSE = cause("extension-build-lock", in_run=_in_run)
