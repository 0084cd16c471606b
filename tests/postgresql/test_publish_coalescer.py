"""Publishers of one process share their commits, and nothing else."""

import asyncio
from collections.abc import Sequence

import msgspec
import psycopg
import pytest

from durabus.errors import InvalidEventError, StoreClosedError
from durabus.model.event import Event, NewEvent, new_event
from durabus.stores.postgresql.coalescer import MOST_EVENTS, PublishCoalescer
from durabus.stores.postgresql.store import PostgreSQLStore


async def test_publishers_that_meet_share_commits(store: PostgreSQLStore, admin: psycopg.Connection) -> None:
    answers = await asyncio.gather(*(store.add_events([new_event("a", {"n": n})]) for n in range(64)))
    assert [answer[0].payload["n"] for answer in answers] == list(range(64))
    stored = admin.execute("SELECT count(*), count(DISTINCT tx) FROM published").fetchone()
    assert stored == (64, 2)  # the first leaves alone, all others wait for it and go together


async def test_calls_that_meet_keep_their_batches(store: PostgreSQLStore) -> None:
    batches = [[new_event("a", {"n": n, "of": size}) for n in range(size)] for size in (1, 3, 0, 700, 2, 499, 5)]
    answers = await asyncio.gather(*(store.add_events(batch) for batch in batches))
    assert [[event.event_id for event in answer] for answer in answers] == [
        [new.event_id for new in batch] for batch in batches
    ]
    for answer in answers:
        assert [event.id for event in answer] == sorted(event.id for event in answer)


async def test_a_key_is_known_across_calls_that_meet(store: PostgreSQLStore) -> None:
    answers = await asyncio.gather(*(store.add_events([new_event("a", idempotency_key="once")]) for _ in range(20)))
    assert len({answer[0].id for answer in answers}) == 1
    assert (await store.counts()).pending == 1


async def test_a_call_that_is_refused_refuses_no_other(store: PostgreSQLStore) -> None:
    bad = msgspec.structs.replace(new_event("a"), event_id="no uuid")
    calls = [store.add_events([bad if n == 7 else new_event("a", {"n": n})]) for n in range(20)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [n for n, answer in enumerate(answers) if isinstance(answer, InvalidEventError)] == [7]
    assert (await store.counts()).pending == 19


async def test_a_cancelled_publish_cancels_no_other(store: PostgreSQLStore) -> None:
    calls = [asyncio.create_task(store.add_events([new_event("a", {"n": n})])) for n in range(20)]
    await asyncio.sleep(0)
    for call in (calls[0], calls[9]):  # one under way, one that waits
        call.cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [n for n, answer in enumerate(answers) if isinstance(answer, BaseException)] == [0, 9]
    assert 18 <= (await store.counts()).pending <= 19
    await store.add_events([new_event("a")])


async def test_what_waits_is_stored_before_the_store_is_closed(url: str, store: PostgreSQLStore) -> None:
    leaving = PostgreSQLStore.from_url(url)
    await leaving.open()
    calls = [asyncio.create_task(leaving.add_events([new_event("a")])) for _ in range(20)]
    await asyncio.sleep(0)
    await leaving.close()
    await asyncio.gather(*calls)
    assert (await store.counts()).pending == 20
    with pytest.raises(StoreClosedError, match="is closed"):
        await leaving.add_events([new_event("a")])


async def test_an_error_of_one_round_leaves_no_call_of_the_next_waiting() -> None:
    """This holds for any error."""
    rounds = 0

    async def send(new: Sequence[NewEvent]) -> list[Event]:
        nonlocal rounds
        rounds += 1
        await asyncio.sleep(0)
        raise ZeroDivisionError(rounds)

    coalescer = PublishCoalescer(send)
    first = asyncio.create_task(coalescer.add([new_event("a")]))
    await asyncio.sleep(0)
    large = [new_event("a") for _ in range(MOST_EVENTS - 1)]
    async with asyncio.timeout(10):
        answers = await asyncio.gather(first, *(coalescer.add(large) for _ in range(3)), return_exceptions=True)
        await coalescer.wait_until_idle()
    assert [str(answer) for answer in answers] == ["1", "2", "3", "4"]
