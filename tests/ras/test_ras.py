"""NCCL's RAS: asked over real sockets, from servers that speak as each version of NCCL does, and from servers that do not."""

from __future__ import annotations

import json
import socket
import time
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ras.nccl_ras import (
    TEXT_ONLY,
    V24,
    V26,
    V29,
    V32,
    WITH_JSON,
    Comm,
    Job,
    answer_of,
    in_json,
    in_text,
    job,
    listening,
    nccl,
    ranks_of,
    troubled,
)
from tests.tables import for_each

from unhang import ras
from unhang.errors import RecordError
from unhang.ras import Address, Launched, address, fetch, parse

every_version = pytest.mark.parametrize("version", [*TEXT_ONLY, *WITH_JSON], ids=lambda v: ".".join(map(str, v)))
both = pytest.mark.parametrize(("version", "form"), [*((v, "text") for v in (*TEXT_ONLY, *WITH_JSON)), *((v, "json") for v in WITH_JSON)], ids=str)


# What a job looks like -----------------------------------------------------------------------------------------------------------------------------


@every_version
def test_the_newest_format_that_the_server_has_is_taken(version):
    with listening(nccl(version, job())) as server:
        report = server.ask(peers_timeout_s=2.5)
    assert report.format == ("json" if version in WITH_JSON else "text")
    assert server.commands == ["CLIENT PROTOCOL 2", "TIMEOUT 3", "SET FORMAT json", "VERBOSE STATUS"]


@both
def test_a_healthy_job_of_two_hosts_with_eight_gpus_each(version, form):
    report = answer_of(version, job(), format=form)
    assert (report.format, report.cut, report.nccl_version) == (form, None, ".".join(map(str, version)))
    assert report.gpus == 16
    assert [(c.size, c.state, c.incomplete, c.behind, c.missing_count) for c in report.communicators] == [
        (16, "RUNNING", False, (), 0),
        (2, "RUNNING", False, (), 0),
        (2, "RUNNING", False, (), 0),
    ]
    assert not troubled(report) and not report.silent_count and not report.dead_count and not report.timeouts
    if form == "json":
        first = report.communicators[0]
        member = first.member(9)
        assert first.hash == "0a1b2c3d4e5f6071" and report.communicators[1].hash == "0000000000000051"
        assert (member.host, member.pid, member.counts["AllReduce"], member.state) == ("10.0.0.2", 2001, 64, "RUNNING")
        assert Launched(op="AllReduce", count=64, ranks_count=16, ranks=tuple(range(16))) in first.launched
        assert "Reduce" not in {g.op for g in first.launched}
        assert report.timestamp == "2026-11-22 03:40:00"
    else:
        assert [c.label for c in report.communicators] == ["#0-0", "#1-0", "#1-1"]


@both
def test_the_rank_that_is_behind_is_named_with_its_communicator(version, form):
    late = job().changed(11, counts=(1, 0, 20, 20, 60), nvml=5)
    report = answer_of(version, late, format=form)
    (communicator,) = troubled(report)
    assert communicator.hash == "0a1b2c3d4e5f6071" and not communicator.incomplete
    (behind,) = communicator.behind
    op, low, high = ("collective", 101, 105) if version == V24 else ("AllReduce", 60, 64)
    assert (behind.op, behind.count, communicator.most(op).count, behind.ranks, behind.ranks_count) == (op, low, high, (11,), 1)
    member = communicator.member(11)
    assert (member.host, member.pid, member.nvml_dev, member.counts[op]) == ("10.0.0.2", 2003, 5, low)
    # Those that are ahead follow from who is not, even where the answer only counts them.
    ahead = next(g for g in communicator.launched if g.op == op and g.count == high)
    assert ahead.ranks == tuple(r for r in range(16) if r != 11)


@pytest.mark.parametrize("verbose", [True, False])
def test_several_ranks_behind_in_several_kinds(verbose):
    late = job()
    for rank in (3, 4, 5):
        late = late.changed(rank, counts=(0, 0, 20, 20, 60))
    late = late.changed(7, counts=(1, 0, 19, 20, 64))
    for report in (answer_of(V26, late, verbose=verbose), answer_of(V32, late)):
        communicator = troubled(report)[0]
        found = [(b.op, b.count, communicator.most(b.op).count, b.ranks) for b in communicator.behind]
        assert found == [("AllGather", 19, 20, (7,)), ("AllReduce", 60, 64, (3, 4, 5)), ("Broadcast", 0, 1, (3, 4, 5))]


