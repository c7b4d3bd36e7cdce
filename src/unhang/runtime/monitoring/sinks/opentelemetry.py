"""Metrics of OpenTelemetry, with attributes: through the training's own MeterProvider, or straight to a collector.

unhang.collective.count           {call}     group, op
unhang.collective.duration        s          group, op, quantile (0.5, 0.95, 0.99)
unhang.collective.bus_bandwidth   By/s       group, op, quantile (0.5)
unhang.collective.failures        {call}     group, op, cause
unhang.collective.unread          {call}     group: of torch's own
unhang.straggler.share            1          group, rank
unhang.straggler.waited           s          group, rank
unhang.straggler.interval_share   1          group, rank
unhang.straggler.interval_waited  s          group, rank
unhang.deadline                   s          op
unhang.ranks                      {rank}     state (all, heard, silent)
unhang.evaluations                {evaluation}
unhang.evaluation.failures        {evaluation}
unhang.restarts                   {restart}
unhang.snapshots.dropped          {snapshot}
unhang.step                       {step}
unhang.store_lost, unhang.torch_read         1 or 0
"""

from __future__ import annotations

import logging
import math
import os
import threading
from typing import Any
from urllib.parse import urlsplit

import unhang
from unhang.diagnosis.redact import redact
from unhang.runtime import log
from unhang.runtime.monitoring.counters import Snapshot
from unhang.runtime.monitoring.sinks.measures import MEASURES, Measure, needed

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_OF_AN_EXPORTER = ("opentelemetry.sdk.metrics", "opentelemetry.exporter.otlp.proto.http.metric_exporter")
# The first attempt may be the last of a short training, whose monitor closes within 5 s, 2 of them for the other ranks.
_FLUSH_S = 2.5
# For one that has not answered before, and how far apart it is tried: snapshots that wait for their turn are not tried one by one.
_AGAIN_S, _AGAIN_AFTER_S = 1.0, 5.0


