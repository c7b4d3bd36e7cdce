"""host-lost: a host of a training over several no longer answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.knowledge import text, words
from unhang.knowledge.cause import cause, command
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Finding

if TYPE_CHECKING:
    from unhang.records.incident_view import IncidentView


_CLOSED = Text(
    "{host} closed the connection itself: unhang was killed there, or the host was shut down",
    "{host} 自己关闭了连接：那里的 unhang 被杀，或主机被关机",
)


def _in_run(picture: IncidentView) -> Finding | None:
    lost = picture.incident.lost
    if not lost:
        return None
    numbers = tuple(sorted(rank for ranks in lost.values() for rank in ranks))
    harmed = [r for r in picture.ranks if r.number in picture.waits or r.raised_symptom]
    hosts = tuple(sorted(lost))
    says = Text("{hosts} no longer answers, with {who} on it", "{hosts} 不再应答，其上有 {who}")
    if len(hosts) > 1:
        says = Text("{hosts} no longer answer, with {who} on them", "{hosts} 不再应答，其上有 {who}")
    waiting = Text("; {others}", "；{others}").fill(others=text.waiting(picture)) if picture.waits else NOTHING
    return CAUSE.finding(
        # Whoever gets on without it has lost nothing, and where the others wait for a rank that answers, that one may be why. A host that closes
        # a connection lives, or goes down in order.
        standing="established" if harmed and not picture.missing and not picture.incident.closed else "likely",
        says=says.fill(hosts=", ".join(hosts), who=text.ranks(numbers)) + waiting,
        ranks=numbers,
        hosts=hosts,
        evidence=(
            words.stated(picture.incident_source, Text("{hosts}: silent", "{hosts}：无应答").fill(hosts=", ".join(hosts))),
            *(words.stated(picture.incident_source, _CLOSED.fill(host=host)) for host in picture.incident.closed),
            *words.waiting_evidence(picture),
        ),
        commands={"look-at-the-host": command("ssh -o BatchMode=yes {host:host} uptime", host=hosts[0])},
    )


CAUSE = cause("host-lost", in_run=_in_run)
