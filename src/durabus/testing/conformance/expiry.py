"""Proof of ``durabus.store.claims``: leases that end, attempts that are used up, events that are reset or cancelled."""

from __future__ import annotations

from functools import partial

import pytest

from durabus.errors import EventNotFound, LeaseLost
from durabus.model.claim import new_token
from durabus.model.event import new_event_id
from durabus.model.settlement import Complete, Fail, Release
from durabus.model.statuses import LIVE, Action, EventMode, EventStatus
from durabus.store.contract import EventStore
from durabus.testing.conformance.lab import ALICE, BOB, BUS, LOST, OTHER_BUS, Lab


class ExpiryTests:
    """Taking events back from workers that are gone."""

    async def test_a_second_caller_never_gets_an_event_whose_lease_is_not_over(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """A second caller never gets an event whose lease is not over, however many callers race."""
        await lab.claimed()
        await lab.advance(lab.lease - lab.margin)
        assert await lab.claim(worker_id=BOB) == []
        assert await lab.claim(other_node, worker_id=BOB, limit=10) == []

    async def test_another_worker_takes_over_when_the_lease_is_over(self, lab: Lab, other_node: EventStore) -> None:
        """First, the store takes back every event of the bus whose lease is over.

        The claim is abandoned: the event becomes PENDING again, with an ABANDONED entry and the error ``lease expired
        (worker …)``.
        """
        lost = await lab.claimed()
        await lab.let_the_lease_end()
        taken = await lab.claim_one(other_node, worker_id=BOB)
        assert taken.event.id == lost.event.id
        assert (taken.event.attempts, taken.event.fence, taken.event.worker_id) == (2, 2, BOB)
        assert taken.event.errors == (LOST,)
        assert await lab.trail(lost) == ["PUBLISHED", "PICKED", "ABANDONED", "PICKED"]
        abandoned = (await lab.store.read_event_log(lost.event.id))[2]
        assert (abandoned.error, abandoned.worker_id, abandoned.attempt) == (LOST, ALICE, 1)
        assert abandoned.status is EventStatus.PENDING
        assert (await lab.settle_one(Complete(taken.ref))).status is EventStatus.COMPLETED

    @pytest.mark.parametrize("asked", ["limit", "tags", "a held lock"])
    async def test_a_claim_first_takes_every_lost_event_of_its_bus(
        self, lab: Lab, other_node: EventStore, asked: str
    ) -> None:
        """First, the store takes back every event of the bus whose lease is over."""
        await lab.publish(4)
        await lab.publish(1, bus=OTHER_BUS)
        lost = await lab.claim(limit=4)
        theirs = await lab.claim_one(bus=OTHER_BUS)
        await lab.let_the_lease_end()
        match asked:
            case "limit":
                assert len(await lab.claim(other_node, worker_id=BOB)) == 1
            case "tags":
                assert await lab.claim(other_node, worker_id=BOB, tags=("none",)) == []
            case _:
                await lab.store.claim_lock(f"event:bus:{BUS}", worker_id=BOB, token=new_token(), lease=lab.lease)
                assert await lab.claim(other_node, worker_id=BOB, mode=EventMode.BUS_SERIAL) == []
        for claim in lost:
            assert (await lab.event(claim)).errors == (LOST,)
            assert (await lab.trail(claim))[2] == "ABANDONED"
        assert (await lab.event(theirs)).status is EventStatus.PROCESSING

    async def test_of_many_callers_one_takes_over(self, lab: Lab, other_node: EventStore) -> None:
        """A second caller never gets an event whose lease is not over, however many callers race."""
        await lab.publish(3)
        await lab.claim(limit=3)
        await lab.let_the_lease_end()
        nodes = [lab.store, other_node] * 6
        answers = await lab.race([partial(lab.claim, node, worker_id=BOB, limit=2) for node in nodes])
        claims = [claim for answer in answers for claim in answer]
        assert len(claims) == 3
        assert {claim.event.fence for claim in claims} == {2}
        assert [entry.action for entry in await lab.log()].count(Action.ABANDONED) == 3

    @pytest.mark.parametrize(
        ("own", "asked", "lives"),
        [(2, None, 2), (None, 2, 2), (1, 5, 1), (3, 1, 3), (None, None, 6)],
        ids=["own", "request", "own below request", "own above request", "no bound"],
    )
    async def test_lost_leases_use_up_the_attempts(
        self, lab: Lab, own: int | None, asked: int | None, lives: int
    ) -> None:
        """If its attempts are used up (its own ``max_attempts``, else the request's), it becomes FAILED instead."""
        event = await lab.publish_one(max_attempts=own)
        for attempt in range(1, lives + 1):
            claim = await lab.claim_one(max_attempts=asked)
            assert claim.event.attempts == attempt
            await lab.let_the_lease_end()
        if own is None and asked is None:
            return
        assert await lab.claim(max_attempts=asked) == []
        ended = await lab.event(event)
        assert (ended.status, ended.attempts) == (EventStatus.FAILED, lives)
        assert ended.errors == (LOST,) * lives
        entry = (await lab.store.read_event_log(event.id))[-1]
        assert (entry.action, entry.status, entry.error, entry.errors) == (
            Action.FAILED,
            EventStatus.FAILED,
            LOST,
            ended.errors,
        )
        assert (await lab.store.list_dead_letters()).events == [ended]

    async def test_expired_claims_are_taken_from_every_bus_without_claiming_them(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """Take back events of any bus whose lease is over, as ``claim_next_events`` does, and claim nothing."""
        mine = await lab.claimed()
        theirs = await lab.claimed(bus=OTHER_BUS)
        await lab.let_the_lease_end()
        alive = await lab.claimed(bus="third")
        now = await lab.store.now()
        assert await other_node.expire_events() == 2
        for claim in (mine, theirs):
            event = await lab.event(claim)
            assert (event.status, event.attempts, event.fence) == (EventStatus.PENDING, 1, 1)
            assert (event.worker_id, event.expires_ts, event.picked_ts) == (None, None, None)
            assert event.errors == (LOST,)
            assert lab.same_time(event.due_ts, now)
            assert (await lab.trail(claim))[-1] == "ABANDONED"
        assert await lab.event(alive) == alive.event

    async def test_expiring_again_changes_nothing(self, lab: Lab, other_node: EventStore) -> None:
        """Returns how many were taken back. Any process may call this at any time, any number of times."""
        await lab.claimed()
        await lab.let_the_lease_end()
        answers = await lab.race([partial(node.expire_events) for node in [lab.store, other_node] * 4])
        assert sum(answers) == 1
        before = await lab.picture()
        assert await lab.store.expire_events() == 0
        assert await lab.picture() == before

    async def test_expiring_takes_at_most_limit(self, lab: Lab) -> None:
        """Returns how many were taken back. Any process may call this at any time, any number of times."""
        await lab.publish(5)
        await lab.claim(limit=5)
        await lab.let_the_lease_end()
        assert [await lab.store.expire_events(limit=2) for _ in range(4)] == [2, 2, 1, 0]
        assert (await lab.store.counts()).pending == 5

    @pytest.mark.parametrize(("own", "asked", "status"), [(1, None, "FAILED"), (None, 1, "FAILED"), (2, 1, "PENDING")])
    async def test_expiring_ends_events_without_attempts_left(
        self, lab: Lab, own: int | None, asked: int | None, status: str
    ) -> None:
        """Take back an event whose lease is over: PENDING again (ABANDONED), or FAILED after its last attempt."""
        claim = await lab.claimed(max_attempts=own)
        await lab.let_the_lease_end()
        assert await lab.store.expire_events(max_attempts=asked) == 1
        assert (await lab.event(claim)).status == status
        assert (await lab.trail(claim))[-1] == ("FAILED" if status == "FAILED" else "ABANDONED")

    async def test_a_late_settlement_counts_while_no_worker_has_claimed_the_event_again(self, lab: Lab) -> None:
        """Only the token decides: a late claim still holds the event alone until the event is taken back."""
        claim = await lab.claimed()
        await lab.advance(3 * lab.lease)
        assert (await lab.settle_one(Complete(claim.ref))).status is EventStatus.COMPLETED
        assert await lab.trail(claim) == ["PUBLISHED", "PICKED", "COMPLETED"]

    @pytest.mark.parametrize("by", ["id", "event_id"])
    async def test_a_reset_event_is_free_at_once(self, lab: Lab, other_node: EventStore, by: str) -> None:
        """Take a PROCESSING event from its worker, on behalf of an administrator.

        The event becomes PENDING and due and gets its attempt back; a RESET entry carries the ``reason``.
        """
        claim = await lab.claimed()
        await lab.store.start_events([claim.ref])
        await lab.advance(2 * lab.moment)
        now = await lab.store.now()
        event = await other_node.reset_event(getattr(claim.event, by), reason="stuck in queue")
        assert (event.status, event.attempts, event.fence, event.errors) == (EventStatus.PENDING, 0, 1, ())
        assert (event.worker_id, event.expires_ts, event.started_ts, event.picked_ts) == (None, None, None, None)
        assert lab.same_time(event.due_ts, now)
        assert event == await lab.event(claim)
        entry = (await lab.store.read_event_log(event.id))[-1]
        assert (entry.action, entry.reason, entry.error, entry.worker_id) == (
            Action.RESET,
            "stuck in queue",
            None,
            ALICE,
        )
        assert (await lab.claim_one(worker_id=BOB)).event.fence == 2

    async def test_the_token_of_a_reset_claim_is_dead_at_once(self, lab: Lab) -> None:
        """The worker's token is invalid at once."""
        claim = await lab.claimed()
        await lab.store.reset_event(claim.event.id, reason="stuck")
        (outcome,) = await lab.settle(Complete(claim.ref))
        assert isinstance(outcome, LeaseLost)
        (renewal,) = await lab.store.renew_event_claims([claim.ref], lease=lab.lease)
        assert isinstance(renewal, LeaseLost)

    @pytest.mark.parametrize("status", [status for status in EventStatus if status is not EventStatus.PROCESSING])
    async def test_resetting_an_event_that_is_not_processing_changes_nothing(
        self, lab: Lab, status: EventStatus
    ) -> None:
        """An event that is not PROCESSING is returned unchanged."""
        event = await lab.ended(status)
        before = await lab.picture()
        assert await lab.store.reset_event(event.id, reason="stuck") == event
        assert await lab.picture() == before

    @pytest.mark.parametrize("ref", [4711, pytest.param(new_event_id(), id="event_id")])
    async def test_resetting_an_unknown_event_is_an_error(self, lab: Lab, ref: int | str) -> None:
        """Raises ``EventNotFound``."""
        with pytest.raises(EventNotFound):
            await lab.store.reset_event(ref, reason="stuck")

    async def test_the_fence_rises_with_every_grant_and_never_falls(self, lab: Lab) -> None:
        """The number of the newest claim. A new claim raises it, and so does a cancellation that revokes a claim.
        Nothing ever lowers it.
        """
        event = await lab.publish_one()
        fences = []
        for step in ("release", "fail", "expire", "reset", "dead", "requeued"):
            claim = await lab.claim_one()
            fences.append(claim.event.fence)
            match step:
                case "release":
                    await lab.settle_one(Release(claim.ref))
                case "fail":
                    await lab.settle_one(Fail(claim.ref, "no", 0.0))
                case "expire":
                    await lab.let_the_lease_end()
                    await lab.store.expire_events()
                case "reset":
                    await lab.store.reset_event(event.id, reason="stuck")
                case "dead":
                    await lab.settle_one(Fail(claim.ref, "no", None))
                    await lab.store.requeue_dead_letters([event.id])
            assert (await lab.event(event)).fence == claim.event.fence
        assert fences == [1, 2, 3, 4, 5, 6]
        assert (await lab.event(event)).status in LIVE
