"""Proof of the event modes: which lock a claim takes together with the event."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from durabus.errors import LeaseLost, UnsupportedByStore
from durabus.model.claim import Claim, event_lock_key, new_token
from durabus.model.settlement import Complete, Fail, Release, Settlement
from durabus.model.statuses import EventMode, EventStatus
from durabus.store.contract import EventStore
from durabus.testing.conformance.lab import ALICE, BOB, BUS, OTHER_BUS, Lab, end, numbers

GLOBAL, SERIAL, PARALLEL = EventMode.GLOBAL_SERIAL, EventMode.BUS_SERIAL, EventMode.PARALLEL
SERIAL_MODES = pytest.mark.parametrize("mode", [SERIAL, GLOBAL])
ENDINGS = ["complete", "complete with errors", "fail", "fail for good", "release", "reset", "if done", "remove"]
MATRIX = [
    (SERIAL, SERIAL, BUS, False),
    (SERIAL, SERIAL, OTHER_BUS, True),
    (SERIAL, GLOBAL, BUS, True),
    (SERIAL, PARALLEL, BUS, True),
    (GLOBAL, GLOBAL, BUS, False),
    (GLOBAL, GLOBAL, OTHER_BUS, False),
    (GLOBAL, SERIAL, BUS, True),
    (GLOBAL, PARALLEL, BUS, True),
    (PARALLEL, SERIAL, BUS, True),
    (PARALLEL, GLOBAL, BUS, True),
    (PARALLEL, PARALLEL, BUS, True),
]


async def _serial_claim(lab: Lab, mode: EventMode) -> Claim:
    await lab.publish(3)
    return await lab.claim_one(mode=mode)


class ModeTests:
    """The modes global-serial, bus-serial and parallel."""

    @SERIAL_MODES
    async def test_a_store_that_cannot_lock_for_all_refuses_the_mode(self, lab: Lab, mode: EventMode) -> None:
        """Refused without ``serial_modes``."""
        if lab.store.features.serial_modes:
            assert (await _serial_claim(lab, mode)).event.attempts == 1
            return
        with pytest.raises(UnsupportedByStore, match="serial_modes=False"):
            await _serial_claim(lab, mode)

    @pytest.mark.parametrize(("held", "asked", "bus", "granted"), MATRIX)
    async def test_a_serial_claim_excludes_claims_that_need_the_same_lock(
        self, lab: Lab, other_node: EventStore, held: EventMode, asked: EventMode, bus: str, *, granted: bool
    ) -> None:
        """With ``request.mode`` bus-serial or global-serial, events are claimed only if the lock ``event:bus:{bus}`` or
        ``event:global`` is free or expired.
        """
        await lab.publish(2)
        await lab.publish(2, bus=OTHER_BUS)
        await lab.claim_one(mode=held)
        assert len(await lab.claim(other_node, worker_id=BOB, bus=bus, mode=asked)) == granted

    @SERIAL_MODES
    async def test_the_lock_is_held_under_the_claims_worker_and_lease(
        self, lab: Lab, other_node: EventStore, mode: EventMode
    ) -> None:
        """The same step takes the lock under the claim's token and lease."""
        claim = await _serial_claim(lab, mode)
        (lock,) = await other_node.list_locks()
        assert (lock.key, lock.worker_id, lock.token) == (event_lock_key(mode, BUS), ALICE, "")
        assert claim.event.expires_ts is not None
        assert lab.same_time(lock.expires_ts, claim.event.expires_ts)

    async def test_a_parallel_claim_takes_no_lock(self, lab: Lab, other_node: EventStore) -> None:
        """With ``request.mode`` bus-serial or global-serial, events are claimed only if the lock ``event:bus:{bus}`` or
        ``event:global`` is free or expired.
        """
        await lab.publish(3)
        assert len(await lab.claim(limit=2)) == 2
        assert len(await lab.claim(other_node, limit=2)) == 1
        assert await lab.store.list_locks() == []

    @SERIAL_MODES
    async def test_an_empty_queue_leaves_the_lock_free(self, lab: Lab, other_node: EventStore, mode: EventMode) -> None:
        """The same step takes the lock under the claim's token and lease."""
        assert await lab.claim(mode=mode) == []
        assert await lab.store.list_locks() == []
        await lab.publish()
        assert len(await lab.claim(other_node, mode=mode, worker_id=BOB)) == 1

    @SERIAL_MODES
    async def test_a_lock_held_by_name_keeps_serial_claims_out(
        self, lab: Lab, other_node: EventStore, mode: EventMode
    ) -> None:
        """With ``request.mode`` bus-serial or global-serial, events are claimed only if the lock ``event:bus:{bus}`` or
        ``event:global`` is free or expired.
        """
        await lab.publish()
        key = event_lock_key(mode, BUS)
        assert key is not None
        lock = await other_node.claim_lock(key, worker_id=BOB, token=new_token(), lease=lab.lease)
        assert lock is not None
        assert await lab.claim(mode=mode) == []
        await other_node.release_lock(lock)
        assert len(await lab.claim(mode=mode)) == 1

    @SERIAL_MODES
    async def test_the_lock_is_renewed_with_the_claim(self, lab: Lab, other_node: EventStore, mode: EventMode) -> None:
        """All events of the claim share the lock.

        Renewing any of them renews the lock, and the lock never ends before one of their leases. It is freed when the
        last of them is settled, reset, cancelled or taken back.
        """
        claim = await _serial_claim(lab, mode)
        await lab.advance(20 * lab.moment)
        (expiry,) = await lab.store.renew_event_claims([claim.ref], lease=lab.lease)
        assert isinstance(expiry, float)
        (lock,) = await lab.store.list_locks()
        assert lab.same_time(lock.expires_ts, expiry)
        await lab.advance(20 * lab.moment)
        assert await lab.claim(other_node, mode=mode, worker_id=BOB) == []

    @SERIAL_MODES
    async def test_the_lock_of_an_expired_claim_can_be_taken(
        self, lab: Lab, other_node: EventStore, mode: EventMode
    ) -> None:
        """Only if the lock ``event:bus:{bus}`` or ``event:global`` is free or expired."""
        lost = await _serial_claim(lab, mode)
        await lab.let_the_lease_end()
        taken = await lab.claim_one(other_node, mode=mode, worker_id=BOB)
        assert taken.event.id == lost.event.id
        (lock,) = await lab.store.list_locks()
        assert lock.worker_id == BOB

    @SERIAL_MODES
    async def test_a_stale_holder_does_not_free_the_lock_of_its_successor(
        self, lab: Lab, other_node: EventStore, mode: EventMode
    ) -> None:
        """Any other claim that is not current gets ``LeaseLost`` as its outcome (a value, not raised), and nothing of
        it is written.
        """
        lost = await _serial_claim(lab, mode)
        await lab.let_the_lease_end()
        await lab.claim_one(other_node, mode=mode, worker_id=BOB)
        before = await lab.store.list_locks()
        await lab.settle(Complete(lost.ref), Release(lost.ref))
        await lab.store.renew_event_claims([lost.ref], lease=5 * lab.lease)
        assert await lab.store.list_locks() == before
        assert await lab.claim(mode=mode) == []

    @pytest.mark.parametrize("by", ["a claim", "name"])
    @pytest.mark.parametrize("many", [1, 3])
    async def test_taking_an_expired_lock_takes_back_its_holders_events_on_any_bus(
        self, lab: Lab, other_node: EventStore, many: int, by: str
    ) -> None:
        """Taking an expired lock also takes back all events of the former holder's token, as above, on every bus."""
        await lab.publish(4)
        lost = await lab.claim(mode=GLOBAL, limit=many)
        await lab.publish(1, bus=OTHER_BUS)
        await lab.let_the_lease_end()
        if by == "name":
            lock = await other_node.claim_lock("event:global", worker_id=BOB, token=new_token(), lease=lab.lease)
            assert lock is not None
        else:
            await lab.claim_one(other_node, mode=GLOBAL, worker_id=BOB, bus=OTHER_BUS)
        assert len(lost) == many
        for late in lost:
            event = await lab.event(late)
            assert (event.status, event.errors) == (EventStatus.PENDING, (f"lease expired (worker {ALICE})",))
            assert (await lab.trail(late))[-1] == "ABANDONED"
        before = await lab.picture()
        assert [lock.worker_id for lock in before.locks] == [BOB]
        for late in lost:
            (expiry,) = await lab.store.renew_event_claims([late.ref], lease=5 * lab.lease)
            assert isinstance(expiry, LeaseLost)
        assert await lab.picture() == before
        for late in lost:  # no worker has claimed the events themselves since
            assert (await lab.settle_one(Complete(late.ref))).status is EventStatus.COMPLETED
        assert await lab.store.list_locks() == before.locks

    @pytest.mark.parametrize("write", ["complete", "release", "renew", "reset"])
    @SERIAL_MODES
    async def test_a_late_claim_leaves_a_lock_alone_that_is_not_its_own_any_more(
        self, lab: Lab, other_node: EventStore, mode: EventMode, write: str
    ) -> None:
        """The same step takes the lock under the claim's token and lease."""
        late = await _serial_claim(lab, mode)
        await lab.let_the_lease_end()
        key = event_lock_key(mode, BUS)
        assert key is not None
        assert await other_node.claim_lock(key, worker_id=BOB, token=new_token(), lease=lab.lease) is not None
        before = await lab.store.list_locks()
        match write:
            case "complete":
                await lab.settle(Complete(late.ref))
            case "release":
                await lab.settle(Release(late.ref))
            case "renew":
                await lab.store.renew_event_claims([late.ref], lease=5 * lab.lease)
            case "reset":
                await lab.store.reset_event(late.event.id, reason="stuck")
        assert await lab.store.list_locks() == before

    @SERIAL_MODES
    async def test_of_many_serial_claimers_one_gets_an_event(
        self, lab: Lab, other_node: EventStore, mode: EventMode
    ) -> None:
        """A second caller never gets an event whose lease is not over, however many callers race."""
        await lab.publish(10)
        for _ in range(3):
            nodes = [lab.store, other_node] * 6
            answers = await lab.race([partial(lab.claim, node, mode=mode, limit=3) for node in nodes])
            (claims,) = [claims for claims in answers if claims]
            assert len(claims) == 3
            await lab.settle(*(Complete(claim.ref) for claim in claims))

    async def test_serial_threads_work_one_at_a_time_and_lose_nothing(self, lab: Lab) -> None:
        """The same step takes the lock under the claim's token and lease."""
        events = await lab.publish(30)
        inside: list[int] = []
        seen: list[int] = []

        async def work(node: EventStore, number: int) -> None:
            while len(seen) < 30:
                await anyio.lowlevel.checkpoint()
                for claim in await lab.claim(node, mode=SERIAL, limit=3, worker_id=f"thread-{number}"):
                    inside.append(number)
                    assert inside == [number]
                    seen.append(claim.event.id)
                    inside.remove(number)
                    await node.settle_events([Complete(claim.ref)])

        await lab.race_in_threads(4, work)
        assert seen == [event.id for event in events]

    @SERIAL_MODES
    async def test_a_repeat_of_a_serial_claim_returns_the_same_claim(
        self, lab: Lab, other_node: EventStore, mode: EventMode
    ) -> None:
        """A repeat with the same token returns the claims that the token still holds, in the same order, and does
        nothing else.
        """
        await lab.publish(3)
        request = lab.request(mode=mode, limit=2)
        first = await lab.store.claim_next_events(request)
        assert numbers(first) == [0, 1]
        before = await lab.picture()
        assert await other_node.claim_next_events(request) == first
        assert await lab.picture() == before
        await lab.settle_one(Complete(first[0].ref))
        assert await other_node.claim_next_events(request) == first[1:]

    @SERIAL_MODES
    async def test_a_serial_worker_settles_and_takes_the_next_in_one_step(self, lab: Lab, mode: EventMode) -> None:
        """End claims in one step and judge each one on its own. The same step then claims the next events."""
        await lab.publish(6)
        claims = await lab.claim(mode=mode, limit=2)
        seen = numbers(claims)
        for _ in range(2):
            done = [Complete(claim.ref) for claim in claims]
            answer = await lab.store.settle_events(done, then_claim=lab.request(mode=mode, limit=2))
            claims = answer.claims
            assert len(await lab.store.list_locks()) == 1
            seen += numbers(claims)
        assert seen == [0, 1, 2, 3, 4, 5]
        done = [Complete(claim.ref) for claim in claims]
        answer = await lab.store.settle_events(done, then_claim=lab.request(mode=mode, limit=5))
        assert answer.claims == []
        assert await lab.store.list_locks() == []


