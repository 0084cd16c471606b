"""Projections: incremental is rebuilt, a new version replaces the old one, bad ones are refused."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from tests.pipeline.history import History

from durabus import ConfigurationError, EventStore
from durabus.errors import PipelineError
from durabus.pipeline.archive import Archive
from durabus.pipeline.lake import Lake
from durabus.pipeline.projecting import rebuild_projection
from durabus.pipeline.projections import Projection, hourly_counters, journeys, latest_state
from durabus.pipeline.rebuilding import rebuild, rollback
from durabus.pipeline.run import Pipeline, PipelinePart
from durabus.pipeline.store_session import StoreSession

Content = Callable[[DataFrame], tuple[int, int]]

PER_TYPE = Projection(
    name="per_type",
    key={"type": "type"},
    sql="SELECT type, count(*) AS events, max(status) AS worst FROM {events} GROUP BY type",
    types=("order.placed", "payment.*"),
)
SHIPPED = [latest_state("order"), journeys("order"), hourly_counters(), PER_TYPE]


def rows_of(lake: Lake, name: str, *order: str) -> list[dict[str, object]]:
    return [row.asDict() for row in lake.read(name).orderBy(*order).collect()]


@pytest.mark.long
async def test_what_is_kept_up_to_date_equals_what_is_rebuilt(
    lake: Lake, session: StoreSession, history: History, content: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs see new events, a requeued dead letter (which leaves its tables until it ends), and nothing new."""
    monkeypatch.setattr("durabus.pipeline.projecting.FEW", 0)  # as if there were many; test_kill has few
    await history.varied()
    pipeline = Pipeline(lake, session.url, SHIPPED)
    Archive(lake, session).run()
    pipeline.run(PipelinePart.PROJECT)
    assert [row["order"] for row in rows_of(lake, "gold.latest_order_v1", "order")] == ["1", "2", "3", "4", "5"]

    await history.store.requeue_dead_letters([3])
    await history.completed("order.placed", {"order": 2})
    await history.completed("order.placed", {"order": 77})
    await history.store.requeue_dead_letters([4])
    Archive(lake, session).run()
    pipeline.run(PipelinePart.PROJECT)
    kept = {one.name: content(lake.read(one.table)) for one in SHIPPED}
    pipeline.run(PipelinePart.PROJECT)
    assert [lake.version(one.table) for one in SHIPPED] == [1] * len(SHIPPED), "built, merged, and left alone"
    for one in SHIPPED:
        rebuild_projection(lake, one)
    assert {one.name: content(lake.read(one.table)) for one in SHIPPED} == kept
    orders = {row["order"]: row for row in rows_of(lake, "gold.latest_order_v1", "order")}
    assert "4" not in orders, "event 4 waits again: order 4 has no event that ended"
    assert orders["3"]["status"] == "COMPLETED"
    assert (orders["2"]["events"], orders["77"]["events"]) == (3, 1)
    ways = {row["order"]: row for row in rows_of(lake, "gold.journeys_order_v1", "order")}
    assert ways["1"]["path"] == ["order.placed", "mail.requested"]
    assert len(ways["2"]["between_ms"]) == 2  # type: ignore[arg-type]
    assert ways["1"]["between_ms"] == [ways["1"]["total_ms"]]
    assert [row["type"] for row in rows_of(lake, "gold.per_type_v1", "type")] == ["order.placed", "payment.taken"]


@pytest.mark.long
async def test_a_new_version_takes_the_name_when_it_is_complete(
    lake: Lake, session: StoreSession, store: EventStore, history: History, content: Content
) -> None:
    """The new version reads another field of payloads. A version that fails before it leaves the table unchanged."""
    await history.completed("order.placed", {"order": 1})
    Archive(lake, session).run()
    Pipeline(lake, session.url, [PER_TYPE]).run(PipelinePart.PROJECT)
    before = content(lake.read(PER_TYPE.table))

    await history.completed("order.placed", {"order": 2, "coupon": "spring"})
    Archive(lake, session).run()
    broken = Projection(name="per_type", key={"type": "type"}, sql="SELECT type, nothing FROM {events}")
    with pytest.raises(PipelineError, match=r"per_type: .*nothing"):
        Pipeline(lake, session.url, [broken]).run(PipelinePart.PROJECT)
    assert content(lake.sql("SELECT * FROM gold.per_type")) == before
    (noted,) = lake.read("ops.runs").where("step = 'per_type' AND error IS NOT NULL").collect()
    assert "nothing" in noted["error"]

    def build(events: DataFrame) -> DataFrame:
        coupon = F.get_json_object("payload", "$.coupon")
        return events.groupBy("type").agg(F.sum("claims").alias("claims"), F.count(coupon).alias("coupons"))

    newer = Projection(name="per_type", key={"type": "type"}, build=build, types=PER_TYPE.types, version=2)
    Pipeline(lake, session.url, [newer]).run(PipelinePart.PROJECT)
    assert [tuple(row) for row in lake.sql("SELECT * FROM gold.per_type").collect()] == [("order.placed", 2, 1)]
    assert lake.sql("SELECT * FROM gold.per_type_v1").columns == ["type", "events", "worst"]


