"""The real SDK: what a reader of the training's provider gets, and what a collector is sent."""

import socket
import subprocess
import sys
import time

import pytest

import unhang
from unhang.runtime.monitoring.sink_worker import SinkWorker

pytest.importorskip("opentelemetry.sdk")


def points(data):
    """(name, attributes) to value, of all that was measured."""
    found = {}
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points:
            found[metric.name, tuple(sorted(point.attributes.items()))] = point.value
    return found


@pytest.fixture
def read():
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    yield provider, reader
    provider.shutdown()


def test_attributes_tell_groups_and_collectives_apart(busy, read):
    provider, reader = read
    sink = unhang.OpenTelemetry(provider=provider)
    sink.write(busy())
    sink.write(busy(10, restarts=2, step=70, unread={"world": 5}, torch_collectives="not read: why"))
    found = points(reader.get_metrics_data())
    world = (("group", "world"), ("op", "all_reduce"))
    assert found["unhang.collective.count", world] == 40
    assert found["unhang.collective.duration", (*world, ("quantile", "0.95"))] == 0.08
    assert found["unhang.collective.bus_bandwidth", (*world, ("quantile", "0.5"))] == 1.5e9
    assert found["unhang.collective.failures", (("cause", "broken connection"), *world)] == 2
    assert found["unhang.straggler.share", (("group", "world"), ("rank", 3))] == 0.8
    assert found["unhang.straggler.interval_waited", (("group", "world"), ("rank", 2))] == 1.5
    assert found["unhang.straggler.interval_share", (("group", "world"), ("rank", 2))] == 1.0
    assert found["unhang.ranks", (("state", "silent"),)] == 1 and found["unhang.ranks", (("state", "all"),)] == 4
    assert found["unhang.restarts", ()] == 2 and found["unhang.step", ()] == 70
    assert found["unhang.collective.unread", (("group", "world"),)] == 5
    assert (found["unhang.torch_read", ()], found["unhang.store_lost", ()]) == (0, 0)
    assert found["unhang.deadline", (("op", "all_reduce"),)] == 30
    # What is not finite is left out, and nothing stands in for it.
    barrier, broadcast = (("group", "ranks 0,2"), ("op", "barrier")), (("group", "ranks 1,3"), ("op", "broadcast"))
    assert ("unhang.collective.duration", (*barrier, ("quantile", "0.95"))) in found
    assert ("unhang.collective.duration", (*barrier, ("quantile", "0.99"))) not in found
    assert ("unhang.collective.bus_bandwidth", (*broadcast, ("quantile", "0.5"))) not in found


def test_units_and_kinds_are_those_of_the_standard(busy, read):
    provider, reader = read
    unhang.OpenTelemetry(provider=provider).write(busy())
    (scope,) = reader.get_metrics_data().resource_metrics[0].scope_metrics
    kinds = {metric.name: (metric.unit, getattr(metric.data, "is_monotonic", None)) for metric in scope.metrics}
    assert (scope.scope.name, scope.scope.version) == ("unhang", unhang.__version__)
    assert kinds["unhang.collective.duration"] == ("s", None) and kinds["unhang.collective.bus_bandwidth"] == ("By/s", None)
    assert kinds["unhang.collective.count"] == ("{call}", True) and kinds["unhang.collective.failures"] == ("{call}", True)


def test_a_sink_that_is_closed_tells_nothing_more(busy, read):
    provider, reader = read
    sink = unhang.OpenTelemetry(provider=provider)
    sink.write(busy())
    sink.close()
    # What it was asked for when it was closed, and never again.
    assert points(reader.get_metrics_data())
    assert reader.get_metrics_data() is None


GLOBAL = """
import sys
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
import unhang
from unhang.runtime.monitoring.counters import Snapshot
early = unhang.OpenTelemetry()
snapshot = Snapshot(time_s=0.0, world_size=1, heard_from=1, restarts=3)
if "late" in sys.argv:
    early.write(snapshot)
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider(metric_readers=[reader]))
early.write(snapshot)
(scope,) = reader.get_metrics_data().resource_metrics[0].scope_metrics
print({m.name: [p.value for p in m.data.data_points] for m in scope.metrics}["unhang.restarts"])
early.close()
"""


@pytest.mark.parametrize("when", ["early", "late"])
def test_the_training_s_own_provider_is_taken_however_late_it_is_set(when):
    done = subprocess.run([sys.executable, "-c", GLOBAL, when], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[3]"
    assert ("nobody to tell" in done.stderr) is (when == "late")


def decoded(server):
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    return [ExportMetricsServiceRequest.FromString(body) for body in server.bodies]


def test_an_endpoint_is_sent_each_snapshot_once(busy, server, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    sink = unhang.OpenTelemetry(server.url)
    for at_s in (0, 10):
        sink.write(busy(at_s))
    sink.close()
    assert server.paths == ["/v1/metrics"] * 2
    newest = decoded(server)[1].resource_metrics[0]
    assert ("service.name", "unhang") in [(one.key, one.value.string_value) for one in newest.resource.attributes]
    assert {"unhang.collective.duration", "unhang.restarts"} <= {metric.name for metric in newest.scope_metrics[0].metrics}


def test_an_endpoint_of_the_environment_is_taken_where_no_provider_is(busy, server, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    sink = unhang.OpenTelemetry()
    sink.write(busy())
    sink.close()
    assert server.paths == ["/v1/metrics"]


def test_a_collector_that_is_gone_is_warned_of_once_and_holds_nothing_up(busy, server, caplog, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    sink = unhang.OpenTelemetry(server.url)
    server.answers = [503]
    sink.write(busy(0))
    began = time.monotonic()
    sink.write(busy(10))
    assert time.monotonic() - began < 3
    assert [(r.name, "cannot send (tried again with later snapshots): " in r.message) for r in caplog.records] == [("unhang", True)]
    server.answers = [200]
    sink.write(busy(20))
    sink.close()
    assert [r.message for r in caplog.records[1:]] == [f"the monitor's OpenTelemetry ({server.url.removeprefix('http://')}) sends again"]


@pytest.mark.parametrize("how", ["refuses", "is silent"])
def test_a_collector_that_never_answers_is_warned_of_once_also_at_the_end(busy, caplog, how):
    with socket.create_server(("127.0.0.1", 0)) as listens:
        endpoint = f"http://127.0.0.1:{listens.getsockname()[1]}"
        if how == "refuses":
            listens.close()
        outlet = SinkWorker(unhang.OpenTelemetry(endpoint), name="OpenTelemetry", patience_s=10)
        for at_s in range(4):
            outlet.offer(busy(at_s))
        # What is left where the other ranks have taken their time to close.
        outlet.end()
        outlet.wait(time.monotonic() + 3)
    assert not outlet.off
    assert ["cannot send" in r.message for r in caplog.records if r.name == "unhang"] == [True]


@pytest.mark.parametrize("endpoint", ["collector:4318", "ftp://collector", "http://", ""])
def test_what_is_no_endpoint_is_refused(endpoint):
    with pytest.raises(ValueError, match="http or https URL"):
        unhang.OpenTelemetry(endpoint)
