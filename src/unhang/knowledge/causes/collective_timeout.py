"""collective-timeout: a rank waited longer than the timeout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from unhang.knowledge import other_libraries
from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, Found, LogView, RunView
from unhang.knowledge.watchdogs import behind, collective, first_of_each, ranks_of, silent
from unhang.knowledge.words import msg
from unhang.logs import Hit
from unhang.logs.log_facts import Timeout
from unhang.model import Finding
from unhang.patterns import lazily

CAUSE = cause("collective-timeout", signatures=other_libraries.SIGNATURES)
GLOO_TIMEOUT = CAUSE.signature("gloo-timeout")
BARRIER = CAUSE.signature("barrier")
DESYNC = CAUSE.named("desync")
NCCL2 = CAUSE.named("nccl2")


_MISSING = lazily(r"(?m)^(\d{1,9})!?: \[")
_WAITED = msg("{who} waited: ")
_NOT_DONE = msg("a collective of its group was not done")


def blamed(hit: Hit) -> str:
    """The ranks that did not come, as the line names them; "" where it names only who waited. Horovod has a line for each of them."""
    named = hit.groups.get("ranks", "")
    return ", ".join(_MISSING.findall(named)) or named


def _of_hits(hits: Sequence[Hit], view: LogView | None = None) -> Finding | None:
    own, said = other_libraries.gave_up(hits) or (hits, None)
    # Each rank prints several lines of one timeout.
    own = [replace(h, signature=NCCL2[0]) if h.signature in NCCL2 and h.signature.says == NCCL2[0].says else h for h in own]
    own = [replace(h, groups={**h.groups, "ranks": named}) if (named := blamed(h)) else h for h in own]
    if said is None and all(h.rank is not None and not h.signature.says for h in own):
        # The title would be a second sentence behind who waited.
        said = _NOT_DONE
    return CAUSE.of_hits(own, view, says=said, who=_WAITED if said in (None, _NOT_DONE) else msg("{who}: "))


def in_run(picture: RunView) -> Answer:
    return _of_hits(picture.hits_of(CAUSE.id))


def in_logs(view: LogView) -> Answer:
    """Who waited in what, and who is known not to have come: the rank to look at is one that printed nothing."""
    hits = view.hits_of(CAUSE.id)
    waited = first_of_each(view)
    if not waited:
        return _of_hits(hits, view)
    # The collective in which most of the ranks waited.
    found: dict[tuple[str | None, int | None, str], list[Timeout]] = {}
    for t in waited:
        found.setdefault((t.group, t.seq, t.op), []).append(t)
    most = max(found.values(), key=len)
    return Found(
        "waited",
        ranks=ranks_of(most),
        evidence=[t.at for t in most[:2]],
        seconds=most[0].timeout_ms / 1000,
        call=collective(most[0]),
        missing=behind(view)[:4],
        silent=silent(view),
    )
