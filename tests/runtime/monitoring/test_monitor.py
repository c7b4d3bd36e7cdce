"""Monitors on real ranks: what they count, and that nothing of theirs disturbs a training."""

import json
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import types
import urllib.request
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.runtime.collectives import world
from tests.runtime.collectives.world import world_of

import unhang
from unhang.runtime.collectives import calls
from unhang.runtime.collectives.calls import Observed
from unhang.runtime.monitoring import histogram, monitor
from unhang.runtime.monitoring.counters import Calls, Moment, OfFailures, Silent, Snapshot, Straggler, Tally, busbw_gbps, group_name, summed
from unhang.runtime.monitoring.sink_worker import SinkWorker, named
from unhang.runtime.monitoring.sinks import mlflow, opentelemetry, tensorboard, wandb
from unhang.runtime.monitoring.sinks.jsonl import JSONL
from unhang.runtime.monitoring.sinks.prometheus import Prometheus, text

EMPTY = Snapshot(time_s=0.0, world_size=1, heard_from=1, restarts=0)


def monitored(rank, path):
    # To meet and to connect takes longest for those that come first.
    unhang.barrier()
    unhang.all_reduce(torch.ones(1000))
    with unhang.Monitor([unhang.JSONL(path)], every_s=60):
        for _ in range(4):
            unhang.barrier()
            if rank == 1:
                time.sleep(0.3)
            unhang.all_reduce(torch.ones(1000))
        with pytest.raises(unhang.CollectiveError):
            unhang.all_reduce(torch.ones(10 + rank))
    return len(calls.observers)


def test_what_all_ranks_did_is_told_by_rank_0(tmp_path):
    path = tmp_path / "runs" / "monitor.jsonl"
    with world_of(3, tmp_path / "ranks") as world:
        assert world(monitored, path) == [0, 0, 0]
    (line,) = path.read_text().splitlines()
    told = json.loads(line)
    assert told["heard_from"] == told["world_size"] == 3
    calls = {(one["group"], one["collective"]): one for one in told["calls"]}
    assert calls["world", "all_reduce"]["count"] == calls["world", "barrier"]["count"] == 4
    assert calls["world", "all_reduce"]["busbw_p50_gbps"] > 0 and calls["world", "barrier"]["busbw_p50_gbps"] is None
    assert [(one["collective"], one["cause"], one["count"]) for one in told["failures"]] == [("all_reduce", "mismatch", 1)]
    assert told["stragglers"][0]["rank"] == 1 and told["stragglers"][0]["share"] > 0.6


def raising(rank, path):
    class Raises:
        def write(self, snapshot):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    class Hangs(Raises):
        def write(self, snapshot):
            threading.Event().wait(60)

    with unhang.Monitor([Raises(), Hangs(), unhang.JSONL(path)], every_s=0.02, patience_s=0.1):
        until = time.monotonic() + 10
        while rank == 0 and time.monotonic() < until and not (path.exists() and path.read_bytes().count(b"\n") > 20):
            time.sleep(0.01)
        unhang.barrier()


def test_a_sink_that_raises_or_hangs_is_switched_off_and_the_others_go_on(tmp_path):
    path = tmp_path / "monitor.jsonl"
    with world_of(2, tmp_path / "ranks") as world:
        world(raising, path)
        said = world.stderr_of(0).read_text()
    assert path.read_bytes().count(b"\n") > 20
    assert said.count("switched off") == 2 and "No space left" in said and "has not returned for 0.1 s" in said


def test_a_sink_that_calls_for_the_end_of_the_process_is_switched_off_alone(caplog):
    closed = threading.Event()

    class Exits:
        def write(self, snapshot):
            sys.exit(4)

        def close(self):
            closed.set()
            raise KeyboardInterrupt

    class Good(Exits):
        def write(self, snapshot):
            pass

        def close(self):
            pass

    unhang.Monitor([Exits(), Good()], every_s=60).close()
    assert closed.wait(10)
    assert caplog.messages == ["the monitor's Exits is switched off, the training goes on: SystemExit: 4"]


