"""extension-build-lock: ranks wait for the lock file of a torch extension's build, and nobody builds."""

from __future__ import annotations

from unhang.frames import inside
from unhang.knowledge import words
from unhang.knowledge.blocked_threads import polls_a_lock, standstill
from unhang.knowledge.judge import Answer, Found, RunView

_BUILD = "torch/utils/cpp_extension"


def in_run(picture: RunView) -> Answer:
    if not standstill(picture):
        return None
    waiting = [r for r in picture.ranks if polls_a_lock(r)]
    # Who builds has torch's build below it, and not its wait: the others wait for that one rightly.
    if not waiting or any(inside(f, _BUILD) for r in picture.ranks if r not in waiting for f in r.frames):
        return None
    first, numbers = waiting[0], [r.number for r in waiting]
    return Found(
        "locked",
        ranks=numbers,
        evidence=(*words.stack_evidence(picture, first), *words.activity_evidence(picture, first)),
        where=picture.where(first),
        at=words.at(picture, first),
        some=len(waiting) < len(picture.ranks),
        picture=picture,
    )
