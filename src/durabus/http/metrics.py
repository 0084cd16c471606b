"""The metrics that ``/metrics`` shows. No label has more values than there are routes, statuses and methods."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from durabus.views.stats import StoreMetrics

BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)
UNKNOWN_ROUTE = "unknown"


class HttpMetrics:
    """The metrics of one app, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "durabus_http_requests",
            "Requests by status",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "durabus_http_request_seconds",
            "Time to the end of the response",
            ("method", "route"),
            registry=self._registry,
            buckets=BUCKETS,
        )
        self._events = Gauge("durabus_events", "Events of a bus by status", ("bus", "status"), registry=self._registry)
        self._missing = Gauge(
            "durabus_handlers_missing",
            "Registered handlers of a bus that no live node has; the events for them wait",
            ("bus",),
            registry=self._registry,
        )
        self._held = Gauge(
            "durabus_log_held_seconds",
            "How long an open transaction has held back entries from readers of the log",
            registry=self._registry,
        )

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def text(self, found: StoreMetrics) -> bytes:
        """All metrics in the format of Prometheus."""
        self._missing.labels(found.bus).set(found.missing_handlers)
        self._held.set(0.0 if found.log_hold is None else found.log_hold.waiting)
        for status in found.counts.__struct_fields__:
            self._events.labels(found.bus, status).set(getattr(found.counts, status))
        return generate_latest(self._registry)
