"""host-lost: a host of a training over several no longer answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.knowledge import text, words
from unhang.knowledge.cause import Cause, command
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Finding, Remedy

if TYPE_CHECKING:
    from unhang.records.incident_view import IncidentView


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
        # Whoever gets on without it has lost nothing, and where the others wait for a rank that answers, that one may be why.
        standing="established" if harmed and not picture.missing else "likely",
        says=says.fill(hosts=", ".join(hosts), who=text.ranks(numbers)) + waiting,
        ranks=numbers,
        hosts=hosts,
        evidence=(
            words.stated(picture.incident_source, Text("{hosts}: silent", "{hosts}：无应答").fill(hosts=", ".join(hosts))),
            *words.waiting_evidence(picture),
        ),
        commands={"look-at-the-host": command("ssh -o BatchMode=yes {host:host} uptime", host=hosts[0])},
    )


CAUSE = Cause(
    id="host-lost",
    role="root",
    title="A host no longer answers",
    title_zh="某台主机不再应答",
    what="A host of a training that `unhang run --hosts` started on several stopped answering, and the ranks on the others wait for those on it.",
    why="It has crashed, was rebooted or powered off, its link is down, or its kernel hangs (a driver, a file server, no memory left).",
    in_run=_in_run,
    remedies=(
        Remedy(
            id="look-at-the-host",
            says="See what became of the host: its console, `uptime`, the end of `journalctl -k -b -1`",
            says_zh="查看该主机的情况：控制台、`uptime`、`journalctl -k -b -1` 的末尾",
            verify="ssh -o BatchMode=yes HOST uptime",
        ),
        Remedy(
            id="a-spare-host",
            says="Give the training a host more than it needs (--spares 1): the next attempt goes on without the lost one",
            says_zh="为训练多准备一台主机（--spares 1）：下一次尝试将不再使用失联的主机",
        ),
    ),
    mistaken_for={"network-blocked": "there both hosts answer the one who looks, and only not each other"},
    sources=("https://docs.pytorch.org/docs/stable/elastic/run.html",),
    explain={
        "en": (
            "Once a host is silent, the ranks on it may still live, and may still write: a next attempt waits until their lease has run out "
            "(unhang's agent ends ranks that stand still after 30 s without orders). What the host did last stands in its own kernel log."
        ),
        "zh": (
            "主机失联后，其上的 rank 可能仍在运行并写入文件：下一次尝试会等到它们的租约到期（没有指令时，unhang 的代理会在 30 秒后结束停滞的 rank）。"
            "主机最后发生的事记录在它自己的内核日志中。"
        ),
    },
)