class OpenTelemetry:
    """`endpoint` (OTLP over HTTP, such as http://collector:4318) makes a provider of its own; `provider` is one that exists.

    Without either it is the global provider, and where none is set, the endpoint of OTEL_EXPORTER_OTLP_ENDPOINT. A provider of its own sends with
    every snapshot, others when their readers do. Raises MissingExtra, and ValueError for what is no endpoint.
    """

    def __init__(self, endpoint: str | None = None, *, provider: Any = None) -> None:
        if endpoint is not None and provider is not None:
            raise ValueError("endpoint makes a provider of its own: give one of both")
        if endpoint is not None and (urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).hostname):
            raise ValueError("endpoint is an http or https URL")
        needed("OpenTelemetry", "opentelemetry", "opentelemetry.metrics")
        if endpoint is not None:
            needed("OpenTelemetry", "opentelemetry", *_OF_AN_EXPORTER)
        self._endpoint, self._provider = endpoint, provider
        # No more of it: a path or a user's name may be a secret.
        self.where = urlsplit(endpoint).netloc.rpartition("@")[2] if endpoint is not None else None
        self._own: Any = None
        self._exporter: Any = None
        self._fails = False
        self._failed_s = 0.0
        self._instruments: list[Any] = []
        self._newest: Snapshot | None = None

    def write(self, snapshot: Snapshot) -> None:
        self._newest = snapshot
        if not self._instruments:
            self._instruments = self._made(self._found())
        if self._own is not None and not (self._fails and 0 <= snapshot.time_s - self._failed_s < _AGAIN_AFTER_S):
            # A collector that is gone may come back: it is warned of once, and tried again with later snapshots, briefly.
            # The provider answers True whatever became of it, and the exporter writes a line for each attempt.
            hush = _Hush(threading.get_ident())
            logger = logging.getLogger(type(self._exporter).__mro__[1].__module__)
            logger.addFilter(hush)
            try:
                self._own.force_flush(timeout_millis=_FLUSH_S * 1000)
            except Exception as e:
                self._exporter.sent, hush.said = False, f"{type(e).__name__}: {e}"
            finally:
                logger.removeFilter(hush)
            fails = not self._exporter.sent
            if fails:
                self._failed_s = snapshot.time_s
            if fails is not self._fails:
                self._fails = fails
                says = f"cannot send (tried again with later snapshots): {redact(hush.said) or 'no answer'}" if fails else "sends again"
                log.warning("the monitor's OpenTelemetry%s %s", f" ({self.where})" if self.where else "", says)

    def close(self) -> None:
        if self._own is not None:
            # Each snapshot was sent when it was written; one that does not answer would hold up the end.
            self._exporter.over = True
            self._own.shutdown(timeout_millis=_FLUSH_S * 1000)
        elif hasattr(self._provider, "force_flush"):
            self._provider.force_flush(timeout_millis=_FLUSH_S * 1000)
        # Instruments cannot be taken back.
        self._newest = None

    def _found(self) -> Any:
        from opentelemetry import metrics

        if self._endpoint is None and self._provider is None:
            # That of the training, or of OTEL_PYTHON_METER_PROVIDER; where neither is, it is one that passes on to whichever will be set.
            found = metrics.get_meter_provider()
            nobody = type(found).__name__ == "_ProxyMeterProvider"
            if not nobody or not any(map(os.environ.get, _ENDPOINTS)):
                self._provider = found
            if nobody and self._provider is not None:
                log.warning(
                    "the monitor's OpenTelemetry has nobody to tell: no MeterProvider is set, and neither endpoint= nor OTEL_EXPORTER_OTLP_ENDPOINT"
                )
        if self._provider is not None:
            return self._provider
        needed("OpenTelemetry", "opentelemetry", *_OF_AN_EXPORTER)
        self._own, self._exporter = _to(self._endpoint)
        return self._own

    def _made(self, provider: Any) -> list[Any]:
        from opentelemetry.metrics import Observation

        meter = provider.get_meter("unhang", unhang.__version__)

        def made(one: Measure) -> Any:
            def observed(_: Any) -> list[Any]:
                newest = self._newest
                # Aggregations over what is not finite are lost for good.
                return [Observation(v, _attributes(labels)) for v, labels in one.of(newest) if math.isfinite(v)] if newest is not None else []

            make = getattr(meter, f"create_observable_{one.kind}")
            return make(f"unhang.{one.opentelemetry}", callbacks=[observed], unit=one.unit, description=one.description)

        return [made(one) for one in MEASURES if one.opentelemetry]


def _attributes(labels: dict[str, str | int]) -> dict[str, str | int]:
    return {"op" if name == "collective" else name: value for name, value in labels.items()}


class _Hush(logging.Filter):
    """Keeps what one thread logs from the log; `said` is the first of it, which has the reason."""

    def __init__(self, thread: int) -> None:
        super().__init__()
        self._thread, self.said = thread, ""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.thread != self._thread:
            return True
        self.said = self.said or record.getMessage()
        return False


def _to(endpoint: str | None) -> tuple[Any, Any]:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricExportResult, PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource

    # What stands in the environment gets the path from the exporter, what is handed over does not.
    if endpoint is not None and urlsplit(endpoint).path in ("", "/"):
        endpoint = f"{endpoint.rstrip('/')}/v1/metrics"

    brief = OTLPMetricExporter(endpoint=endpoint, timeout=_AGAIN_S)

    class Exporter(OTLPMetricExporter):  # type: ignore[misc]
        sent, over = True, False

        def export(self, *given: Any, **named: Any) -> MetricExportResult:
            if self.over:
                return MetricExportResult.SUCCESS
            # What does not answer is not waited for again, nor at the end of the training.
            found = super().export(*given, **named) if self.sent else brief.export(*given, **named)
            self.sent = found is MetricExportResult.SUCCESS
            return found

    exporter = Exporter(endpoint=endpoint, timeout=_FLUSH_S)
    # Not by a clock of its own: each snapshot is sent once.
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=math.inf)
    resource = Resource.create({} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "unhang"})
    return MeterProvider(metric_readers=[reader], resource=resource, shutdown_on_exit=False), exporter
