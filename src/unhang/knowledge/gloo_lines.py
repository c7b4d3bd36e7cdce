"""What Gloo prints when it ends a process for a size that does not fit, and whom a launcher reports as ended. For logs: no recorder is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.knowledge.text import NOTHING, Text, ranks
from unhang.records.logs import Signature

if TYPE_CHECKING:
    from unhang.knowledge.cause import LogView

SIZE_MISMATCH = Signature(
    needle="op.preamble.length <= op.nbytes",
    pattern=r"op\.preamble\.length <= op\.nbytes\. (?P<received>\d+) vs (?P<expected>\d+)",
    says=(
        "ranks brought different sizes into one collective: {received} bytes arrived where {expected} were expected, of one of the pieces in which "
        "Gloo sends a tensor, and Gloo ended this process; which rank strayed it does not tell"
    ),
    says_zh=(
        "各 rank 在同一次集合通信中的大小不同：Gloo 分块发送张量，其中一块收到 {received} 字节，而期望的是 {expected} 字节，"
        "Gloo 因此结束了该进程；哪个 rank 走错了，它没有说明"
    ),
    remedies=("same-size", "check-each-call"),
)
SIGABRT = -6


def ended_of(view: LogView) -> Text:
    """Whom Gloo ended, as the launcher reports it, NOTHING where it reports nothing of the kind: it need not be who strayed."""
    ended = [e for e in view.exits if e.code == SIGABRT]
    numbers = {e.at.rank for e in ended if e.at.rank is not None}
    local = {e.local_rank for e in ended if e.local_rank is not None}
    if not numbers and not local:
        return NOTHING
    return Text(
        "; the launcher reports that {who} ended with SIGABRT, which need not be the one that strayed",
        "；启动器报告{who} 以 SIGABRT 结束，走错的不一定是它",
    ).fill(who=Text("{who}", " {who}").fill(who=ranks(numbers)) if numbers else Text("local {who}", "本地 {who}").fill(who=ranks(local)))
