"""A projection survives a store that fails, and stops when its lock is lost."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.worker.support import until

from durabus import EventLogProjectionBuilder, EventQueue, LogEntry, StoreClosedError
from durabus.errors import StoreUnavailableError
from durabus.model.claim import LockClaim
from durabus.model.log_entry import LogPage
from durabus.store.log import START
from durabus.stores.memory.store import MemoryStore


class FailingStore(MemoryStore):
    """Fails the calls that the test names."""

    def __init__(self) -> None:
        super().__init__()
        self.failing = {"claim": 0, "renew": 0, "release": 0, "read": 0}

    def _fail(self, call: str) -> None:
        if self.failing[call]:
            self.failing[call] -= 1
            raise StoreUnavailableError(f"{call}: connection lost")

    async def claim_lock(self, key: str, *, worker_id: str, token: str, lease: float) -> LockClaim | None:
        self._fail("claim")
        return await super().claim_lock(key, worker_id=worker_id, token=token, lease=lease)

    async def renew_lock(self, claim: LockClaim, *, lease: float) -> LockClaim:
        self._fail("renew")
        return await super().renew_lock(claim, lease=lease)

    async def release_lock(self, claim: LockClaim) -> None:
        self._fail("release")
        await super().release_lock(claim)

    async def read_log(self, *, after: str = START, until: str | None = None, limit: int = 1000) -> LogPage:
        self._fail("read")
        return await super().read_log(after=after, until=until, limit=limit)


@pytest.fixture
async def store() -> FailingStore:
    store = FailingStore()
    await finish(store)
    return store


async def finish(store: MemoryStore) -> None:
    """Store one more event that has ended."""
    queue = EventQueue(store)
    await queue.publish("foo")
    event = await queue.poll()
    assert event is not None
    await queue.finalize(event.id)


def follower(store: MemoryStore, seen: list[int], **options: float) -> EventLogProjectionBuilder:
    def apply(entries: Sequence[LogEntry]) -> None:
        seen.extend(entry.id for entry in entries)

    return EventLogProjectionBuilder(store, name="p", apply=apply, lease=options.get("lease", 30), poll_interval=0.01)


@pytest.mark.parametrize("call", ["claim", "renew", "release", "read"])
async def test_a_store_that_fails_for_a_while_does_not_end_a_projection(store: FailingStore, call: str) -> None:
    seen: list[int] = []
    projection = follower(store, seen, lease=0.05)
    store.failing[call] = 2
    running = asyncio.create_task(projection.run())
    await until(lambda: bool(seen))
    if call != "release":
        await until(lambda: not store.failing[call])
    await finish(store)
    await until(lambda: len(set(seen)) == 2)
    projection.stop()
    await running


async def test_a_closed_store_ends_a_projection(store: FailingStore) -> None:
    seen: list[int] = []
    running = asyncio.create_task(follower(store, seen).run())
    await until(lambda: bool(seen))
    await store.close()
    with pytest.raises(StoreClosedError):
        await running


async def test_an_error_of_apply_ends_a_projection(store: FailingStore) -> None:
    async def apply(entries: Sequence[LogEntry]) -> None:
        raise ValueError("not today")

    with pytest.raises(ValueError, match="not today"):
        await EventLogProjectionBuilder(store, name="p", apply=apply).run()


async def test_a_renewal_that_failed_is_tried_again_while_a_batch_is_applied(store: FailingStore) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def apply(entries: Sequence[LogEntry]) -> None:
        begun.set()
        await release.wait()

    projection = EventLogProjectionBuilder(store, name="p", apply=apply, lease=1.0)
    running = asyncio.create_task(projection.run_once())
    await begun.wait()
    store.failing["renew"] = 1
    await until(lambda: not store.failing["renew"])
    await asyncio.sleep(1.2)  # longer than the lease
    assert await follower(store, []).run_once() is None, "the lock was not kept"
    release.set()
    assert await running == 1


async def test_a_lock_that_is_lost_cancels_what_is_applied_under_it(store: FailingStore) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def apply(entries: Sequence[LogEntry]) -> None:
        if begun.is_set():
            return
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    projection = EventLogProjectionBuilder(store, name="p", apply=apply, lease=1.0, poll_interval=0.01)
    running = asyncio.create_task(projection.run())
    await begun.wait()
    (held,) = await store.list_locks()
    store._locks.pop(held.key)
    taken = await store.claim_lock(held.key, worker_id="other:1", token="t", lease=30)
    assert taken is not None
    async with asyncio.timeout(20):
        await cancelled.wait()
    await store.release_lock(taken)
    await until(lambda: "p@1" in store._positions)
    projection.stop()
    await running


async def test_a_run_that_is_cancelled_cancels_what_is_applied(store: FailingStore) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def apply(entries: Sequence[LogEntry]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    running = asyncio.create_task(EventLogProjectionBuilder(store, name="p", apply=apply).run())
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cancelled.is_set()
    assert await store.list_locks() == []
