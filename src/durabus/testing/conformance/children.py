"""Proof of what ``durabus.store.claims`` and ``durabus.store.results`` say about children of a settlement."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from durabus.errors import LeaseLost, UnsupportedByStore
from durabus.model.claim import Claim, ClaimRef, new_token
from durabus.model.event import Event, NewEvent, new_event
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Keep, Release, Settlement
from durabus.model.statuses import Action, EventStatus, ResultStatus
from durabus.store.contract import EventStore
from durabus.testing.conformance.lab import BOB, BUS, OTHER_BUS, Lab
from durabus.testing.conformance.repeats import obeying

SUCCESS = HandlerResult(handler_id="a", status=ResultStatus.SUCCEEDED, attempts=1)
SAFETY = 300.0
SOON = 10.0
KINDS = ["complete", "fail", "fail for good", "release"]


def child_of(parent: Event, *, bus: str = BUS, **options: Any) -> NewEvent:
    """Return a new child of an event."""
    return new_event("child", {"of": parent.id}, bus=bus, parent_id=parent.event_id, **options)


async def _end(lab: Lab, claim: Claim, kind: str, *children: NewEvent) -> object:
    """Settle or keep with children, and return the outcome."""
    ref = claim.ref
    settlement: Settlement
    match kind:
        case "complete":
            settlement = Complete(ref, (SUCCESS,), children=children)
        case "fail":
            settlement = Fail(ref, "no", 1.0, (SUCCESS,), children=children)
        case "fail for good":
            settlement = Fail(ref, "no", None, (SUCCESS,), children=children)
        case "release":
            settlement = Release(ref, 0.0, (SUCCESS,), children=children)
        case _:
            return (await lab.store.keep_results([Keep(ref, (SUCCESS,), children)]))[0]
    return (await lab.settle(settlement))[0]


async def _family(lab: Lab, count: int = 1, **options: Any) -> tuple[Event, list[Claim]]:
    """Return a parent that waits for its children, and the claims on its children."""
    parent = await lab.claimed(**options)
    await lab.store.add_events([child_of(parent.event, bus=OTHER_BUS) for _ in range(count)])
    await lab.settle_one(Release(parent.ref, SAFETY, until_children=True))
    children = await lab.claim(bus=OTHER_BUS, limit=count)
    assert len(children) == count
    return parent.event, children


async def _are_stored(lab: Lab, other_node: EventStore, kind: str) -> None:
    claim = await lab.claimed()
    plain = child_of(claim.event)
    rich = child_of(claim.event, bus=OTHER_BUS, tags=["eu"], priority=3, metadata={"a": 1}, max_attempts=7)
    assert not isinstance(await _end(lab, claim, kind, plain, rich), LeaseLost)
    first, second = await other_node.get_events([plain.event_id, rich.event_id])
    assert first is not None
    assert second is not None
    assert (first.status, first.parent_id, first.attempts) == (EventStatus.PENDING, claim.event.event_id, 0)
    assert (first.payload_json, first.id < second.id) == (plain.payload_json, True)
    assert (second.tags, second.priority, second.max_attempts, second.metadata) == (("eu",), 3, 7, {"a": 1})
    written = [entry.event_id for entry in await lab.log() if entry.action is Action.PUBLISHED]
    assert written == [claim.event.event_id, plain.event_id, rich.event_id]
    assert (await lab.claim_one(other_node, bus=OTHER_BUS, tags=("eu",))).event.event_id == rich.event_id


async def _leave_none(lab: Lab, other_node: EventStore, kind: str) -> None:
    claim = await lab.claimed()
    await lab.let_the_lease_end()
    await lab.claim_one(other_node, worker_id=BOB)
    before = await lab.picture()
    assert isinstance(await _end(lab, claim, kind, child_of(claim.event)), LeaseLost)
    assert await lab.picture() == before


class ChildrenTests:
    """Children that a settlement stores."""

    async def test_a_store_that_cannot_store_children_with_a_settlement_refuses_them(self, lab: Lab) -> None:
        """Refused without ``children``, as is ``until_children``."""
        claim = await lab.claimed()
        calls: list[Settlement | Keep] = [
            Complete(claim.ref, children=(child_of(claim.event),)),
            Release(claim.ref, SAFETY, until_children=True),
            Keep(claim.ref, (SUCCESS,), (child_of(claim.event),)),
        ]
        if lab.store.features.children:
            assert await _end(lab, claim, "keep", child_of(claim.event)) is None
            return
        for call in calls:
            with pytest.raises(UnsupportedByStore, match="children=False"):
                await (lab.store.keep_results([call]) if isinstance(call, Keep) else lab.store.settle_events([call]))
        assert (await lab.store.counts()).processing == 1

    @pytest.mark.parametrize("kind", KINDS)
    @obeying
    async def test_children_are_stored_with_what_they_belong_to(
        self, lab: Lab, other_node: EventStore, kind: str
    ) -> None:
        """``children`` of a settlement that takes effect are stored in the same step, as ``add_events`` stores them:
        after the entries of all settlements, in their order.
        """
        await _are_stored(lab, other_node, kind)

    @obeying
    async def test_children_are_stored_with_results_that_are_kept(self, lab: Lab, other_node: EventStore) -> None:
        """``children`` are stored in the same step, as ``add_events`` stores them, and with their PUBLISHED entries."""
        await _are_stored(lab, other_node, "keep")

    @obeying
    async def test_results_that_are_not_kept_leave_no_children(self, lab: Lab, other_node: EventStore) -> None:
        """A ``Keep`` that gets ``LeaseLost`` stores none."""
        await _leave_none(lab, other_node, "keep")

    @obeying
    async def test_results_that_are_kept_again_store_no_child_twice(self, lab: Lab) -> None:
        """A repeat writes the same results again."""
        claim = await lab.claimed()
        child = child_of(claim.event)
        assert await _end(lab, claim, "keep", child) is None
        before = await lab.picture()
        assert await _end(lab, claim, "keep", child) is None
        assert await lab.picture() == before

    @pytest.mark.parametrize("kind", KINDS)
    @obeying
    async def test_a_claim_that_is_lost_leaves_no_children(self, lab: Lab, other_node: EventStore, kind: str) -> None:
        """A settlement that gets ``LeaseLost`` stores none, and neither does an exact repeat."""
        await _leave_none(lab, other_node, kind)

    @pytest.mark.parametrize("kind", KINDS)
    @obeying
    async def test_a_repeat_stores_no_child_twice(self, lab: Lab, kind: str) -> None:
        """A settlement that gets ``LeaseLost`` stores none, and neither does an exact repeat."""
        claim = await lab.claimed()
        child, other = child_of(claim.event), child_of(claim.event)
        first = await _end(lab, claim, kind, child)
        before = await lab.picture()
        assert await _end(lab, claim, kind, child) == first
        assert await lab.picture() == before
        assert await _end(lab, claim, kind, other) == first  # it takes effect once, whatever its repeat carries
        assert await lab.picture() == before

    @obeying
    async def test_a_child_that_is_known_is_not_stored_again(self, lab: Lab) -> None:
        """``children`` of a settlement that takes effect are stored in the same step, as ``add_events`` stores them:
        after the entries of all settlements, in their order.
        """
        claim = await lab.claimed()
        known, new = child_of(claim.event), child_of(claim.event)
        await lab.store.add_events([known])
        ended = await lab.claim_one(event_id=known.event_id) if lab.store.features.claims_by_event_id else None
        if ended is not None:
            await lab.settle_one(Complete(ended.ref))
        await _end(lab, claim, "complete", known, new, new)
        published = [entry for entry in await lab.log() if entry.action is Action.PUBLISHED]
        assert [entry.event_id for entry in published] == [claim.event.event_id, known.event_id, new.event_id]

    @obeying
    async def test_one_batch_has_children_only_of_what_took_effect(self, lab: Lab) -> None:
        """``children`` of a settlement that takes effect are stored in the same step, as ``add_events`` stores them:
        after the entries of all settlements, in their order.
        """
        await lab.publish(4)
        claims = await lab.claim(limit=4)
        children = [child_of(claim.event, bus=OTHER_BUS) for claim in claims]
        stale = ClaimRef(claims[1].ref.id, new_token(), claims[1].ref.fence)
        outcomes = await lab.settle(
            Complete(claims[0].ref, children=(children[0],)),
            Complete(stale, children=(children[1],)),
            Complete(claims[2].ref),
            Fail(claims[3].ref, "no", None, children=(children[3],)),
        )
        assert [isinstance(one, LeaseLost) for one in outcomes] == [False, True, False, False]
        assert [entry.action for entry in (await lab.log())[-5:]] == [
            Action.COMPLETED,
            Action.COMPLETED,
            Action.FAILED,
            Action.PUBLISHED,
            Action.PUBLISHED,
        ]
        found = await lab.claim(bus=OTHER_BUS, limit=9)
        assert [claim.event.event_id for claim in found] == [children[0].event_id, children[3].event_id]

    @obeying
    async def test_the_entry_of_a_settlement_with_children_is_returned(self, lab: Lab) -> None:
        """``with_entries``: each ``Settled`` carries the log entry that its settlement wrote, as ``read_event_log``
        returns it.
        """
        await lab.publish(2)
        claims = await lab.claim(limit=2)
        made = [Complete(claim.ref, children=(child_of(claim.event), child_of(claim.event))) for claim in claims]
        answer = await lab.store.settle_events(made, with_entries=True)
        for claim, outcome in zip(claims, answer.outcomes, strict=True):
            assert not isinstance(outcome, LeaseLost)
            assert outcome.entry == (await lab.store.read_event_log(claim.event.id))[-1]


class WaitingParentTests:
    """Parents that are released until their children have ended."""

    @obeying
    async def test_a_parent_without_live_children_is_due_at_once(self, lab: Lab, other_node: EventStore) -> None:
        """``Release`` with ``until_children``: the event is due at once if it has no live child, that is no live event
        with its ``event_id`` as ``parent_id``.
        """
        claim = await lab.claimed()
        released = await lab.settle_one(Release(claim.ref, SAFETY, until_children=True))
        assert (released.status, released.next_retry_ts) == (EventStatus.PENDING, None)
        event = await lab.store.get_event(claim.event.id)
        assert event is not None
        assert event.due_ts == event.updated_ts
        assert (await lab.claim_one(other_node)).event.fence == 2

    @obeying
    async def test_a_parent_waits_for_the_children_of_its_own_release(self, lab: Lab) -> None:
        """``Release`` with ``until_children``: the event is due at once if it has no live child, that is no live event
        with its ``event_id`` as ``parent_id``.
        """
        claim = await lab.claimed()
        child = child_of(claim.event, bus=OTHER_BUS)
        await lab.settle_one(Release(claim.ref, SAFETY, (SUCCESS,), children=(child,), until_children=True))
        assert await lab.claim() == []
        await lab.settle_one(Complete((await lab.claim_one(bus=OTHER_BUS)).ref))
        assert (await lab.claim_one()).results == (SUCCESS,)

    @pytest.mark.parametrize("end", ["complete", "with results", "with errors", "fail", "cancelled", "removed"])
    @obeying
    async def test_the_end_of_the_last_child_makes_its_parent_due(
        self, lab: Lab, other_node: EventStore, end: str
    ) -> None:
        """Else it is due after ``delay``, or as soon as its last live child has ended or was removed: the step that
        ends the child makes the parent due and wakes the workers of its bus.
        """
        parent, children = await _family(lab, 2)
        await other_node.settle_events([Complete(children[0].ref)])
        assert await lab.claim() == []
        ref = children[1].ref
        match end:
            case "complete":
                await other_node.settle_events([Complete(ref)])
            case "with results":
                await other_node.settle_events([Complete(ref, (SUCCESS,))])
            case "with errors":
                await other_node.settle_events([Complete(ref, errors=("no",))])
            case "fail":
                await other_node.settle_events([Fail(ref, "no", None)])
            case "cancelled":
                await other_node.cancel_event(ref.id, reason="not needed")
            case _:
                await other_node.remove_event(ref.id)
        woken = await lab.store.get_event(parent.id)
        assert woken is not None
        assert woken.due_ts == woken.updated_ts
        claim = await lab.claim_one()
        assert (claim.event.id, claim.event.fence, claim.event.attempts) == (parent.id, 2, 1)
        assert [entry.action for entry in await lab.store.read_event_log(parent.id)] == [
            Action.PUBLISHED,
            Action.PICKED,
            Action.RELEASED,
            Action.PICKED,
        ]

    @obeying
    async def test_children_that_end_together_make_their_parents_due(self, lab: Lab) -> None:
        """Else it is due after ``delay``, or as soon as its last live child has ended or was removed: the step that
        ends the child makes the parent due and wakes the workers of its bus.
        """
        one, first = await _family(lab, 3, kind="one")
        two, second = await _family(lab, 2, kind="two")
        await lab.settle(*(Complete(child.ref) for child in (*first[:2], *second)))
        assert [claim.event.id for claim in await lab.claim(limit=9)] == [two.id]
        await lab.settle(Complete(first[2].ref))
        assert [claim.event.id for claim in await lab.claim(limit=9)] == [one.id]

    @obeying
    async def test_a_child_that_is_tried_again_still_lives(self, lab: Lab) -> None:
        """Else it is due after ``delay``, or as soon as its last live child has ended or was removed: the step that
        ends the child makes the parent due and wakes the workers of its bus.
        """
        parent, (child,) = await _family(lab)
        await lab.settle_one(Fail(child.ref, "no", 0.0))
        assert await lab.claim() == []
        again = await lab.claim_one(bus=OTHER_BUS)
        await lab.settle_one(Release(again.ref))
        assert await lab.claim() == []
        last = await lab.claim_one(bus=OTHER_BUS)
        await lab.settle_one(Complete(last.ref))
        assert (await lab.claim_one()).event.id == parent.id

    @obeying
    async def test_the_last_attempt_of_a_child_that_is_abandoned_makes_its_parent_due(self, lab: Lab) -> None:
        """Else it is due after ``delay``, or as soon as its last live child has ended or was removed: the step that
        ends the child makes the parent due and wakes the workers of its bus.
        """
        parent = await lab.claimed()
        await lab.store.add_events([child_of(parent.event, bus=OTHER_BUS, max_attempts=1)])
        await lab.claim_one(bus=OTHER_BUS)
        await lab.settle_one(Release(parent.ref, SAFETY, until_children=True))
        await lab.let_the_lease_end()
        assert await lab.store.expire_events() == 1
        assert (await lab.claim_one()).event.id == parent.event.id

    @obeying
    async def test_a_waiting_parent_is_due_after_its_delay_at_the_latest(self, lab: Lab) -> None:
        """Else it is due after ``delay``, or as soon as its last live child has ended or was removed: the step that
        ends the child makes the parent due and wakes the workers of its bus.
        """
        parent = await lab.claimed()
        await lab.store.add_events([child_of(parent.event, bus=OTHER_BUS)])
        await lab.settle_one(Release(parent.ref, lab.lease, until_children=True))
        assert await lab.claim() == []
        await lab.advance(lab.lease)
        again = await lab.claim_one()
        # It does not wait any more: the end of the child changes nothing about the new claim, or a later delay.
        child = await lab.claim_one(bus=OTHER_BUS)
        await lab.settle_one(Release(again.ref, lab.lease))
        await lab.settle_one(Complete(child.ref))
        assert await lab.claim() == []

    @obeying
    async def test_the_end_of_the_last_child_wakes_the_workers_of_its_parent(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """Else it is due after ``delay``, or as soon as its last live child has ended or was removed: the step that
        ends the child makes the parent due and wakes the workers of its bus.
        """
        parent, (child,) = await _family(lab)
        assert await lab.claim() == []
        waits = asyncio.create_task(lab.store.wait_for_work(BUS, timeout=SOON))
        await asyncio.sleep(0.05)  # long enough to begin to wait; if it is not, the wait finds the event at once
        await other_node.settle_events([Complete(child.ref)])
        assert await waits
        assert (await lab.claim_one()).event.id == parent.id

    @obeying
    async def test_two_last_children_that_end_at_the_same_time_make_their_parent_due(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """Else it is due after ``delay``, or as soon as its last live child has ended or was removed: the step that
        ends the child makes the parent due and wakes the workers of its bus.
        """
        for _ in range(10):
            parent, (left, right) = await _family(lab, 2)
            await asyncio.gather(
                lab.store.settle_events([Complete(left.ref)]),
                other_node.settle_events([Complete(right.ref, (SUCCESS,))]),
            )
            claim = await lab.claim_one()
            assert claim.event.id == parent.id
            await lab.settle_one(Complete(claim.ref))

    @obeying
    async def test_a_child_that_ends_while_its_parent_is_released_is_not_missed(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """Else it is due after ``delay``, or as soon as its last live child has ended or was removed: the step that
        ends the child makes the parent due and wakes the workers of its bus.
        """
        for _ in range(10):
            parent = await lab.claimed()
            await lab.store.add_events([child_of(parent.event, bus=OTHER_BUS)])
            child = await lab.claim_one(bus=OTHER_BUS)
            await asyncio.gather(
                lab.store.settle_events([Release(parent.ref, SAFETY, until_children=True)]),
                other_node.settle_events([Complete(child.ref)]),
            )
            claim = await lab.claim_one()
            assert claim.event.id == parent.event.id
            await lab.settle_one(Complete(claim.ref))
