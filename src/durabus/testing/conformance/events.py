"""Proof of ``durabus.store.events``: storing, finding, removing and counting."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from durabus.errors import LeaseLost
from durabus.model.event import NewEvent, new_event, new_event_id
from durabus.model.pattern import matches
from durabus.model.query import Counts, EventQuery
from durabus.model.settlement import Complete
from durabus.model.statuses import Action, EventStatus
from durabus.store.contract import EventStore
from durabus.store.events import EventRef
from durabus.testing.conformance.lab import BUS, OTHER_BUS, Lab, batch, numbers

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
    """Storing, reading, removing and counting events."""

    async def test_new_events_are_pending_and_returned_in_the_order_given(self, lab: Lab) -> None:
        """Each becomes PENDING with ``attempts=0`` and the next ``id``; ids follow the order of the batch."""
        new = batch(20)
        events = await lab.store.add_events(new)
        assert [event.event_id for event in events] == [one.event_id for one in new]
        assert {(event.status, event.attempts, event.fence) for event in events} == {(EventStatus.PENDING, 0, 0)}
        ids = [event.id for event in events]
        assert ids == sorted(set(ids))

    async def test_ids_of_later_batches_are_larger_on_every_node(self, lab: Lab, other_node: EventStore) -> None:
        """The store gives ids, strictly increasing in queue order."""
        nodes = [lab.store, other_node] * 3
        ids = [event.id for node in nodes for event in await node.add_events(batch(2))]
        assert ids == sorted(set(ids))

    async def test_the_id_of_a_removed_event_is_not_given_again(self, lab: Lab) -> None:
        """The store gives ids, strictly increasing in queue order."""
        event = await lab.publish_one()
        await lab.store.remove_event(event.id)
        assert (await lab.publish_one()).id > event.id

    async def test_every_field_comes_back_as_it_was_sent(self, lab: Lab, other_node: EventStore) -> None:
        """Store events, all or none, and return them in the order given."""
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
        """Store events, all or none, and return them in the order given."""
        new = NewEvent(event_id=new_event_id(), bus=BUS, type="t", payload_json=text, metadata_json=text)
        (stored,) = await lab.store.add_events([new])
        for event in (stored, await lab.event(stored, other_node), (await lab.claim_one(other_node)).event):
            assert event.payload_json == text
            assert event.metadata_json == text

    async def test_ten_thousand_events_are_one_batch(self, lab: Lab, other_node: EventStore) -> None:
        """Store events, all or none, and return them in the order given."""
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
        """Store events, all or none, and return them in the order given."""
        for _ in range(5):
            with anyio.CancelScope() as scope:
                scope.cancel()
                await lab.store.add_events(batch(500))
            # The store may still write a batch after its call was cancelled, even beside the next batch.
            assert (await other_node.counts()).pending % 500 == 0
        await lab.store.add_events(batch(1))
        assert (await other_node.counts()).pending % 500 == 1

    async def test_each_stored_event_has_one_published_entry(self, lab: Lab, other_node: EventStore) -> None:
        """The same atomic step logs one PUBLISHED entry for each stored event."""
        events = await lab.publish(3, tags=["a", "b"], metadata={"source": "web"})
        log = await lab.log(other_node)
        assert [(entry.action, entry.id) for entry in log] == [(Action.PUBLISHED, event.id) for event in events]
        assert {(entry.tags, entry.metadata_json) for entry in log} == {(("a", "b"), '{"source":"web"}')}

    async def test_an_empty_batch_returns_an_empty_list(self, lab: Lab) -> None:
        """Calls take batches: one item is a batch of one, and an empty batch returns an empty list."""
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
        """Return the event as it is now, live or ended."""
        event = await lab.ended(status)
        for node in (lab.store, other_node):
            assert await node.get_event(event.id) == event
            assert await node.get_event(event.event_id) == event
            assert await node.has_event(event.id)
            assert await node.has_event(event.event_id)

    async def test_many_events_are_looked_up_in_one_call(self, lab: Lab, other_node: EventStore) -> None:
        """Return what ``get_event`` would return for each of ``refs``, in their order, in one call."""
        events = [
            await lab.ended(status) for status in reversed(EventStatus)
        ]  # the PENDING one last: no worker claims it
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
        """None if it is unknown, trimmed, purged or removed."""
        await lab.publish()
        assert await lab.store.get_event(ref) is None
        assert await lab.store.has_event(ref) is False
        assert await lab.store.remove_event(ref) is False

    @EVERY_STATUS
    async def test_an_event_can_be_removed_once_whatever_its_status(
        self, lab: Lab, other_node: EventStore, status: EventStatus
    ) -> None:
        """Delete an event, whatever its status. Returns False if it was not there."""
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
        """Its ids and keys can be used again; its log entries stay."""
        new = new_event("order.placed", {"n": 1}, bus=BUS, idempotency_key="order-1")
        (first,) = await lab.store.add_events([new])
        await lab.store.remove_event(first.id)
        (second,) = await other_node.add_events([new])
        assert second.id > first.id
        assert second.event_id == first.event_id
        assert [entry.action for entry in await lab.log()] == [Action.PUBLISHED, Action.PUBLISHED]

    async def test_the_claim_on_a_removed_event_is_lost(self, lab: Lab) -> None:
        """A claim on the event is lost: its settlement gets ``LeaseLost``."""
        claim = await lab.claimed()
        await lab.store.remove_event(claim.event.id)
        (outcome,) = await lab.settle(Complete(claim.ref))
        assert isinstance(outcome, LeaseLost)
        assert await lab.store.get_event(claim.event.id) is None

    async def test_events_are_counted_by_status_and_bus(self, lab: Lab, other_node: EventStore) -> None:
        """Return how many events there are in each status, on one bus or on all."""
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


PARENT, OTHER_PARENT, NOBODY = new_event_id(), new_event_id(), new_event_id()
CONDITIONS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "nothing": ({}, [5, 4, 3, 2, 1, 0]),
    "bus": ({"bus": BUS}, [4, 3, 2, 1, 0]),
    "another bus": ({"bus": OTHER_BUS}, [5]),
    "unknown bus": ({"bus": "nowhere"}, []),
    "status": ({"statuses": (EventStatus.PROCESSING,)}, [0]),
    "statuses": ({"statuses": (EventStatus.PROCESSING, EventStatus.PENDING)}, [5, 4, 3, 2, 1, 0]),
    "no such status": ({"statuses": (EventStatus.FAILED,)}, []),
    "type": ({"type": "order.placed"}, [2, 0]),
    "type glob": ({"type": "order.*"}, [4, 2, 1, 0]),
    "type glob in front": ({"type": "*.placed"}, [5, 2, 0]),
    "type glob of three": ({"type": "order.*.paid"}, [3]),
    "every type": ({"type": "*"}, [5, 4, 3, 2, 1, 0]),
    "tag": ({"tags": ("eu",)}, [3, 1]),
    "any of the tags": ({"tags": ("eu", "us")}, [4, 3, 1]),
    "a tag that begins alike": ({"tags": ("e",)}, []),
    "parent": ({"parent_ids": (PARENT,)}, [3, 2]),
    "parents": ({"parent_ids": (PARENT, NOBODY, OTHER_PARENT)}, [4, 3, 2]),
    "parent of none": ({"parent_ids": (NOBODY,), "statuses": (EventStatus.PENDING,)}, []),
    "parents of live events": ({"parent_ids": (NOBODY, OTHER_PARENT), "statuses": (EventStatus.PENDING,)}, [4]),
    "parents and limit": ({"parent_ids": (PARENT, OTHER_PARENT), "limit": 2}, [4, 3]),
    "all together": ({"bus": BUS, "type": "order.*", "tags": ("eu", "us"), "statuses": (EventStatus.PENDING,)}, [4, 1]),
    "limit": ({"limit": 2}, [5, 4]),
    "bus and limit": ({"bus": BUS, "limit": 2}, [4, 3]),
}
GLOB_TRAPS = ["order_placed", "orderXplaced", "order.placed%", "ORDER.PLACED", "order.placed.late"]


async def _six_events(lab: Lab) -> None:
    kinds = ["order.placed", "order.paid", "order.placed", "order.eu.paid", "order.paid", "mail.placed"]
    tags = [[], ["eu"], [], ["eu", "vip"], ["us"], []]
    parents = {2: PARENT, 3: PARENT, 4: OTHER_PARENT}
    await lab.store.add_events(
        [
            new_event(
                kind,
                {"n": n},
                bus=OTHER_BUS if n == 5 else BUS,
                tags=tags[n],
                parent_id=parents.get(n),
            )
            for n, kind in enumerate(kinds)
        ]
    )
    await lab.claim_one()


class PagingTests:
    """Finding events by conditions, page by page."""

    @pytest.mark.parametrize(("conditions", "expected"), CONDITIONS.values(), ids=CONDITIONS)
    async def test_events_that_meet_every_condition_are_found(
        self, lab: Lab, other_node: EventStore, conditions: dict[str, Any], expected: list[int]
    ) -> None:
        """Events that meet every condition of ``query``, newest ``id`` first, at most ``query.limit``."""
        await _six_events(lab)
        assert numbers((await other_node.find(EventQuery(**conditions))).events) == expected

    @pytest.mark.parametrize("kind", GLOB_TRAPS)
    async def test_a_pattern_is_a_glob_and_nothing_else(self, lab: Lab, kind: str) -> None:
        """A pattern as in ``durabus.model.pattern``."""
        await lab.publish_one(kind=kind)
        for pattern in (
            kind,
            "*",
            "order.placed",
            "order.plac%",
            "order.*",
            "order_placed*",
            "order*",
            "[a-z]*",
            "order.*.*",
        ):
            found = (await lab.store.find(EventQuery(type=pattern))).events
            assert len(found) == matches(pattern, kind), pattern

    async def test_events_are_found_by_time_of_publishing(self, lab: Lab) -> None:
        """An event must meet every condition that is set. Newest ``id`` comes first."""
        events = []
        for _ in range(3):
            events.append(await lab.publish_one())
            await lab.advance(10 * lab.moment)
        half = 5 * lab.moment
        after_first, after_second = events[0].created_ts + half, events[1].created_ts + half
        later = await lab.store.find(EventQuery(created_from_ts=after_first))
        earlier = await lab.store.find(EventQuery(created_until_ts=after_second))
        middle = await lab.store.find(EventQuery(created_from_ts=after_first, created_until_ts=after_second))
        assert [event.id for event in later.events] == [events[2].id, events[1].id]
        assert [event.id for event in earlier.events] == [events[1].id, events[0].id]
        assert [event.id for event in middle.events] == [events[1].id]

    @pytest.mark.parametrize("limit", [1, 2, 3, 5, 6, 7])
    async def test_the_last_page_says_that_it_is_the_last(self, lab: Lab, limit: int) -> None:
        """One page of events. ``next_before_id`` is None on the last page."""
        await lab.publish(6)
        pages, before = [], None
        while True:
            page = await lab.store.find(EventQuery(limit=limit, before_id=before))
            pages.append(numbers(page.events))
            before = page.next_before_id
            if before is None:
                break
        assert [n for page in pages for n in page] == [5, 4, 3, 2, 1, 0]
        assert len(pages) == -(-6 // limit)

    async def test_no_event_is_one_empty_last_page(self, lab: Lab) -> None:
        """One page of events. ``next_before_id`` is None on the last page."""
        page = await lab.store.find(EventQuery())
        assert (page.events, page.next_before_id) == ([], None)

    async def test_pages_visit_each_event_once_while_others_publish_and_remove(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """Following ``next_before_id`` visits each matching event that is not deleted once, whatever is added
        meanwhile.
        """
        stay = await lab.publish(60)
        go = await lab.publish(20)
        seen: list[int] = []
        finished = anyio.Event()

        async def disturb() -> None:
            for event in go:
                await other_node.remove_event(event.id)
                await lab.publish(2)
                await anyio.lowlevel.checkpoint()
                if finished.is_set():
                    return

        async with anyio.create_task_group() as group:
            group.start_soon(disturb)
            before = None
            while True:
                page = await lab.store.find(EventQuery(bus=BUS, limit=7, before_id=before))
                seen += [event.id for event in page.events]
                before = page.next_before_id
                await lab.publish(1)
                if before is None:
                    break
            finished.set()
        assert seen == sorted(set(seen), reverse=True)
        assert {event.id for event in stay} <= set(seen)

    async def test_a_page_that_begins_inside_a_filter_goes_on_with_it(self, lab: Lab) -> None:
        """Only ids below this one."""
        await lab.publish(4, tags=["eu"])
        await lab.publish(4)
        first = await lab.store.find(EventQuery(tags=("eu",), limit=3))
        assert first.next_before_id is not None
        second = await lab.store.find(EventQuery(tags=("eu",), limit=3, before_id=first.next_before_id))
        assert numbers(first.events) + numbers(second.events) == [3, 2, 1, 0]
        assert second.next_before_id is None
