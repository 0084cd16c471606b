"""Proof of the order in which events are claimed."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from durabus.errors import UnsupportedByStore
from durabus.model.event import new_event, new_event_id
from durabus.model.settlement import Complete, Fail, Release
from durabus.model.statuses import EventMode, EventStatus
from durabus.store.contract import EventStore
from durabus.testing.conformance.lab import BOB, BUS, OTHER_BUS, Lab, end, numbers


class OrderTests:
    """Among eligible events, larger priority first, then smaller id."""

    @pytest.mark.parametrize("limit", [1, 3, 10])
    async def test_events_come_in_the_order_they_were_published(
        self, lab: Lab, other_node: EventStore, limit: int
    ) -> None:
        """Order: larger ``priority`` first, then smaller ``id``. The returned list has this order."""
        for n in range(10):
            await [lab.store, other_node][n % 2].add_events([new_event("t", {"n": n}, bus="orders")])
        assert [n for _ in range(10) for n in numbers(await lab.claim(limit=limit))] == list(range(10))

    @pytest.mark.parametrize("limit", [1, 2, 10])
    async def test_larger_priority_goes_first(self, lab: Lab, limit: int) -> None:
        """Order: larger ``priority`` first, then smaller ``id``. The returned list has this order."""
        priorities = [0, 5, -1000, 5, 1000, 0, -1]
        await lab.store.add_events(
            [new_event("t", {"n": n}, bus="orders", priority=priority) for n, priority in enumerate(priorities)]
        )
        assert [n for _ in range(10) for n in numbers(await lab.claim(limit=limit))] == [4, 1, 3, 0, 5, 6, 2]

    async def test_an_event_that_became_due_takes_the_place_of_its_id(self, lab: Lab, other_node: EventStore) -> None:
        """Order: larger ``priority`` first, then smaller ``id``. The returned list has this order."""
        await lab.store.add_events(
            [
                new_event("t", {"n": 0}, bus="orders"),
                new_event("t", {"n": 1}, bus="orders", delay=20 * lab.moment),
                new_event("t", {"n": 2}, bus="orders", delay=10 * lab.moment),
                new_event("t", {"n": 3}, bus="orders"),
            ]
        )
        assert numbers(await lab.claim(limit=1)) == [0]
        await lab.advance(25 * lab.moment)
        assert numbers(await lab.claim(other_node, limit=10)) == [1, 2, 3]

    async def test_an_event_that_became_due_brings_no_other_along(self, lab: Lab) -> None:
        """Then every PENDING event that is due is eligible."""
        await lab.store.add_events(
            [new_event("t", {"n": n}, bus="orders", delay=delay * lab.moment) for n, delay in enumerate((60, 10))]
        )
        await lab.advance(15 * lab.moment)
        assert numbers(await lab.claim(limit=10)) == [1]

    @pytest.mark.parametrize("given_back_by", ["release", "fail", "reset", "expire", "requeue"])
    async def test_an_event_that_came_back_keeps_the_place_of_its_id(
        self, lab: Lab, other_node: EventStore, given_back_by: str
    ) -> None:
        """Order: larger ``priority`` first, then smaller ``id``. The returned list has this order."""
        await lab.publish(3)
        claim = await lab.claim_one()
        match given_back_by:
            case "release":
                await lab.settle_one(Release(claim.ref))
            case "fail":
                await lab.settle_one(Fail(claim.ref, "no", 0.0))
            case "reset":
                await lab.store.reset_event(claim.event.id, reason="stuck")
            case "expire":
                await lab.let_the_lease_end()
            case "requeue":
                await lab.settle_one(Fail(claim.ref, "no", None))
                await lab.store.requeue_dead_letters([claim.event.id])
        await lab.publish_one(kind="late")
        assert numbers(await lab.claim(other_node, limit=3, worker_id=BOB)) == [0, 1, 2]

    async def test_a_retry_that_waits_lets_younger_events_pass(self, lab: Lab) -> None:
        """Order: larger ``priority`` first, then smaller ``id``. The returned list has this order."""
        await lab.publish(3)
        first = await lab.claim_one()
        await lab.settle_one(Fail(first.ref, "no", 10 * lab.moment))
        assert numbers(await lab.claim(limit=1)) == [1]
        await lab.advance(10 * lab.moment)
        assert numbers(await lab.claim(limit=2)) == [0, 2]

    async def test_expired_claims_and_new_events_are_ordered_together(self, lab: Lab) -> None:
        """Order: larger ``priority`` first, then smaller ``id``. The returned list has this order."""
        await lab.store.add_events(
            [new_event("t", {"n": n}, bus="orders", priority=n % 2, tags=[f"t{n}"]) for n in range(6)]
        )
        await lab.claim(limit=2, tags=("t2", "t5"))
        await lab.let_the_lease_end()
        assert numbers(await lab.claim(limit=10, worker_id=BOB)) == [1, 3, 5, 0, 2, 4]

    async def test_a_serial_queue_gives_one_batch_after_the_other_in_order(self, lab: Lab) -> None:
        """Order: larger ``priority`` first, then smaller ``id``. The returned list has this order."""
        await lab.publish(6)
        seen: list[int] = []
        for _ in range(3):
            claims = await lab.claim(limit=2, mode=EventMode.BUS_SERIAL)
            seen += numbers(claims)
            await lab.settle(*(Complete(claim.ref) for claim in claims))
        assert seen == [0, 1, 2, 3, 4, 5]

    async def test_each_bus_has_its_own_queue(self, lab: Lab) -> None:
        """Order: larger ``priority`` first, then smaller ``id``. The returned list has this order."""
        for n in range(6):
            await lab.store.add_events([new_event("t", {"n": n}, bus=("orders", OTHER_BUS)[n % 2])])
        assert numbers(await lab.claim(bus=OTHER_BUS, limit=10)) == [1, 3, 5]
        assert numbers(await lab.claim(limit=10)) == [0, 2, 4]

    async def test_each_of_many_racing_batches_is_in_order(self, lab: Lab, other_node: EventStore) -> None:
        """Order: larger ``priority`` first, then smaller ``id``. The returned list has this order."""
        await lab.publish(60)
        answers = await lab.race([partial(lab.claim, node, limit=10) for node in [lab.store, other_node] * 3])
        for claims in answers:
            assert len(claims) == 10
            assert numbers(claims) == sorted(numbers(claims))


async def _publish(lab: Lab, *keys: str | None, bus: str = BUS, **options: Any) -> None:
    """Publish one event for each key, numbered from 0. A store without ordering keys refuses them."""
    new = [new_event("job", {"n": n}, bus=bus, ordering_key=key, **options) for n, key in enumerate(keys)]
    await lab.store.add_events(new)


async def _drain(lab: Lab) -> list[list[int]]:
    """Claim and complete until the queue is empty. Returns the numbers of each claim."""
    batches: list[list[int]] = []
    while claims := await lab.claim(limit=10):
        batches.append(numbers(claims))
        await lab.settle(*(Complete(claim.ref) for claim in claims))
    return batches


class OrderingTests:
    """Events of one ordering key, and claims of one named event."""

    @pytest.fixture
    def keys(self, lab: Lab) -> None:
        """Skip the test unless the store has ordering keys."""
        if not lab.store.features.ordering_keys:
            pytest.skip("declared: ordering_keys=False")

    @pytest.fixture
    def by_id(self, lab: Lab) -> None:
        """Skip the test unless the store can claim by ``event_id``."""
        if not lab.store.features.claims_by_event_id:
            pytest.skip("declared: claims_by_event_id=False")

    async def test_a_store_that_cannot_keep_an_order_refuses_the_key(self, lab: Lab) -> None:
        """An ``ordering_key`` is refused without ``ordering_keys``."""
        if lab.store.features.ordering_keys:
            await _publish(lab, "a")
            assert (await lab.claim_one()).event.ordering_key == "a"
            return
        with pytest.raises(UnsupportedByStore, match="ordering_keys"):
            await _publish(lab, "a")

    async def test_a_store_that_cannot_claim_by_name_refuses_to(self, lab: Lab) -> None:
        """Refused without ``claims_by_event_id``."""
        if lab.store.features.claims_by_event_id:
            assert await lab.claim(event_id=new_event_id()) == []
            return
        with pytest.raises(UnsupportedByStore, match="claims_by_event_id"):
            await lab.claim(event_id=new_event_id())

    @pytest.mark.usefixtures("keys")
    async def test_one_event_of_a_key_at_a_time_is_eligible(self, lab: Lab, other_node: EventStore) -> None:
        """Among the live events of the bus with the same ``ordering_key``, only the one with the smallest ``id`` is
        eligible, and only while none of them is PROCESSING.
        """
        await _publish(lab, "a", "a", "b", None, "a", "b")
        first = await lab.claim(limit=10)
        assert numbers(first) == [0, 2, 3]
        assert await lab.claim(other_node, limit=10, worker_id=BOB) == []
        await lab.settle(Complete(first[0].ref))
        assert numbers(await lab.claim(other_node, limit=10, worker_id=BOB)) == [1]

    @pytest.mark.usefixtures("keys")
    async def test_an_event_waits_while_another_of_its_key_is_claimed(self, lab: Lab, other_node: EventStore) -> None:
        """Among the live events of the bus with the same ``ordering_key``, only the one with the smallest ``id`` is
        eligible, and only while none of them is PROCESSING.
        """
        await _publish(lab, "a")
        first = await lab.claim_one()
        await _publish(lab, "a")
        assert await lab.claim(other_node, limit=10, worker_id=BOB) == []
        await lab.settle(Complete(first.ref))
        assert len(await lab.claim(other_node, limit=10, worker_id=BOB)) == 1

    @pytest.mark.usefixtures("keys")
    async def test_an_order_is_kept_to_its_end(self, lab: Lab) -> None:
        """Among the live events of the bus with the same ``ordering_key``, only the one with the smallest ``id`` is
        eligible.
        """
        await _publish(lab, *"abcabcabcc")
        assert await _drain(lab) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]

    @pytest.mark.usefixtures("keys")
    async def test_keys_of_two_buses_have_nothing_to_do_with_each_other(self, lab: Lab) -> None:
        """Among the live events of the bus with the same ``ordering_key``, only the one with the smallest ``id`` is
        eligible.
        """
        await _publish(lab, "a")
        await _publish(lab, "a", bus=OTHER_BUS)
        assert len(await lab.claim()) == len(await lab.claim(bus=OTHER_BUS)) == 1

    @pytest.mark.usefixtures("keys")
    async def test_a_retry_holds_up_its_key_alone(self, lab: Lab) -> None:
        """Only while none of them is PROCESSING. An event that waits for its retry delays its own key only."""
        await _publish(lab, "a", "a", "b", "b")
        head, other = await lab.claim(limit=10)
        await lab.settle(Fail(head.ref, "no", 10 * lab.moment), Complete(other.ref))
        assert numbers(await lab.claim(limit=10)) == [3]
        await lab.advance(11 * lab.moment)
        assert numbers(await lab.claim(limit=10)) == [0]

    @pytest.mark.usefixtures("keys")
    @pytest.mark.parametrize("ended_by", ["complete", "fail for good", "release", "reset", "remove", "lease"])
    async def test_every_way_to_end_a_claim_frees_its_ordering_key(
        self, lab: Lab, other_node: EventStore, ended_by: str
    ) -> None:
        """Among the live events of the bus with the same ``ordering_key``, only the one with the smallest ``id`` is
        eligible, and only while none of them is PROCESSING.
        """
        await _publish(lab, "a", "a")
        (head,) = await lab.claim(limit=10)
        await end(lab, head, ended_by)
        next_one = 0 if ended_by in ("release", "reset", "lease") else 1
        assert numbers(await lab.claim(other_node, limit=10, worker_id=BOB)) == [next_one]

    @pytest.mark.usefixtures("keys")
    async def test_a_claim_is_full_although_a_key_came_back_often(self, lab: Lab) -> None:
        """Claim up to ``request.limit`` events of ``request.bus``."""
        await _publish(lab, "a", "b", "b", "b", None, None)
        head = (await lab.claim(limit=1))[0]
        for _ in range(3):
            (other,) = await lab.claim(limit=1)
            await lab.settle(Release(other.ref))
        await lab.settle(Release(head.ref))
        assert numbers(await lab.claim(limit=3)) == [0, 1, 4]

    @pytest.mark.usefixtures("keys")
    async def test_a_long_line_of_one_key_does_not_hide_what_is_behind_it(self, lab: Lab) -> None:
        """Then every PENDING event that is due is eligible."""
        await _publish(lab, *["a"] * 30, "b")
        assert numbers(await lab.claim(limit=1)) == [0]
        assert numbers(await lab.claim(limit=1)) == [30]
        assert await lab.claim(limit=1) == []

    @pytest.mark.usefixtures("keys")
    async def test_a_delayed_event_holds_its_place(self, lab: Lab) -> None:
        """Among the live events of the bus with the same ``ordering_key``, only the one with the smallest ``id`` is
        eligible.
        """
        await _publish(lab, "a", delay=10 * lab.moment)
        await _publish(lab, "a", "b")
        assert numbers(await lab.claim(limit=10)) == [1]
        await lab.advance(11 * lab.moment)
        assert await _drain(lab) == [[0], [0]]

    @pytest.mark.usefixtures("keys")
    async def test_a_priority_counts_between_keys_and_not_inside_one(self, lab: Lab) -> None:
        """Order: larger ``priority`` first, then smaller ``id``. The returned list has this order."""
        await _publish(lab, "a")
        await _publish(lab, "a", "b", priority=5)
        claims = await lab.claim(limit=10)
        assert [(claim.event.ordering_key, claim.event.priority) for claim in claims] == [("b", 5), ("a", 0)]

    @pytest.mark.usefixtures("keys")
    async def test_a_requeued_dead_letter_runs_after_the_claimed_event_of_its_key_and_before_the_waiting_ones(
        self, lab: Lab
    ) -> None:
        """Among the live events of the bus with the same ``ordering_key``, only the one with the smallest ``id`` is
        eligible, and only while none of them is PROCESSING.
        """
        await _publish(lab, "a", "a", "a")
        dead = await lab.claim_one()
        await lab.settle(Fail(dead.ref, "no", None))
        second = await lab.claim_one()
        await lab.store.requeue_dead_letters([dead.event.id])
        assert await lab.claim(limit=10) == []
        await lab.settle(Complete(second.ref))
        assert await _drain(lab) == [[0], [2]]

    @pytest.mark.usefixtures("keys")
    async def test_tags_choose_among_the_first_of_each_key(self, lab: Lab) -> None:
        """With ``request.tags``, only events that carry one of them are eligible."""
        await _publish(lab, "a", "a", "b", tags=["x"])
        assert numbers(await lab.claim(limit=10, tags=("x",))) == [0, 2]
        assert await lab.claim(limit=10, tags=("x",)) == []

    @pytest.mark.usefixtures("keys")
    async def test_of_many_claimers_one_gets_the_first_of_a_key(self, lab: Lab, other_node: EventStore) -> None:
        """A second caller never gets an event whose lease is not over, however many callers race."""
        await _publish(lab, *["a"] * 6)
        seen: list[int] = []
        for _ in range(6):
            answers = await lab.race([partial(lab.claim, node, limit=5) for node in [lab.store, other_node] * 4])
            claims = [claim for answer in answers for claim in answer]
            assert len(claims) <= 1
            claims = claims or await lab.claim(limit=5)  # a racing caller can skip a key that another one looks at
            seen += numbers(claims)
            await lab.settle(*(Complete(claim.ref) for claim in claims))
        assert seen == list(range(6))

    @pytest.mark.usefixtures("by_id")
    async def test_an_event_asked_for_by_name_is_claimed_before_all_others(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """With ``request.event_id``, only that event."""
        events = await lab.publish(5)
        (claim,) = await lab.claim(limit=5, event_id=events[3].event_id)
        assert (claim.event.id, claim.event.status, claim.event.attempts) == (events[3].id, EventStatus.PROCESSING, 1)
        assert await lab.claim(other_node, limit=5, event_id=events[3].event_id) == []
        assert await lab.claim(limit=5, event_id=events[2].event_id, bus=OTHER_BUS) == []
        assert numbers(await lab.claim(limit=5)) == [0, 1, 2, 4]
        await lab.settle(Release(claim.ref, 10 * lab.moment))
        assert await lab.claim(event_id=events[3].event_id) == []

    @pytest.mark.usefixtures("by_id")
    async def test_a_mode_holds_for_an_event_asked_for_by_name(self, lab: Lab) -> None:
        """With ``request.mode`` bus-serial or global-serial, events are claimed only if the lock ``event:bus:{bus}`` or
        ``event:global`` is free or expired.
        """
        events = await lab.publish(3)
        await lab.claim_one(mode=EventMode.BUS_SERIAL)
        assert await lab.claim(mode=EventMode.BUS_SERIAL, event_id=events[2].event_id) == []
        assert numbers(await lab.claim(event_id=events[2].event_id)) == [2]

    @pytest.mark.usefixtures("by_id", "keys")
    async def test_a_claim_by_event_id_keeps_the_order_of_a_key(self, lab: Lab) -> None:
        """Among the live events of the bus with the same ``ordering_key``, only the one with the smallest ``id`` is
        eligible.
        """
        new = [new_event("job", {"n": n}, bus=BUS, ordering_key="a") for n in range(2)]
        await lab.store.add_events(new)
        assert await lab.claim(event_id=new[1].event_id) == []
        assert numbers(await lab.claim(event_id=new[0].event_id)) == [0]
