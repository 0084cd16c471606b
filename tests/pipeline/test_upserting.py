"""Conditions that name keys: they mean exactly the rows with these keys."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pytest
from pyspark.sql import SparkSession

from durabus.pipeline.lake import Lake
from durabus.pipeline.schema import MERGED
from durabus.pipeline.upserting import MOST_KEYS, MOST_TERMS, literal, of_keys, upsert

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
ODD = ["it's", 'a "b"', "a\\b", "a\nb", "", "%", "ä", "a\\'b", "NULL"]


@pytest.mark.parametrize("values", [ODD, [1, -(2**63), 2**62], [AT], [date(2026, 1, 2)], [True, False], [None, "a"]])
def test_a_condition_finds_the_rows_of_its_keys_and_no_others(spark: SparkSession, values: list[object]) -> None:
    rows = spark.createDataFrame(pa.table({"key": values, "n": list(range(len(values)))}))
    for number, value in enumerate(values):
        condition = of_keys(pa.table({"key": [value]}).cast(pa.table({"key": values}).schema))
        assert condition is not None
        assert [row["n"] for row in rows.where(condition).collect()] == [number]


def test_the_last_column_of_a_key_makes_no_term_of_its_own() -> None:
    keys = pa.table({"bus": ["a", "a", None], "type": ["x", "y", None]})
    assert of_keys(keys) == "(`bus` <=> 'a' AND `type` IN ('x', 'y')) OR (`bus` <=> NULL AND (false OR `type` IS NULL))"
    assert of_keys(keys.slice(0, 0)) == "false"


def test_too_many_keys_and_values_without_a_literal_need_a_merge() -> None:
    assert of_keys(pa.table({"key": range(MOST_KEYS)})) is not None
    assert of_keys(pa.table({"key": range(MOST_KEYS + 1)})) is None
    assert of_keys(pa.table({"first": range(MOST_TERMS + 1), "key": range(MOST_TERMS + 1)})) is None
    assert of_keys(pa.table({"key": [Decimal("1.5")]})) is None
    with pytest.raises(TypeError, match="float has no exact literal"):
        literal(0.1)


@pytest.mark.parametrize("few", [True, False])
def test_rows_of_keys_are_replaced_added_and_removed(
    spark: SparkSession, lake: Lake, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not few:
        monkeypatch.setattr("durabus.pipeline.upserting.MOST_KEYS", 0)
    lake.overwrite(spark.createDataFrame(pa.table({"key": ["a", "b", "c"], "n": [1, 2, 3]})), "gold.x", MERGED)
    new = spark.createDataFrame(pa.table({"key": ["b", "d"], "n": [20, 40]}))
    upsert(lake, new, "gold.x", ("key",), pa.table({"key": ["b", "c", "d"]}))
    assert sorted(tuple(row) for row in lake.read("gold.x").collect()) == [("a", 1), ("b", 20), ("d", 40)]
