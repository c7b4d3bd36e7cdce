"""Which lines of the kernel are of a rank's process."""

from __future__ import annotations

from dataclasses import replace

from tests.tables import for_each

from unhang.knowledge import catalogue
from unhang.knowledge.cause import LogView
from unhang.knowledge.kernel_pids import is_of_a_rank
from unhang.logs import Hit, match
from unhang.logs.log_facts import At, Exit, Init, NcclSaid

OOM = "Out of memory: Killed process 312 (python3) total-vm:512000kB, anon-rss:500000kB"
XID = "NVRM: Xid (PCI:0000:47:00): 79, pid=312, name=python3, GPU has fallen off the bus."


def hit(text: str = OOM, host: str | None = None) -> Hit:
    (found,) = (h for h in match(text, catalogue.signatures(), source="dmesg") if {"pid", "process"} & h.groups.keys())
    return replace(found, host=host)


def view(*ended: tuple[int, str | None], begun: tuple[str | None, ...] = (), pid: int = 312) -> LogView:
    def at(host: str | None) -> At:
        return At(source="a.log", line=1, text="", host=host, pid=pid)

    inits = tuple(Init(at=at(host), comm="0x1", rank=n, nranks=8, completed=True) for n, host in enumerate(begun))
    return LogView(exits=tuple(Exit(at=at(host), code=code) for code, host in ended), nccl=NcclSaid(inits=inits))


@for_each(
    ("host", "known", "is_so"),
    [
        (None, view((-9, None)), True),
        ("node7", view((137, None)), True),
        ("node7", view((-9, "node7.cluster")), True),
        ("node7", view((-9, "10.0.0.7")), True),
        ("node7", view((-9, "node1")), False),
        ("node7", view((-9, None), begun=("node1",)), False),
        ("node7", view((-9, None), begun=("node1", "node7")), True),
        ("10.0.0.7", view((-9, "10.0.0.8")), False),
        ("node7", view(begun=("node7",)), True),
        ("node7", view((1, "node1"), begun=("node1", "node7")), True),
        (None, view((1, None)), False),
        (None, view((-15, None), begun=("node7",)), False),
        (None, view((1, "node1"), (-9, "node2")), True),
        ("node1", view((1, "node1"), (-9, "node2")), False),
        (None, view((-9, None), pid=313), False),
        (None, view(), False),
    ],
)
def test_an_oom_kill(host, known, is_so):
    assert is_of_a_rank(hit(host=host), known) is is_so


def test_the_drivers_line_goes_with_any_end():
    assert is_of_a_rank(hit(XID), view((1, None))) and not is_of_a_rank(hit(XID, "node7"), view((1, "node1")))
