"""``Lake.sql``: it reads the lake, and touches nothing else of the session."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from durabus.errors import PipelineError
from durabus.pipeline.lake import Lake, ask_sql, plain_name

COMMANDS = [
    "delete from silver.events",
    "update silver.events set type = 'x'",
    "insert into silver.events values ('a', 'b')",
    "from silver.events insert into silver.events select *",
    "merge into silver.events t using silver.events s on t.id = s.id when matched then delete",
    "with gone as (select 1) delete from silver.events",
    "truncate table silver.events",
    "drop table silver.events",
    "alter table silver.events set tblproperties ('a' = 'b')",
    "create table spent as select 1 as one",
    "optimize silver.events",
    "vacuum silver.events",
    "show tables",
    "set spark.sql.shuffle.partitions = 99",
    "clear cache",
    "select 1) select * from durabus_query; drop table silver.events --",
]


@pytest.fixture(scope="module")
def small(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake with one table of two rows, and two versions of a projection."""
    lake = Lake(spark, tmp_path_factory.mktemp("small") / "lake")
    lake.overwrite(
        spark.createDataFrame([("1", "order.placed"), ("2", "order.paid")], "id STRING, type STRING"), "silver.events"
    )
    for version in (1, 2):
        lake.overwrite(spark.createDataFrame([(version,)], "made BIGINT"), f"gold.spent_v{version}")
    return lake


def test_tables_of_the_user_with_the_same_names_stay(small: Lake, spark: SparkSession, tmp_path: Path) -> None:
    try:
        for schema in ("silver", "gold"):
            spark.sql(f"CREATE DATABASE {schema}")
        spark.sql("CREATE TABLE gold.customers USING DELTA AS SELECT 'Ada' AS name")
        spark.sql("CREATE TABLE silver.events USING DELTA AS SELECT 'mine' AS id")
        assert small.sql("SELECT count(*) FROM silver.events").first() == (2,)
        assert small.sql("SELECT made, name FROM gold.spent, gold.customers").collect() == [(2, "Ada")]
        assert spark.table("gold.customers").collect() == [("Ada",)]
        assert spark.table("silver.events").collect() == [("mine",)]
        assert sorted(row["tableName"] for row in spark.sql("SHOW TABLES IN gold").collect()) == ["customers"]
    finally:
        for schema in ("silver", "gold"):
            spark.sql(f"DROP DATABASE IF EXISTS {schema} CASCADE")


@pytest.mark.parametrize("command", COMMANDS)
def test_everything_but_a_query_is_refused(small: Lake, command: str) -> None:
    before = small.version("silver.events")
    with pytest.raises(PipelineError, match="a lake is read-only, and this does not parse as a query"):
        ask_sql(small, command, limit=10)
    assert small.value("silver.events", "count(*)") == 2
    assert small.version("silver.events") == before


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("SELECT events.id FROM silver.events ORDER BY id DESC;", ["2", "1"]),
        ("SELECT silver.events.id FROM Silver . `events` WHERE type = 'order.placed'", ["1"]),
        ("WITH few AS (TABLE silver.events) SELECT id FROM few WHERE id = '1' -- gold.spent", ["1"]),
        ("SELECT e.id FROM silver.events VERSION AS OF 0 AS e JOIN gold.spent_v1 ON e.id = made", ["1"]),
        ("SELECT 'silver.events' /* silver.events */", ["silver.events"]),
        ("VALUES ('x')", ["x"]),
    ],
)
def test_a_query_may_name_tables_in_any_way(small: Lake, query: str, rows: list[str]) -> None:
    assert [row[0] for row in small.sql(query).collect()] == rows


def test_a_name_means_the_newest_version_of_a_projection(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path / "lake")
    for version in (1, 2):
        lake.overwrite(spark.createDataFrame([(version,)], "made BIGINT"), f"gold.spent_v{version}")
        assert lake.sql("SELECT spent.made FROM gold.spent").first() == (version,)
    assert plain_name("silver.order_v2") == "silver.order_v2"  # the table of a type, not a version of silver.order


def test_two_lakes_of_one_session_keep_their_tables_apart(small: Lake, spark: SparkSession, tmp_path: Path) -> None:
    other = Lake(spark, tmp_path / "other")
    other.overwrite(spark.createDataFrame([("9", "mail.sent")], "id STRING, type STRING"), "silver.events")
    both = small.sql("SELECT id FROM silver.events").unionAll(other.sql("SELECT id FROM silver.events"))
    assert sorted(row["id"] for row in both.collect()) == ["1", "2", "9"]
