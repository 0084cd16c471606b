"""Payloads of live events: in the rows of the source, in bronze, and not in the way of verification."""

from collections.abc import Sequence

import pytest
from tests.pipeline.history import History

from durabus import Action, Event, EventStore
from durabus.errors import SchemaError
from durabus.model.log_entry import LOG_COLUMNS
from durabus.pipeline.archive import Archive
from durabus.pipeline.lake import Lake
from durabus.pipeline.payloads import with_payloads
from durabus.pipeline.projections import Projection
from durabus.pipeline.run import Pipeline, PipelinePart
from durabus.pipeline.store_session import StoreSession
from durabus.pipeline.verification import verify
from durabus.store.events import EventRef

ID, ACTION, PAYLOAD = (LOG_COLUMNS.index(name) for name in ("id", "action", "payload_json"))


async def payloads(store: EventStore) -> dict[tuple[int, str], str | None]:
    rows = await with_payloads(store, (await store.read_log_rows()).rows)
    return {(row[ID], row[ACTION]): row[PAYLOAD] for row in rows}


async def test_the_published_entry_of_a_live_event_has_the_payload(store: EventStore, history: History) -> None:
    await history.completed(payload={"order": 1})
    await history.publish(payload={"order": 2})
    removed = await history.publish(payload={"order": 3})
    await store.remove_event(removed.id)
    found = await payloads(store)
    assert found == {
        (1, Action.PUBLISHED): None,
        (1, Action.PICKED): None,
        (1, Action.COMPLETED): '{"order":1}',
        (2, Action.PUBLISHED): '{"order":2}',
        (3, Action.PUBLISHED): None,
    }


async def test_a_damaged_event_does_not_hide_the_payloads_of_others(
    store: EventStore, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        await history.publish(payload={"order": number})
    get_events = store.get_events

    async def damaged(refs: Sequence[EventRef]) -> list[Event | None]:
        if 3 in refs:
            raise SchemaError("event 3 does not decode")
        return await get_events(refs)

    monkeypatch.setattr(store, "get_events", damaged)
    found = await payloads(store)
    assert [id_ for (id_, _), payload in found.items() if payload is None] == [3]


async def test_an_event_that_ends_between_archive_and_verification_is_verified(
    lake: Lake, session: StoreSession, store: EventStore, history: History
) -> None:
    """The lake has a payload that the log has not, and the log has the payload of the event only in its last entry."""
    await history.publish(payload={"order": 1})
    Archive(lake, session).run()
    (row,) = lake.read("bronze.event_log").collect()
    assert row["payload"] == '{"order":1}'
    (claim,) = await history.claim()
    await history.complete(claim)
    assert verify(lake, session).rows == 1
    Archive(lake, session).run()
    assert verify(lake, session).rows == 2


async def test_a_projection_can_use_live_events(lake: Lake, url: str, history: History) -> None:
    key = {"order": "get_json_object(payload, '$.order')"}
    seen = Projection(
        name="seen", key=key, live=True, sql="SELECT order, max(status) AS status FROM {events} GROUP BY 1"
    )
    for number in (1, 2):
        await history.publish(payload={"order": number})
    pipeline = Pipeline(lake, url, [seen])
    for part in (PipelinePart.ARCHIVE, PipelinePart.PROJECT):
        pipeline.run(part)
    assert states(lake) == {"1": "PENDING", "2": "PENDING"}
    (claim,) = await history.claim()
    await history.complete(claim)
    for part in (PipelinePart.ARCHIVE, PipelinePart.PROJECT):
        pipeline.run(part)
    assert states(lake) == {"1": "COMPLETED", "2": "PENDING"}


def states(lake: Lake) -> dict[str, str]:
    return {row["order"]: row["status"] for row in lake.read("gold.seen_v1").collect()}
