"""Proof of ``durabus.store.locks``."""

from __future__ import annotations

import asyncio
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from durabus.errors import LeaseLost
from durabus.model.claim import LockClaim, new_token
from durabus.model.settlement import Complete, Release
from durabus.store.contract import EventStore
from durabus.testing.conformance.lab import ALICE, BOB, BUS, OTHER_BUS, Lab, batch


async def _try(
    lab: Lab, key: str = "report", node: EventStore | None = None, worker_id: str = ALICE
) -> LockClaim | None:
    return await (node or lab.store).claim_lock(key, worker_id=worker_id, token=new_token(), lease=lab.lease)


async def _take(lab: Lab, key: str = "report", node: EventStore | None = None, worker_id: str = ALICE) -> LockClaim:
    lock = await _try(lab, key, node, worker_id)
    assert lock is not None
    return lock


class LockTests:
    """Locks, their leases and their fences."""

    async def test_a_free_lock_is_taken_with_worker_token_and_lease(self, lab: Lab) -> None:
        """Take the lock ``key`` if it is free or its lease is over. Returns None if it is held. Never waits."""
        now, token = await lab.store.now(), new_token()
        lock = await lab.store.claim_lock("report", worker_id=ALICE, token=token, lease=lab.lease)
        assert lock is not None
        assert (lock.key, lock.worker_id, lock.token) == ("report", ALICE, token)
        assert lab.same_time(lock.expires_ts, now + lab.lease)
        assert lock.fence > 0

    async def test_a_held_lock_is_refused_until_its_lease_is_over(self, lab: Lab, other_node: EventStore) -> None:
        """Take the lock ``key`` if it is free or its lease is over. Returns None if it is held. Never waits."""
        lock = await _take(lab)
        await lab.advance(lab.lease - lab.margin)
        assert await _try(lab, node=other_node, worker_id=BOB) is None
        assert await _try(lab) is None
        assert len(await lab.store.list_locks()) == 1
        await lab.advance(lab.margin)
        assert (await _take(lab, node=other_node, worker_id=BOB)).fence > lock.fence

    async def test_locks_on_different_keys_are_independent(self, lab: Lab) -> None:
        """Take the lock ``key`` if it is free or its lease is over. Returns None if it is held. Never waits."""
        for key in ("a", "A", "a ", "ä", "a%", "a:b"):
            await _take(lab, key)
        assert len(await lab.store.list_locks()) == 6

    async def test_of_many_tasks_one_gets_the_lock(self, lab: Lab, other_node: EventStore) -> None:
        """Take the lock ``key`` if it is free or its lease is over. Returns None if it is held. Never waits."""
        for _ in range(5):
            answers = await lab.race([partial(_try, lab, "report", node) for node in [lab.store, other_node] * 8])
            (lock,) = [answer for answer in answers if answer is not None]
            await lab.store.release_lock(lock)

    async def test_threads_that_count_under_a_lock_lose_no_count(self, lab: Lab) -> None:
        """Take the lock ``key`` if it is free or its lease is over. Returns None if it is held. Never waits."""
        inside: list[int] = []
        fences: list[int] = []

        async def work(node: EventStore, number: int) -> None:
            mine = 0
            while mine < 10:
                await anyio.lowlevel.checkpoint()
                lock = await _try(lab, "counter", node)
                if lock is not None:
                    inside.append(number)
                    assert inside == [number]
                    fences.append(lock.fence)
                    inside.clear()
                    mine += 1
                    await node.release_lock(lock)

        await lab.race_in_threads(3, work)
        assert len(fences) == 30
        assert fences == sorted(set(fences))

    async def test_the_fence_rises_after_release_and_after_expiry(self, lab: Lab, other_node: EventStore) -> None:
        """``fence`` is larger than every fence this key ever had, even if the store has deleted the key since."""
        fences = []
        for turn in range(6):
            lock = await _take(lab, node=[lab.store, other_node][turn % 2])
            fences.append(lock.fence)
            if turn % 3 == 0:
                await lab.advance(2 * lab.lease)
            else:
                await lab.store.release_lock(lock)
        assert fences == sorted(set(fences))

    async def test_the_fence_rises_when_the_key_was_long_forgotten(self, lab: Lab, other_node: EventStore) -> None:
        """``fence`` is larger than every fence this key ever had, even if the store has deleted the key since."""

        async def use(number: int) -> None:
            await lab.store.release_lock(await _take(lab, f"key-{number}"))

        newest = 0
        for _ in range(3):
            for _ in range(3):
                lock = await _take(lab)
                assert lock.fence > newest
                newest = lock.fence
                await lab.store.release_lock(lock)
            await lab.race([partial(use, number) for number in range(300)])
            await lab.advance(5 * lab.lease)
            await lab.store.expire_events()
        assert (await _take(lab, node=other_node)).fence > newest

    async def test_the_fence_rises_across_a_restart(self, lab: Lab) -> None:
        """``fence`` is larger than every fence this key ever had, even if the store has deleted the key since."""
        if not lab.shared:
            first = await _take(lab)
            await lab.store.release_lock(first)
            assert (await _take(lab)).fence > first.fence
            return
        node = await lab.open_another()
        first = await _take(lab, node=node)
        await node.release_lock(first)
        await node.close()
        node = await lab.open_another()
        try:
            assert (await _take(lab, node=node)).fence > first.fence
        finally:
            await node.close()

    async def test_a_repeat_with_the_same_token_returns_the_same_claim(self, lab: Lab, other_node: EventStore) -> None:
        """A repeat with the token that holds the lock returns the same claim."""
        token = new_token()
        first = await lab.store.claim_lock("report", worker_id=ALICE, token=token, lease=lab.lease)
        await lab.advance(5 * lab.moment)
        again = await other_node.claim_lock("report", worker_id=ALICE, token=token, lease=lab.lease)
        assert again == first

    async def test_renewing_extends_the_lease_and_keeps_the_fence(self, lab: Lab, other_node: EventStore) -> None:
        """Extend the lease; the fence stays. Only the token decides, even if the lease is over.

        Raises ``LeaseLost`` if the claim does not hold the lock.
        """
        lock = await _take(lab)
        await lab.advance(20 * lab.moment)
        now = await lab.store.now()
        renewed = await other_node.renew_lock(lock, lease=lab.lease)
        assert (renewed.key, renewed.fence, renewed.token) == (lock.key, lock.fence, lock.token)
        assert lab.same_time(renewed.expires_ts, now + lab.lease)
        await lab.advance(20 * lab.moment)
        assert await _try(lab, worker_id=BOB) is None
        again = await lab.store.renew_lock(lock, lease=lab.lease)
        assert again.expires_ts > renewed.expires_ts

    async def test_a_late_lock_can_be_renewed_if_no_worker_took_it(self, lab: Lab, other_node: EventStore) -> None:
        """Extend the lease; the fence stays. Only the token decides, even if the lease is over.

        Raises ``LeaseLost`` if the claim does not hold the lock.
        """
        lock = await _take(lab)
        await lab.advance(3 * lab.lease)
        assert (await lab.store.renew_lock(lock, lease=lab.lease)).fence == lock.fence
        assert await _try(lab, node=other_node) is None

    async def test_a_released_lock_cannot_be_renewed(self, lab: Lab) -> None:
        """Extend the lease; the fence stays. Only the token decides, even if the lease is over.

        Raises ``LeaseLost`` if the claim does not hold the lock.
        """
        lock = await _take(lab)
        await lab.store.release_lock(lock)
        with pytest.raises(LeaseLost):
            await lab.store.renew_lock(lock, lease=lab.lease)
        assert await lab.store.list_locks() == []

    async def test_a_lock_that_never_was_cannot_be_renewed_or_released(self, lab: Lab) -> None:
        """Extend the lease; the fence stays. Only the token decides, even if the lease is over.

        Raises ``LeaseLost`` if the claim does not hold the lock.
        """
        ghost = LockClaim(key="ghost", worker_id=ALICE, token=new_token(), fence=1, expires_ts=0.0)
        with pytest.raises(LeaseLost):
            await lab.store.renew_lock(ghost, lease=lab.lease)
        with pytest.raises(LeaseLost):
            await lab.store.release_lock(ghost)
        assert await lab.store.list_locks() == []

    async def test_a_released_lock_is_free_at_once(self, lab: Lab, other_node: EventStore) -> None:
        """Free the lock. A repeat changes nothing. Raises ``LeaseLost`` if another claim took the lock."""
        lock = await _take(lab)
        await lab.store.release_lock(lock)
        await other_node.release_lock(lock)
        taken = await _take(lab, node=other_node, worker_id=BOB)
        with pytest.raises(LeaseLost):
            await lab.store.release_lock(lock)
        (held,) = await lab.store.list_locks()
        assert (held.worker_id, held.fence) == (BOB, taken.fence)

    async def test_held_locks_are_listed_in_pages_by_key_without_their_tokens(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """Held, unexpired locks with a key above ``after``, in order of key, with empty tokens."""
        locks = {key: await _take(lab, key) for key in ("d", "a", "c", "b")}
        await lab.store.release_lock(locks["b"])
        listed = await other_node.list_locks(limit=2)
        assert [lock.key for lock in listed] == ["a", "c"]
        assert [lock.key for lock in await lab.store.list_locks(after="c")] == ["d"]
        assert {lock.token for lock in listed} == {""}
        assert [(lock.fence, lock.expires_ts) for lock in listed] == [
            (locks[key].fence, locks[key].expires_ts) for key in ("a", "c")
        ]
        await lab.let_the_lease_end()
        assert await lab.store.list_locks() == []


LONG = 60.0
SHORT = 0.05


class SignalTests:
    """Hints of new work. A lost hint costs only latency."""

    async def test_an_idle_wait_ends_with_its_timeout(self, lab: Lab, other_node: EventStore) -> None:
        """Wait until ``bus`` may have something to claim, at most ``timeout`` seconds. False if no hint came."""
        with anyio.fail_after(LONG / 2):
            assert await lab.store.wait_for_work(BUS, timeout=SHORT) is False
            assert await other_node.wait_for_work(BUS, timeout=0) is False

    @pytest.mark.parametrize("published_on", ["the same node", "the other node"])
    async def test_a_publish_wakes_waiting_workers(self, lab: Lab, other_node: EventStore, published_on: str) -> None:
        """Wait until ``bus`` may have something to claim, at most ``timeout`` seconds. False if no hint came."""
        publisher = lab.store if published_on == "the same node" else other_node

        async def publish() -> None:
            await anyio.sleep(SHORT)
            await publisher.add_events(batch(1))

        with anyio.fail_after(LONG / 2):
            async with anyio.create_task_group() as group:
                group.start_soon(publish)
                assert await lab.store.wait_for_work(BUS, timeout=LONG) is True

    async def test_a_publish_wakes_all_waiting_workers(self, lab: Lab) -> None:
        """Wait until ``bus`` may have something to claim, at most ``timeout`` seconds. False if no hint came."""
        heard: list[bool] = []

        async def wait() -> None:
            heard.append(await lab.store.wait_for_work(BUS, timeout=LONG))

        with anyio.fail_after(LONG / 2):
            async with anyio.create_task_group() as group:
                for _ in range(5):
                    group.start_soon(wait)
                await anyio.sleep(SHORT)
                await lab.publish(1)
        assert heard == [True] * 5

    async def test_an_event_that_is_there_already_ends_the_wait_at_once(self, lab: Lab) -> None:
        """The call returns at once if there is something to claim already."""
        await lab.publish(1)
        with anyio.fail_after(LONG / 2):
            assert await lab.store.wait_for_work(BUS, timeout=LONG) is True

    async def test_a_released_event_wakes_waiting_workers(self, lab: Lab) -> None:
        """Wait until ``bus`` may have something to claim, at most ``timeout`` seconds. False if no hint came."""
        claim = await lab.claimed()

        async def release() -> None:
            await anyio.sleep(SHORT)
            await lab.settle_one(Release(claim.ref))

        with anyio.fail_after(LONG / 2):
            async with anyio.create_task_group() as group:
                group.start_soon(release)
                assert await lab.store.wait_for_work(BUS, timeout=LONG) is True

    async def test_an_event_that_becomes_due_ends_the_wait(self, lab: Lab) -> None:
        """A hint also comes when an event of ``bus`` becomes due or its lease ends, if this store object knows of the
        event.
        """
        await lab.publish_one(delay=2 * SHORT)
        with anyio.fail_after(LONG / 2):
            assert await lab.store.wait_for_work(BUS, timeout=LONG) is True

    async def test_a_delayed_event_ends_a_wait_although_a_claim_takes_the_event_beside_it(self, lab: Lab) -> None:
        """A hint also comes when an event of ``bus`` becomes due or its lease ends, if this store object knows of the
        event.
        """

        async def publish_and_claim() -> None:
            await anyio.sleep(SHORT)
            both = [*batch(1), *batch(1, delay=2 * SHORT)]
            await asyncio.gather(lab.store.add_events(both), lab.claim(limit=1))

        with anyio.fail_after(LONG / 2):
            async with anyio.create_task_group() as group:
                group.start_soon(publish_and_claim)
                assert await lab.store.wait_for_work(BUS, timeout=LONG) is True

    async def test_a_lease_that_ends_ends_the_wait(self, lab: Lab) -> None:
        """A hint also comes when an event of ``bus`` becomes due or its lease ends, if this store object knows of the
        event.
        """
        await lab.publish(1)
        await lab.claim_one(lease=max(2 * SHORT, lab.store.features.minimum_lease))
        with anyio.fail_after(LONG / 2):
            assert await lab.store.wait_for_work(BUS, timeout=LONG) is True

    @pytest.mark.parametrize("ended_on", ["the same node", "the other node"])
    async def test_the_end_of_an_event_wakes_the_node_that_waits_for_it(
        self, lab: Lab, other_node: EventStore, ended_on: str
    ) -> None:
        """Wake the callers of ``wait_for_ends`` on these nodes: events that they wait for have ended.

        The caller has settled these events before. Nothing is stored.
        """
        claim, store = await lab.claimed(), lab.store if ended_on == "the same node" else other_node

        async def end() -> None:
            await anyio.sleep(2 * SHORT)
            await store.settle_events([Complete(claim.ref)])
            head = await store.log_head()
            await store.tell_ends(["node"])
            assert await store.log_head() == head

        with anyio.fail_after(LONG / 2):
            async with anyio.create_task_group() as group:
                group.start_soon(end)
                assert await lab.store.wait_for_ends("node", timeout=LONG) is True

    async def test_a_wait_for_ends_is_over_with_its_timeout(self, lab: Lab) -> None:
        """Wait until an event that ``node`` waits for may have ended, at most ``timeout`` seconds.

        Returns False if no hint came. A hint comes from ``tell_ends``, in whichever process. It may come too early, for
        nothing, or not at all. A store object that cannot hear hints returns sooner, so that the caller looks itself.
        """
        with anyio.fail_after(LONG / 2):
            assert await lab.store.wait_for_ends("node", timeout=SHORT) is False

    async def test_without_any_hint_every_event_is_still_claimed(self, lab: Lab, other_node: EventStore) -> None:
        """A hint may come too early, for nothing, or not at all: if every hint is lost, only latency suffers."""
        await lab.publish(3)
        await other_node.add_events(batch(3, bus=OTHER_BUS))
        for bus in (BUS, OTHER_BUS):
            claims = await lab.claim(bus=bus, limit=10)
            assert len(claims) == 3
            await lab.settle(*(Complete(claim.ref) for claim in claims))
        assert await lab.store.active_buses() == []

    async def test_a_cancelled_wait_leaves_nothing_behind(self, lab: Lab) -> None:
        """A hint may come too early, for nothing, or not at all: if every hint is lost, only latency suffers."""
        with anyio.move_on_after(SHORT) as scope:
            await lab.store.wait_for_work(BUS, timeout=LONG)
        assert scope.cancelled_caught
        with anyio.fail_after(LONG / 2):
            await lab.publish(1)
            assert len(await lab.claim()) == 1