def test_a_warning_says_which_of_two_sinks_it_is(tmp_path, caplog):
    class Full:
        def write(self, snapshot):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    (tmp_path / "a").touch()
    unhang.Monitor([unhang.JSONL(tmp_path / "a" / "x"), Full(), unhang.JSONL(tmp_path / "b"), Full()], every_s=60).close()
    assert sorted(line.removeprefix("the monitor's ").split(" is switched off")[0] for line in caplog.messages) == [
        "Full, sinks[1],",
        "Full, sinks[3],",
        f"JSONL ({tmp_path / 'a' / 'x'})",
    ]


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (lambda: unhang.JSONL("runs/a.jsonl"), "JSONL (runs/a.jsonl)"),
        (lambda: Prometheus(9465), "Prometheus (127.0.0.1:9465)"),
        (
            lambda: unhang.Alerts("https://hooks.example:8443/T0SECRET?key=hunter2", ["/opt/page", "--token", "hunter2"]),
            "Alerts (webhook, command page)",
        ),
        (lambda: unhang.OpenTelemetry("http://me:hunter2@collector:4318/T0SECRET"), "OpenTelemetry (collector:4318)"),
        (lambda: unhang.TensorBoard("runs"), "TensorBoard (runs/unhang)"),
        (lambda: unhang.WandB(types.SimpleNamespace(id="3xk2")), "WandB (3xk2)"),
        (unhang.WandB, "WandB"),
        (lambda: unhang.MLflow("0af3", tracking_uri="http://me:hunter2@mlflow"), "MLflow (0af3)"),
        (unhang.MLflow, "MLflow"),
        (lambda: types.SimpleNamespace(where=7), "SimpleNamespace"),
    ],
)
def test_a_sink_is_named_with_where_it_goes_and_without_a_secret(monkeypatch, made, name):
    for module in (mlflow, opentelemetry, tensorboard, wandb):
        monkeypatch.setattr(module, "needed", lambda *_: None)
    assert named([made()]) == [name]


def test_of_two_webhooks_the_place_in_the_list_tells_which_and_no_host_does():
    sinks = [unhang.Alerts("https://eo7secret.pipedream.example"), unhang.Alerts("https://eo8secret.ngrok.example:8443/x")]
    assert named(sinks) == ["Alerts (webhook), sinks[0],", "Alerts (webhook), sinks[1],"]


def test_a_sink_that_cannot_say_where_it_goes_is_named_without(caplog):
    closed = threading.Event()

    class Lost:
        @property
        def where(self):
            raise RuntimeError("not connected")

        def write(self, snapshot):
            raise OSError(28, "No space left on device")

        def close(self):
            closed.set()

    unhang.Monitor([Lost()], every_s=60).close()
    # It is closed behind the warning.
    assert closed.wait(10)
    assert caplog.messages == ["the monitor's Lost is switched off, the training goes on: OSError: [Errno 28] No space left on device"]


@pytest.mark.parametrize("how", ["raises", "hangs"])
def test_a_sink_that_is_switched_off_is_closed(how):
    entered, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    class Wrong:
        def write(self, snapshot):
            entered.set()
            assert how == "hangs" and go_on.wait(20)

        def close(self):
            closed.set()

    outlet = SinkWorker(Wrong(), name="Wrong", patience_s=0.01)
    outlet.offer(EMPTY)
    assert entered.wait(10)
    until = time.monotonic() + 10
    while not outlet.off and time.monotonic() < until:
        outlet.offer(EMPTY)
        time.sleep(0.02)
    assert outlet.off
    go_on.set()
    assert closed.wait(10)
    outlet.end()
    outlet.wait(time.monotonic() + 10)


def test_who_hangs_at_the_end_takes_no_time_from_the_others(monkeypatch, caplog):
    go_on, closed = threading.Event(), []

    class Good:
        def write(self, snapshot):
            pass

        def close(self):
            closed.append(self)

    class HangsInClose(Good):
        def close(self):
            go_on.wait(20)

    class HangsInItsLastWrite(HangsInClose):
        def write(self, snapshot):
            go_on.wait(20)

    monkeypatch.setattr(monitor, "_WRITES_WITHIN_S", 1.0)
    began = time.monotonic()
    try:
        unhang.Monitor([HangsInClose(), HangsInItsLastWrite(), Good(), Good()], every_s=60).close()
        assert len(closed) == 2 and time.monotonic() - began < 3
    finally:
        go_on.set()
    assert [line.split(" is switched off")[0].split("monitor's ")[1] for line in caplog.messages] == ["HangsInClose", "HangsInItsLastWrite"]


