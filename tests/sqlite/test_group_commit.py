"""All waiting calls share one commit, and an error of one call does not affect the others."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from durabus import Event, EventBus
from durabus.errors import LeaseLost
from durabus.model.claim import ClaimRequest, LockClaim, new_token
from durabus.model.event import new_event
from durabus.model.query import EventQuery
from durabus.model.result import first_success
from durabus.model.settlement import Complete, Keep
from durabus.stores.sqlite.store import SQLiteStore


@asynccontextmanager
async def writer_held(store: SQLiteStore) -> AsyncIterator[None]:
    """Hold the writer, so that the calls made in the context wait together."""
    begun, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        begun.set()
        go_on.wait(30)

    holding = asyncio.create_task(store._write(hold))
    await asyncio.to_thread(begun.wait, 30)
    yield
    await asyncio.sleep(0)
    go_on.set()
    await holding


async def test_sixty_four_publishers_share_a_few_commits(store: SQLiteStore) -> None:
    before = store._file.writer.commits
    async with writer_held(store):
        calls = [asyncio.create_task(store.add_events([new_event("order.placed", n)])) for n in range(64)]
    added = await asyncio.gather(*calls)
    assert store._file.writer.commits - before <= 4
    assert sorted(events[0].id for events in added) == list(range(1, 65))
    assert [events[0].payload for events in added] == list(range(64))


async def test_an_event_loop_is_woken_once_for_a_commit(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, wakes = asyncio.get_running_loop(), 0
    wake = loop.call_soon_threadsafe

    def count(callback: Callable[..., object], *arguments: Any, context: Any = None) -> Any:
        nonlocal wakes
        wakes += 1
        return wake(callback, *arguments, context=context)

    monkeypatch.setattr(loop, "call_soon_threadsafe", count)
    before = store._file.writer.commits
    await asyncio.gather(*(store.add_events([new_event("order.placed")]) for _ in range(64)))
    assert wakes == store._file.writer.commits - before


async def test_claims_settlements_and_publishes_share_a_commit(store: SQLiteStore) -> None:
    await store.add_events([new_event("order.placed") for _ in range(4)])
    claims = await store.claim_next_events(ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=2))
    before = store._file.writer.commits
    calls: list[Coroutine[Any, Any, object]] = [
        store.settle_events([Complete(claims[0].ref)]),
        store.add_events([new_event("order.paid")]),
        store.claim_next_events(ClaimRequest(bus="default", worker_id="w", token=new_token())),
        store.renew_event_claims([claims[1].ref], lease=60.0),
    ]
    async with writer_held(store):
        tasks = [asyncio.create_task(call) for call in calls]
    await asyncio.gather(*tasks)
    assert store._file.writer.commits - before <= 2


async def test_a_worker_claims_an_event_in_the_commit_that_publishes_it(store: SQLiteStore) -> None:
    commits_at_start: list[int] = []

    async def handler(_event: Event) -> None:
        commits_at_start.append(store._file.writer.commits)

    async with EventBus(store) as bus:
        bus.subscribe("order.placed", handler)
        await bus.publish("order.placed")
        before = store._file.writer.commits
        async with writer_held(store):
            publishing = asyncio.create_task(bus.publish("order.placed"))
            for _ in range(5):
                await asyncio.sleep(0)
        await publishing
    assert commits_at_start[-1] - before == 2  # that of ``writer_held``, and one for the event and its claim


async def test_a_claim_that_takes_all_new_events_wakes_no_other_worker(store: SQLiteStore) -> None:
    waiting = asyncio.create_task(store.wait_for_work("default", timeout=0.2))
    await asyncio.sleep(0)
    request = ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=2)
    async with writer_held(store):
        adding = asyncio.create_task(store.add_events([new_event("order.placed")]))
        claiming = asyncio.create_task(store.claim_next_events(request))
    _, claims = await asyncio.gather(adding, claiming)
    assert len(claims) == 1
    assert not await waiting


@pytest.mark.parametrize("delay", [0.0, 30.0])
async def test_a_claim_that_leaves_new_events_wakes_other_workers(store: SQLiteStore, delay: float) -> None:
    waiting = asyncio.create_task(store.wait_for_work("default", timeout=30))
    await asyncio.sleep(0)
    request = ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=1)
    async with writer_held(store):
        new = [new_event("order.placed"), new_event("order.placed", delay=delay)]
        adding = asyncio.create_task(store.add_events(new))
        claiming = asyncio.create_task(store.claim_next_events(request))
    _, claims = await asyncio.gather(adding, claiming)
    assert len(claims) == 1
    assert await waiting


async def test_kept_results_share_a_few_commits_with_settlements(store: SQLiteStore) -> None:
    await store.add_events([new_event("order.placed") for _ in range(128)])
    claims = await store.claim_next_events(ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=128))
    goes_on, ends = claims[:64], claims[64:]
    before = store._file.writer.commits
    async with writer_held(store):
        tasks = [
            asyncio.create_task(call)
            for kept, ended in zip(goes_on, ends, strict=True)
            for call in (
                store.keep_results([Keep(kept.ref, (first_success("ship", 1.0),))]),
                store.settle_events([Complete(ended.ref)]),
            )
        ]
    await asyncio.gather(*tasks)
    assert store._file.writer.commits - before <= 4
    known = await store.read_results([claim.event.id for claim in goes_on])
    assert [[result.handler_id for result in results] for results in known] == [["ship"]] * 64
    counts = await store.counts()
    assert (counts.processing, counts.completed) == (64, 64)


async def test_only_the_guilty_call_of_a_group_fails(store: SQLiteStore) -> None:
    bad = replace(new_event("order.placed"), payload_json='"\ud800"')
    answers = await asyncio.gather(
        *(store.add_events([bad if n == 3 else new_event("order.placed")]) for n in range(8)),
        store.renew_lock(LockClaim(key="x", worker_id="w", token="t", fence=1, expires_ts=0.0), lease=1.0),
        store.register_handlers("default", "n1", [], kept_for=None),
        return_exceptions=True,
    )
    failed = [number for number, answer in enumerate(answers) if isinstance(answer, BaseException)]
    assert failed == [3, 8]
    assert isinstance(answers[3], UnicodeEncodeError)
    assert isinstance(answers[8], LeaseLost)
    assert len((await store.find(EventQuery())).events) == 7


async def test_a_cancelled_call_that_was_not_begun_has_no_effect(store: SQLiteStore) -> None:
    async with writer_held(store):
        publishing = asyncio.create_task(store.add_events([new_event("order.placed")]))
        await asyncio.sleep(0)
        publishing.cancel()
    assert (await store.counts()).pending == 0


async def test_several_event_loops_use_one_store(store: SQLiteStore) -> None:
    async def publish() -> None:
        for _ in range(20):
            await store.add_events([new_event("order.placed")])

    await asyncio.gather(*(asyncio.to_thread(asyncio.run, publish()) for _ in range(4)), publish())
    assert (await store.counts()).pending == 100


async def test_close_finishes_what_was_accepted(file: Path) -> None:
    store = SQLiteStore.from_url(f"sqlite:///{file}")
    await store.open()
    publishing = [asyncio.create_task(store.add_events([new_event("order.placed")])) for _ in range(50)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*publishing)
    again = SQLiteStore.from_url(f"sqlite:///{file}")
    await again.open()
    assert (await again.counts()).pending == 50
    await again.close()
