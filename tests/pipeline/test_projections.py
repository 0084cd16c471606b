"""Projections: incremental is rebuilt, a new version replaces the old one, bad ones are refused."""

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from tests.pipeline.history import History

from durabus import ConfigurationError, EventStore
from durabus.errors import PipelineError
from durabus.pipeline.archive import Archive
from durabus.pipeline.derive import rebuild_projection
from durabus.pipeline.lake import Lake
from durabus.pipeline.projections import Projection, hourly_counters, journeys, latest_state
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
    monkeypatch.setattr("durabus.pipeline.derive.FEW", 0)  # as if there were many; test_kill has few
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
