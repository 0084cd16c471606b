"""Proof of ``durabus.store.claims``: events that a caller cancels, and events that expire."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from durabus.errors import EventNotFound, LeaseLost
from durabus.model.event import new_event, new_event_id
from durabus.model.query import EventQuery
from durabus.model.settlement import Cancel, Complete, Fail, Release, Settled
from durabus.model.statuses import TERMINAL, Action, EventMode, EventStatus, ResultStatus
from durabus.store.contract import EventStore
from durabus.testing.conformance.handler_claims import handler_claim
from durabus.testing.conformance.lab import ALICE, BOB, BUS, LOST, Lab, numbers


class CancelTests:
    """Events that end because a caller does not want them any more, or because they expired."""

    @pytest.mark.parametrize("by", ["id", "event_id"])
    @pytest.mark.parametrize("delay", [0.0, 3600.0], ids=["due", "not due"])
    async def test_a_pending_event_is_cancelled_at_once(
        self, lab: Lab, other_node: EventStore, by: str, delay: float
    ) -> None:
        """End PENDING and PROCESSING events as CANCELLED, on behalf of a caller that holds no claim on them.

        An event leaves the queue. It is no dead letter: it is kept, counted and trimmed like a COMPLETED one.
        """
        event = await lab.publish_one(tags=["eu"], delay=delay)
        await lab.advance(lab.moment)
        now = await lab.store.now()
        cancelled = await other_node.cancel_event(getattr(event, by), reason="not wanted")
        assert (cancelled.status, cancelled.attempts, cancelled.fence) == (EventStatus.CANCELLED, 0, 0)
        assert lab.same_time(cancelled.updated_ts, now)
        assert cancelled == await lab.event(event)
        assert await lab.claim(limit=9) == await lab.claim(limit=9, tags=("eu",)) == []
        counts = await lab.store.counts(BUS)
        assert (counts.pending, counts.cancelled, counts.completed) == (0, 1, 0)
        found = await lab.store.find(EventQuery(bus=BUS, statuses=(EventStatus.CANCELLED,)))
        assert found.events == [cancelled]
        assert (await lab.store.list_dead_letters()).events == []

    async def test_the_entry_of_a_cancelled_event_stands_alone(self, lab: Lab, other_node: EventStore) -> None:
        """The CANCELLED entry carries payload, results, errors and the ``reason``."""
        claim = await lab.claimed(metadata={"m": 1}, tags=["eu"])
        await lab.settle_one(Fail(claim.ref, "first", 0.0))
        await lab.claim_one(worker_id=BOB)
        await other_node.cancel_event(claim.event.id, reason="not wanted")
        entry = (await lab.store.read_event_log(claim.event.id))[-1]
        assert (entry.action, entry.status, entry.reason) == (Action.CANCELLED, EventStatus.CANCELLED, "not wanted")
        assert (entry.payload_json, entry.metadata_json, entry.tags) == ('{"n":0}', '{"m":1}', ("eu",))
        assert (entry.error, entry.errors, entry.worker_id, entry.attempt) == (None, ("first",), BOB, 2)

    async def test_a_claim_is_revoked(self, lab: Lab, other_node: EventStore) -> None:
        """A claim on the event is revoked in the same step: the fence rises by one, and the worker's token is invalid
        at once. Any settlement of it gets ``LeaseLost``, also that of an abandoned claim.
        """
        claim = await lab.claimed()
        cancelled = await other_node.cancel_event(claim.event.id, reason="not wanted")
        assert (cancelled.status, cancelled.fence) == (EventStatus.CANCELLED, claim.event.fence + 1)
        assert (cancelled.expires_ts, cancelled.worker_id) == (None, ALICE)
        before = await lab.picture()
        outcomes = await lab.settle(Complete(claim.ref), Fail(claim.ref, "no", 0.0), Release(claim.ref))
        outcomes += await lab.settle(Cancel(claim.ref, "expired"))
        (renewal,) = await lab.store.renew_event_claims([claim.ref], lease=lab.lease)
        assert all(isinstance(outcome, LeaseLost) for outcome in [*outcomes, renewal])
        assert await lab.store.current_claims([claim.event.id]) == [None]
        assert await lab.picture() == before

    async def test_an_abandoned_claim_is_revoked_too(self, lab: Lab, other_node: EventStore) -> None:
        """Any settlement of it gets ``LeaseLost``, also that of an abandoned claim."""
        claim = await lab.claimed()
        await lab.let_the_lease_end()
        assert await other_node.expire_events() == 1
        cancelled = await other_node.cancel_event(claim.event.id, reason="not wanted")
        assert (cancelled.fence, cancelled.errors) == (claim.event.fence + 1, (LOST,))
        (outcome,) = await lab.settle(Complete(claim.ref))
        assert isinstance(outcome, LeaseLost)
        assert await lab.event(claim) == cancelled

    @pytest.mark.parametrize("mode", [EventMode.BUS_SERIAL, EventMode.GLOBAL_SERIAL])
    async def test_the_lock_of_a_revoked_claim_is_free(self, lab: Lab, other_node: EventStore, mode: EventMode) -> None:
        """The locks of all these claims are freed, and so is the ordering key."""
        await lab.publish(3)
        held = await lab.claim(limit=2, mode=mode)
        await other_node.cancel_event(held[0].event.id, reason="not wanted")
        assert len(await lab.store.list_locks()) == 1
        await other_node.cancel_event(held[1].event.id, reason="not wanted")
        assert await lab.store.list_locks() == []
        assert numbers(await lab.claim(mode=mode, worker_id=BOB)) == [2]

    async def test_the_claims_on_handlers_end_too(self, lab: Lab, other_node: EventStore) -> None:
        """The claims on its handlers end too."""
        claim = await lab.claimed()
        handler = await handler_claim(lab, claim, ["a"])
        assert len(await lab.store.list_locks()) == 1
        await other_node.cancel_event(claim.event.id, reason="not wanted")
        assert await lab.store.list_locks() == []
        (result,) = await lab.store.list_results(claim.event.id)
        assert (result.status, result.fence, result.worker_id) == (ResultStatus.PENDING, handler.fence, None)
        with pytest.raises(LeaseLost):
            await lab.store.release_handler_claim(handler)

    @pytest.mark.parametrize("held", [False, True], ids=["pending", "processing"])
    async def test_the_next_event_of_its_ordering_key_may_be_claimed(self, lab: Lab, *, held: bool) -> None:
        """The locks of all these claims are freed, and so is the ordering key."""
        if not lab.store.features.ordering_keys:
            pytest.skip("declared: ordering_keys=False")
        first, second, third = await lab.publish(3, ordering_key="k")
        if held:
            assert numbers(await lab.claim(limit=9)) == [0]
        else:
            assert numbers(await lab.claim(limit=9, tags=("none",))) == []
        await lab.store.cancel_event(second.id, reason="not wanted")
        await lab.store.cancel_event(first.id, reason="not wanted")
        (claim,) = await lab.claim(limit=9, worker_id=BOB)
        assert claim.event.id == third.id

    @pytest.mark.parametrize("status", sorted(TERMINAL))
    async def test_an_ended_event_stays_as_it_is(self, lab: Lab, other_node: EventStore, status: EventStatus) -> None:
        """An event that has ended is returned unchanged, so a repeat changes nothing."""
        event = await lab.ended(status)
        before = await lab.picture()
        assert await other_node.cancel_event(event.id, reason="not wanted") == event
        assert await lab.picture() == before

    @pytest.mark.parametrize("ref", [4711, pytest.param(new_event_id(), id="event_id")])
    async def test_cancelling_an_unknown_event_is_an_error(self, lab: Lab, ref: int | str) -> None:
        """Cancel one event as ``cancel_events`` does, and return it as it is afterwards. Raises ``EventNotFound``."""
        with pytest.raises(EventNotFound):
            await lab.store.cancel_event(ref, reason="not wanted")

    async def test_many_events_are_cancelled_in_one_step(self, lab: Lab, other_node: EventStore) -> None:
        """It is one step, in the order of ``refs``. Returns each event as it is afterwards, None for an unknown one."""
        ended = await lab.ended(EventStatus.COMPLETED)
        running = await lab.claimed()
        later, waiting = await lab.publish_one(delay=3600.0), await lab.publish_one(tags=["eu"])
        await lab.advance(lab.moment)
        refs: list[int | str] = [
            waiting.id,
            4711,
            running.event.event_id,
            ended.id,
            later.event_id,
            new_event_id(),
            waiting.event_id,
        ]
        head = await lab.store.log_head()
        cancelled = await other_node.cancel_events(refs, reason="not wanted")
        assert cancelled == [await other_node.get_event(ref) for ref in refs]
        found = [None if event is None else (event.id, event.status, event.fence) for event in cancelled]
        gone = EventStatus.CANCELLED
        first = (waiting.id, gone, 0)
        assert found == [
            first, None, (running.event.id, gone, running.event.fence + 1), (ended.id, ended.status, ended.fence),
            (later.id, gone, 0), None, first,
        ]  # fmt: skip
        entries = (await lab.store.read_log(after=head)).entries
        assert [(entry.id, entry.action, entry.reason) for entry in entries] == [
            (id_, Action.CANCELLED, "not wanted") for id_ in (waiting.id, running.event.id, later.id)
        ]
        (outcome,) = await lab.settle(Complete(running.ref))
        assert isinstance(outcome, LeaseLost)
        assert await lab.claim(limit=9) == await lab.claim(limit=9, tags=("eu",)) == []
        counts = await lab.store.counts()
        assert (counts.pending, counts.processing, counts.cancelled, counts.completed) == (0, 0, 3, 1)
        before = await lab.picture()
        assert await other_node.cancel_events(refs, reason="once more") == cancelled
        assert await lab.picture() == before

    async def test_no_events_are_cancelled_by_an_empty_call(self, lab: Lab) -> None:
        """It is one step, in the order of ``refs``."""
        await lab.publish_one()
        before = await lab.picture()
        assert await lab.store.cancel_events([], reason="not wanted") == []
        assert await lab.picture() == before

    @pytest.mark.parametrize("mode", [EventMode.BUS_SERIAL, EventMode.GLOBAL_SERIAL])
    async def test_the_lock_of_events_that_are_cancelled_together_is_free(
        self, lab: Lab, other_node: EventStore, mode: EventMode
    ) -> None:
        """The locks of all these claims are freed, and so is the ordering key."""
        await lab.publish(3)
        held = await lab.claim(limit=2, mode=mode)
        handlers = [await handler_claim(lab, claim, ["a"]) for claim in held]
        await other_node.cancel_events([claim.event.id for claim in held], reason="not wanted")
        assert await lab.store.list_locks() == []
        for claim, handler in zip(held, handlers, strict=True):
            (result,) = await lab.store.list_results(claim.event.id)
            assert (result.status, result.fence) == (ResultStatus.PENDING, handler.fence)
        assert numbers(await lab.claim(mode=mode, worker_id=BOB)) == [2]

    @pytest.mark.parametrize("held", [False, True], ids=["pending", "processing"])
    async def test_events_of_one_ordering_key_are_cancelled_together(self, lab: Lab, *, held: bool) -> None:
        """The locks of all these claims are freed, and so is the ordering key."""
        if not lab.store.features.ordering_keys:
            pytest.skip("declared: ordering_keys=False")
        first, second, third, fourth, fifth = await lab.publish(5, ordering_key="k")
        assert numbers(await lab.claim(limit=9, tags=() if held else ("none",))) == ([0] if held else [])
        await lab.store.cancel_events([second.id, first.id, fourth.id], reason="not wanted")
        (claim,) = await lab.claim(limit=9, worker_id=BOB)
        assert claim.event.id == third.id
        await lab.store.cancel_events([third.id, fifth.id], reason="not wanted")
        assert await lab.claim(limit=9, worker_id=BOB) == []
        assert (await lab.store.counts()).cancelled == 5

    @pytest.mark.parametrize("parent_first", [False, True])
    async def test_a_parent_that_waits_is_cancelled_with_its_children(self, lab: Lab, *, parent_first: bool) -> None:
        """It is one step, in the order of ``refs``."""
        if not lab.store.features.children:
            pytest.skip("declared: children=False")
        claim = await lab.claimed()
        parent = claim.event
        children = tuple(new_event("child", bus=BUS, parent_id=parent.event_id) for _ in range(2))
        await lab.settle_one(Release(claim.ref, 3600.0, children=children, until_children=True))
        refs = [parent.event_id, *(child.event_id for child in children)]
        cancelled = await lab.store.cancel_events(refs if parent_first else refs[::-1], reason="not wanted")
        assert {event and event.status for event in cancelled} == {EventStatus.CANCELLED}
        assert cancelled == await lab.store.get_events([event.id for event in cancelled if event is not None])
        assert await lab.claim(limit=9) == []
        assert (await lab.store.counts()).cancelled == 3

    async def test_a_worker_ends_an_event_that_expired(self, lab: Lab, other_node: EventStore) -> None:
        """``Cancel``: the event becomes CANCELLED and leaves the queue, as in ``cancel_event``. Its fence stays."""
        claim = await lab.claimed()
        settled = await lab.settle_one(Cancel(claim.ref, "expired"))
        assert settled == Settled(claim.event.id, EventStatus.CANCELLED)
        event = await lab.event(claim, other_node)
        assert (event.status, event.fence, event.attempts, event.errors) == (EventStatus.CANCELLED, 1, 1, ())
        assert await lab.claim(limit=9) == []
        assert (await lab.log())[-1].reason == "expired"
        assert (await lab.store.counts()).cancelled == 1

    async def test_of_a_result_and_a_cancellation_one_counts(self, lab: Lab, other_node: EventStore) -> None:
        """End PENDING and PROCESSING events as CANCELLED, on behalf of a caller that holds no claim on them."""
        for _ in range(5):
            claim = await lab.claimed()
            calls: list[Callable[[], Awaitable[object]]] = [
                partial(lab.store.settle_events, [Complete(claim.ref)]),
                partial(other_node.cancel_event, claim.event.id, reason="not wanted"),
            ]
            await lab.race(calls)
            trail = await lab.trail(claim)
            assert trail[2:] in (["COMPLETED"], ["CANCELLED"])
            assert (await lab.event(claim)).status == trail[2]
