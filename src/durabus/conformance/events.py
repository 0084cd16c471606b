"""Proof of ``durabus.store.events``: in, out, removed, counted."""

from __future__ import annotations

import anyio
import pytest

from durabus.conformance.lab import BUS, OTHER_BUS, Lab, batch
from durabus.errors import LeaseLost
from durabus.model.event import NewEvent, new_event, new_event_id
from durabus.model.query import Counts
from durabus.model.settlement import Complete
from durabus.model.statuses import Action, EventStatus
from durabus.store.contract import EventStore
from durabus.store.events import EventRef

EVERY_STATUS = pytest.mark.parametrize("status", list(EventStatus))
PAYLOADS = [
    "null",
    '""',
    '{"a":[1,2.5,-0.0,true,null,{"b":{}}]}',
    '"Grüße, 東京 🎉 \u0394"',
    '"quotes \' \\" back\\\\slash %s ; -- $1 ?"',
    '"nul \\u0000 and line\u2028separator"',
    '{"big":9223372036854775807,"small":-9223372036854775808,"fine":0.1}',
    ' { "spaces" : [ 1 ,\n 2 ] } ',
    '"' + "x" * 1_000_000 + '"',
]
PAYLOAD_NAMES = ["null", "empty", "nested", "unicode", "quotes", "nul", "numbers", "spaces", "large"]