def test_groups_of_which_no_rank_is_named_are_counted_and_nobody_is_made_up():
    late = job()
    for rank in range(8):
        late = late.changed(rank, counts=(1, 0, 20, 20, 60))
    (behind,) = troubled(answer_of(V26, late))[0].behind
    assert (behind.ranks_count, behind.ranks) == (8, ())


@both
@pytest.mark.parametrize("how", ["silent", "dead"])
def test_a_rank_whose_process_does_not_answer(version, form, how):
    report = answer_of(version, replace(job().changed(13, missing=how), timeouts=2), format=form)
    communicator = troubled(report)[0]
    assert communicator.incomplete and communicator.missing_count == 1
    (missing,) = communicator.missing
    assert (missing.rank, missing.unresponsive) == (13, True)
    if version != V24:
        assert (missing.host, missing.pid, missing.nvml_dev, missing.dead) == ("10.0.0.2", 2005, 5, how == "dead")
    (process,) = report.dead if how == "dead" else report.silent
    assert (process.host, process.pid, process.nvml_devs) == ("10.0.0.2", 2005, (5,))
    assert (report.silent_count, report.dead_count) == ((0, 1) if how == "dead" else (1, 0))
    assert report.timeouts == 2


@both
def test_ranks_that_have_left_are_no_silent_processes(version, form):
    left = job().changed(3, missing="left").changed(4, missing="left").changed(6, finalize=True)
    report = answer_of(version, left, format=form)
    communicator = troubled(report)[0]
    assert (communicator.incomplete, communicator.state) == (False, "FINALIZE")
    assert [(m.rank, m.unresponsive) for m in communicator.missing] == [(3, False), (4, False)] and communicator.missing_count == 2
    assert communicator.member(6).state == "FINALIZE" and communicator.member(0).state == "RUNNING"
    assert not report.silent_count and not report.dead_count


@both
def test_errors_that_nccl_reports(version, form):
    broken = job().changed(2, error=6).changed(3, error=6).changed(5, init=2)
    communicator = troubled(answer_of(version, broken, format=form))[0]
    assert sorted((f.phase, f.says, f.ranks_count, f.ranks) for f in communicator.failures) == [
        ("asynchronous", "Remote process error", 2, (2, 3)),
        ("initialization", "System error", 1, (5,)),
    ]
    assert communicator.member(5).state == "INIT"


def test_initialization_that_goes_on_is_no_error():
    starting = Job(comms=(Comm(7, ranks_of(1, 4, init=7)),))
    for version in (V24, V29):
        (communicator,) = answer_of(version, starting).communicators
        assert (communicator.state, communicator.incomplete, communicator.failures) == ("INIT", False, ())


def test_everything_at_once_says_the_same_in_text_and_json():
    bad = (
        job().changed(1, missing="silent").changed(2, missing="left").changed(3, error=1).changed(9, counts=(1, 0, 20, 20, 3)).changed(10, abort=True)
    )
    text, document = (troubled(answer_of(V32, bad, format=form))[0] for form in ("text", "json"))
    assert text.incomplete and document.incomplete
    assert (text.hash, text.state, text.missing_count) == (document.hash, document.state, document.missing_count)
    assert text.behind == document.behind and text.failures == document.failures
    assert text.missing == document.missing
    assert text.launched and all(group in document.launched for group in text.launched)
    assert {m.rank: m.state for m in text.members} == {m.rank: m.state for m in document.members}


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_communicators_is_no_error(form):
    report = answer_of(V29, Job(comms=()), format=form) if form == "json" else parse("".join(in_text(V29, job(), True)[:2]).encode() + b" (0.1s)\n")
    assert report.communicators == ()


def test_uneven_hosts():
    uneven = Job(comms=(Comm(1, ranks_of(2, 4)[:7]),))
    report = answer_of(V26, uneven)
    assert report.gpus == 7


def paces(first, second):
    return [c.pace for c in ras.compare(first, second)]


def test_counts_that_stand_still_between_two_answers():
    first = answer_of(V29, job().changed(11, counts=(1, 0, 20, 20, 60)))
    assert paces(first, first) == ["still"] * 3
    moved = answer_of(V29, job().changed(11, counts=(1, 0, 20, 20, 61)))
    assert paces(first, moved) == ["mixed", "still", "still"]
    change = ras.compare(first, moved)[0]
    assert change.moved == {11} and change.still == set(range(16)) - {11}
    # Text tells no counts of the healthy, and nothing is concluded from that.
    text = answer_of(V26, job().changed(11, counts=(1, 0, 20, 20, 60)))
    assert paces(text, text) == ["still", "unknown", "unknown"]


