"""Proof of ``durabus.store.claims``: claiming, starting and renewing."""

from __future__ import annotations

import asyncio
from functools import partial

import anyio
import pytest

from durabus.errors import LeaseLost
from durabus.model.claim import Claim, ClaimRef, new_token
from durabus.model.event import Event
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Release
from durabus.model.statuses import Action, EventStatus, ResultStatus
from durabus.store.contract import EventStore
from durabus.testing.conformance.lab import ALICE, BOB, BUS, OTHER_BUS, Lab, batch, numbers


class ClaimTests:
    """Which events a claim takes, and what it returns."""

    async def test_a_claim_moves_the_event_in_one_step(self, lab: Lab, other_node: EventStore) -> None:
        """In one atomic step, each event gets status PROCESSING, ``attempts + 1``, ``fence + 1``, the request's token,
        worker and lease, and a PICKED entry.
        """
        event = await lab.publish_one()
        await lab.advance(2 * lab.moment)
        now, request = await lab.store.now(), lab.request()
        (claim,) = await lab.store.claim_next_events(request)
        got = claim.event
        assert (got.id, got.status, got.attempts, got.fence) == (event.id, EventStatus.PROCESSING, 1, 1)
        assert (got.worker_id, got.started_ts, got.errors) == (ALICE, None, ())
        assert claim.token == request.token
        assert claim.ref == ClaimRef(event.id, request.token, 1)
        assert lab.same_time(got.picked_ts, now)
        assert lab.same_time(got.updated_ts, now)
        assert lab.same_time(got.expires_ts, now + lab.lease)
        assert await lab.event(event, other_node) == got
        picked = (await lab.store.read_event_log(event.id))[-1]
        assert (picked.action, picked.attempt, picked.fence, picked.worker_id) == (Action.PICKED, 1, 1, ALICE)

    async def test_a_claim_right_behind_a_publish_gets_the_event(self, lab: Lab) -> None:
        """A call sees what earlier calls of the same store object write, even if the caller has not awaited them yet.

        So a worker claims an event in the same turn of the event loop in which the event is published, in one commit
        with it.
        """
        (event,), claims = await asyncio.gather(
            lab.store.add_events(batch(1)), lab.store.claim_next_events(lab.request(limit=2))
        )
        if lab.store.features.calls_in_order:
            assert [claim.event.id for claim in claims] == [event.id]
        else:
            assert len(claims) <= 1

    async def test_a_claim_on_an_empty_queue_returns_an_empty_list_at_once(self, lab: Lab) -> None:
        """Claim up to ``request.limit`` events of ``request.bus``. Never waits: the list is empty if there are none."""
        with anyio.fail_after(30):
            assert await lab.claim(limit=10) == []

    @pytest.mark.parametrize(("limit", "expected"), [(1, 1), (3, 3), (5, 5), (50, 5)])
    async def test_a_claim_is_bounded_by_its_limit(self, lab: Lab, limit: int, expected: int) -> None:
        """Claim up to ``request.limit`` events of ``request.bus``. Never waits: the list is empty if there are none."""
        await lab.publish(5)
        assert numbers(await lab.claim(limit=limit)) == list(range(expected))
        assert (await lab.store.counts()).processing == expected

    @pytest.mark.parametrize("status", list(EventStatus))
    async def test_only_pending_events_are_claimed_while_no_lease_is_over(
        self, lab: Lab, other_node: EventStore, status: EventStatus
    ) -> None:
        """Then every PENDING event that is due is eligible."""
        event = await lab.ended(status)
        claims = await lab.claim(other_node, worker_id=BOB)
        assert [claim.event.id for claim in claims] == ([event.id] if status is EventStatus.PENDING else [])

    async def test_a_delayed_event_is_not_claimed_before_it_is_due(self, lab: Lab) -> None:
        """The event cannot be claimed before this time."""
        event = await lab.publish_one(delay=20 * lab.moment)
        await lab.advance(20 * lab.moment - lab.margin)
        assert await lab.claim() == []
        await lab.advance(lab.margin)
        assert (await lab.claim_one()).event.id == event.id

    async def test_a_claim_takes_events_of_its_bus_only(self, lab: Lab) -> None:
        """Claim up to ``request.limit`` events of ``request.bus``. Never waits: the list is empty if there are none."""
        await lab.publish(2, bus=OTHER_BUS)
        mine = await lab.publish_one()
        assert [claim.event.id for claim in await lab.claim(limit=10)] == [mine.id]

    @pytest.mark.parametrize(
        ("tags", "expected"),
        [(("eu",), [1, 3]), (("eu", "us"), [1, 2, 3]), (("us", "vip"), [2, 3]), (("none",), []), (("e", "u"), [])],
    )
    async def test_a_claim_by_tags_takes_events_that_carry_one_of_them(
        self, lab: Lab, tags: tuple[str, ...], expected: list[int]
    ) -> None:
        """With ``request.tags``, only events that carry one of them are eligible."""
        for n, carried in enumerate([[], ["eu"], ["us"], ["eu", "vip"], ["asia"]]):
            await lab.publish_one(kind=f"kind.{n}", tags=carried)
        claims = await lab.claim(limit=10, tags=tags)
        assert [int(claim.event.type.removeprefix("kind.")) for claim in claims] == expected
        assert len(await lab.claim(limit=10)) == 5 - len(expected)

    async def test_of_many_tasks_racing_for_one_event_exactly_one_gets_it(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """A second caller never gets an event whose lease is not over, however many callers race."""
        for _ in range(5):
            event = await lab.publish_one()
            nodes = [lab.store, other_node] * 8
            answers = await lab.race([partial(lab.claim, node, worker_id=f"w{n}") for n, node in enumerate(nodes)])
            assert [claim.event.id for claims in answers for claim in claims] == [event.id]

    async def test_racing_batches_share_the_queue_without_doubles(self, lab: Lab, other_node: EventStore) -> None:
        """A second caller never gets an event whose lease is not over, however many callers race."""
        events = await lab.publish(200)
        nodes = [lab.store, other_node] * 10
        answers = await lab.race([partial(lab.claim, node, limit=15) for node in nodes])
        ids = [claim.event.id for claims in answers for claim in claims]
        assert sorted(ids) == sorted(event.id for event in events)

    async def test_racing_threads_share_the_queue_without_doubles(self, lab: Lab) -> None:
        """A second caller never gets an event whose lease is not over, however many callers race."""
        events = await lab.publish(120)

        async def drain(node: EventStore, number: int) -> list[Claim]:
            taken: list[Claim] = []
            while claims := await lab.claim(node, limit=4, worker_id=f"thread-{number}"):
                taken += claims
            return taken

        answers = await lab.race_in_threads(6, drain)
        ids = [claim.event.id for claims in answers for claim in claims]
        assert sorted(ids) == sorted(event.id for event in events)
        assert [entry.action for entry in await lab.log()].count(Action.PICKED) == 120

    async def test_a_repeat_returns_the_same_claims_and_takes_no_new_event(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """A repeat with the same token returns the claims that the token still holds, in the same order, and does
        nothing else.
        """
        await lab.publish(5)
        request = lab.request(limit=3)
        first = await lab.store.claim_next_events(request)
        before = await lab.picture()
        assert await other_node.claim_next_events(request) == first
        assert await lab.picture() == before

    async def test_a_repeat_keeps_the_order_and_takes_nothing_from_others(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """A repeat with the same token returns the claims that the token still holds, in the same order, and does
        nothing else.
        """
        for priority in (0, 3, -3, 3, 9):
            await lab.publish_one(priority=priority)
        lost = await lab.claim(limit=1, worker_id=BOB, lease=5 * lab.moment)
        request = lab.request(limit=3)
        first = await lab.store.claim_next_events(request)
        assert [claim.event.priority for claim in (*lost, *first)] == [9, 3, 3, 0]
        await lab.advance(10 * lab.moment)
        before = await lab.picture()
        assert await other_node.claim_next_events(request) == first
        assert await lab.picture() == before

    async def test_a_repeat_does_not_return_claims_settled_in_the_meantime(self, lab: Lab) -> None:
        """A repeat with the same token returns the claims that the token still holds, in the same order, and does
        nothing else.
        """
        await lab.publish(5)
        request = lab.request(limit=3)
        first = await lab.store.claim_next_events(request)
        await lab.settle(Complete(first[1].ref))
        assert await lab.store.claim_next_events(request) == [first[0], first[2]]

    @pytest.mark.parametrize("lost_by", ["complete", "release", "fail", "reset", "cancel", "remove"])
    async def test_a_token_that_holds_nothing_any_more_is_a_new_request(self, lab: Lab, lost_by: str) -> None:
        """If the token holds none any more, the call is a new request."""
        await lab.publish(2)
        request = lab.request()
        (claim,) = await lab.store.claim_next_events(request)
        match lost_by:
            case "complete":
                await lab.settle_one(Complete(claim.ref))
            case "release":
                await lab.settle_one(Release(claim.ref, delay=5 * lab.moment))
            case "fail":
                await lab.settle_one(Fail(claim.ref, "no", 5 * lab.moment))
            case "reset":
                await lab.store.reset_event(claim.event.id, reason="stuck")
            case "cancel":
                await lab.store.cancel_event(claim.event.id, reason="not wanted")
            case "remove":
                await lab.store.remove_event(claim.event.id)
        (again,) = await lab.store.claim_next_events(request)
        same = lost_by == "reset"
        assert (again.event.id == claim.event.id) is same
        assert again.event.fence == (2 if same else 1)

    async def test_a_claim_brings_the_results_of_earlier_attempts(self, lab: Lab, other_node: EventStore) -> None:
        """``Claim.results`` holds what the event's handlers did in earlier attempts."""
        claim = await lab.claimed()
        assert claim.results == ()
        results = (
            HandlerResult(handler_id="a", status=ResultStatus.SUCCEEDED, attempts=1, value_json='{"ü":1}'),
            HandlerResult(handler_id="b", status=ResultStatus.TRANSIENT, attempts=1, error="no", execution_time_ms=1.5),
        )
        await lab.settle_one(Fail(claim.ref, "b: no", 0.0, results=results))
        again = await lab.claim_one(other_node)
        assert sorted(again.results, key=lambda result: result.handler_id) == list(results)

    async def test_an_event_of_another_bus_is_not_held_back_by_a_full_one(self, lab: Lab) -> None:
        """Claim up to ``request.limit`` events of ``request.bus``. Never waits: the list is empty if there are none."""
        await lab.publish(50)
        event = await lab.publish_one(bus=OTHER_BUS)
        assert (await lab.claim_one(bus=OTHER_BUS)).event.id == event.id
        assert (await lab.store.counts(BUS)).pending == 50


class HeldClaimTests:
    """Looking up, starting and renewing the claims that a worker holds."""

    @pytest.mark.parametrize("status", list(EventStatus))
    async def test_the_current_claim_of_an_event_can_be_looked_up(
        self, lab: Lab, other_node: EventStore, status: EventStatus
    ) -> None:
        """Return the claim that a settlement of each event must carry now; None for an event that cannot be settled."""
        claim, event = await lab.claimed(), await lab.ended(status, bus=OTHER_BUS)
        found = await other_node.current_claims([event.id, claim.event.id, 10**9])
        assert found[1:] == [claim.ref, None]
        assert (found[0] is not None) == (status is EventStatus.PROCESSING)
        await lab.settle_one(Complete(claim.ref))
        assert await other_node.current_claims([claim.event.id]) == [None]

    async def test_a_looked_up_claim_is_all_that_a_write_needs(self, lab: Lab, other_node: EventStore) -> None:
        """A server uses it for workers that keep no token. The result holds secrets: authenticate the caller first."""
        event = await lab.publish_one()
        await lab.claim(worker_id=BOB)
        (ref,) = await other_node.current_claims([event.id])
        assert ref is not None
        assert (await lab.settle_one(Fail(ref, "no", None))).status is EventStatus.FAILED
        assert (await lab.event(event)).worker_id == BOB

    async def test_starting_records_that_work_began(self, lab: Lab) -> None:
        """Record that work began, with a STARTED entry for each event."""
        await lab.publish(2)
        claims = await lab.claim(limit=2)
        await lab.advance(3 * lab.moment)
        now = await lab.store.now()
        answers = await lab.store.start_events([claim.ref for claim in claims])
        for claim, answer in zip(claims, answers, strict=True):
            assert isinstance(answer, Event)
            assert answer.id == claim.event.id
            assert lab.same_time(answer.started_ts, now)
            assert answer == await lab.event(claim)
            assert (answer.expires_ts, answer.attempts) == (claim.event.expires_ts, 1)
            assert await lab.trail(claim) == ["PUBLISHED", "PICKED", "STARTED"]

    async def test_starting_again_later_records_nothing(self, lab: Lab, other_node: EventStore) -> None:
        """A repeat records nothing."""
        claim = await lab.claimed()
        first = await lab.store.start_events([claim.ref])
        before = await lab.picture()
        await lab.advance(3 * lab.moment)
        assert await other_node.start_events([claim.ref]) == first
        assert await lab.picture() == before

    async def test_starts_and_renewals_are_judged_one_by_one(self, lab: Lab) -> None:
        """The outcome is ``LeaseLost`` if the claim is not current."""
        await lab.publish(3)
        claims = await lab.claim(limit=3)
        refs = [claims[0].ref, ClaimRef(claims[1].event.id, new_token(), 1), claims[2].ref, ClaimRef(10**9, "t", 1)]
        started = await lab.store.start_events(refs)
        renewed = await lab.store.renew_event_claims(refs, lease=lab.lease)
        for answer in (started, renewed):
            assert [isinstance(one, LeaseLost) for one in answer] == [False, True, False, True]
        assert await lab.trail(claims[1]) == ["PUBLISHED", "PICKED"]

    async def test_renewing_extends_the_lease_from_now_and_is_not_logged(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """Extend each lease to ``lease`` seconds from the store's present time, and return the new expiry of each."""
        claim = await lab.claimed()
        log = await lab.log()
        await lab.advance(10 * lab.moment)
        now = await lab.store.now()
        (expiry,) = await other_node.renew_event_claims([claim.ref], lease=lab.lease)
        assert isinstance(expiry, float)
        assert lab.same_time(expiry, now + lab.lease)
        assert (await lab.event(claim)).expires_ts == expiry
        assert await lab.log() == log
        await lab.advance(25 * lab.moment)
        assert await lab.claim(worker_id=BOB) == []

    async def test_a_late_claim_can_be_renewed_if_the_event_was_not_taken_back(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """Only the token decides: a lease that is over is extended if the event was not taken back. Not logged."""
        claim = await lab.claimed()
        await lab.advance(2 * lab.lease)
        (expiry,) = await lab.store.renew_event_claims([claim.ref], lease=lab.lease)
        assert not isinstance(expiry, LeaseLost)
        assert await lab.claim(other_node, worker_id=BOB) == []
        await lab.settle_one(Complete(claim.ref))
