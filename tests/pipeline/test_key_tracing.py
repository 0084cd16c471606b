"""How a projection is updated: Spark's optimizer proves it, and everything that it cannot prove is computed whole."""

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from durabus import ConfigurationError
from durabus.errors import PipelineError
from durabus.pipeline.input_tables import InputTables, in_order
from durabus.pipeline.key_tracing import trace_key
from durabus.pipeline.lake import Lake
from durabus.pipeline.projections import Projection, hourly_counters, journeys, latest_state, projection

EVENTS, LOG, RATES = "silver.events", "bronze.event_log", "/data/rates"
CUSTOMER = "get_json_object(payload, '$.customer')"


def sql(text: str, *key: str, inputs: tuple[str, ...] = (EVENTS,)) -> Projection:
    return Projection(name="made", key=key, sql=text, inputs=inputs)


@projection(key="type")
def above_the_mean(events: DataFrame) -> DataFrame:
    mean = events.agg(F.avg("attempts")).first()[0]  # type: ignore[index]
    return events.where(F.col("attempts") > mean).groupBy("type").count()


@projection(key="type")
def cached(events: DataFrame) -> DataFrame:
    return events.groupBy("type").count().cache()


PROVEN = {
    "add": [
        hourly_counters(),
        latest_state("order"),
        journeys("order"),
        sql("SELECT date_trunc('HOUR', published_at) AS hour, count(*) AS n FROM {events} GROUP BY 1", "hour"),
    ],
    "upsert": [
        sql(f"SELECT {CUSTOMER} AS customer, count(*) AS n FROM {{events}} GROUP BY 1 HAVING n > 2", "customer"),
        sql("SELECT a.bus, count(b.id) AS n FROM {events} a LEFT JOIN {events} b ON a.bus = b.bus GROUP BY 1", "bus"),
        sql(
            "SELECT e.id, count(l.seq) AS n FROM {events} e LEFT JOIN {event_log} l ON l.id = e.id GROUP BY 1",
            "id",
            inputs=(EVENTS, LOG),
        ),
        sql(
            "SELECT bus, max(rate) AS r FROM {events} JOIN {rates} USING (bus) GROUP BY 1",
            "bus",
            inputs=(EVENTS, RATES),
        ),
    ],
    "append": [sql("SELECT seq, type FROM {event_log} WHERE action = 'PICKED'", "seq", inputs=(LOG,))],
    "window": [
        sql(
            "SELECT * FROM (SELECT type AS kind, row_number() OVER (PARTITION BY type ORDER BY first_seq DESC) AS n "
            "FROM {events}) WHERE n = 1",
            "kind",
        )
    ],
    "scd2": [
        sql(
            f"SELECT {CUSTOMER} AS customer, published_at AS valid_from, "
            f"lead(published_at) OVER (PARTITION BY {CUSTOMER} ORDER BY first_seq) AS valid_to FROM {{events}}",
            "customer",
            "valid_from",
        )
    ],
}
WHOLE = {
    "LIMIT stops it": sql("SELECT type, count(*) AS n FROM {events} GROUP BY 1 ORDER BY 2 LIMIT 3", "type"),
    "not partitioned by it stops": sql(
        "SELECT type, count(*) / sum(count(*)) OVER () AS share FROM {events} GROUP BY 1", "type"
    ),
    "a subquery reads all of silver.events": sql(
        "SELECT type, count(*) AS n FROM {events} WHERE attempts > (SELECT avg(attempts) FROM {events}) GROUP BY 1",
        "type",
    ),
    "uses status of silver.events, which changes": sql("SELECT status, max(id) FROM {events} GROUP BY 1", "status"),
    "it uses the current time": sql("SELECT type, max(now() - ended_at) AS age FROM {events} GROUP BY 1", "type"),
    "random results stops it": sql("SELECT id, rand() AS r FROM {events}", "id"),
    "is the same value for many rows": sql(
        "SELECT type AS kind FROM {events} UNION SELECT 'all' AS kind FROM {events}", "kind"
    ),
    "used with two different keys": sql(
        "SELECT a.type, count(b.id) AS n FROM {events} a JOIN {events} b ON a.type = b.bus GROUP BY 1", "type"
    ),
    "cannot be written as SQL over silver.events": sql(
        "SELECT window(published_at, '5 minutes').start AS at, count(*) AS n FROM {events} "
        "GROUP BY window(published_at, '5 minutes')",
        "at",
    ),
    "a query runs while the projection is built": above_the_mean,
    "or keeps rows in a cache": cached,
    "only the version of /data/rates": sql("SELECT bus, rate FROM {rates}", "bus", inputs=(RATES,)),
}


