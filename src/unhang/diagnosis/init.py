"""Communicators that were begun and never completed: which ranks began, and which never did."""

from __future__ import annotations

from dataclasses import dataclass

from unhang.knowledge.cause import LogView
from unhang.knowledge.text import Text, ranks
from unhang.model import Evidence


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """One communicator. `begun` are the ranks (of the communicator) that printed "Init START", `missing` those that did not."""

    nranks: int
    begun: tuple[int, ...]
    missing: tuple[int, ...]
    evidence: tuple[Evidence, ...]

    @property
    def absent(self) -> tuple[int, ...]:
        """Those to look at: where most are missing, it is their logs that are not here."""
        return self.missing if 2 * len(self.missing) < self.nranks else ()

    @property
    def says(self) -> Text:
        began = Text("{who} began a communicator of {n} and none completed it", "{who} 开始建立 {n} 个 rank 的通信器，没有一个完成")
        began = began.fill(who=ranks(self.begun), n=self.nranks)
        if not self.missing:
            return began + Text(": all of them came, the connection between them did not", "：全部都来了，彼此之间的连接没有建立")
        if not self.absent:
            return began + Text("; of the others nothing is in the logs", "；其他 rank 在日志里没有任何内容")
        return began + Text("; {who} never began", "；{who} 从未开始").fill(who=ranks(self.missing))


def unfinished(view: LogView) -> Unfinished | None:
    """The first communicator that nobody completed; None where every one was completed by somebody, or none was begun."""
    ids: dict[object, list[tuple[int, int, Evidence, bool]]] = {}
    for i in view.nccl.inits:
        evidence = Evidence(source=i.at.source, line=i.at.line, text=i.at.text)
        ids.setdefault((i.comm_id, i.nranks), []).append((i.rank, i.nranks, evidence, i.completed))
    for members in ids.values():
        if any(completed for *_, completed in members):
            continue
        begun = tuple(sorted({rank for rank, *_ in members}))
        nranks = members[0][1]
        missing = tuple(sorted(set(range(nranks)) - set(begun)))
        return Unfinished(nranks=nranks, begun=begun, missing=missing, evidence=tuple(e for _, _, e, _ in members[:3]))
    return None