def test_a_port_is_asked_for_without_the_name_of_this_machine_and_again_while_it_is_taken(monkeypatch, caplog):
    monkeypatch.setattr(socket, "getfqdn", lambda name="": pytest.fail("a name server was asked"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        sink = Prometheus(taken.getsockname()[1])
        sink.write(EMPTY)
        sink.write(EMPTY)
        assert sink.port == 0 and caplog.text.count("cannot listen on 127.0.0.1") == 1
    sink.write(EMPTY)
    try:
        assert sink.port
        # As a worker of a DataLoader is started.
        child = multiprocessing.get_context("fork").Process(target=_ends_where_the_socket_is_open, args=(sink._server.socket,))
        child.start()
        child.join(20)
        assert child.exitcode == 0
        assert b"unhang_step" not in urllib.request.urlopen(f"http://127.0.0.1:{sink.port}/metrics", timeout=10).read()
    finally:
        sink.close()


def _ends_where_the_socket_is_open(its):
    os._exit(0 if its.fileno() == -1 else 1)


def test_what_nobody_takes_is_dropped_and_counted():
    entered, go_on = threading.Event(), threading.Event()

    class Slow:
        def write(self, snapshot):
            entered.set()
            go_on.wait(10)

        def close(self):
            pass

    outlet = SinkWorker(Slow(), name="Slow", patience_s=60)
    outlet.offer(EMPTY)
    assert entered.wait(10)
    for _ in range(6):
        outlet.offer(EMPTY)
    assert outlet.dropped == 2
    go_on.set()
    outlet.end()
    outlet.wait(time.monotonic() + 10)
    assert not outlet.off


def test_prometheus_is_scraped():
    sink = Prometheus(0)
    tally = Tally(rank=0)
    tally.saw(Observed(what="all_reduce", ranks=(0, 1), numel=1000, dtype="torch.float32", seconds=0.5, error=None), 2)
    calls, failures, stragglers, _ = summed([tally])
    # One of torch's, of which nobody knows how long it took.
    calls.append(replace(calls[0], collective="gloo:barrier", latency_p50_s=None, latency_p95_s=None, latency_p99_s=None, busbw_p50_gbps=None))
    found = Snapshot(time_s=0.0, world_size=2, heard_from=2, restarts=3, calls=calls, failures=failures, stragglers=stragglers)
    lately = [Straggler(group="world", rank=1, waited_s=1.5, share=1.0)]
    sink.write(
        replace(
            found, step=7, interval_s=10.0, interval_calls=calls, interval_stragglers=lately, silent=[Silent(rank=1, for_s=30.0)], unread={"world": 5}
        )
    )
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{sink.port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    finally:
        sink.close()
    lines = text.splitlines()
    assert 'unhang_calls_total{group="world",collective="all_reduce"} 1' in lines and "unhang_restarts_total 3" in lines
    assert {"unhang_step 7", 'unhang_ranks{state="silent"} 1', 'unhang_ranks{state="heard"} 2', 'unhang_unread_calls_total{group="world"} 5'} <= {
        *lines
    }
    assert {"unhang_snapshot_timestamp_seconds 0.0", "unhang_store_lost 0"} <= {*lines}
    assert {line.split()[2] for line in lines if line.startswith("# HELP ")} == {line.split()[2] for line in lines if line.startswith("# TYPE ")}
    assert 'unhang_straggler_interval_waited_seconds{group="world",rank="1"} 1.5' in lines
    assert [line.split("}")[0] for line in lines if line.startswith("unhang_call_seconds{")] == [
        f'unhang_call_seconds{{group="world",collective="all_reduce",quantile="{q}"' for q in ("0.5", "0.95", "0.99")
    ]


def test_who_does_not_wait_for_the_answer_leaves_no_traceback_in_the_log(capsys):
    sink = Prometheus(0)
    sink.write(EMPTY)
    try:
        for asked in (b"GET /metrics HTTP/1.0\r\n\r\n", b""):
            theirs, ours = socket.socketpair()
            theirs.sendall(asked)
            theirs.close()
            # As in the thread that answers.
            sink._server.process_request_thread(ours, ("127.0.0.1", 1))
    finally:
        sink.close()
    assert capsys.readouterr().err == ""


def test_labels_of_prometheus_are_escaped():
    failures = [OfFailures(group='a"b', collective="c\\d\ne", cause="error", count=1)]
    lines = text(replace(EMPTY, failures=failures, torch_collectives="not read: why")).splitlines()
    assert r'unhang_failures_total{group="a\"b",collective="c\\d\ne",cause="error"} 1' in lines and "unhang_torch_read 0" in lines


@pytest.mark.parametrize(("what", "factor"), [("all_reduce", 1.5), ("all_gather", 3), ("broadcast", 1), ("barrier", 0)])
def test_bus_bandwidth_is_that_of_nccl_tests(what, factor):
    assert busbw_gbps(what, 4, 1_000_000_000, 1.0) == pytest.approx(factor)


def test_percentiles_of_merged_counts():
    one, other = {}, {}
    for value in range(1, 101):
        histogram.add(one if value % 2 else other, value / 100)
    histogram.merge(one, other)
    assert histogram.percentile(one, 0.5) == pytest.approx(0.5, rel=0.06)
    assert histogram.percentile(one, 0.99) == pytest.approx(0.99, rel=0.06)


def test_lines_go_to_the_run_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("UNHANG_RUN_DIR", str(tmp_path))
    assert JSONL().path == tmp_path / "monitor.jsonl"
    monkeypatch.delenv("UNHANG_RUN_DIR")
    assert str(JSONL().path) == "unhang-monitor/rank0.jsonl"


def evaluates_twice(rank, paths):
    """The second monitor begins anew; a group without rank 0 evaluates, too."""
    import torch.distributed as dist

    def test(data, batch_size):
        if data == "bad":
            raise KeyError("a label")
        yield {"loss": 1.0}

    last = dist.new_group([1, 2])
    for path, data in zip(paths, ("good", "bad"), strict=True):
        with unhang.Monitor([unhang.JSONL(path)], every_s=60) as monitor:
            unhang.evaluate(test, {"a": data}, batch_size=1, monitor=monitor)
            if rank:
                unhang.evaluate(test, {"a": data}, batch_size=1, monitor=monitor, group=last)
            unhang.barrier()


def test_evaluations_of_all_groups_are_counted_and_a_second_monitor_begins_anew(tmp_path):
    paths = [tmp_path / "first.jsonl", tmp_path / "second.jsonl"]
    with world_of(3, tmp_path / "ranks") as world:
        world(evaluates_twice, paths)
    told = [json.loads(path.read_text().splitlines()[-1]) for path in paths]
    assert [(one["heard_from"], one["evaluations"], one["evaluation_failures"]) for one in told] == [(3, 2, 0), (3, 2, 2)]
    assert all({call["collective"]: call["count"] for call in one["calls"]}["barrier"] == 1 for one in told)


def observed_by_a_fault(rank):
    def raises(call):
        raise ValueError("an observer's own fault")

    calls.add_observer(raises)
    unhang.barrier()
    unhang.barrier()
    return len(calls.observers)


def test_an_observer_that_raises_is_told_nothing_more_and_disturbs_nothing(tmp_path):
    with world_of(2, tmp_path / "ranks") as world:
        assert world(observed_by_a_fault) == [0, 0]
        assert world.stderr_of(0).read_text().count("ValueError: an observer's own fault") == 1


def evaluates_and_goes_on(rank, path):
    def test(data, batch_size):
        raise KeyError(f"label {data}")

    with unhang.Monitor([unhang.JSONL(path)], every_s=60) as monitor:
        for step in (7, 8, None):
            monitor.step = 10
            unhang.evaluate(test, {"a": step}, batch_size=1, step=step, monitor=monitor)
            monitor.step = 11


def test_the_newest_failed_evaluation_is_told_with_its_own_step_and_time(tmp_path, alone):
    path = tmp_path / "monitor.jsonl"
    with world_of(1, tmp_path / "ranks") as world:
        world(evaluates_and_goes_on, path)
    told = json.loads(path.read_text())
    assert (told["evaluation_step"], told["step"]) == (10, 11) and "label None" in told["evaluation_says"]
    assert 0 < told["time_s"] - told["evaluation_time_s"] < 60
    tallies = [
        Tally(rank=rank, evaluation_failures=1, evaluation_said=f"of rank {rank}", evaluation_failed_at=Moment(time_s=at, step=rank))
        for rank, at in enumerate((5.0, 7.0, 6.0))
    ]
    found = alone._snapshot(tallies, last=True)
    assert (found.evaluation_says, found.evaluation_step, found.evaluation_time_s) == ("of rank 1", 1, 7.0)


def test_a_failure_has_the_time_and_the_step_at_which_it_was_seen():
    call = Observed(what="barrier", ranks=(0, 1), numel=0, dtype="", seconds=1.0, error=RuntimeError("first"))
    first, other = Tally(rank=0), Tally(rank=1)
    began = time.time()
    first.saw(call, 2, 3)
    other.saw(call, 2, 3)
    (failure,) = summed([first, other])[1]
    assert (failure.step, failure.says) == (3, "first") and began <= failure.time_s <= time.time()
    # Of one that rank 0 was not in, or has not told yet, another tells.
    other.saw(replace(call, error=RuntimeError("second")), 2, 4)
    (failure,) = summed([first, other])[1]
    assert (failure.step, failure.says, failure.count) == (4, "second", 2)
    (unknown,) = summed([Tally(rank=0, failures={"world|gloo:all_reduce|timeout": 1})])[1]
    assert unknown.time_s is unknown.step is None


@pytest.fixture
def alone():
    with unhang.Monitor([], every_s=60) as monitor:
        yield monitor


@pytest.mark.parametrize(
    ("given", "is_told"),
    [
        (7, 7),
        (np.int64(7), 7),
        (torch.tensor(7), 7),
        (None, None),
        (torch.ones(1, dtype=torch.int64, device="meta"), None),
        (torch.nn.Parameter(torch.tensor(7.0)), None),
        (7.5, None),
        ("7", None),
        (2**64, None),
    ],
)
def test_a_step_is_a_whole_number_or_unknown(alone, caplog, given, is_told):
    for _ in range(2):
        alone.step = given
    assert alone.step == is_told and type(alone.step) in (int, type(None))
    assert caplog.text.count("monitor.step is a whole number") == (given is not None and is_told is None)


def test_a_line_that_was_cut_takes_no_other_with_it(tmp_path):
    path = tmp_path / "monitor.jsonl"
    path.write_bytes(b'{"time_s": 1.0, "wor')
    for _ in range(2):
        JSONL(path).write(EMPTY)
    assert [line[:20] for line in path.read_bytes().splitlines()] == [b'{"time_s": 1.0, "wor', *[b'{"time_s":0.0,"world'] * 2]


def test_who_has_stopped_to_count_is_no_straggler():
    tallies = [Tally(rank=rank, calls={"world|barrier": Calls(count=9, inside_s=s)}) for rank, s in enumerate((9.0, 8.0, 1.0))]
    assert [one.rank for one in summed(tallies)[2]] == [2, 1]
    assert [one.rank for one in summed(tallies, left_out={2})[2]] == [1]


def test_who_closed_before_the_others_is_no_straggler_to_the_end(alone):
    alone._size = 3

    def told(*closed):
        inside = {rank: Calls(count=9, inside_s=s) for rank, s in enumerate((9.0, 8.0, 1.0))}
        return [Tally(rank=rank, calls={"world|barrier": of}, closed=rank in closed) for rank, of in inside.items()]

    assert [one.rank for one in alone._snapshot(told(), last=False).stragglers] == [2, 1]
    assert [one.rank for one in alone._snapshot(told(2), last=False).stragglers] == [1]
    assert [one.rank for one in alone._snapshot(told(0, 1, 2), last=True).stragglers] == [1]


def test_the_name_of_a_group_is_made_once():
    ranks = tuple(range(0, 512, 2))
    assert group_name(ranks, 512) is group_name(ranks, 512)


def goes_on_without_the_store(rank, path):
    from unhang.errors import StoreLost

    monitor = unhang.Monitor([unhang.JSONL(path)], every_s=60)
    unhang.barrier()

    def lost(*_):
        raise StoreLost("the store does not answer")

    monitor._board.put = lost
    monitor.close()


def test_without_a_store_rank_0_tells_what_it_knows_itself(tmp_path):
    path = tmp_path / "monitor.jsonl"
    with world_of(2, tmp_path / "ranks") as world:
        world(goes_on_without_the_store, path)
        assert "knows no other ranks any more" in world.stderr_of(0).read_text()
    told = json.loads(path.read_text())
    assert (told["heard_from"], told["calls"][0]["collective"]) == (1, "barrier")
    assert [one["rank"] for one in told["silent"]] == [1] and "does not answer" in told["store_lost"]


def test_before_there_is_a_group_a_rank_is_refused_and_a_process_that_trains_alone_goes_on(monkeypatch, tmp_path):
    before = threading.active_count(), len(calls.observers)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(unhang.CollectiveError, match=r"call torch\.distributed\.init_process_group before this"):
        unhang.Monitor([JSONL(tmp_path / "two")])
    assert (threading.active_count(), len(calls.observers)) == before
    monkeypatch.setenv("WORLD_SIZE", "1")
    unhang.Monitor([JSONL(tmp_path / "one")]).close()
    monkeypatch.delenv("WORLD_SIZE")
    unhang.Monitor([JSONL(tmp_path / "none")]).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["none", "one"]


@pytest.mark.parametrize("every_s", [0, "10s", float("nan"), float("inf")])
def test_what_makes_no_sense_is_refused(every_s):
    with pytest.raises(ValueError, match=f"positive numbers of seconds, not {every_s!r} and 10.0"):
        unhang.Monitor(every_s=every_s)


class Half:
    def write(self, snapshot):
        pass


@pytest.mark.parametrize(
    ("sinks", "says"),
    [
        ("runs.jsonl", r"a list of sinks, such as \[unhang.JSONL\('runs.jsonl'\)\], not 'runs.jsonl'"),
        (JSONL("x"), r"a list of sinks, such as \[JSONL\(...\)\], not JSONL"),
        (7, "a list of sinks, such as .*, not int"),
        (["jsonl", "tensorboard"], "holds 'jsonl', which is no sink"),
        ([JSONL], "holds the class JSONL"),
        ([Half()], r"holds Half, which is no sink: a sink has write\(snapshot\) and close\(\)"),
    ],
)
def test_what_is_no_sink_is_refused_before_anything_counts(sinks, says):
    before = threading.active_count(), len(calls.observers)
    with pytest.raises(TypeError, match=f"^sinks (is )?{says}"):
        unhang.Monitor(sinks)
    assert (threading.active_count(), len(calls.observers)) == before


def refused_everywhere(rank, path):
    with pytest.raises(TypeError, match="a list of sinks"):
        unhang.Monitor(unhang.JSONL(path))
    unhang.barrier(deadline=20)
    return rank


def test_what_is_no_list_of_sinks_is_refused_by_all_ranks(tmp_path):
    with world_of(2, tmp_path / "ranks") as world:
        assert world(refused_everywhere, tmp_path / "x") == [0, 1]


@pytest.mark.parametrize("port", [-1, 99999, "9464", 94.0, True, None])
def test_what_is_no_port_is_refused(port):
    with pytest.raises(ValueError, match="port is a whole number from 0 to 65535, not"):
        Prometheus(port)


def test_what_is_no_host_is_refused():
    with pytest.raises(TypeError, match="host is a name or an address"):
        Prometheus(host=None)


def until_line(path, holds, *, within_s=30):
    """The first snapshot for which it holds."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        for line in path.read_text().splitlines() if path.exists() else []:
            if holds(told := json.loads(line)):
                return told
        time.sleep(0.05)
    raise AssertionError(path.read_text())


def monitors(rank, path):
    world.monitor = unhang.Monitor([unhang.JSONL(path)], every_s=0.1)
    world.monitor.step = 12


def ends_monitoring(rank, alone=None):
    if alone in (None, rank):
        world.monitor.close()


def loses_the_store(rank):
    from unhang.errors import StoreLost

    def lost(*_):
        raise StoreLost("the store does not answer")

    if rank == 0:
        world.monitor._board.put = lost


def counts_and_stays(rank, path):
    monitors(rank, path)
    unhang.barrier()
    if rank:
        world.monitor(types.SimpleNamespace(ok=True))


def test_counts_do_not_fall_when_the_store_is_lost_and_the_others_are_silent(tmp_path):
    path = tmp_path / "monitor.jsonl"
    with world_of(2, tmp_path / "ranks") as ranks:
        ranks(counts_and_stays, path)
        until_line(path, lambda one: one["evaluations"] == 1 and not one["silent"])
        ranks(loses_the_store)
        lost = until_line(path, lambda one: one["store_lost"])
        assert (lost["evaluations"], lost["heard_from"], [one["rank"] for one in lost["silent"]]) == (1, 2, [1])
        ranks(ends_monitoring)


@pytest.mark.integration
def test_a_rank_that_stands_still_is_silent_and_is_heard_from_again(tmp_path):
    path = tmp_path / "monitor.jsonl"
    with world_of(3, tmp_path / "ranks") as ranks:
        ranks(monitors, path)
        until_line(path, lambda one: one["heard_from"] == 3)
        # Who has ended in order is missed by nobody.
        ranks(ends_monitoring, 2)
        ranks.signal(1, signal.SIGSTOP)
        told = until_line(path, lambda one: one["silent"])
        assert [one["rank"] for one in told["silent"]] == [1] and 5 <= told["silent"][0]["for_s"] < 25
        # Its last words are in the store all the while.
        assert (told["heard_from"], told["step"]) == (3, 12)
        ranks.signal(1, signal.SIGCONT)
        back = until_line(path, lambda one: one["time_s"] > told["time_s"] and not one["silent"])
        ranks.signal(1, signal.SIGSTOP)
        until_line(path, lambda one: one["time_s"] > back["time_s"] and one["silent"])
        ranks.start(loses_the_store)
        ranks.ended([0, 2])
        lost = until_line(path, lambda one: one["time_s"] > back["time_s"] and one["store_lost"])
        # Their counts are still there.
        assert [one["rank"] for one in lost["silent"]] == [1] and lost["heard_from"] == 3
        ranks.signal(1, signal.SIGCONT)
        ranks.ended([1])
        ranks(ends_monitoring)


def test_a_failure_is_told_with_what_was_said(tmp_path):
    path = tmp_path / "monitor.jsonl"
    with world_of(3, tmp_path / "ranks") as ranks:
        ranks(monitored, path)
        ranks(evaluates_twice, [tmp_path / "first.jsonl", tmp_path / "second.jsonl"])
    (failure,) = json.loads(path.read_text())["failures"]
    assert "1000" not in failure["says"] and "rank" in failure["says"] and "\n" not in failure["says"]
    assert "a label" in json.loads((tmp_path / "second.jsonl").read_text())["evaluation_says"]
    assert json.loads((tmp_path / "first.jsonl").read_text())["evaluation_says"] == ""


def test_what_an_error_says_is_kept_short():
    tally = Tally(rank=0)
    tally.saw(Observed(what="barrier", ranks=(0,), numel=0, dtype="torch.float32", seconds=1.0, error=RuntimeError("a\n b " + "c" * 9999)), 1)
    (failure,) = summed([tally])[1]
    assert len(failure.says) == 400 and failure.says.startswith("a b ccc") and failure.says.endswith("…")
