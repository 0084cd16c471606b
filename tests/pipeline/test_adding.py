"""Projections whose rows grow by new events: an update adds these and reads no older ones."""

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame
from tests.pipeline.history import History

from durabus.pipeline.input_tables import InputTables
from durabus.pipeline.lake import Lake
from durabus.pipeline.projecting import all_rows
from durabus.pipeline.projections import Projection, hourly_counters, journeys, latest_state
from durabus.pipeline.run import Pipeline
from durabus.pipeline.store_session import StoreSession

Content = Callable[[DataFrame], tuple[int, int]]
ORDER = {"order": "get_json_object(payload, '$.order')"}
TOTALS = (
    "SELECT order, count(*) AS n, count_if(status = 'COMPLETED') AS good, sum(claims) AS claims, min(published_at) AS "
    "began, max(last_seq) AS newest, sort_array(collect_list(event_id)) AS events FROM {events} GROUP BY order"
)
MINUTES = "SELECT date_trunc('MINUTE', at) AS minute, count(*) AS n, max(seq) AS newest FROM {event_log} GROUP BY 1"
MAYBE = "CASE WHEN claims > 1 THEN struct(id, type) END"
ADDED = [
    hourly_counters(),
    latest_state("order"),
    journeys("order"),
    Projection(name="totals", key=ORDER, sql=TOTALS, live=True),
    Projection(name="minutes", key="minute", sql=MINUTES, inputs="bronze.event_log"),
]


def read_nothing(*_: object) -> DataFrame:
    raise AssertionError("an update reads the whole input")


async def test_new_events_are_added_to_rows_without_a_look_at_older_events(
    lake: Lake, session: StoreSession, history: History, content: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    await history.varied()
    await history.completed("order.placed", {"order": 1})  # the last of the others, too
    pipeline = Pipeline(lake, session.url, ADDED)
    pipeline.run()
    await history.completed("order.placed", {"order": 1})
    await history.completed("order.placed", {"order": 77})
    await history.completed("order.placed", {"other": 1})
    await history.publish("order.placed", {"order": 2})
    with monkeypatch.context() as patched:
        patched.setattr(InputTables, "whole", read_nothing)
        pipeline.run()
    await history.completed("order.placed", {"order": 3})  # and the one of order 2, which a live projection has counted
    pipeline.run()
    for one in ADDED:
        assert content(lake.read(one.table)) == content(all_rows(lake, one)), one.name


async def test_rows_of_more_keys_than_a_condition_names_are_added_too(
    lake: Lake, session: StoreSession, history: History, content: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    await history.completed("order.placed", {"order": 1})
    pipeline = Pipeline(lake, session.url, [ADDED[1]])
    pipeline.run()
    await history.completed("order.placed", {"order": 1})
    await history.completed("order.placed", {"order": 2})
    with monkeypatch.context() as patched:
        patched.setattr(InputTables, "whole", read_nothing)
        patched.setattr("durabus.pipeline.upserting.MOST_KEYS", 0)
        pipeline.run()
    assert content(lake.read(ADDED[1].table)) == content(all_rows(lake, ADDED[1]))


async def test_a_change_of_an_event_that_was_counted_is_not_added(
    lake: Lake, session: StoreSession, history: History, content: Content
) -> None:
    await history.varied()
    pipeline = Pipeline(lake, session.url, ADDED[:1])
    pipeline.run()
    await history.store.requeue_dead_letters([3])
    pipeline.run()
    assert content(lake.read(ADDED[0].table)) == content(all_rows(lake, ADDED[0]))


async def test_entries_count_once_if_a_run_ends_before_it_notes_its_progress(
    lake: Lake, session: StoreSession, history: History, content: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    await history.completed()
    pipeline = Pipeline(lake, session.url, ADDED[:1])
    pipeline.run()
    await history.completed()
    with monkeypatch.context() as patched:
        patched.setattr(Pipeline, "_note", lambda _: None)
        pipeline.run()
    await history.completed()
    pipeline.run()
    (row,) = lake.read(ADDED[0].table).collect()
    assert row["events"] == 3
    assert content(lake.read(ADDED[0].table)) == content(all_rows(lake, ADDED[0]))


@pytest.mark.parametrize(
    ("columns", "mode"),
    [
        ("count(*) AS n, min(id) AS first, max(end_to_end_ms) AS slowest", "add"),
        ("sum(claims) FILTER (WHERE claims > 1) AS n", "add"),
        ("max(struct(first_seq, status)).first_seq AS seq, max(struct(first_seq, status)).status AS status", "add"),
        ("sort_array(collect_list(id)) AS ids, size(sort_array(collect_list(id))) AS n", "add"),
        ("max(struct(first_seq, status)).status AS status", "upsert"),
        (f"min({MAYBE}).id AS id, min({MAYBE}).type AS type", "upsert"),
        ("collect_list(id) AS ids", "upsert"),
        ("size(sort_array(collect_list(id))) AS n", "upsert"),
        ("sum(running_ms) AS ms", "upsert"),
        ("avg(claims) AS mean", "upsert"),
        ("count(DISTINCT type) AS types", "upsert"),
        ("count(*) + 1 AS n", "upsert"),
        ("count(*) AS n, count(*) % 2 AS odd", "add"),
    ],
)  # fmt: skip
def test_rows_are_added_only_if_the_table_shows_every_aggregate(lake: Lake, columns: str, mode: str) -> None:
    one = Projection(name="x", key="bus", sql=f"SELECT bus, {columns} FROM {{events}} GROUP BY bus")
    assert InputTables(lake, [one]).trace(one).mode == mode


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT bus, count(*) AS n FROM {events} GROUP BY bus HAVING count(*) > 1",
        "SELECT bus, n FROM (SELECT bus, type, count(*) AS n FROM {events} GROUP BY bus, type)",
        "SELECT bus, max(n) AS n FROM (SELECT bus, type, count(*) AS n FROM {events} GROUP BY bus, type) GROUP BY bus",
        "SELECT a.bus, count(*) AS n FROM {events} a JOIN {events} b ON a.bus = b.bus GROUP BY a.bus",
    ],
)
def test_other_queries_compute_rows_again(lake: Lake, sql: str) -> None:
    one = Projection(name="x", key="bus", sql=sql)
    assert InputTables(lake, [one]).trace(one).mode in ("upsert", "full")
