"""The short way of a settlement gives what the lifecycle gives, and is taken when it can be."""

import asyncpg
import pytest

from durabus.errors import LeaseLost
from durabus.model.claim import Claim, ClaimRequest, new_token
from durabus.model.event import new_event
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Settled, Settlement
from durabus.model.statuses import EventStatus, ResultStatus
from durabus.stores.postgresql.store import PostgreSQLStore

SUCCEEDED = ResultStatus.SUCCEEDED


async def claim(store: PostgreSQLStore, number: int) -> list[Claim]:
    await store.add_events([new_event("a", {"n": n}) for n in range(number)])
    request = ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=number)
    return await store.claim_next_events(request)


def results(*handler_ids: str) -> tuple[HandlerResult, ...]:
    return tuple(
        HandlerResult(
            handler_id=handler_id, status=SUCCEEDED, attempts=1, value_json='{"a": "\\u0000"}', execution_time_ms=1.5,
            fence=3, worker_id="w",
        )
        for handler_id in handler_ids
    )  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the statements that are sent."""
    sent: list[str] = []
    fetch = asyncpg.connection.Connection.fetch

    async def note(connection: asyncpg.Connection, query: str, *arguments: object, **options: object) -> object:
        sent.append(query)
        return await fetch(connection, query, *arguments, **options)

    monkeypatch.setattr(asyncpg.connection.Connection, "fetch", note)
    return sent


async def test_results_of_two_handlers_go_the_short_way(store: PostgreSQLStore, asked: list[str]) -> None:
    claims = await claim(store, 3)
    asked.clear()
    given = [results("b", "a"), (), results("c")]
    answer = await store.settle_events(
        [Complete(one.ref, result, execution_time_ms=2.0) for one, result in zip(claims, given, strict=True)]
    )
    assert len([query for query in asked if "pg_notify" not in query]) == 1  # the hint of the publish may be late
    assert [type(outcome) for outcome in answer.outcomes] == [Settled] * 3
    for one, result in zip(claims, given, strict=True):
        assert await store.list_results(one.event.id) == sorted(result, key=lambda one: one.handler_id)
        assert (await store.read_event_log(one.event.id))[-1].results == result
        ended = await store.get_event(one.event.id)
        assert ended is not None
        assert ended.status is EventStatus.COMPLETED


async def test_a_repeat_returns_its_outcome_and_writes_nothing(store: PostgreSQLStore) -> None:
    (one,) = await claim(store, 1)
    settlement = Complete(one.ref, results("a", "b"))
    first = await store.settle_events([settlement])
    log = await store.read_event_log(one.event.id)
    assert (await store.settle_events([settlement])).outcomes == first.outcomes
    assert await store.read_event_log(one.event.id) == log


async def test_a_handler_that_is_not_done_keeps_the_event_open(store: PostgreSQLStore) -> None:
    (one,) = await claim(store, 1)
    waiting = HandlerResult(handler_id="b", status=ResultStatus.PENDING)
    answer = await store.settle_events([Complete(one.ref, (*results("a"), waiting))])
    assert isinstance(answer.outcomes[0], LeaseLost)
    assert (await store.counts()).processing == 1
    assert await store.list_results(one.event.id) == []


async def test_one_failure_does_not_make_the_others_slow(store: PostgreSQLStore, asked: list[str]) -> None:
    claims = await claim(store, 20)
    asked.clear()
    settlements: list[Settlement] = [Complete(one.ref, results("a", "b")) for one in claims]
    settlements[7] = Fail(claims[7].ref, "boom", 60.0)
    answer = await store.settle_events(settlements)
    assert sum("complete_events" in query for query in asked) == 2
    statuses = [outcome.status for outcome in answer.outcomes if isinstance(outcome, Settled)]
    expected = [EventStatus.COMPLETED] * 20
    expected[7] = EventStatus.PENDING
    assert statuses == expected
    counts = await store.counts()
    assert (counts.completed, counts.pending, counts.processing) == (19, 1, 0)


async def test_a_lost_claim_among_others_is_refused_alone(store: PostgreSQLStore) -> None:
    claims = await claim(store, 5)
    await store.reset_event(claims[2].event.id, reason="stuck")
    settlements: list[Settlement] = [Complete(one.ref, results("a")) for one in claims]
    settlements[0] = Fail(claims[0].ref, "boom", None)
    answer = await store.settle_events(settlements)
    assert [isinstance(outcome, LeaseLost) for outcome in answer.outcomes] == [False, False, True, False, False]
    counts = await store.counts()
    assert (counts.completed, counts.failed, counts.pending) == (3, 1, 1)
    assert await store.list_results(claims[2].event.id) == []
