"""Proof of ``add_events``: what is known already is stored once."""

from __future__ import annotations

from functools import partial

import pytest

from durabus.errors import UnsupportedByStore
from durabus.model.event import NewEvent, new_event, new_event_id
from durabus.model.statuses import EventStatus
from durabus.store.contract import EventStore
from durabus.testing.conformance.lab import BUS, OTHER_BUS, Lab, batch
from durabus.testing.conformance.waits import payment, wait_for

EVERY_STATUS = pytest.mark.parametrize("status", list(EventStatus))


def _keyed(key: str, bus: str = BUS, n: int = 0) -> NewEvent:
    return new_event("order.placed", {"n": n}, bus=bus, idempotency_key=key)


class DedupeTests:
    """An event id, or a key of its bus, names one event."""

    @EVERY_STATUS
    async def test_a_publish_with_a_known_event_id_returns_the_stored_event(
        self, lab: Lab, other_node: EventStore, status: EventStatus
    ) -> None:
        """A new event whose ``event_id``, or ``idempotency_key`` on the same bus, is known already is not stored: the
        stored event is returned in its place, whatever its status.
        """
        event = await lab.ended(status)
        before = await lab.picture()
        again = new_event("other.type", {"other": True}, bus=OTHER_BUS, event_id=event.event_id, priority=9)
        assert await other_node.add_events([again]) == [event]
        assert await lab.picture() == before

    @EVERY_STATUS
    async def test_a_publish_with_a_known_key_returns_the_stored_event(
        self, lab: Lab, other_node: EventStore, status: EventStatus
    ) -> None:
        """A new event whose ``event_id``, or ``idempotency_key`` on the same bus, is known already is not stored: the
        stored event is returned in its place, whatever its status.
        """
        event = await lab.ended(status, idempotency_key="order-1")
        before = await lab.picture()
        assert await other_node.add_events([_keyed("order-1", n=99)]) == [event]
        assert await lab.picture() == before

    async def test_a_store_that_cannot_know_all_keys_refuses_them(self, lab: Lab) -> None:
        """An ``ordering_key`` is refused without ``ordering_keys``, an ``idempotency_key`` without
        ``idempotency_keys``.
        """
        if lab.store.features.idempotency_keys:
            assert (await lab.store.add_events([_keyed("k")]))[0].idempotency_key == "k"
            return
        with pytest.raises(UnsupportedByStore, match="idempotency_keys=False"):
            await lab.store.add_events([*batch(1), _keyed("k")])
        assert await lab.all_events() == []

    async def test_the_same_key_on_another_bus_is_another_event(self, lab: Lab) -> None:
        """A new event whose ``event_id``, or ``idempotency_key`` on the same bus, is known already is not stored."""
        first, second = await lab.store.add_events([_keyed("order-1"), _keyed("order-1", OTHER_BUS)])
        assert first.id != second.id
        assert [
            (await lab.store.add_events([again]))[0].id for again in (_keyed("order-1", OTHER_BUS), _keyed("order-1"))
        ] == [second.id, first.id]
        assert (await lab.store.counts()).pending == 2

    async def test_keys_are_compared_exactly(self, lab: Lab) -> None:
        """A new event whose ``event_id``, or ``idempotency_key`` on the same bus, is known already is not stored."""
        keys = ["order-1", "ORDER-1", "order-1 ", "örder-1", "order_1", "order%"]
        events = await lab.store.add_events([_keyed(key) for key in keys])
        assert len({event.id for event in events}) == len(keys)

    async def test_doubles_inside_one_batch_are_one_event(self, lab: Lab) -> None:
        """This also holds inside one batch, and makes a repeat of the whole call harmless."""
        event_id = new_event_id()
        batch_with_doubles = [
            new_event("a", {"n": 1}, bus=BUS, event_id=event_id),
            _keyed("k", n=2),
            new_event("a", {"n": 3}, bus=BUS, event_id=event_id),
            _keyed("k", n=4),
            _keyed("l", n=5),
        ]
        events = await lab.store.add_events(batch_with_doubles)
        assert [event.payload["n"] for event in events] == [1, 2, 1, 2, 5]
        assert events[0].id == events[2].id < events[1].id == events[3].id < events[4].id
        assert (await lab.store.counts()).pending == 3
        assert len(await lab.log()) == 3

    async def test_known_and_new_events_mix_in_one_batch(self, lab: Lab) -> None:
        """This also holds inside one batch, and makes a repeat of the whole call harmless."""
        known = batch(3)
        stored = await lab.store.add_events(known)
        fresh = batch(2)
        answer = await lab.store.add_events([fresh[0], known[2], fresh[1], known[0]])
        assert [event.event_id for event in answer] == [
            fresh[0].event_id,
            known[2].event_id,
            fresh[1].event_id,
            known[0].event_id,
        ]
        assert (answer[1], answer[3]) == (stored[2], stored[0])
        assert stored[2].id < answer[0].id < answer[2].id
        assert (await lab.store.counts()).pending == 5

    @pytest.mark.parametrize("index", [0, 1], ids=["before", "after"])
    async def test_a_known_event_is_returned_as_the_batch_leaves_it(
        self, lab: Lab, other_node: EventStore, index: int
    ) -> None:
        """It is returned as the whole batch leaves it: another event of the batch may meet its wait."""
        if not lab.store.features.waits:
            return
        known = batch(1)
        await lab.store.add_events(known)
        claim = await lab.claim_one()
        await wait_for(lab, claim)
        new = [payment()]
        new[index:index] = known
        answer = await other_node.add_events(new)
        assert answer[index] == await lab.event(claim)
        assert answer[index].due_ts == answer[index].updated_ts
        assert [one.event.id for one in await lab.claim(limit=2)] == sorted(event.id for event in answer)

    async def test_a_repeat_of_the_whole_call_returns_the_same_events(self, lab: Lab, other_node: EventStore) -> None:
        """This also holds inside one batch, and makes a repeat of the whole call harmless."""
        new = [*batch(3), _keyed("k")]
        first = await lab.store.add_events(new)
        before = await lab.picture()
        await lab.advance(5 * lab.moment)
        assert await other_node.add_events(new) == first
        assert await lab.picture() == before

    @pytest.mark.parametrize("forgotten_by", ["remove", "trim", "cleanup", "purge"])
    async def test_a_key_is_free_again_when_its_event_is_gone(
        self, lab: Lab, other_node: EventStore, forgotten_by: str
    ) -> None:
        """A key is remembered as long as its event."""
        status = EventStatus.FAILED if forgotten_by == "purge" else EventStatus.COMPLETED
        event = await lab.ended(status, idempotency_key="order-1")
        match forgotten_by:
            case "remove":
                assert await lab.store.remove_event(event.id)
            case "trim":
                assert await lab.store.trim_event_history(BUS, older_than=0) == 1
            case "cleanup":
                assert await lab.store.cleanup_excess_events(BUS, keep=0) == 1
            case "purge":
                assert await lab.store.purge_dead_letters(created_until_ts=event.created_ts) == 1
        (again,) = await other_node.add_events([_keyed("order-1")])
        assert again.id > event.id
        assert (await lab.store.counts()).pending == 1

    @pytest.mark.parametrize("named_by", ["event_id", "idempotency_key"])
    async def test_of_many_publishers_at_once_one_stores_the_event(
        self, lab: Lab, other_node: EventStore, named_by: str
    ) -> None:
        """This also holds inside one batch, and makes a repeat of the whole call harmless."""
        event_id = new_event_id()

        def publish(n: int) -> NewEvent:
            return new_event("a", {"n": n}, bus=BUS, event_id=event_id) if named_by == "event_id" else _keyed("k", n=n)

        nodes = [lab.store, other_node] * 5
        answers = await lab.race([partial(node.add_events, [publish(n)]) for n, node in enumerate(nodes)])
        assert len({(event.id, event.payload_json) for (event,) in answers}) == 1
        assert (await lab.store.counts()).pending == 1
        assert len(await lab.log()) == 1
