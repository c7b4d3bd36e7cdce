"""guarded-call-timeout: a call of unhang's own collectives was given up at its deadline, for all ranks alike."""

from __future__ import annotations

from unhang.knowledge import unhang_errors
from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, Found, LogView, RunView
from unhang.logs import Hit
from unhang.patterns import lazily

CAUSE = cause("guarded-call-timeout")

_NOT_HEARD = lazily(r" ?Not heard from: rank (?P<ranks>.+?)\.(?=$| \d+ of \d+ chunks)")
_ONE = lazily(r"(?P<rank>\d+)(?: \((?:at (?P<at>[^()]{1,400})|(?P<stopped>its process is stopped)[^()]{1,100})\))?(?:, |$)")
# Of a rank's own: what the others were told is "rank 1: KeyError: 'label'".
_OWN = lazily(r"\brank (?P<rank>\d+): \w*(?:Error|Exception|Interrupt|Exit)\b")
_CHUNKS = lazily(r" \d+ of \d+ chunks were complete.*$")


def in_logs(seen: LogView | RunView) -> Answer:
    hits = seen.hits_of(CAUSE.id)
    given_up = [h for h in hits if "says" in h.groups]
    without = [h for h in hits if "missing" in h.groups]
    if given_up:
        return _of_call(given_up, seen)
    if without:
        said = without[0].groups
        return unhang_errors.found("in-vain", without, seen, ranks=unhang_errors.numbers(said["missing"]), said=said)
    if not hits:
        return None
    late = unhang_errors.numbers(" ".join(h.groups["late"] for h in hits))
    return unhang_errors.found("late", hits, seen, ranks=late, said=hits[0].groups)


def _of_call(hits: list[Hit], seen: LogView | RunView) -> Found:
    said = hits[0].groups
    not_heard = _NOT_HEARD.search(said["says"])
    each = list(_ONE.finditer(not_heard["ranks"])) if not_heard is not None else []
    stood = {int(one["rank"]): one["at"] for one in each}
    why = _CHUNKS.sub("", said["says"][: not_heard.start()] if not_heard is not None else said["says"]).rstrip(". ")
    places: list[tuple[str, int | str, str]] = [
        ("stood" if one["at"] else "stopped", one["rank"], one["at"]) for one in [one for one in each if one["at"] or one["stopped"]][:4]
    ]
    own = tuple(sorted({int(one["rank"]) for one in _OWN.finditer(why)}))
    found = unhang_errors.found(
        "given-up",
        hits,
        seen,
        ranks=tuple(stood) or own or unhang_errors.raisers(hits),
        # Who did not come is known; why, only its own log tells.
        standing="likely" if stood or own else "possible",
        said=said,
        why=why,
        stood=stood,
        places=places,
    )
    if stood:
        # Where the others waited is not where the ranks stood that it is about.
        found.where = next((at for at in stood.values() if at), None)
    return found


in_run = in_logs
