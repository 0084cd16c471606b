"""Locks of a user's program, shared by all processes that open the same store."""

import asyncio
from typing import Any

import pytest

from durabus import ConfigurationError, EventStore, LeaseLost, LockHeld, LockManager
from durabus.model.claim import LockClaim


async def lose(store: EventStore, lock: LockClaim) -> None:
    """Give the lock to another holder, as if its lease had ended."""
    await store.release_lock(lock)
    taken = await store.claim_lock(lock.key, worker_id="other", token="other", lease=60)
    assert taken is not None
    assert taken.fence > lock.fence


async def test_a_lock_has_one_holder_and_each_a_larger_fence(store: EventStore) -> None:
    inside = most = 0
    fences: list[int] = []

    async def work() -> None:
        nonlocal inside, most
        async with LockManager(store).hold("invoice:7") as lock:
            inside += 1
            most = max(most, inside)
            fences.append(lock.fence)
            await asyncio.sleep(0.005)
            inside -= 1

    async with asyncio.timeout(20):
        await asyncio.gather(*(work() for _ in range(8)))
    assert most == 1
    assert fences == sorted(set(fences))
    assert await store.list_locks() == []


async def test_a_caller_that_does_not_wait_for_a_held_lock_gets_an_error(store: EventStore) -> None:
    async with LockManager(store).hold("invoice:7"):
        with pytest.raises(LockHeld, match="'invoice:7' is held by another holder after 0 s"):
            async with LockManager(store).hold("invoice:7", wait=0):
                pass
        with pytest.raises(LockHeld, match=r"after 0\.05 s"):
            async with LockManager(store).hold("invoice:7", wait=0.05):
                pass
        async with LockManager(store).hold("invoice:8", wait=0):
            pass


async def test_a_lock_is_kept_for_as_long_as_the_block_takes(store: EventStore) -> None:
    async with LockManager(store, lease=1.1).hold("report"):
        await asyncio.sleep(1.3)
        with pytest.raises(LockHeld):
            async with LockManager(store).hold("report", wait=0):
                pass


async def test_a_lock_that_is_lost_stops_the_block(store: EventStore) -> None:
    cancelled = False

    async def work() -> None:
        nonlocal cancelled
        async with LockManager(store, lease=1.1).hold("report") as lock:
            await lose(store, lock)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled = True
                raise

    with pytest.raises(LeaseLost, match="'report'"):
        await work()
    assert cancelled
    assert [one.worker_id for one in await store.list_locks()] == ["other"]  # the other one's lock was left alone
    await asyncio.sleep(0)  # and this task goes on


async def test_a_block_that_ignores_the_lost_lock_raises_at_its_end(store: EventStore) -> None:
    async def work() -> None:
        async with LockManager(store, lease=1.1).hold("report") as lock:
            await lose(store, lock)
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(60)

    with pytest.raises(LeaseLost):
        await work()


async def test_a_block_that_raises_its_own_error_after_the_loss_leaves_the_task_uncancelled(
    store: EventStore,
) -> None:
    async def work() -> None:
        async with LockManager(store, lease=1.1).hold("report") as lock:
            await lose(store, lock)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise ZeroDivisionError from None

    with pytest.raises(ZeroDivisionError):
        await work()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_renewal_that_fails_in_an_unknown_way_is_tried_again_and_then_ends_the_block(
    store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    async def broken(*_args: object, **_options: object) -> None:
        nonlocal tries
        tries += 1
        raise ArithmeticError("nobody expects this")

    async def work() -> None:
        async with LockManager(store, lease=1.1).hold("report"):
            await asyncio.sleep(60)

    monkeypatch.setattr(store, "renew_lock", broken)
    with pytest.raises(LeaseLost, match="could not be renewed in time"):
        await work()
    assert tries > 1


async def test_what_the_block_raises_frees_the_lock(store: EventStore) -> None:
    with pytest.raises(ZeroDivisionError):
        async with LockManager(store).hold("report"):
            raise ZeroDivisionError
    assert await store.list_locks() == []


async def test_a_task_that_is_cancelled_frees_its_lock_and_ends(store: EventStore) -> None:
    async def work() -> None:
        async with LockManager(store).hold("report"):
            held.set()
            await asyncio.sleep(60)

    held = asyncio.Event()
    task = asyncio.create_task(work())
    await held.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await store.list_locks() == []


async def test_a_task_that_is_cancelled_while_it_asks_for_a_lock_leaves_no_lock(
    store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, asked, answer = store.claim_lock, asyncio.Event(), asyncio.Event()

    async def late(key: str, **options: Any) -> LockClaim | None:
        lock = await ask(key, **options)
        asked.set()
        await answer.wait()
        return lock

    async def work() -> None:
        async with LockManager(store).hold("report"):
            raise AssertionError

    monkeypatch.setattr(store, "claim_lock", late)
    task = asyncio.create_task(work())
    await asked.wait()
    task.cancel()
    await asyncio.sleep(0)
    answer.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await store.list_locks() == []


async def test_a_waiting_caller_gets_the_lock_of_a_holder_that_is_gone(store: EventStore) -> None:
    gone = await store.claim_lock("report", worker_id="gone", token="gone", lease=0.2)
    assert gone is not None
    async with LockManager(store).hold("report", wait=20) as lock:
        assert lock.fence > gone.fence


async def test_a_closed_store_ends_the_block(store: EventStore) -> None:
    async def work() -> None:
        async with LockManager(store, lease=1.1).hold("report"):
            await store.close()
            await asyncio.sleep(60)

    with pytest.raises(LeaseLost, match="closed"):
        await work()


async def test_a_lease_of_zero_is_refused(store: EventStore) -> None:
    with pytest.raises(ConfigurationError, match="lease=0"):
        LockManager(store, lease=0)
