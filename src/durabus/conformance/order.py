"""Proof of the order in which events are claimed."""

from __future__ import annotations

from functools import partial

import pytest

from durabus.conformance.lab import BOB, OTHER_BUS, Lab, numbers
from durabus.model.event import new_event
from durabus.model.settlement import Complete, Fail, Release
from durabus.model.statuses import EventMode
from durabus.store.contract import EventStore


class OrderTests:
    """Larger priority first, then smaller id, among the eligible."""

    @pytest.mark.parametrize("limit", [1, 3, 10])
    async def test_events_come_in_the_order_they_were_published(
        self, lab: Lab, other_node: EventStore, limit: int
    ) -> None:
        """Order: larger ``priority`` first, then smaller ``id``, among the eligible; the answer keeps it."""
        for n in range(10):
            await [lab.store, other_node][n % 2].add_events([new_event("t", {"n": n}, bus="orders")])
        assert [n for _ in range(10) for n in numbers(await lab.claim(limit=limit))] == list(range(10))

    @pytest.mark.parametrize("limit", [1, 2, 10])
    async def test_larger_priority_goes_first(self, lab: Lab, limit: int) -> None:
        """Order: larger ``priority`` first, then smaller ``id``, among the eligible; the answer keeps it."""
        priorities = [0, 5, -1000, 5, 1000, 0, -1]
        await lab.store.add_events(
            [new_event("t", {"n": n}, bus="orders", priority=priority) for n, priority in enumerate(priorities)]
        )
        assert [n for _ in range(10) for n in numbers(await lab.claim(limit=limit))] == [4, 1, 3, 0, 5, 6, 2]

    async def test_an_event_that_became_due_takes_the_place_of_its_id(self, lab: Lab, other_node: EventStore) -> None:
        """Order: larger ``priority`` first, then smaller ``id``, among the eligible; the answer keeps it."""
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
        """Eligible are then the PENDING events that are due."""
        await lab.store.add_events(
            [new_event("t", {"n": n}, bus="orders", delay=delay * lab.moment) for n, delay in enumerate((60, 10))]
        )
        await lab.advance(15 * lab.moment)
        assert numbers(await lab.claim(limit=10)) == [1]

    @pytest.mark.parametrize("given_back_by", ["release", "fail", "reset", "expire", "requeue"])
    async def test_an_event_that_came_back_keeps_the_place_of_its_id(
        self, lab: Lab, other_node: EventStore, given_back_by: str
    ) -> None:
        """Order: larger ``priority`` first, then smaller ``id``, among the eligible; the answer keeps it."""
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
        """Order: larger ``priority`` first, then smaller ``id``, among the eligible; the answer keeps it."""
        await lab.publish(3)
        first = await lab.claim_one()
        await lab.settle_one(Fail(first.ref, "no", 10 * lab.moment))
        assert numbers(await lab.claim(limit=1)) == [1]
        await lab.advance(10 * lab.moment)
        assert numbers(await lab.claim(limit=2)) == [0, 2]

    async def test_expired_claims_and_new_events_are_ordered_together(self, lab: Lab) -> None:
        """Order: larger ``priority`` first, then smaller ``id``, among the eligible; the answer keeps it."""
        await lab.store.add_events(
            [new_event("t", {"n": n}, bus="orders", priority=n % 2, tags=[f"t{n}"]) for n in range(6)]
        )
        await lab.claim(limit=2, tags=("t2", "t5"))
        await lab.let_the_lease_end()
        assert numbers(await lab.claim(limit=10, worker_id=BOB)) == [1, 3, 5, 0, 2, 4]

    async def test_a_serial_queue_gives_one_batch_after_the_other_in_order(self, lab: Lab) -> None:
        """Order: larger ``priority`` first, then smaller ``id``, among the eligible; the answer keeps it."""
        await lab.publish(6)
        seen: list[int] = []
        for _ in range(3):
            claims = await lab.claim(limit=2, mode=EventMode.BUS_SERIAL)
            seen += numbers(claims)
            await lab.settle(*(Complete(claim.ref) for claim in claims))
        assert seen == [0, 1, 2, 3, 4, 5]

    async def test_each_bus_has_its_own_queue(self, lab: Lab) -> None:
        """Order: larger ``priority`` first, then smaller ``id``, among the eligible; the answer keeps it."""
        for n in range(6):
            await lab.store.add_events([new_event("t", {"n": n}, bus=("orders", OTHER_BUS)[n % 2])])
        assert numbers(await lab.claim(bus=OTHER_BUS, limit=10)) == [1, 3, 5]
        assert numbers(await lab.claim(limit=10)) == [0, 2, 4]

    async def test_each_of_many_racing_batches_is_in_order(self, lab: Lab, other_node: EventStore) -> None:
        """Order: larger ``priority`` first, then smaller ``id``, among the eligible; the answer keeps it."""
        await lab.publish(60)
        answers = await lab.race([partial(lab.claim, node, limit=10) for node in [lab.store, other_node] * 3])
        for claims in answers:
            assert len(claims) == 10
            assert numbers(claims) == sorted(numbers(claims))