def test_many_bare_ranks_are_cut_by_nccl_itself():
    """Until 2.25 the list of missing ranks ends after 1024 bytes, in the middle of a number."""
    numbers = ",".join(str(n) for n in range(100, 400))[:1022]
    assert numbers.endswith(",35")
    table = "Communicators... (1.00s)\n=============\n\n    0         1         4       7-8       512       212   RUNNING  INCOMPLETE\n"
    missing = f"  Missing communicator data from 300 ranks\n  The missing ranks: {numbers}\n"
    body = f"\nErrors\n======\n\n#0-0 (cf264af53edbe986) INCOMPLETE\n{missing}\nWarnings\n"
    (communicator,) = parse((table + body).encode()).communicators
    assert [m.rank for m in communicator.missing] == list(range(100, 355)) and communicator.missing_count == 300


def test_what_newer_versions_add_is_left_out():
    raw = in_json(V32, job())
    raw["diagnostics"] = [{"deep": [1]}]
    raw["communicators"][0]["ranks"][0]["collective_counts"]["AllToAll"] = 4
    raw["communicators"][0]["ranks"][0] |= {"nic": None, "status": {"init_state": 0, "health": "good"}}
    report = parse(json.dumps(raw).encode())
    assert not troubled(report) and report.communicators[0].member(0).counts["AllToAll"] == 4
    text = "".join(in_text(V32, job().changed(3, counts=(0,) * 5), True)).replace(
        "Warnings\n", "Hints\n=====\n\nnew\n  Rank 99 is tired\n\nWarnings\n"
    )
    text = text.replace("has not launched any operations", "sleeps since 4 s", 1)
    assert troubled(parse(text.encode()))


def test_unknown_hosts_are_unknown():
    raw = in_json(V29, job())
    raw["communicators"][0]["ranks"][0] |= {"host": "unknown", "pid": -1, "nvml_dev": -1}
    member = parse(json.dumps(raw).encode()).communicators[0].member(0)
    assert (member.host, member.pid, member.nvml_dev) == (None, None, None)


# Servers that are in trouble, and those that are something else ------------------------------------------------------------------------------------


def test_a_server_that_closes_in_the_middle():
    def half(connection, server, piece):
        connection.sendall(piece[: len(piece) // 3])

    with listening(nccl(V26, job(), middle=half)) as server:
        report = server.ask()
    assert report.cut == "it ends in its part Communicators" and report.gpus == 16
    with listening(nccl(V29, job(), middle=half)) as server, pytest.raises(RecordError, match="cannot be understood"):
        server.ask()


def test_a_server_that_gathers_for_ever():
    """The summary comes, the communicators do not: what there is, is told, and that it is not all."""
    with listening(nccl(V26, job(), middle=lambda c, s, p: s.over.wait(60))) as server:
        started = time.monotonic()
        report = server.ask(total_timeout_s=1.5)
        assert time.monotonic() - started < 8
    assert "did not end within" in report.cut and report.gpus == 16 and report.communicators == ()
    with listening(nccl(V29, job(), middle=lambda c, s, p: s.over.wait(60))) as server, pytest.raises(RecordError, match="did not end within"):
        server.ask(total_timeout_s=1.5)


def test_a_whole_document_from_a_server_that_does_not_close():
    def stay(connection, server, piece):
        connection.sendall(piece)
        server.over.wait(60)

    with listening(nccl(V29, job(), middle=stay)) as server:
        report = server.ask(total_timeout_s=1.5)
    assert len(report.communicators) == 3 and report.cut is None


def test_a_slow_server_is_waited_for():
    def drip(connection, server, piece):
        for i in range(0, len(piece), 4096):
            connection.sendall(piece[i : i + 4096])
            server.over.wait(0.02)

    with listening(nccl(V29, job(), middle=drip)) as server:
        assert len(server.ask().communicators) == 3


def test_an_endless_answer_is_given_up(monkeypatch):
    def flood(connection, server, piece):
        while not server.over.is_set():
            connection.sendall(b"Rank 1 -- nonsense\n" * 4096)

    monkeypatch.setattr("unhang.ras.client.MAX_BYTES", 1 << 20)
    with listening(nccl(V29, job(), middle=flood)) as server, pytest.raises(RecordError, match="without end"):
        server.ask()


def test_a_stopped_process_on_the_same_port_is_passed_over():
    """All processes of a host share the port; the kernel picks one, and may pick a stopped one."""
    with ExitStack() as stack:
        good = stack.enter_context(listening(nccl(V29, job())))
        # Connections to these are accepted by the kernel and answered by nobody.
        for _ in range(3):
            deaf = stack.enter_context(socket.socket())
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            deaf.bind(("127.0.0.1", good.port))
            deaf.listen(64)
        assert len(good.ask(connect_timeout_s=60, total_timeout_s=90).communicators) == 3


def test_a_server_that_says_nothing():
    with listening(lambda connection, server: server.over.wait(60)) as server:
        started = time.monotonic()
        with pytest.raises(RecordError, match="takes connections and does not answer"):
            server.ask(connect_timeout_s=1.2)
        assert time.monotonic() - started < 8


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n<html>",
        b"\x4a\x00\x00\x008.0.36\x00\x1b[31m",
        b"ERROR: Unknown command CLIENT PROTOCOL 2\n",
        b"\x00" * 100_000,
        b"",
    ],
    ids=["ssh", "http", "mysql", "refusal", "zeros", "closes"],
)
def test_a_server_that_is_no_ras_server(said):
    def foreign(connection, server):
        connection.recv(64)
        connection.sendall(said)
        if said.endswith(b"m"):
            # No line, and no end: the client waits for both.
            server.over.wait(60)

    with listening(foreign) as server, pytest.raises(RecordError, match="is no RAS server") as told:
        server.ask()
    assert str(told.value).isprintable()


