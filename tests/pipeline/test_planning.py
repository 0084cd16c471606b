"""``durabus.testing.pipeline`` runs a projection on rows of a test; ``planning`` draws which table is made of which."""

import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from durabus import ConfigurationError
from durabus.errors import PipelineError
from durabus.pipeline.planning import draw, sources_of_tables
from durabus.pipeline.projections import Projection, hourly_counters, latest_state, projection
from durabus.pipeline.tables import EventTable
from durabus.testing.pipeline import run_projection


@projection(key="customer", inputs=("silver.order_placed", "data/rates"))
def spent(placed: DataFrame, rates: DataFrame) -> DataFrame:
    total = F.sum(F.col("total") * F.col("rate")).alias("total")
    return placed.join(rates, "currency", "inner").groupBy("customer").agg(total)


def test_a_projection_runs_on_rows_of_a_test(spark: SparkSession) -> None:
    """An event of a test is ended unless its status says that it lives; ``types`` and ``live`` count as in a run."""
    events = [
        {"type": "order.placed", "payload": {"order": 7, "total": 1}},
        {"type": "order.paid", "payload": {"order": 7}},
        {"type": "order.placed", "payload": {"order": 8}, "status": "PENDING"},
        {"type": "mail.sent", "payload": {"order": 9}},
    ]
    ended = run_projection(latest_state("order", types=("order.*",)), {"silver.events": events}, spark=spark)
    assert [(row["order"], row["type"], row["events"]) for row in ended] == [("7", "order.paid", 2)]
    live = run_projection(latest_state("order", live=True), {"silver.events": events}, spark=spark)
    assert [(row["order"], row["status"]) for row in live] == [("7", "COMPLETED"), ("8", "PENDING"), ("9", "COMPLETED")]
    at = datetime(2026, 11, 18, 9, 30, tzinfo=UTC)
    (counted,) = run_projection(hourly_counters(), {"silver.events": [{"type": "a", "bus": "b", "published_at": at}]})
    assert (counted["hour"], counted["events"]) == (at.replace(minute=0), 1)


def test_columns_of_other_inputs_are_inferred_or_given(spark: SparkSession) -> None:
    rates = [{"currency": "EUR", "rate": 1.0}, {"currency": "DKK", "rate": 0.5}]
    placed = [
        {"customer": "ann", "currency": "EUR", "total": 10.0},
        {"customer": "ann", "currency": "DKK", "total": 4.0},
    ]
    inputs = {"silver.order_placed": placed, "data/rates": rates}
    assert run_projection(spent, inputs, spark=spark) == [{"customer": "ann", "total": 12.0}]
    columns = {"silver.order_placed": "customer STRING, currency STRING, total DOUBLE"}
    assert run_projection(spent, inputs | {"silver.order_placed": []}, schemas=columns, spark=spark) == []
    with pytest.raises(ConfigurationError, match="has no rows to infer columns from: give its columns with schemas="):
        run_projection(spent, inputs | {"silver.order_placed": []}, spark=spark)
    with pytest.raises(ConfigurationError, match="'data/rates' is given or declared, but not both"):
        run_projection(spent, {"silver.order_placed": placed}, spark=spark)
    with pytest.raises(ConfigurationError, match=r"silver\.events has no column 'kind': choose from id, "):
        run_projection(hourly_counters(), {"silver.events": [{"kind": "a"}]}, spark=spark)
    double = Projection(name="double", key="type", sql="SELECT type, id FROM {events}")
    with pytest.raises(PipelineError, match="double: its key is not unique: two rows have"):
        run_projection(double, {"silver.events": [{"type": "a"}, {"type": "a"}]}, spark=spark)


def test_the_graph_has_a_box_for_each_table_and_a_line_for_each_input() -> None:
    top = Projection(name="top", key="customer", sql="SELECT 1 AS customer", inputs=("gold.spent", "silver.attempts"))
    tables = sources_of_tables([top, EventTable("payment.*"), spent])
    assert tables["gold.top"] == ("gold.spent", "silver.attempts")
    assert tables["silver.order_placed"] == ("silver.events",)
    svg = draw(tables)
    assert svg == draw(sources_of_tables([top, EventTable("payment.*"), spent])), "the same file every time"
    root = ET.fromstring(svg)  # noqa: S314  (our own file)
    name = "{http://www.w3.org/2000/svg}"
    boxes = {one.find(f"{name}text").text: one.find(f"{name}rect").attrib for one in root.iter(f"{name}g")}  # type: ignore[union-attr]
    assert list(boxes) == list(tables)
    assert len(list(root.iter(f"{name}path"))) == sum(len(sources) for sources in tables.values())
    lefts = {table: float(box["x"]) for table, box in boxes.items()}
    assert all(lefts[source] < lefts[table] for table, sources in tables.items() for source in sources)
    assert len({(box["x"], box["y"]) for box in boxes.values()}) == len(boxes), "no box hides another"
    assert "prefers-color-scheme: dark" in svg
    assert "&lt;b&gt;" in draw({"/<b>": ()})


def test_a_line_that_passes_a_column_is_hidden_by_no_box() -> None:
    tables = {
        "bronze.event_log": (),
        "silver.events": ("bronze.event_log",),
        "silver.attempts": ("bronze.event_log",),
        "gold.spent": ("silver.events",),
        "gold.late": ("gold.spent", "silver.attempts"),
        "gold.all": ("gold.late", "bronze.event_log"),
    }
    root = ET.fromstring(draw(tables))  # noqa: S314  (our own file)
    name = "{http://www.w3.org/2000/svg}"
    boxes = [{key: float(one.attrib[key]) for key in ("x", "y", "width", "height")} for one in root.iter(f"{name}rect")]
    texts = [len(one.text or "") for one in root.iter(f"{name}text")]
    assert all(box["width"] >= 12 + 7.9 * letters for box, letters in zip(boxes, texts, strict=True)), "the text fits"
    passing = [
        (float(x), float(y))
        for one in root.iter(f"{name}path")
        for x, y in re.findall(r"([\d.]+) ([\d.]+) H", one.attrib["d"])
    ]
    assert len(passing) == 4, "attempts passes one column, the log passes three"
    for x, y in passing:
        assert not [box for box in boxes if box["x"] == x and box["y"] <= y <= box["y"] + box["height"]]