async def test_a_changed_formula_with_the_same_version_rebuilds_the_table(
    lake: Lake, session: StoreSession, history: History
) -> None:
    """Without a rebuild, the rows of keys without news would be of the old formula."""
    await history.completed("order.placed", {"order": 1})
    await history.completed("mail.sent", {"order": 1})
    Archive(lake, session).run()

    def counted(times: int) -> Projection:
        sql = f"SELECT type, {times} * count(*) AS n FROM {{events}} GROUP BY type"
        return Projection(name="counted", key={"type": "type"}, sql=sql)

    Pipeline(lake, session.url, [counted(1)]).run(PipelinePart.PROJECT)
    await history.completed("order.placed", {"order": 2})
    Archive(lake, session).run()
    Pipeline(lake, session.url, [counted(10)]).run(PipelinePart.PROJECT)
    assert rows_of(lake, "gold.counted_v1", "type") == [
        {"type": "mail.sent", "n": 10},
        {"type": "order.placed", "n": 20},
    ]
    Pipeline(lake, session.url, [counted(100)]).run(PipelinePart.PROJECT)
    assert [row["n"] for row in rows_of(lake, "gold.counted_v1", "type")] == [100, 200], "also without news"
    version = lake.version("gold.counted_v1")
    Pipeline(lake, session.url, [counted(100)]).run(PipelinePart.PROJECT)
    assert lake.version("gold.counted_v1") == version


async def test_a_bad_projection_does_not_stop_the_others(lake: Lake, session: StoreSession, history: History) -> None:
    """One raises in Python, one in Spark, and one has a key that is not unique."""
    await history.completed("order.placed", {"order": 1})
    await history.completed("order.placed", {"order": 2})

    def build(events: DataFrame) -> DataFrame:
        raise KeyError("customer")

    key = {"type": "type"}
    chosen = [
        Projection(name="raises", key=key, build=build),
        Projection(name="broken", key=key, sql="SELECT type, nothing FROM {events}"),
        Projection(name="double", key=key, sql="SELECT type, event_id FROM {events}"),
        Projection(name="keyless", key=key, sql="SELECT count(*) AS n FROM {events}"),
        PER_TYPE,
    ]
    with pytest.raises(PipelineError) as raised:
        Pipeline(lake, session.url, chosen).run()
    told = str(raised.value)
    assert told.startswith(
        "4 tables or expectations failed, everything else is up to date: raises: 'customer'; broken: "
    )
    assert "double: its key is not unique: 2 rows have type='order.placed'; group by the key, or add columns" in told
    assert "keyless: its rows lack the key column type" in told
    assert [row["events"] for row in rows_of(lake, "gold.per_type_v1", "type")] == [2]
    assert lake.exists("gold.activity"), "the analytics"
    assert not lake.exists("gold.double_v1")
    noted = lake.read("ops.runs").where("error IS NOT NULL").select("step").collect()
    assert sorted(row["step"] for row in noted) == ["broken", "double", "keyless", "raises"]


async def test_a_table_can_be_rebuilt_by_its_name(
    lake: Lake, session: StoreSession, history: History, content: Content
) -> None:
    await history.completed("order.placed", {"order": 1})
    Archive(lake, session).run()
    Pipeline(lake, session.url, [PER_TYPE]).run(PipelinePart.PROJECT)
    before = {name: content(lake.read(name)) for name in ("silver.events", "gold.per_type_v1")}
    for name in before:
        lake.spark.sql(f"DELETE FROM delta.`{lake.location(name)}`")
    assert rebuild(lake, "silver.events", [PER_TYPE]) == 3
    assert rebuild(lake, "per_type", [PER_TYPE]) == 1
    assert {name: content(lake.read(name)) for name in before} == before
    with pytest.raises(ConfigurationError, match=r"no table 'x' to rebuild: choose silver.events, .*, per_type"):
        rebuild(lake, "x", [PER_TYPE])


