"""Proof of ``durabus.store.dead_letters``."""

from __future__ import annotations

from functools import partial

import pytest

from durabus.errors import EventNotFound, LeaseLost, NotADeadLetter
from durabus.model.claim import Claim
from durabus.model.event import Event, new_event_id
from durabus.model.query import Counts
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail
from durabus.model.statuses import DEAD_LETTER, Action, EventStatus, HandlerMode, ResultStatus
from durabus.store.contract import EventStore
from durabus.testing.conformance.handler_claims import handler_claim, outcome
from durabus.testing.conformance.lab import ALICE, BUS, OTHER_BUS, Lab

FAILED = EventStatus.FAILED
STOPPED = HandlerResult(handler_id="mail", status=ResultStatus.TIMED_OUT, attempts=1, error="the event timed out")


async def _dead(lab: Lab, count: int, bus: str = BUS) -> list[Event]:
    events = []
    for _ in range(count):
        events.append(await lab.ended(FAILED, bus=bus))
        await lab.advance(3 * lab.moment)
    return events


class DeadLetterTests:
    """Listing and requeueing. A dead letter stays until an operator requeues or purges it."""

    @pytest.mark.parametrize("status", list(EventStatus))
    async def test_an_event_that_ended_with_errors_is_a_dead_letter(
        self, lab: Lab, other_node: EventStore, status: EventStatus
    ) -> None:
        """Events that ended FAILED or COMPLETED_WITH_ERRORS."""
        event = await lab.ended(status)
        page = await other_node.list_dead_letters()
        assert page.events == ([event] if status in DEAD_LETTER else [])
        assert page.total == len(page.events)

    async def test_a_dead_letter_keeps_one_error_for_each_attempt(self, lab: Lab) -> None:
        """The store keeps dead letters, with one error for each attempt, until they are requeued, purged or removed."""
        event = await lab.publish_one(max_attempts=3)
        await lab.settle_one(Fail((await lab.claim_one()).ref, "first", 0.0))
        await lab.claim_one()
        await lab.let_the_lease_end()
        await lab.settle_one(Fail((await lab.claim_one()).ref, "third", 0.0))
        await lab.store.trim_event_history(BUS, older_than=0)
        await lab.store.cleanup_excess_events(BUS, keep=0)
        await lab.store.cleanup_results()
        (dead,) = (await lab.store.list_dead_letters()).events
        assert (dead.id, dead.attempts, dead.retry_count) == (event.id, 3, 3)
        assert dead.errors == ("first", f"lease expired (worker {ALICE})", "third")

    async def test_dead_letters_are_listed_newest_first_in_pages(self, lab: Lab) -> None:
        """Return dead letters, newest ``created_ts`` first (then larger ``id``), and their total number."""
        events = await _dead(lab, 5)
        newest_first = [event.id for event in reversed(events)]
        page = await lab.store.list_dead_letters(limit=2)
        assert ([event.id for event in page.events], page.total) == (newest_first[:2], 5)
        page = await lab.store.list_dead_letters(limit=2, offset=3)
        assert ([event.id for event in page.events], page.total) == (newest_first[3:], 5)
        page = await lab.store.list_dead_letters(offset=5)
        assert (page.events, page.total) == ([], 5)

    async def test_dead_letters_of_one_instant_are_listed_by_larger_id(self, lab: Lab) -> None:
        """Return dead letters, newest ``created_ts`` first (then larger ``id``), and their total number."""
        await lab.publish(4)
        a, b, c, d = await lab.claim(limit=4)
        await lab.settle(*(Fail(claim.ref, "no", None) for claim in (b, d, a, c)))
        page = await lab.store.list_dead_letters()
        assert [event.id for event in page.events] == [claim.event.id for claim in (d, c, b, a)]

    async def test_dead_letters_of_one_bus_are_counted_alone(self, lab: Lab) -> None:
        """Return dead letters, newest ``created_ts`` first (then larger ``id``), and their total number."""
        mine, theirs = await _dead(lab, 2), await _dead(lab, 3, OTHER_BUS)
        page = await lab.store.list_dead_letters(bus=OTHER_BUS, limit=2)
        assert ([event.id for event in page.events], page.total) == ([theirs[2].id, theirs[1].id], 3)
        assert (await lab.store.list_dead_letters(bus=BUS)).total == len(mine)
        assert (await lab.store.list_dead_letters()).total == 5

    @pytest.mark.parametrize("by", ["id", "event_id"])
    @pytest.mark.parametrize("status", sorted(DEAD_LETTER))
    async def test_a_requeued_dead_letter_begins_again(
        self, lab: Lab, other_node: EventStore, status: EventStatus, by: str
    ) -> None:
        """Each becomes PENDING and due, with no attempts, no errors, ``generation + 1``, and a REQUEUED entry."""
        dead = await lab.ended(status, max_attempts=1, delay=0)
        await lab.advance(3 * lab.moment)
        now = await lab.store.now()
        (event,) = await other_node.requeue_dead_letters([getattr(dead, by)])
        assert (event.id, event.status, event.generation) == (dead.id, EventStatus.PENDING, 1)
        assert (event.attempts, event.errors, event.retry_count) == (0, (), 0)
        assert (event.worker_id, event.picked_ts, event.expires_ts) == (None, None, None)
        assert (event.created_ts, event.fence) == (dead.created_ts, dead.fence)
        assert lab.same_time(event.due_ts, now)
        assert event == await lab.event(dead)
        entry = (await lab.store.read_event_log(dead.id))[-1]
        assert (entry.action, entry.generation, entry.attempt) == (Action.REQUEUED, 1, 0)
        assert (await lab.store.list_dead_letters()).total == 0
        claim = await lab.claim_one()
        assert (claim.event.attempts, claim.event.fence, claim.event.generation) == (1, dead.fence + 1, 1)

    async def test_handlers_that_succeeded_stay_succeeded(self, lab: Lab, other_node: EventStore) -> None:
        """Results of handlers that succeeded, and steps, are kept.

        The other results are dropped; only their fences are kept.
        """
        claim = await lab.claimed()
        results = tuple(
            HandlerResult(handler_id=status.value.lower(), status=status, attempts=1, error="e")
            for status in ResultStatus
            if status is not ResultStatus.WAITING or lab.store.features.waits
        )
        await lab.settle_one(Fail(claim.ref, "no", None, results))
        await lab.store.requeue_dead_letters([claim.event.id])
        kept = [result for result in results if result.status in (ResultStatus.KEPT, ResultStatus.SUCCEEDED)]
        assert (await lab.claim_one()).results == tuple(kept)
        kept.sort(key=lambda result: result.handler_id)
        assert await other_node.list_results(claim.event.id) == kept

    async def test_a_handler_that_failed_begins_anew_but_its_fence_goes_on(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """Results of handlers that succeeded, and steps, are kept.

        The other results are dropped; only their fences are kept.
        """
        claim = await lab.claimed()
        first = await handler_claim(lab, claim, ("a",))
        await lab.store.complete_handler_result(first, outcome(ResultStatus.TRANSIENT, "no"))
        await lab.settle_one(Fail(claim.ref, "no", None))
        await lab.store.requeue_dead_letters([claim.event.id])
        anew = HandlerResult(handler_id="a", status=ResultStatus.PENDING, fence=first.fence)
        assert await other_node.list_results(claim.event.id) == [anew]
        again = await handler_claim(lab, await lab.claim_one(), ("a",))
        assert (again.attempts, again.fence) == (1, first.fence + 1)
        with pytest.raises(LeaseLost):
            await lab.store.complete_handler_result(first, outcome(ResultStatus.TRANSIENT, "no"))

    @pytest.mark.parametrize("end", ["lease over", "failed", "unrecoverable", "stopped by a result"])
    async def test_a_requeued_dead_letter_waits_for_a_handler_that_may_still_run(
        self, lab: Lab, other_node: EventStore, end: str
    ) -> None:
        """If claims on its handlers were valid when it ended, it is due when the last of their leases is over."""
        await lab.publish_one(max_attempts=1)
        claim = await lab.claim_one()
        running = await handler_claim(lab, claim, ("mail",), HandlerMode.PARALLEL)
        if end == "lease over":
            await lab.let_the_lease_end()
        (lease_end,) = await lab.store.renew_handler_claims([running], lease=lab.lease)
        await _end(lab, claim, end)
        (event,) = await other_node.requeue_dead_letters([claim.event.id])
        assert event.due_ts == lease_end
        assert event == await lab.event(claim)
        assert await lab.claim(other_node) == []
        (renewed,) = await lab.store.renew_handler_claims([running], lease=lab.lease)
        assert isinstance(renewed, LeaseLost)
        await lab.advance(lab.lease)
        again = await lab.claim_one(other_node)
        assert (again.event.id, again.event.generation) == (event.id, 1)
        (result,) = again.results
        assert (result.status, result.fence, result.expires_ts) == (ResultStatus.PENDING, running.fence, None)

    @pytest.mark.parametrize("now", ["pending", "processing"])
    async def test_an_event_requeued_before_is_returned_unchanged(
        self, lab: Lab, other_node: EventStore, now: str
    ) -> None:
        """An event that was requeued before and has not ended since is returned unchanged: a repeat is harmless."""
        (dead,) = await _dead(lab, 1)
        await lab.store.requeue_dead_letters([dead.id])
        if now == "processing":
            await lab.claim_one()
        before = await lab.picture()
        assert await other_node.requeue_dead_letters([dead.id]) == [await lab.event(dead)]
        assert await lab.picture() == before

    async def test_an_event_that_completed_after_a_requeue_is_refused(self, lab: Lab, other_node: EventStore) -> None:
        """Raises ``EventNotFound`` for an unknown event, ``NotADeadLetter`` for any other, such as a COMPLETED one."""
        again, dead = await _dead(lab, 2)
        await lab.store.requeue_dead_letters([again.id])
        await lab.settle_one(Complete((await lab.claim_one()).ref))
        before = await lab.picture()
        with pytest.raises(NotADeadLetter) as caught:
            await other_node.requeue_dead_letters([dead.id, again.id])
        assert (caught.value.ref, caught.value.status) == (again.id, EventStatus.COMPLETED)
        assert await lab.picture() == before

    async def test_a_dead_letter_can_die_and_come_back_again(self, lab: Lab) -> None:
        """Each becomes PENDING and due, with no attempts, no errors, ``generation + 1``, and a REQUEUED entry."""
        (dead,) = await _dead(lab, 1)
        for generation in (1, 2, 3):
            (event,) = await lab.store.requeue_dead_letters([dead.id])
            assert event.generation == generation
            await lab.settle_one(Fail((await lab.claim_one()).ref, "no", None))
        assert (await lab.event(dead)).fence == 4

    @pytest.mark.parametrize("status", [status for status in EventStatus if status not in DEAD_LETTER])
    async def test_an_event_that_never_was_a_dead_letter_is_refused(self, lab: Lab, status: EventStatus) -> None:
        """Raises ``EventNotFound`` for an unknown event, ``NotADeadLetter`` for any other, such as a COMPLETED one."""
        (dead,) = await _dead(lab, 1)
        event = await lab.ended(status)
        before = await lab.picture()
        with pytest.raises(NotADeadLetter) as caught:
            await lab.store.requeue_dead_letters([dead.id, event.id])
        assert (caught.value.ref, caught.value.status) == (event.id, status)
        assert await lab.picture() == before

    @pytest.mark.parametrize("ref", [4711, pytest.param(new_event_id(), id="event_id")])
    async def test_requeueing_is_all_or_none(self, lab: Lab, ref: int | str) -> None:
        """Put dead letters back into the queue, all or none."""
        first, second = await _dead(lab, 2)
        before = await lab.picture()
        with pytest.raises(EventNotFound) as caught:
            await lab.store.requeue_dead_letters([first.id, ref, second.id])
        assert caught.value.ref == ref
        assert await lab.picture() == before

    async def test_requeued_events_are_returned_in_the_order_given(self, lab: Lab) -> None:
        """Put dead letters back into the queue, all or none."""
        a, b, c = await _dead(lab, 3)
        events = await lab.store.requeue_dead_letters([c.id, a.event_id, b.id, c.event_id])
        assert [event.id for event in events] == [c.id, a.id, b.id, c.id]
        assert {event.generation for event in events} == {1}
        assert [entry.action for entry in await lab.log()].count(Action.REQUEUED) == 3

    async def test_a_dead_letter_requeued_by_many_callers_comes_back_once(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """An event that was requeued before and has not ended since is returned unchanged: a repeat is harmless."""
        (dead,) = await _dead(lab, 1)
        nodes = [lab.store, other_node] * 4
        answers = await lab.race([partial(node.requeue_dead_letters, [dead.id]) for node in nodes])
        assert {event.generation for (event,) in answers} == {1}
        assert (await lab.trail(dead)).count("REQUEUED") == 1


async def _end(lab: Lab, claim: Claim, how: str) -> None:
    """End an event in its last attempt while one of its handlers runs under a claim of its own."""
    match how:
        case "lease over":
            assert await lab.claim() == []
        case "failed":
            await lab.settle_one(Fail(claim.ref, "no", 0.0))
        case "unrecoverable":
            await lab.settle_one(Complete(claim.ref, errors=("no such customer",)))
        case _:
            await lab.settle_one(Fail(claim.ref, "no", 0.0, (STOPPED,)))
    assert (await lab.event(claim)).status in DEAD_LETTER


class PurgeTests:
    """Deleting dead letters for good."""

    async def test_purging_takes_the_instant_itself_too(self, lab: Lab, other_node: EventStore) -> None:
        """Delete dead letters with ``created_ts <= created_until_ts`` (inclusive), oldest first. Returns how many."""
        events = await _dead(lab, 4)
        log = await lab.log()
        assert await lab.store.purge_dead_letters(created_until_ts=events[0].created_ts - lab.moment) == 0
        assert await other_node.purge_dead_letters(created_until_ts=events[1].created_ts) == 2
        assert [await lab.store.has_event(event.id) for event in events] == [False, False, True, True]
        assert (await lab.store.list_dead_letters()).total == 2
        assert await lab.log() == log

    async def test_purging_takes_the_oldest_first_and_at_most_limit(self, lab: Lab) -> None:
        """Delete dead letters with ``created_ts <= created_until_ts`` (inclusive), oldest first. Returns how many."""
        events = await _dead(lab, 5)
        until = events[-1].created_ts
        assert await lab.store.purge_dead_letters(created_until_ts=until, limit=2) == 2
        assert [await lab.store.has_event(event.id) for event in events] == [False, False, True, True, True]
        assert await lab.store.purge_dead_letters(created_until_ts=until, limit=2) == 2
        assert await lab.store.purge_dead_letters(created_until_ts=until, limit=2) == 1

    async def test_purging_touches_one_bus_and_dead_letters_only(self, lab: Lab) -> None:
        """Delete dead letters with ``created_ts <= created_until_ts`` (inclusive), oldest first. Returns how many."""
        for status in EventStatus:
            await lab.ended(status)
        await _dead(lab, 1, OTHER_BUS)
        until = await lab.store.now()
        assert await lab.store.purge_dead_letters(created_until_ts=until, bus=BUS) == 2
        left = await lab.store.counts()
        assert (left.pending + left.processing, left.completed, left.failed) == (2, 1, 1)
        assert await lab.store.purge_dead_letters(created_until_ts=until) == 1

    async def test_purging_by_id_takes_those_that_are_dead_letters_now(self, lab: Lab, other_node: EventStore) -> None:
        """Delete those of these events that are dead letters now, and return their ids."""
        first, second, third = await _dead(lab, 3)
        theirs = (await _dead(lab, 1, OTHER_BUS))[0]
        log = await lab.log()
        chosen = [third.id, theirs.id, first.id]
        assert sorted(await other_node.purge_dead_letters_by_id([*chosen, third.id])) == sorted(chosen)
        assert [event.id for event in (await lab.store.list_dead_letters()).events] == [second.id]
        assert (await lab.store.counts()).failed == 1
        assert await lab.log() == log
        assert await lab.store.purge_dead_letters_by_id([]) == []

    @pytest.mark.parametrize("status", [status for status in EventStatus if status not in DEAD_LETTER])
    async def test_purging_by_id_leaves_alone_what_is_no_dead_letter(self, lab: Lab, status: EventStatus) -> None:
        """Events that were requeued in the meantime, were never dead letters or are unknown stay as they are."""
        (dead,) = await _dead(lab, 1)
        await lab.store.requeue_dead_letters([dead.id])
        alive = await lab.ended(status)
        before = await lab.picture()
        assert await lab.store.purge_dead_letters_by_id([alive.id, dead.id, 4711]) == []
        assert await lab.picture() == before

    async def test_each_purged_id_is_returned_to_one_of_many_callers(self, lab: Lab, other_node: EventStore) -> None:
        """Delete those of these events that are dead letters now, and return their ids."""
        ids = [event.id for event in await _dead(lab, 4)]
        nodes = [lab.store, other_node] * 3
        answers = await lab.race([partial(node.purge_dead_letters_by_id, ids) for node in nodes])
        assert sorted(id_ for answer in answers for id_ in answer) == sorted(ids)

    async def test_ids_and_keys_of_events_purged_by_id_are_free_again(self, lab: Lab) -> None:
        """Ids, keys and log entries are treated as in ``purge_dead_letters``."""
        dead = await lab.ended(FAILED, event_id=new_event_id(), idempotency_key="k")
        assert await lab.store.purge_dead_letters_by_id([dead.id]) == [dead.id]
        assert await lab.store.list_results(dead.id) == []
        again = await lab.publish_one(event_id=dead.event_id, idempotency_key="k")
        assert (again.id > dead.id, again.status, again.fence) == (True, EventStatus.PENDING, 0)
        assert [entry.action.value for entry in await lab.log()] == ["PUBLISHED", "PICKED", "FAILED", "PUBLISHED"]

    async def test_ids_and_keys_of_purged_events_are_free_again(self, lab: Lab) -> None:
        """Their ids and keys can be used again; their log entries stay."""
        dead = await lab.ended(FAILED, event_id=new_event_id(), idempotency_key="k")
        assert await lab.store.purge_dead_letters(created_until_ts=dead.created_ts) == 1
        assert await lab.store.counts() == Counts()
        again = await lab.publish_one(event_id=dead.event_id, idempotency_key="k")
        assert again.id > dead.id
        assert (again.status, again.fence, again.generation) == (EventStatus.PENDING, 0, 0)
        actions = [entry.action.value for entry in await lab.log()]
        assert actions == ["PUBLISHED", "PICKED", "FAILED", "PUBLISHED"]
