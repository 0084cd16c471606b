"""``silver.events`` and ``silver.attempts`` against a fold of the log in plain Python."""

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertSchemaEqual
from tests.pipeline.history import History

from durabus import Action, EventStore, LogEntry
from durabus.model.settlement import Cancel
from durabus.model.statuses import TERMINAL
from durabus.pipeline.activity import activity, parents_of
from durabus.pipeline.archive import Archive, event_log
from durabus.pipeline.derive import TRANSFORMS, rebuild_silver, update_silver
from durabus.pipeline.gaps import archive_name, save_verified
from durabus.pipeline.lake import Lake
from durabus.pipeline.schema import COUNTERS, EVENT_LOG, EVENTS
from durabus.pipeline.silver import attempts, events
from durabus.pipeline.store_session import StoreSession


def ms(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round((end - start) * 1000, 3)


def expected_event(trail: list[LogEntry], payload: str) -> dict[str, object]:
    first, last = trail[0], trail[-1]
    picks = [entry for entry in trail if entry.action is Action.PICKED]
    ends = [entry for entry in trail if entry.status in TERMINAL]
    ended = ends[-1] if last.status in TERMINAL else None
    return {
        "event_id": first.event_id,
        "type": first.type,
        "status": last.status.value,
        "attempts": last.attempt,
        "claims": len(picks),
        "failures": len({entry.fence for entry in trail if entry.action in (Action.FAILED, Action.ABANDONED)}),
        "generation": last.generation,
        "waiting_ms": ms(first.at_ts, picks[0].at_ts if picks else None),
        "running_ms": ms(picks[-1].at_ts if picks else None, ended.at_ts if ended else None),
        "end_to_end_ms": ms(first.at_ts, ended.at_ts if ended else None),
        "worker_id": picks[-1].worker_id if picks else None,
        "payload": payload,
        "tags": list(first.tags) or None,
        "errors": (list(ends[-1].errors) or None) if ends else None,
        "last_error": next((entry.error for entry in reversed(trail) if entry.error), None),
        "metadata": first.metadata_json,
    }


def expected_attempts(trail: list[LogEntry]) -> dict[int, dict[str, object]]:
    found: dict[int, dict[str, object]] = {}
    for entry in trail:
        match entry.action:
            case Action.PUBLISHED | Action.REQUEUED:
                continue
            case Action.PICKED:
                found[entry.fence] = {
                    "worker_id": entry.worker_id,
                    "attempt": entry.attempt,
                    "outcome": None,
                    "error": None,
                    "reason": None,
                }
            case Action.STARTED:
                found[entry.fence]["started"] = True
            case _:
                found[entry.fence] |= {"outcome": entry.action.value, "error": entry.error, "reason": entry.reason}
    return found


async def test_a_claim_that_was_settled_late_is_one_attempt_and_no_failure(
    spark: SparkSession, url: str, store: EventStore, history: History
) -> None:
    for kind in ("done", "failed"):
        await history.publish(kind)
        (claim,) = await history.claim("host:9", lease=5.0)
        history.clock.advance(10.0)
        assert await store.expire_events() == 1
        await (history.complete(claim) if kind == "done" else history.fail(claim, "boom", None))
    log = event_log(spark.read.format("durabus").option("url", url).load(), 0).cache()
    found = {row["type"]: (row["status"], row["failures"], row["last_error"]) for row in events(log).collect()}
    assert found == {"done": ("COMPLETED", 0, None), "failed": ("FAILED", 1, "boom")}
    held = [(row["type"], row["outcome"], row["error"]) for row in attempts(log).collect()]
    assert sorted(held) == [("done", "COMPLETED", None), ("failed", "FAILED", "boom")]
    days = of_days(log)
    assert (days["waiting_change"], days["working_change"]) == (0, 0)
    assert (days["abandoned"], days["late"], days["completed"], days["dead"]) == (2, 2, 1, 1)


def of_days(log: DataFrame) -> dict[str, int]:
    """Return the sums of ``gold.activity`` over all types, and the number of durations from end to end."""
    rows = activity(log, parents_of(log)).where("step = 'day' AND facet = 'type'").collect()
    sums = {name: sum(row[name] for row in rows) for name in COUNTERS}
    return sums | {"end_to_end": sum(len(row["end_to_end"]) for row in rows)}


async def test_a_cancelled_event_is_an_end_and_neither_success_nor_failure(
    spark: SparkSession, url: str, store: EventStore, history: History
) -> None:
    for kind in ("waiting", "running", "retried", "late"):
        event = await history.publish(kind)
        if kind != "waiting":
            (claim,) = await history.claim("host:9")
        if kind == "retried":
            await history.fail(claim, "boom", 60.0)
        if kind == "late":
            await store.settle_events([Cancel(claim.ref, "expired")])
        else:
            await store.cancel_event(event.id, reason="not wanted")
    log = event_log(spark.read.format("durabus").option("url", url).load(), 0).cache()
    made = events(log).cache()
    found = {row["type"]: (row["status"], row["failures"], row["claims"]) for row in made.collect()}
    assert found == {
        "waiting": ("CANCELLED", 0, 0),
        "running": ("CANCELLED", 0, 1),
        "retried": ("CANCELLED", 1, 1),
        "late": ("CANCELLED", 0, 1),
    }
    held = [(row["type"], row["fence"], row["outcome"], row["reason"]) for row in attempts(log).collect()]
    assert sorted(held, key=str) == [
        ("late", 1, "CANCELLED", "expired"),
        ("retried", 1, "FAILED", None),
        ("running", 1, "CANCELLED", "not wanted"),
    ]
    days = of_days(log)
    assert (days["waiting_change"], days["working_change"]) == (0, 0)
    assert (days["completed"], days["dead"], days["cancelled"]) == (0, 0, 4)
    assert days["end_to_end"] == 0


async def test_silver_is_the_log_folded(spark: SparkSession, url: str, store: EventStore, history: History) -> None:
    await history.varied()
    await store.requeue_dead_letters([3])
    log = event_log(spark.read.format("durabus").option("url", url).load(), 0).cache()
    made = {name: transform(log) for name, (_, transform, _) in TRANSFORMS.items()}
    for name, (table, _, _) in TRANSFORMS.items():
        assertSchemaEqual(made[name].schema, spark.createDataFrame([], table.ddl).schema, ignoreNullable=True)
    rows = {row["id"]: row.asDict() for row in made["silver.events"].collect()}
    held = {(row["id"], row["fence"]): row for row in made["silver.attempts"].collect()}
    assert sorted(rows) == list(range(1, 8))
    for id_, row in rows.items():
        trail = await store.read_event_log(id_)
        event = await store.get_event(id_)
        assert event is not None
        expected = expected_event(trail, event.payload_json)
        assert {name: row[name] for name in expected} == expected
        attempts = expected_attempts(trail)
        assert {fence for one, fence in held if one == id_} == set(attempts)
        for fence, attempt in attempts.items():
            started = attempt.pop("started", False)
            found = held[id_, fence].asDict()
            assert {name: found[name] for name in attempt} == attempt
            assert (found["started_at"] is not None) is started


async def test_incremental_is_rebuilt(
    lake: Lake,
    session: StoreSession,
    store: EventStore,
    history: History,
    content: Callable[[DataFrame], tuple[int, int]],
) -> None:
    await history.varied()
    Archive(lake, session).run()
    for name in TRANSFORMS:
        assert update_silver(lake, name) > 0
    await store.requeue_dead_letters([3, 4])
    (claim,) = await history.claim(limit=1)
    await history.complete(claim)
    await history.varied(first=10)
    Archive(lake, session).run()
    for name in TRANSFORMS:
        assert update_silver(lake, name) > 0
        incremental = content(lake.read(name))
        assert update_silver(lake, name) == 0
        rebuild_silver(lake, name)
        assert content(lake.read(name)) == incremental


@pytest.mark.long
async def test_tables_of_an_older_durabus_get_the_columns_they_lack(
    lake: Lake, session: StoreSession, store: EventStore, history: History
) -> None:
    """The older durabus has archived and verified one event. So the store knows the lake."""
    await history.completed()
    log = lake.spark.read.format("durabus").option("url", session.url).load()
    lake.append(event_log(log, 0).drop("results"), EVENT_LOG)
    lake.append(events(event_log(log, 0)).drop("replay_of"), EVENTS)
    await save_verified(store, archive_name(lake), await store.log_head())
    await history.completed()
    Archive(lake, session).run()
    assert update_silver(lake, EVENTS.name) == lake.read(EVENT_LOG.name).count() == 6
    assert set(lake.read(EVENT_LOG.name).columns) == set(EVENT_LOG.columns)
    assert lake.read(EVENTS.name).columns == list(EVENTS.columns)