async def test_a_rebuild_can_be_of_a_part_and_can_be_taken_back(
    lake: Lake, session: StoreSession, history: History, content: Content
) -> None:
    """The rebuild is of a changed formula. After the rollback, the old formula goes on where its table had ended."""
    await history.completed("order.placed", {"order": 1})
    Archive(lake, session).run()
    Pipeline(lake, session.url, [PER_TYPE]).run(PipelinePart.PROJECT)
    since = datetime.fromtimestamp(history.clock.now(), UTC)
    await history.completed("payment.taken", {"order": 1})
    Archive(lake, session).run()
    with pytest.raises(PipelineError, match="has had no rebuild that could be taken back"):
        rollback(lake, "per_type")
    changed = Projection(name="per_type", key=PER_TYPE.key, sql="SELECT type, 7 AS events FROM {events} GROUP BY type")
    with pytest.raises(PipelineError, match="must not have rows of two formulas: leave out --since"):
        rebuild(lake, "per_type", [changed], since=since)
    Pipeline(lake, session.url, [changed]).run(PipelinePart.PROJECT)
    assert [row["events"] for row in rows_of(lake, PER_TYPE.table, "type")] == [7, 7]

    assert rollback(lake, "per_type") == 0
    assert [row["type"] for row in rows_of(lake, PER_TYPE.table, "type")] == ["order.placed"]
    with pytest.raises(PipelineError, match="was taken back already"):
        rollback(lake, "per_type")
    Pipeline(lake, session.url, [PER_TYPE]).run(PipelinePart.PROJECT)
    assert [row["events"] for row in rows_of(lake, PER_TYPE.table, "type")] == [1, 1]

    before = content(lake.read("silver.events"))
    for name in ("silver.events", PER_TYPE.table):
        lake.spark.sql(f"UPDATE delta.`{lake.location(name)}` SET type = 'lost' WHERE type = 'payment.taken'")
    assert rebuild(lake, "silver.events", [PER_TYPE], since=since) == 3
    assert content(lake.read("silver.events")) == before
    assert rebuild(lake, "per_type", [PER_TYPE], since=since) == 1
    assert [row["type"] for row in rows_of(lake, PER_TYPE.table, "type")] == ["lost", "order.placed", "payment.taken"]
    with pytest.raises(ConfigurationError, match="'x' is neither a projection in the lake nor one of"):
        rollback(lake, "x")


LIMIT = 1


def helped(events: DataFrame) -> DataFrame:
    return events.limit(LIMIT)


def test_the_fingerprint_changes_with_everything_that_computes_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(**options: object) -> str:
        given: dict[str, object] = {"name": "one", "key": {"type": "type"}, "sql": "SELECT 1", **options}
        return Projection(**given).fingerprint  # type: ignore[arg-type]

    def closed_over(value: int) -> str:
        return made(sql=None, build=lambda events: helped(events.limit(value)))

    assert made() == made(name="two", version=2)
    assert latest_state("order").fingerprint == latest_state("order").fingerprint
    prints = [made(), made(sql="SELECT 2"), made(key={"type": "upper(type)"}), made(types=("a.*",)), closed_over(1)]
    prints += [closed_over(2), latest_state("a").fingerprint, journeys("a").fingerprint]
    monkeypatch.setattr(f"{__name__}.LIMIT", 2)
    prints.append(closed_over(1))
    assert len(set(prints)) == len(prints)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"name": "Bad Name"}, "must be small letters"),
        ({"name": "orders_v2"}, "not end in _v"),
        ({"key": {}}, "key is empty"),
        ({"version": 0}, "version=0: must be 1 or more"),
        ({"sql": None}, "either build= or sql="),
        ({"build": lambda events: events}, "either build= or sql="),
    ],
)
def test_a_projection_that_cannot_work_is_refused(wrong: dict[str, object], complaint: str) -> None:
    right: dict[str, object] = {"name": "orders", "key": {"type": "type"}, "sql": "SELECT 1"}
    with pytest.raises(ConfigurationError, match=complaint):
        Projection(**{**right, **wrong})  # type: ignore[arg-type]
