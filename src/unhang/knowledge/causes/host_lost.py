"""host-lost: a host of a training over several no longer answers."""

from __future__ import annotations

from unhang.i18n import msg
from unhang.knowledge import words
from unhang.knowledge.judge import Answer, Found, RunView

_CLOSED = msg("{host} closed the connection itself: unhang was killed there, or the host was shut down")


def in_run(picture: RunView) -> Answer:
    lost = picture.incident.lost
    if not lost:
        return None
    numbers = sorted(rank for ranks in lost.values() for rank in ranks)
    harmed = [r for r in picture.ranks if r.number in picture.waits or r.raised_symptom]
    hosts = sorted(lost)
    return Found(
        "silent",
        # Whoever gets on without it has lost nothing, and where the others wait for a rank that answers, that one may be why. A host that closes
        # a connection lives, or goes down in order.
        standing="established" if harmed and not picture.missing and not picture.incident.closed else "likely",
        ranks=numbers,
        hosts=hosts,
        evidence=(
            *(words.stated(picture.incident_source, _CLOSED.fill(host=host)) for host in picture.incident.closed),
            *words.waiting_evidence(picture),
        ),
        picture=picture,
        others="others" if picture.waits else "",
        waiting=words.waiting(picture),
    )
