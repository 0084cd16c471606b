"""The read service gives the command line, the dashboard and the metrics the same typed results."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from uuid import UUID

import pytest

from durabus import Event, EventStore, ManualClock, new_event, open_store
from durabus.errors import EventNotFound, NotADeadLetter, StoreUnavailableError
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import new_event_id
from durabus.model.handler import HandlerInfo
from durabus.model.query import EventQuery
from durabus.model.result import HandlerResult
from durabus.model.settlement import NO_HANDLER, Complete, Fail, Keep
from durabus.model.statuses import Action, ResultStatus
from durabus.model.wait import new_wait, waiting
from durabus.store.log import START
from durabus.views import events as event_views
from durabus.views.dead_letters import count_dead_letters, dead_letters_named
from durabus.views.events import find_events, follow_log, read_event_details, read_family
from durabus.views.stats import read_metrics
from durabus.views.steps import handlers_of
from durabus.views.workers import LATE_AFTER, list_held_locks

RESULT = HandlerResult(handler_id="h", status=ResultStatus.SUCCEEDED, value_json="7")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000.0)


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[EventStore]:
    opened = await open_store("memory://", clock=clock)
    yield opened
    await opened.close()


async def publish(store: EventStore, count: int = 1, **options: str) -> list[Event]:
    return await store.add_events([new_event("order.placed", **options) for _ in range(count)])  # type: ignore[arg-type]


async def end(store: EventStore, error: str | None = None, *, reason: str | None = None) -> Event:
    """Publish one event and end it: completed, or with an error as a dead letter."""
    (event,) = await publish(store)
    (claim,) = await store.claim_next_events(ClaimRequest(bus="default", worker_id="w:1", token=new_token()))
    settlement = Complete(claim.ref, (RESULT,), reason=reason) if error is None else Fail(claim.ref, error, None)
    await store.settle_events([settlement])
    return event


async def test_details_of_an_event_are_its_state_its_trail_and_its_results(store: EventStore) -> None:
    event = await end(store)
    for ref in (event.id, event.event_id):
        found = await read_event_details(store, ref)
        assert found is not None
        assert found.event == await store.get_event(event.id)
        assert [entry.action for entry in found.trail] == [Action.PUBLISHED, Action.PICKED, Action.COMPLETED]
        assert found.results == found.last_results == [RESULT]
    assert await read_event_details(store, new_event_id()) is None


async def test_deleted_results_are_shown_from_the_log(store: EventStore) -> None:
    event = await end(store)
    await store.cleanup_results()
    found = await read_event_details(store, event.id)
    assert found is not None
    assert (found.results, tuple(found.last_results)) == ([], (RESULT,))


async def test_details_need_only_the_shard_of_their_event(monkeypatch: pytest.MonkeyPatch) -> None:
    store = await open_store("sharded://memory://|memory://")
    (event,) = await publish(store, event_id=str(UUID(int=2)))

    async def down(*_arguments: object, **_options: object) -> None:
        raise StoreUnavailableError("no route to host")

    for verb in ("find", "get_event", "get_events", "list_results", "read_event_log"):
        monkeypatch.setattr(store._shards[1], verb, down)  # type: ignore[attr-defined]
    found = await read_event_details(store, event.id)
    assert found is not None
    assert found.event == event
    with pytest.raises(StoreUnavailableError):
        await read_family(store, event)
    await store.close()


async def test_a_family_is_the_parent_and_the_newest_children(
    store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_views, "MAX_CHILDREN", 2)
    (parent,) = await publish(store)
    children = await publish(store, 3, parent_id=parent.event_id)
    found = await read_family(store, parent)
    assert (found.parent, found.children) == (None, children[:0:-1])
    assert (await read_family(store, children[0])).parent == parent


async def test_a_search_says_why_an_event_completed_without_work(store: EventStore) -> None:
    done, unhandled = await end(store), await end(store, reason=NO_HANDLER)
    (waiting,) = await publish(store)
    found = await find_events(store, EventQuery(limit=2))
    assert ([event.id for event in found.events], found.next_before_id) == ([waiting.id, unhandled.id], unhandled.id)
    assert found.reasons == {waiting.id: None, unhandled.id: NO_HANDLER}
    assert found.at_ts == await store.now()
    older = await find_events(store, EventQuery(before_id=found.next_before_id))
    assert (older.reasons, older.next_before_id) == ({done.id: None}, None)


async def test_the_log_is_followed_page_by_page_until_the_caller_stops_it(
    store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_views, "LOG_PAGE", 2)
    published = [event.id for event in await publish(store, 3)]
    stopping, pages = asyncio.Event(), list[list[int]]()
    async with asyncio.timeout(10), aclosing(follow_log(store, START, every=0.0, stopping=stopping)) as followed:
        async for entries in followed:
            pages.append([entry.id for entry in entries])
            if len(pages) == 3:
                published += [event.id for event in await publish(store)]
            elif len(pages) == 4:
                stopping.set()
    assert pages == [published[:2], [published[2]], [], [published[3]]]


async def test_a_follower_that_waits_is_stopped_at_once(store: EventStore) -> None:
    stopping = asyncio.Event()
    async with asyncio.timeout(10), aclosing(follow_log(store, START, every=3600.0, stopping=stopping)) as followed:
        async for _ in followed:
            asyncio.get_running_loop().call_soon(stopping.set)


async def test_dead_letters_are_counted_and_checked_by_name(store: EventStore) -> None:
    dead, done = await end(store, "no"), await end(store)
    assert (await count_dead_letters(store, None), await count_dead_letters(store, "other")) == (1, 0)
    assert await dead_letters_named(store, [dead.id, dead.event_id]) == [dead.id, dead.id]
    with pytest.raises(NotADeadLetter, match="COMPLETED"):
        await dead_letters_named(store, [dead.id, done.id])
    with pytest.raises(EventNotFound, match="4711"):
        await dead_letters_named(store, [4711, done.id])


async def test_held_locks_come_in_pages(store: EventStore) -> None:
    for key in ("a", "b"):
        await store.claim_lock(key, worker_id="w:1", token=new_token(), lease=60.0)
    first = await list_held_locks(store, after="", limit=1)
    assert ([lock.key for lock in first.locks], first.next_after, first.at_ts) == (["a"], "a", await store.now())
    rest = await list_held_locks(store, after="a", limit=2)
    assert ([lock.key for lock in rest.locks], rest.next_after) == (["b"], None)


async def test_metrics_are_those_of_one_bus(store: EventStore, clock: ManualClock) -> None:
    await publish(store, 2)
    await publish(store, 1, bus="other")
    await store.register_handlers("default", "w:1:n", [HandlerInfo(handler_id="h", pattern="*")], kept_for=None)
    found = await read_metrics(store, "default")
    assert (found.bus, found.counts.pending, found.log_hold, found.missing_handlers) == ("default", 2, None, 0)
    clock.advance(LATE_AFTER + 1)
    assert (await read_metrics(store, "default")).missing_handlers == 1


def kept(handler_id: str, value_json: str, milliseconds: float | None = None) -> HandlerResult:
    return HandlerResult(
        handler_id=handler_id,
        status=ResultStatus.KEPT,
        attempts=1,
        value_json=value_json,
        execution_time_ms=milliseconds,
    )


def test_each_handler_comes_with_its_steps_and_sleeps() -> None:
    failed = HandlerResult(handler_id="b", status=ResultStatus.TRANSIENT, value_json='{"traceback": "Traceback"}')
    first, second, third = handlers_of(
        [
            RESULT,
            kept("a > charge", '{"value":{"receipt":7},"arguments":"0a"}', 20.0),
            kept("a > sleep", "1700000000.5"),
            kept("a > charge#2", "{}", 5.0),
            kept("a > odd", "[1"),
            failed,
        ]
    )
    assert (first.handler_id, first.status, first.steps) == ("h", ResultStatus.SUCCEEDED, ())
    assert (second.handler_id, second.result, second.status) == ("a", None, ResultStatus.PROCESSING)
    assert [(step.name, step.value_json, step.until_ts, step.share) for step in second.steps] == [
        ("charge", '{"receipt":7}', None, 1.0),
        ("sleep", None, 1700000000.5, 0.0),
        ("charge#2", "null", None, 0.25),
        ("odd", "[1", None, 0.0),
    ]
    assert (third.traceback, first.traceback) == ("Traceback", None)


def test_a_wait_says_what_it_is_for_and_then_which_event_came() -> None:
    waits = [
        waiting("a > wait_for", new_wait("shop", "payment.settled", {"order": 7, "by": "card"}, 1700000000.5)),
        waiting("a > wait_for#2", new_wait("shop", "goods.packed", None, None)),
        kept("a > wait_for#3", '{"event":{"id":5}}'),
        kept("a > wait_for#4", '{"event":null}'),
    ]
    (handler,) = handlers_of(waits)
    assert [(step.waits_for, step.until_ts, step.value_json) for step in handler.steps] == [
        ('payment.settled where by="card", order=7', 1700000000.5, None),
        ("goods.packed", None, None),
        (None, None, '{"id":5}'),
        (None, None, "null"),
    ]


async def test_results_come_in_the_order_in_which_they_were_stored(store: EventStore) -> None:
    (event,) = await publish(store, 1)
    (claim,) = await store.claim_next_events(ClaimRequest(bus="default", worker_id="w:1", token=new_token()))
    await store.keep_results([Keep(claim.ref, (kept("h > b", "1"),)), Keep(claim.ref, (kept("h > a", "2"),))])
    running = await read_event_details(store, event.id)
    assert running is not None
    assert [result.handler_id for result in running.last_results] == ["h > b", "h > a"]
    await store.settle_events([Complete(claim.ref, (RESULT,))])
    found = await read_event_details(store, event.id)
    assert found is not None
    assert [result.handler_id for result in found.last_results] == ["h > b", "h > a", "h"]