class SerialBatchTests:
    """Claims of several events under one lock."""

    @SERIAL_MODES
    async def test_a_serial_claim_takes_up_to_its_limit_under_one_lock(
        self, lab: Lab, other_node: EventStore, mode: EventMode
    ) -> None:
        """All events of the claim share the lock."""
        await lab.publish(4)
        assert numbers(await lab.claim(limit=3, mode=mode)) == [0, 1, 2]
        assert len(await lab.store.list_locks()) == 1
        assert await lab.claim(other_node, limit=3, mode=mode, worker_id=BOB) == []

    @pytest.mark.parametrize("ended_by", ENDINGS)
    @SERIAL_MODES
    async def test_the_lock_is_free_when_the_last_of_its_events_ends(
        self, lab: Lab, other_node: EventStore, mode: EventMode, ended_by: str
    ) -> None:
        """It is freed when the last of them is settled, reset, cancelled or taken back."""
        await lab.publish(4)
        claims = await lab.claim(limit=3, mode=mode)
        for claim in (claims[1], claims[0], claims[2]):
            assert len(await lab.store.list_locks()) == 1
            assert await lab.claim(other_node, mode=mode, worker_id=BOB) == []
            await end(lab, claim, ended_by)
        assert await lab.store.list_locks() == []
        assert len(await lab.claim(other_node, mode=mode, worker_id=BOB)) == 1

    @pytest.mark.parametrize("first", ["complete", "fail", "release"])
    async def test_the_lock_is_kept_for_the_rest_of_a_batch_that_is_settled_in_part(self, lab: Lab, first: str) -> None:
        """It is freed when the last of them is settled, reset, cancelled or taken back."""
        await lab.publish(5)
        claims = await lab.claim(limit=4, mode=SERIAL)
        settlements: dict[str, Settlement] = {
            "complete": Complete(claims[0].ref),
            "fail": Fail(claims[0].ref, "no", 100.0),
            "release": Release(claims[0].ref, 100.0),
        }
        await lab.settle(settlements[first], Complete(claims[1].ref))
        assert len(await lab.store.list_locks()) == 1
        answer = await lab.store.settle_events([Complete(claims[3].ref)], then_claim=lab.request(mode=SERIAL, limit=9))
        assert answer.claims == []
        last = await lab.store.settle_events([Complete(claims[2].ref)], then_claim=lab.request(mode=SERIAL, limit=9))
        assert numbers(last.claims) == [4]
        (lock,) = await lab.store.list_locks()
        assert lab.same_time(lock.expires_ts, last.claims[0].event.expires_ts or 0.0)

    async def test_a_batch_that_ends_in_many_ways_at_once_frees_its_lock(self, lab: Lab) -> None:
        """It is freed when the last of them is settled, reset, cancelled or taken back."""
        await lab.publish(6)
        claims = await lab.claim(limit=5, mode=SERIAL)
        outcomes = await lab.settle(
            Complete(claims[0].ref),
            Fail(claims[1].ref, "no", 0.0),
            Complete(claims[2].ref),
            Complete(claims[3].ref, errors=("no",)),
            Complete(claims[4].ref),
        )
        assert not any(isinstance(outcome, LeaseLost) for outcome in outcomes)
        assert await lab.store.list_locks() == []

    @SERIAL_MODES
    async def test_the_lock_is_renewed_with_any_of_its_events(
        self, lab: Lab, other_node: EventStore, mode: EventMode
    ) -> None:
        """Renewing any of them renews the lock, and the lock never ends before one of their leases."""
        await lab.publish(3)
        one, other, _ = await lab.claim(limit=3, mode=mode)
        (expiry,) = await lab.store.renew_event_claims([one.ref], lease=3 * lab.lease)
        await lab.store.renew_event_claims([other.ref], lease=2 * lab.lease)
        (lock,) = await lab.store.list_locks()
        assert isinstance(expiry, float)
        assert lab.same_time(lock.expires_ts, expiry)
        await lab.let_the_lease_end()
        assert await lab.claim(other_node, mode=mode, worker_id=BOB) == []
        assert (await lab.event(one)).status is EventStatus.PROCESSING

    async def test_the_lock_of_a_batch_ends_with_its_last_lease(self, lab: Lab, other_node: EventStore) -> None:
        """It is freed when the last of them is settled, reset, cancelled or taken back."""
        await lab.publish(3)
        claims = await lab.claim(limit=2, mode=GLOBAL)
        await lab.publish(1, bus=OTHER_BUS)
        await lab.store.renew_event_claims([claims[1].ref], lease=2 * lab.lease)
        await lab.let_the_lease_end()
        assert await lab.store.expire_events() == 1
        assert await lab.claim(other_node, mode=GLOBAL, worker_id=BOB, bus=OTHER_BUS) == []
        await lab.let_the_lease_end()
        assert await lab.store.expire_events() == 1
        assert len(await lab.claim(other_node, mode=GLOBAL, worker_id=BOB, bus=OTHER_BUS)) == 1

    async def test_two_callers_that_end_the_last_two_events_of_a_batch_at_once_free_its_lock(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """It is freed when the last of them is settled, reset, cancelled or taken back."""
        for _ in range(5):
            await lab.publish(2)
            claims = await lab.claim(limit=2, mode=SERIAL)
            ends: list[Callable[[], Awaitable[object]]] = [
                partial(lab.store.settle_events, [Complete(claims[0].ref)]),
                partial(other_node.reset_event, claims[1].event.id, reason="stuck"),
            ]
            await lab.race(ends)
            assert await lab.store.list_locks() == []
            await lab.settle_one(Complete((await lab.claim_one()).ref))