@pytest.fixture
def schemas(lake: Lake) -> dict[str, StructType]:
    tables = InputTables(lake)
    rates = StructType.fromDDL("bus STRING, rate DOUBLE")
    assert isinstance(rates, StructType)
    return {RATES: rates, **{name: tables.schema(name) for name in (EVENTS, LOG)}}


def test_spark_proves_which_rows_a_change_affects(
    spark: SparkSession, lake: Lake, schemas: dict[str, StructType]
) -> None:
    tables = InputTables(lake)
    feeds = {name: feed for name in (EVENTS, LOG) if (feed := tables.feed(name))}
    for mode, projections in PROVEN.items():
        for one in projections:
            found = trace_key(spark, one, schemas, feeds)
            assert found.mode == mode, (one.sql, found.why)
    for why, one in WHOLE.items():
        found = trace_key(spark, one, schemas, feeds)
        assert (found.mode, found.by) == ("full", ()), (one.sql, found.why)
        assert why in found.why
    scd2 = trace_key(spark, PROVEN["scd2"][0], schemas, feeds)
    assert scd2.by == ("customer",)
    assert scd2.sources == {EVENTS: ("get_json_object(`payload`, '$.customer')",)}
    joined = trace_key(spark, PROVEN["upsert"][-1], schemas, feeds)
    assert joined.why == "the rows of a changed bus are computed again; all rows if /data/rates has changed"
    with pytest.raises(PipelineError, match="its rows lack the key column missing: select it"):
        trace_key(spark, sql("SELECT type FROM {events}", "missing"), schemas, feeds)


def reading(name: str, *inputs: str) -> Projection:
    return Projection(name=name, key="id", sql="SELECT 1 AS id", inputs=inputs or (EVENTS,))


def test_projections_come_after_those_that_they_read() -> None:
    a, b, c = reading("a", "gold.b", "gold.c"), reading("b", "gold.c"), reading("c")
    assert in_order([a, b, c]) == [c, b, a]
    with pytest.raises(ConfigurationError, match=r"in a circle: gold\.a reads gold\.b reads gold\.a; take out one"):
        in_order([reading("a", "gold.b"), reading("b", "gold.a")])
    with pytest.raises(ConfigurationError, match=r"projection a: no declared projection makes gold\.x: choose from"):
        in_order([reading("a", "gold.x")])
    with pytest.raises(ConfigurationError, match="two projections are called a"):
        in_order([reading("a"), reading("a")])


def test_a_function_is_declared_by_a_decorator() -> None:
    @projection(key=["customer", "day"], inputs=(EVENTS, "/data/rates/"), version=2)
    def spent(events: DataFrame, rates: DataFrame) -> DataFrame:
        return events.join(rates, "bus", "left")

    assert (spent.name, spent.table, spent.key) == ("spent", "gold.spent_v2", ("customer", "day"))
    assert spent.aliases == ("events", "rates")


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ("events", {}, r"input 'events': must be bronze\.event_log, silver\.TABLE, gold\.PROJECTION, or the path"),
        (("silver.events", "/other/events"), {}, "must be one or more tables whose names differ in their last part"),
        ((), {}, "must be one or more tables"),
        ("silver.order_placed", {"types": ("order.*",)}, r"are about silver\.events, which is not in inputs="),
        ("silver.order_placed", {"live": True}, r"are about silver\.events"),
    ],
)
def test_bad_inputs_are_refused(inputs: tuple[str, ...], options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Projection(name="bad", key="id", sql="SELECT 1", inputs=inputs, **options)  # type: ignore[arg-type]