def test_a_foreign_server_that_never_ends_its_greeting():
    def flood(connection, server):
        while not server.over.is_set():
            connection.sendall(b"x" * 65536)

    with listening(flood) as server, pytest.raises(RecordError, match="is no RAS server"):
        server.ask()


def test_a_greeting_that_is_imitated_and_then_nonsense():
    def liar(connection, server):
        connection.sendall(b"SERVER PROTOCOL banana\nOK\nOK\n" + b"\x00garbage\n" * 10)
        with connection.makefile("rb") as lines:
            assert any(line == b"VERBOSE STATUS\n" for line in lines)

    with listening(liar) as server, pytest.raises(RecordError, match="no answer of NCCL's RAS"):
        server.ask()


def test_nobody_listens():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(RecordError, match="cannot connect to") as told:
            fetch(Address(host="127.0.0.1", port=free.getsockname()[1]))
    assert "NCCL_RAS_ENABLE=0" in told.value.cause
    with pytest.raises(RecordError, match="cannot find the host"):
        fetch(Address(host="nowhere.invalid", port=1), connect_timeout_s=3)


def test_ipv6():
    try:
        with listening(nccl(V29, job()), host="::1") as server:
            answer = fetch(address(f"[::1]:{server.port}"))
    except OSError:
        pytest.skip("this machine has no IPv6")
    assert answer.source == f"[::1]:{server.port}" and answer.format == "json"
    assert len(answer.report().communicators) == 3


def test_where_to_ask(monkeypatch):
    def where(text=None, **environ):
        monkeypatch.delenv("NCCL_RAS_ADDR", raising=False)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        return str(address(text))

    assert where() == "localhost:28028"
    assert where(NCCL_RAS_ADDR="node1:9999") == "node1:9999" and where("other", NCCL_RAS_ADDR="node1:9999") == "other:28028"
    assert where("") == "localhost:28028" and where(":5") == "localhost:5"
    assert where("[fe80::1%eth0]:7") == "[fe80::1%eth0]:7" and where("::1") == "[::1]:28028" and where("[::1]") == "[::1]:28028"
    assert where(NCCL_RAS_ADDR="0.0.0.0:28028") == "127.0.0.1:28028" and where("[::]:9") == "[::1]:9"


@for_each("text", ["a:b", "a:0", "a:65536", "a:", "[::1", "[]:5", "[::1]5", "[::1]:", "http://a:5", "a b", "a:٣", "a:+5"])
def test_no_address(text):
    with pytest.raises(RecordError, match="is no address"):
        address(text)


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_refused(text):
    with suppress(RecordError):
        assert 0 < address(text).port < 65536
