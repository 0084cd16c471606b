"""Expectations: each run counts the rows that break them, and acts on it."""

from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import Column, DataFrame
from tests.pipeline.history import History
from tests.pipeline.recomputed.files import Files
from tests.pipeline.recomputed.lake import check_lake

from durabus.errors import ConfigurationError, PipelineError
from durabus.pipeline.expectations import Expectation, OnBreak, newest_results
from durabus.pipeline.lake import Lake
from durabus.pipeline.run import Pipeline, PipelinePart
from durabus.pipeline.tables import EventTable, tables_of_types

TABLE = "silver.order_placed"


def has_an_order(rows: DataFrame) -> Column:
    return rows["order"].isNotNull()


ORDERS = EventTable("order.placed")
WARNS = Expectation(name="has a coupon", table=TABLE, rule="coupon <> ''")
SETS_ASIDE = Expectation(name="total is positive", table=TABLE, rule="total > 0", action=OnBreak.QUARANTINE)
FAILS = Expectation(name="has an order", table=TABLE, rule=has_an_order, action=OnBreak.FAIL)
WRONG = Expectation(name="no such column", table="silver.events", rule="nonsense > 1")


async def test_a_run_warns_sets_rows_aside_and_fails(lake: Lake, url: str, history: History, tmp_path: Path) -> None:
    for payload in (
        {"order": 1, "total": 5, "coupon": "X"},
        {"order": 2, "total": 7},
        {"order": 3, "total": -1},
        {"total": 9, "coupon": "Y"},
    ):
        await history.publish("order.placed", payload)
    Pipeline(lake, url).run(PipelinePart.ARCHIVE)
    with pytest.raises(PipelineError) as failed:
        Pipeline(lake, url, [ORDERS, WARNS, SETS_ASIDE, FAILS, WRONG]).run(PipelinePart.PROJECT)
    told = str(failed.value)
    assert told.startswith("2 tables or expectations failed, everything else is up to date: ")
    assert "expectations of silver.events: " in told
    assert "expectation 'has an order': 1 of 3 rows of silver.order_placed break it" in told
    assert {row["order"] for row in lake.read(TABLE).collect()} == {1, 2, None}
    (refused,) = lake.read("silver.quarantine").collect()
    assert (refused["reason"], refused["payload"]) == (
        "breaks the expectation 'total is positive'",
        '{"order":3,"total":-1}',
    )
    results = {one.name: one for one in newest_results(lake)}
    assert {name: (one.action, one.rows, one.broken) for name, one in results.items()} == {
        "has a coupon": ("warn", 3, 1),
        "has an order": ("fail", 3, 1),
        "total is positive": ("quarantine", 3, 0),
    }
    (sample,) = results["has a coupon"].samples
    assert '"order":2' in sample
    rules = {
        "has a coupon": pl.col("coupon") != "",
        "has an order": pl.col("order").is_not_null(),
        "total is positive": pl.col("total") > 0,
    }
    checked = check_lake(Files([tmp_path / "bus.db"], Path(lake.path), rules=rules))
    assert {TABLE, "silver.quarantine", "ops.expectations"} < set(checked)


def test_a_wrong_action_and_a_quarantine_without_a_table_are_refused(lake: Lake) -> None:
    with pytest.raises(ConfigurationError, match="action='ignore': choose warn, quarantine, fail"):
        Expectation(name="x", table=TABLE, rule="true", action="ignore")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="is no typed table, and only these have a quarantine"):
        tables_of_types(lake, [Expectation(name="x", table="silver.events", rule="true", action=OnBreak.QUARANTINE)])
