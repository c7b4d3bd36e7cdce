"""From findings to one verdict: roots over symptoms, the better established over the guessed, the earlier over the later.

A cause whose check breaks is named under `not_examined`; the others still speak, because this runs inside the supervisor of a live training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from unhang.diagnosis.redact import redact_verdict
from unhang.diagnosis.unknown import unknown_in_run
from unhang.knowledge import catalogue, words
from unhang.knowledge.cause import Cause
from unhang.model import Finding, NotExamined, Standing, Verdict
from unhang.records.logs import Hit
from unhang.records.picture import Picture

ORDER: tuple[Standing, ...] = ("established", "likely", "possible", "not-established")


def of_picture(picture: Picture) -> Verdict:
    """The verdict on one incident."""
    not_examined = list(picture.not_examined)
    roots: list[Finding] = []
    symptoms: list[Finding] = []
    for cause in catalogue.load().values():
        found = ask(cause, lambda c: c.in_run(picture) if c.in_run else of_hits(c, picture.hits_of(c.id)), not_examined)
        if found is not None:
            (roots if cause.role == "root" else symptoms).append(found)
    roots.sort(key=lambda f: (ORDER.index(f.standing), _onset(picture, f)))
    primary = roots[0] if roots else unknown_in_run(picture, symptoms)
    return redact_verdict(
        Verdict(
            primary=primary,
            contributing=tuple(roots[1:]),
            symptoms=tuple(symptoms),
            not_examined=tuple(not_examined),
            inputs=picture.inputs,
        )
    )


def ask(cause: Cause, check: Callable[[Cause], Finding | None], not_examined: list[NotExamined]) -> Finding | None:
    """One cause's answer; a broken check is recorded, never taken for "not found"."""
    try:
        return check(cause)
    except Exception as e:
        not_examined.append(NotExamined(what=f"the cause {cause.id}", why=f"its check is broken: {type(e).__name__}: {e}"))
        return None


def of_hits(cause: Cause, hits: Sequence[Hit]) -> Finding | None:
    """What signatures alone say."""
    if not hits:
        return None
    numbers = tuple(sorted({h.rank for h in hits if h.rank is not None}))
    count = f" ({len(hits)} lines)" if len(hits) > 1 else ""
    return Finding(
        cause=cause.id,
        standing="established",
        says=f"{cause.title}{f': {words.ranks(numbers)}' if numbers else ''}{count}",
        ranks=numbers,
        evidence=words.hit_evidence(_one_per_text(hits)),
        remedies=cause.remedies,
    )


def _one_per_text(hits: Iterable[Hit]) -> list[Hit]:
    """One hit of each signature first, each text once: two ranks that print the same are one line of evidence."""
    texts: dict[str, Hit] = {}
    for h in hits:
        texts.setdefault(h.text, h)
    firsts: dict[object, Hit] = {}
    for h in texts.values():
        firsts.setdefault(h.signature, h)
    return [*firsts.values(), *(h for h in texts.values() if h not in firsts.values())]


def _onset(picture: Picture, finding: Finding) -> float:
    known = {r.number for r in picture.ranks}
    return min((picture.onset(picture.rank(n)) for n in finding.ranks if n in known), default=picture.incident.at_s)
