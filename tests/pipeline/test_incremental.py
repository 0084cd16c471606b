"""A run with few new entries: the same tables as computed from the whole log, and no work where nothing is new."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from tests.pipeline.history import History
from tests.pipeline.recomputed.files import Files
from tests.pipeline.recomputed.lake import check_lake

from durabus import upcast
from durabus.pipeline.activity import activity, parents_of
from durabus.pipeline.derive import TRANSFORMS
from durabus.pipeline.lake import Lake
from durabus.pipeline.news import in_ranges
from durabus.pipeline.projecting import all_rows
from durabus.pipeline.projections import hourly_counters, journeys, latest_state
from durabus.pipeline.rebuilding import rebuild
from durabus.pipeline.run import Pipeline
from durabus.pipeline.schema import ACTIVITY, EVENT_LOG, Table
from durabus.pipeline.store_session import StoreSession
from durabus.pipeline.tables import EventTable

Content = Callable[[DataFrame], tuple[int, int]]
SHIPPED = [hourly_counters(), latest_state("order"), journeys("order")]
TYPED = [EventTable("mail.*")]


def computed_anew(lake: Lake) -> dict[str, DataFrame]:
    log = lake.read(EVENT_LOG.name)
    return {
        **{name: transform(log) for name, (_, transform, _) in TRANSFORMS.items()},
        **{one.table: all_rows(lake, one) for one in SHIPPED},
        ACTIVITY.name: activity(log, parents_of(log)),
    }


async def test_a_run_with_few_new_entries_gives_the_tables_of_the_whole_log(  # noqa: PLR0917  (fixtures)
    lake: Lake,
    session: StoreSession,
    history: History,
    content: Content,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The new entries are of new events, of a dead letter that is requeued, and of a claim that has lost its lease.

    The upcaster changes the key of two projections.
    """
    monkeypatch.setattr("durabus.model.upcasting._UPCASTERS", {})

    @upcast("mail.requested", 1, 2)
    def numbered(payload: dict[str, int]) -> dict[str, str]:
        return {"order": f"mail {payload['order']}"}

    await history.varied()
    (held,) = await history.claim("host:slow", lease=5.0)
    pipeline = Pipeline(lake, session.url, [*SHIPPED, *TYPED])
    pipeline.run()
    history.clock.advance(10.0)
    (claim,) = await history.claim("host:1", limit=1)
    assert claim.event.id == held.event.id
    await history.complete(claim)
    await history.store.requeue_dead_letters([3])
    await history.varied(first=50)
    pipeline.run()
    with ThreadPoolExecutor(4) as threads:  # most of a small query is waiting
        expected = computed_anew(lake)
        kept = threads.map(lambda name: content(lake.read(name)), expected)
        made = threads.map(content, expected.values())
        assert dict(zip(expected, kept, strict=True)) == dict(zip(expected, made, strict=True))
    ended = {row["order"] for row in lake.read("gold.latest_order_v1").collect()}
    assert ended >= {"mail 1", "mail 2", "mail 50"}
    grown = lake.read("silver.mail_requested").orderBy("order").collect()
    assert [row["order"] for row in grown] == ["mail 1", "mail 2", "mail 50", "mail 51"]
    upcast_here = {"mail.requested": lambda payload: {"order": f"mail {payload['order']}"}}
    checked = check_lake(Files([tmp_path / "bus.db"], Path(lake.path), newest=upcast_here))
    assert {"silver.mail_requested", *(one.table for one in SHIPPED)} < set(checked)
    rebuild(lake, "silver.mail_requested", TYPED)
    assert lake.read("silver.mail_requested").orderBy("order").collect() == grown


async def test_a_run_without_news_asks_spark_for_nothing(lake: Lake, session: StoreSession, history: History) -> None:
    await history.completed()
    pipeline = Pipeline(lake, session.url, SHIPPED[:1])
    pipeline.run()
    before = {name: lake.memory.newest_commit(name) for name in lake.tables()}
    jobs = lake.spark.sparkContext.statusTracker()
    asked = max(jobs.getJobIdsForGroup(None))
    pipeline.run()
    assert max(jobs.getJobIdsForGroup(None)) - asked <= 4
    assert [name for name in lake.tables() if lake.memory.newest_commit(name) != before[name]] == ["ops.runs"]


async def test_stale_workers_are_those_whose_claims_have_not_ended_by_now(
    lake: Lake, session: StoreSession, history: History
) -> None:
    """A run knows the open claims from the run before, and how its own entries have changed them."""

    def run() -> dict[str, int]:
        Pipeline(lake, session.url).run(stale_after=-1e12)  # the host's clock is behind that of the history
        return {row["worker_id"]: row["claims"] for row in lake.read("gold.stale_workers").collect()}

    for _ in range(3):
        await history.publish()
    first, second = await history.claim("host:1", lease=3600.0, limit=2)
    assert run() == {"host:1": 2}
    await history.complete(first)
    await history.claim("host:2", lease=3600.0)
    assert run() == {"host:1": 1, "host:2": 1}
    await history.complete(second)
    assert run() == {"host:2": 1}
    assert run() == {"host:2": 1}


async def test_what_is_remembered_of_a_table_ends_with_its_next_commit(lake: Lake) -> None:
    lake.memory.keep("bronze.event_log", "x", 1)
    assert lake.memory.get("bronze.event_log", "x") is None, "there is no table"
    lake.create(EVENT_LOG)
    lake.memory.keep("bronze.event_log", "x", 1)
    assert lake.memory.get("bronze.event_log", "x") == 1
    lake.spark.sql(f"ALTER TABLE delta.`{lake.location(EVENT_LOG.name)}` SET TBLPROPERTIES ('a' = 'b')")
    assert lake.memory.get("bronze.event_log", "x") is None


def test_commits_ask_spark_for_the_same_on_hosts_of_every_time_zone(lake: Lake) -> None:
    spark = lake.spark
    zones = spark._jvm.java.util.TimeZone  # type: ignore[union-attr]
    state = spark._jsparkSession.sharedState()
    asked = {}
    before = zones.getDefault()
    try:
        for name in ("UTC", "Europe/Oslo"):
            zones.setDefault(zones.getTimeZone(name))
            spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
            begun = state.statusStore().executionsCount()
            for _ in range(3):
                lake.append(spark.range(1).coalesce(1), Table(name=f"ops.{name[:3].lower()}", ddl="id BIGINT"))
            spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
            asked[name] = state.statusStore().executionsCount() - begun
    finally:
        zones.setDefault(before)
    assert asked["Europe/Oslo"] == asked["UTC"]


@pytest.mark.parametrize(
    ("ids", "condition"),
    [
        ([], "false"),
        ([5], "id BETWEEN 5 AND 5"),
        ([1, 2, 3, 9, 10], "id BETWEEN 1 AND 3 OR id BETWEEN 9 AND 10"),
    ],
)
def test_ids_become_few_ranges(ids: list[int], condition: str) -> None:
    assert in_ranges("id", ids) == condition
    assert in_ranges("id", list(range(0, 1000, 2))).count("BETWEEN") == 16
