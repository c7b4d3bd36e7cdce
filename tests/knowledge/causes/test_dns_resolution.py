"""dns-resolution in plain logs: warnings that healthy jobs print as well count only where something failed."""

from __future__ import annotations

import pytest

from unhang.knowledge import catalogue
from unhang.knowledge.cause import LogView
from unhang.logs import Hit, Traceback, match

CAUSE = catalogue.load()["dns-resolution"]

IPV6 = "[W socket.cpp:601] [c10d] The IPv6 network addresses of (node7, 29500) cannot be retrieved (gai error: -2 - Name or service not known)."
REVERSE = "[W1103 18:22:28.4 socket.cpp:200] [c10d] The hostname of the client socket cannot be retrieved. err=-3"
FALLBACK = "Warning: Unable to resolve hostname to a (local) address. Using the loopback address as fallback."
IPV4 = IPV6.replace("IPv6", "IPv4")


def judge(*texts: str, failed: bool = False, by: str = "TimeoutError"):
    found: list[Hit] = [h for n, t in enumerate(texts) for h in match(t, CAUSE.signatures, source="a.log", line=n + 1)]
    back = (Traceback(source="a.log", line=90, end=99, type=by, text="", frames=(), rank=None),) if failed else ()
    assert found and CAUSE.in_logs is not None
    return CAUSE.in_logs(LogView(hits={CAUSE.id: tuple(found)}, tracebacks=back))


@pytest.mark.parametrize("text", [IPV6, FALLBACK])
def test_a_warning_alone_is_harmless(text):
    assert judge(text) is None
    assert judge(text, failed=True) is not None
    assert judge(text, failed=True, by="torch.distributed.DistNetworkError") is not None


@pytest.mark.parametrize("text", [IPV6, FALLBACK])
def test_a_rank_that_failed_by_itself_had_met_the_others(text):
    assert judge(text, failed=True, by="KeyError") is None


def test_no_address_at_all_is_established_and_the_name_is_asked_for():
    found = judge(IPV6, IPV4)
    assert found.standing == "established" and "node7" in found.says
    assert any(r.command and "getent ahosts node7" in r.command for r in found.remedies)


def test_a_warning_counts_where_that_name_was_not_reached():
    known = catalogue.signatures()

    def standing(name: str) -> str:
        line = f"[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to connect to ({name}, 29500)."
        hits: dict[str, tuple[Hit, ...]] = {}
        for n, text in enumerate((IPV6, line)):
            for h in match(text, known, source="a.log", line=n + 1):
                hits[known[h.signature]] = (*hits.get(known[h.signature], ()), h)
        assert CAUSE.in_logs is not None
        found = CAUSE.in_logs(LogView(hits=hits))
        assert found is not None
        return found.standing

    assert standing("node7") == "likely" and standing("10.0.0.9") == "possible"


def test_the_warning_of_nearly_every_log_is_no_finding():
    assert not match(REVERSE, CAUSE.signatures, source="a.log", line=1)