class EventTests:
    """Events as records."""

    async def test_new_events_are_pending_and_answered_in_the_order_given(self, lab: Lab) -> None:
        """Each becomes PENDING with ``attempts=0`` and the next ``id``; ids follow the order of the batch."""
        new = batch(20)
        events = await lab.store.add_events(new)
        assert [event.event_id for event in events] == [one.event_id for one in new]
        assert {(event.status, event.attempts, event.fence) for event in events} == {(EventStatus.PENDING, 0, 0)}
        ids = [event.id for event in events]
        assert ids == sorted(set(ids))

    async def test_ids_of_later_batches_are_larger_on_every_node(self, lab: Lab, other_node: EventStore) -> None:
        """Given by the store, strictly increasing in queue order."""
        nodes = [lab.store, other_node] * 3
        ids = [event.id for node in nodes for event in await node.add_events(batch(2))]
        assert ids == sorted(set(ids))

    async def test_the_id_of_a_removed_event_is_not_given_again(self, lab: Lab) -> None:
        """Given by the store, strictly increasing in queue order."""
        event = await lab.publish_one()
        await lab.store.remove_event(event.id)
        assert (await lab.publish_one()).id > event.id

    async def test_every_field_comes_back_as_it_was_sent(self, lab: Lab, other_node: EventStore) -> None:
        """Store events, all or none, and answer with them in the order given."""
        now, parent = await lab.store.now(), new_event_id()
        new = new_event(
            "käse.bestellt",
            {"id": 7},
            bus="bücher und ähnliches",
            metadata={"quelle": "Straße", "n": [1]},
            tags=["eilig", "日本", "b c"],
            priority=-7,
            delay=5 * lab.moment,
            max_attempts=4,
            parent_id=parent,
            idempotency_key="schlüssel/1",
        )
        (event,) = await lab.store.add_events([new])
        for field in NewEvent.__struct_fields__:
            if field != "delay":
                assert getattr(event, field) == getattr(new, field), field
        assert lab.same_time(event.created_ts, now)
        assert event.updated_ts == event.created_ts
        assert abs(event.due_ts - event.created_ts - new.delay) < 1e-6
        assert await lab.event(event, other_node) == event

    @pytest.mark.parametrize("text", PAYLOADS, ids=PAYLOAD_NAMES)
    async def test_a_payload_and_metadata_come_back_byte_for_byte(
        self, lab: Lab, other_node: EventStore, text: str
    ) -> None:
        """Store events, all or none, and answer with them in the order given."""
        new = NewEvent(event_id=new_event_id(), bus=BUS, type="t", payload_json=text, metadata_json=text)
        (stored,) = await lab.store.add_events([new])
        for event in (stored, await lab.event(stored, other_node), (await lab.claim_one(other_node)).event):
            assert event.payload_json == text
            assert event.metadata_json == text

    async def test_ten_thousand_events_are_one_batch(self, lab: Lab, other_node: EventStore) -> None:
        """Store events, all or none, and answer with them in the order given."""
        new = batch(10_000)
        events = await lab.store.add_events(new)
        assert [event.event_id for event in events] == [one.event_id for one in new]
        assert (await other_node.counts()).pending == 10_000
        claims = await lab.claim(limit=10_000)
        assert [claim.event.id for claim in claims] == [event.id for event in events]
        outcomes = await lab.settle(*(Complete(claim.ref) for claim in claims))
        assert {outcome.status for outcome in outcomes if not isinstance(outcome, LeaseLost)} == {EventStatus.COMPLETED}
        assert len(outcomes) == 10_000

    async def test_a_cancelled_batch_is_stored_whole_or_not_at_all(self, lab: Lab, other_node: EventStore) -> None:
        """Store events, all or none, and answer with them in the order given."""
        for _ in range(5):
            before = (await lab.store.counts()).pending
            with anyio.CancelScope() as scope:
                scope.cancel()
                await lab.store.add_events(batch(500))
            assert (await other_node.counts()).pending - before in (0, 500)
        await lab.store.add_events(batch(1))
        assert (await other_node.counts()).pending % 500 == 1

    async def test_each_stored_event_has_one_published_entry(self, lab: Lab, other_node: EventStore) -> None:
        """One PUBLISHED entry per stored event is logged in the same atomic step."""
        events = await lab.publish(3, tags=["a", "b"], metadata={"source": "web"})
        log = await lab.log(other_node)
        assert [(entry.action, entry.id) for entry in log] == [(Action.PUBLISHED, event.id) for event in events]
        assert {(entry.tags, entry.metadata_json) for entry in log} == {(("a", "b"), '{"source":"web"}')}

    async def test_an_empty_batch_is_answered_empty(self, lab: Lab) -> None:
        """Batch first: one is a batch of one; an empty batch is answered empty."""
        before = await lab.picture()
        assert await lab.store.add_events([]) == []
        assert await lab.store.get_events([]) == []
        assert await lab.store.start_events([]) == []
        assert await lab.store.renew_event_claims([], lease=lab.lease) == []
        assert await lab.store.renew_handler_claims([], lease=lab.lease) == []
        assert await lab.store.requeue_dead_letters([]) == []
        answer = await lab.store.settle_events([])
        assert (answer.outcomes, answer.claims) == ([], [])
        assert await lab.picture() == before

    @EVERY_STATUS
    async def test_an_event_is_found_by_both_ids_whatever_its_status(
        self, lab: Lab, other_node: EventStore, status: EventStatus
    ) -> None:
        """The event as it stands, live or ended."""
        event = await lab.ended(status)
        for node in (lab.store, other_node):
            assert await node.get_event(event.id) == event
            assert await node.get_event(event.event_id) == event
            assert await node.has_event(event.id)
            assert await node.has_event(event.event_id)

    async def test_many_events_are_looked_up_in_one_call(self, lab: Lab, other_node: EventStore) -> None:
        """What ``get_event`` would answer to each of ``refs``, in their order, in one call."""
        events = [await lab.ended(status) for status in reversed(EventStatus)]  # the PENDING one last: nobody claims it
        refs: list[EventRef] = [event.event_id if n % 2 else event.id for n, event in enumerate(events)]
        asked = [*refs, 0, -1, 2**62, "nonsense", new_event_id(), *reversed(refs)]
        assert await other_node.get_events(asked) == [*events, *[None] * 5, *reversed(events)]

    async def test_a_number_in_text_is_no_id(self, lab: Lab) -> None:
        """An event's ``id`` (int) or ``event_id`` (str)."""
        event = await lab.publish_one()
        assert await lab.store.get_event(str(event.id)) is None
        assert await lab.store.get_event(event.event_id) == await lab.store.get_event(event.id) == event

    @pytest.mark.parametrize("ref", [0, -1, 99, 2**62, "", "nonsense", pytest.param(new_event_id(), id="event_id")])
    async def test_an_unknown_event_is_none(self, lab: Lab, ref: int | str) -> None:
        """None if unknown, trimmed, purged or removed."""
        await lab.publish()
        assert await lab.store.get_event(ref) is None
        assert await lab.store.has_event(ref) is False
        assert await lab.store.remove_event(ref) is False

    @EVERY_STATUS
    async def test_an_event_can_be_removed_once_whatever_its_status(
        self, lab: Lab, other_node: EventStore, status: EventStatus
    ) -> None:
        """Delete an event whatever its status. False if it was not there."""
        event = await lab.ended(status)
        entries = await lab.log()
        assert await lab.store.remove_event(event.event_id) is True
        assert await other_node.get_event(event.id) is None
        assert await lab.store.has_event(event.event_id) is False
        assert await lab.store.counts() == Counts()
        assert await lab.claim(limit=10) == []
        assert await lab.store.remove_event(event.event_id) is False
        assert await lab.log() == entries

    async def test_ids_and_keys_of_a_removed_event_are_free_again(self, lab: Lab, other_node: EventStore) -> None:
        """Its ids and keys are free again; its log entries stay."""
        new = new_event("order.placed", {"n": 1}, bus=BUS, idempotency_key="order-1")
        (first,) = await lab.store.add_events([new])
        await lab.store.remove_event(first.id)
        (second,) = await other_node.add_events([new])
        assert second.id > first.id
        assert second.event_id == first.event_id
        assert [entry.action for entry in await lab.log()] == [Action.PUBLISHED, Action.PUBLISHED]

    async def test_the_claim_on_a_removed_event_is_lost(self, lab: Lab) -> None:
        """A claim on it is lost: settling it is answered with ``LeaseLost``."""
        claim = await lab.claimed()
        await lab.store.remove_event(claim.event.id)
        (outcome,) = await lab.settle(Complete(claim.ref))
        assert isinstance(outcome, LeaseLost)
        assert await lab.store.get_event(claim.event.id) is None

    async def test_events_are_counted_by_status_and_bus(self, lab: Lab, other_node: EventStore) -> None:
        """How many events there are in each status, of one bus or of all."""
        assert await lab.store.counts() == Counts()
        for status in (EventStatus.COMPLETED, EventStatus.FAILED, EventStatus.COMPLETED_WITH_ERRORS):
            await lab.ended(status)
        await lab.ended(EventStatus.PROCESSING)
        await lab.publish(2)
        await lab.publish(3, bus=OTHER_BUS)
        mine = Counts(pending=2, processing=1, completed=1, completed_with_errors=1, failed=1)
        assert await other_node.counts(BUS) == mine
        assert await lab.store.counts(OTHER_BUS) == Counts(pending=3)
        assert await lab.store.counts() == Counts(
            pending=5, processing=1, completed=1, completed_with_errors=1, failed=1
        )
        assert await lab.store.counts("nowhere") == Counts()
