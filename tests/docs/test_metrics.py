"""docs/reference/http.md names what ``/metrics`` shows, and where the rest is counted."""

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from durabus.http.metrics import HttpMetrics
from durabus.model.query import Counts
from durabus.views.stats import StoreMetrics
from durabus.worker.telemetry import Metrics

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
(ROW,) = (line for line in PAGE.splitlines() if line.startswith("| `GET /stats`, `/metrics` |"))


def test_the_page_names_every_metric_of_the_server() -> None:
    metrics = StoreMetrics(bus="default", counts=Counts(), log_hold=None, missing_handlers=0)
    shown = HttpMetrics().text(metrics).decode()
    families = list(text_string_to_metric_families(shown))
    assert len(families) >= 5
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert f"`{name}`" in ROW


def test_the_page_says_where_events_without_a_handler_are_counted() -> None:
    assert "`bus.metrics.snapshot().unhandled`" in ROW
    assert Metrics().snapshot().unhandled == {}
