"""Proof that late but not overtaken counts: an abandoned claim can be settled until the event is claimed again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from msgspec.structs import replace

from durabus.errors import LeaseLost
from durabus.model.claim import Claim, ClaimRef, new_token
from durabus.model.event import Event
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Release, Settled, Settlement
from durabus.model.statuses import Action, EventMode, EventStatus, HandlerMode, ResultStatus
from durabus.store.contract import EventStore
from durabus.testing.conformance.handler_claims import handler_claim
from durabus.testing.conformance.lab import ALICE, BOB, BUS, Lab

DONE = HandlerResult(handler_id="a", status=ResultStatus.SUCCEEDED, value_json="1")
WAYS: dict[str, Callable[[ClaimRef], Settlement]] = {
    "complete": lambda ref: Complete(ref, execution_time_ms=45_000.0, status_code=200),
    "complete plainly": Complete,
    "complete with errors": lambda ref: Complete(ref, errors=("no such customer",)),
    "fail": lambda ref: Fail(ref, "boom", 0.0),
    "fail for later": lambda ref: Fail(ref, "boom", 3600.0),
    "give up": lambda ref: Fail(ref, "boom", None),
    "release": lambda ref: Release(ref, reason="busy"),
    "release for later": lambda ref: Release(ref, 3600.0),
}
BY_WAY = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


async def _abandon(lab: Lab, node: EventStore, *claims: Claim) -> None:
    await lab.let_the_lease_end()
    assert await node.expire_events() == len(claims)
    for claim in claims:
        assert (await lab.trail(claim))[-1] == "ABANDONED"


async def _settled(lab: Lab, claim: Claim) -> bool:
    return isinstance((await lab.settle(Complete(claim.ref)))[0], Settled)


async def _taken(lab: Lab, node: EventStore) -> bool:
    return len(await lab.claim(node, worker_id=BOB)) == 1


async def _expired(node: EventStore) -> bool:
    await node.expire_events()
    return True


class LateSettlementTests:
    """What the last holder of an event can still write, as long as no other worker has claimed the event."""

    async def test_a_late_success_counts_while_no_worker_has_claimed_the_event_since(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """Late but not overtaken counts: an abandoned claim may still be settled until the event is claimed again."""
        claim = await lab.claimed(max_attempts=2, tags=["eu"])
        (started,) = await lab.store.start_events([claim.ref])
        await _abandon(lab, other_node, claim)
        await lab.advance(lab.lease / 2)
        done = Complete(claim.ref, execution_time_ms=45_000.0, status_code=200)
        assert await lab.settle_one(done) == Settled(claim.event.id, EventStatus.COMPLETED)
        assert await lab.trail(claim) == ["PUBLISHED", "PICKED", "STARTED", "ABANDONED", "COMPLETED"]
        entry = (await lab.store.read_event_log(claim.event.id))[-1]
        assert (entry.worker_id, entry.attempt, entry.fence) == (ALICE, 1, 1)
        assert (entry.execution_time_ms, entry.status_code, entry.error, entry.errors) == (45_000.0, 200, None, ())
        event = await lab.event(claim, other_node)
        assert (event.status, event.attempts, event.errors) == (EventStatus.COMPLETED, 1, ())
        assert isinstance(started, Event)
        assert (event.worker_id, event.picked_ts, event.started_ts) == (
            ALICE,
            claim.event.picked_ts,
            started.started_ts,
        )
        counts = await lab.store.counts(BUS)
        assert (counts.pending, counts.processing, counts.completed) == (0, 0, 1)
        assert await lab.claim(tags=("eu",)) == await lab.claim(limit=10) == []

    @BY_WAY
    async def test_a_late_settlement_leads_where_one_in_time_does(
        self, lab: Lab, other_node: EventStore, way: Callable[[ClaimRef], Settlement]
    ) -> None:
        """It ends as if it had been settled in time: the error of the abandonment is removed, the attempt is not
        counted as lost, and the entry names the worker that had the claim.
        """
        await lab.publish(2, tags=["eu"], max_attempts=5)
        for claim in await lab.claim(limit=2):
            await lab.settle_one(Fail(claim.ref, "first", 0.0))
        late, in_time = await lab.claim(limit=2)
        await lab.store.renew_event_claims([in_time.ref], lease=9 * lab.lease)
        await _abandon(lab, other_node, late)
        outcomes = await lab.settle(way(late.ref), way(in_time.ref))
        ends = [await lab.event(late), await lab.event(in_time)]
        assert [_without_identity(one) for one in ends[:1]] == [_without_identity(one) for one in ends[1:]]
        told = [replace(one, id=0) for one in outcomes if isinstance(one, Settled)]
        assert len(told) == 2
        assert told[0] == told[1]
        entries = [(await lab.store.read_event_log(claim.event.id))[-1] for claim in (late, in_time)]
        same = [replace(entry, position="", id=0, event_id="", payload_json=None) for entry in entries]
        assert same[0] == same[1]
        assert (await lab.trail(late))[-2] == "ABANDONED"

    @BY_WAY
    async def test_a_late_settlement_may_be_repeated(
        self, lab: Lab, other_node: EventStore, way: Callable[[ClaimRef], Settlement]
    ) -> None:
        """An exact repeat of the newest settlement of an event (same token and fence, same kind) returns the outcome of
        the first call and writes nothing.
        """
        claim = await lab.claimed()
        await _abandon(lab, other_node, claim)
        first = await lab.settle_one(way(claim.ref))
        before = await lab.picture()
        (again,) = (await other_node.settle_events([way(claim.ref)])).outcomes
        assert again == first
        other = Release(claim.ref) if isinstance(way(claim.ref), Complete) else Complete(claim.ref)
        assert isinstance((await lab.settle(other))[0], LeaseLost)
        assert await lab.picture() == before

    async def test_an_older_settlement_can_be_repeated_while_a_newer_claim_is_abandoned(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """An exact repeat of the newest settlement of an event (same token and fence, same kind) returns the outcome of
        the first call and writes nothing.
        """
        old = await lab.claimed()
        first = await lab.settle_one(Fail(old.ref, "no", 0.0))
        lost = await lab.claim_one(worker_id=BOB)
        await _abandon(lab, other_node, lost)
        before = await lab.picture()
        assert await lab.settle_one(Fail(old.ref, "no", 0.0)) == first
        assert await lab.picture() == before
        assert (await lab.settle_one(Complete(lost.ref))).status is EventStatus.COMPLETED

    @pytest.mark.parametrize("since", ["claimed", "claimed with the same token", "ended", "failed for good"])
    @BY_WAY
    async def test_a_late_settlement_is_refused_once_another_worker_has_claimed_the_event(
        self, lab: Lab, other_node: EventStore, way: Callable[[ClaimRef], Settlement], since: str
    ) -> None:
        """Any other claim that is not current gets ``LeaseLost`` as its outcome (a value, not raised), and nothing of
        it is written.
        """
        claim = await lab.claimed(max_attempts=1 if since == "failed for good" else None)
        await lab.let_the_lease_end()
        assert await other_node.expire_events() == 1
        if since != "failed for good":
            token = claim.token if since == "claimed with the same token" else new_token()
            newer = await lab.claim_one(other_node, worker_id=BOB, token=token)
            assert newer.event.fence == 2
            if since == "ended":
                await lab.settle_one(Fail(newer.ref, "no", 0.0))
        before = await lab.picture()
        assert isinstance((await lab.settle(way(claim.ref)))[0], LeaseLost)
        assert await lab.picture() == before

    async def test_a_claim_with_the_token_of_an_abandoned_one_is_a_new_request(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """If the token holds none any more, the call is a new request. An abandoned claim is not held."""
        await lab.publish(1)
        request = lab.request()
        (claim,) = await lab.store.claim_next_events(request)
        await _abandon(lab, other_node, claim)
        (again,) = await lab.store.claim_next_events(request)
        assert (again.event.id, again.event.fence, again.event.attempts) == (claim.event.id, 2, 2)

    async def test_an_abandoned_claim_is_neither_renewed_nor_started(self, lab: Lab, other_node: EventStore) -> None:
        """An abandoned claim is not current, although it may still be settled: other workers can claim the event."""
        claim = await lab.claimed()
        await _abandon(lab, other_node, claim)
        before = await lab.picture()
        assert isinstance((await lab.store.start_events([claim.ref]))[0], LeaseLost)
        assert isinstance((await lab.store.renew_event_claims([claim.ref], lease=lab.lease))[0], LeaseLost)
        assert await lab.picture() == before
        assert (await lab.settle_one(Complete(claim.ref))).status is EventStatus.COMPLETED

    async def test_a_renewal_says_that_the_claim_is_lost(self, lab: Lab, other_node: EventStore) -> None:
        """The outcome is ``LeaseLost`` if the claim is not current.

        An abandoned claim is not current, even while no other worker has claimed the event.
        """
        claim = await lab.claimed()
        await _abandon(lab, other_node, claim)
        assert isinstance((await lab.store.renew_event_claims([claim.ref], lease=lab.lease))[0], LeaseLost)
        assert (await lab.claim_one(other_node, worker_id=BOB)).event.fence == 2

    async def test_an_abandoned_claim_can_be_looked_up_until_the_next_one(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """It is the current claim of a PROCESSING event, or the abandoned claim of a PENDING event that was not claimed
        again.
        """
        claim = await lab.claimed()
        await _abandon(lab, other_node, claim)
        assert await other_node.current_claims([claim.event.id]) == [claim.ref]
        newer = await lab.claim_one(worker_id=BOB)
        assert await other_node.current_claims([claim.event.id]) == [newer.ref]
        await lab.settle_one(Fail(newer.ref, "no", 0.0))
        assert await other_node.current_claims([claim.event.id]) == [None]

    @BY_WAY
    async def test_a_late_settlement_leaves_the_queue_in_order(
        self, lab: Lab, other_node: EventStore, way: Callable[[ClaimRef], Settlement]
    ) -> None:
        """Then every PENDING event that is due is eligible.

        With ``request.tags``, only events that carry one of them are eligible.
        """
        claim = await lab.claimed(tags=["eu"])
        (other,) = await lab.publish(1, tags=["eu"], priority=-1)
        await _abandon(lab, other_node, claim)
        settled = await lab.settle_one(way(claim.ref))
        ready = settled.status is EventStatus.PENDING and (await lab.event(claim)).due_ts <= await lab.store.now()
        first = await lab.claim(other_node, tags=("eu",), worker_id=BOB)
        second = await lab.claim(other_node, worker_id=BOB)
        ids = [one.event.id for one in (*first, *second)]
        expected = [claim.event.id, other.id] if ready else [other.id]
        assert ids == expected if lab.store.features.one_order else sorted(ids) == sorted(expected)
        if settled.status is EventStatus.PENDING and not ready and lab.manual:
            await lab.advance(3600.0)
            assert claim.event.id in [one.event.id for one in await lab.claim(tags=("eu",), limit=10)]

    @BY_WAY
    async def test_a_late_settlement_moves_its_ordering_key_on(
        self, lab: Lab, other_node: EventStore, way: Callable[[ClaimRef], Settlement]
    ) -> None:
        """Among the live events of the bus with the same ``ordering_key``, only the one with the smallest ``id`` is
        eligible, and only while none of them is PROCESSING. An event that waits for its retry delays its own key only.
        """
        if not lab.store.features.ordering_keys:
            pytest.skip("declared: ordering_keys=False")
        first, second = await lab.publish(2, ordering_key="k")
        claim = await lab.claim_one()
        await _abandon(lab, other_node, claim)
        settled = await lab.settle_one(way(claim.ref))
        due = (await lab.event(claim)).due_ts <= await lab.store.now()
        claims = await lab.claim(other_node, limit=10, worker_id=BOB)
        expected = [second.id] if settled.status is not EventStatus.PENDING else [first.id] if due else []
        assert [one.event.id for one in claims] == expected

    async def test_a_late_settlement_does_not_free_the_lock_of_a_newer_holder(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """All events of the claim share the lock.

        Renewing any of them renews the lock, and the lock never ends before one of their leases. It is freed when the
        last of them is settled, reset, cancelled or taken back.
        """
        await lab.publish_one()
        lost = await lab.claim_one(mode=EventMode.BUS_SERIAL)
        first = await lab.publish_one(priority=5)
        await lab.let_the_lease_end()
        newer = await lab.claim_one(other_node, mode=EventMode.BUS_SERIAL, worker_id=BOB)
        assert newer.event.id == first.id
        before = await lab.store.list_locks()
        assert [lock.worker_id for lock in before] == [BOB]
        assert (await lab.settle_one(Complete(lost.ref))).status is EventStatus.COMPLETED
        assert await lab.store.list_locks() == before
        await lab.publish_one()
        assert await lab.claim(mode=EventMode.BUS_SERIAL) == []
        await lab.settle_one(Complete(newer.ref))
        assert len(await lab.claim(mode=EventMode.BUS_SERIAL)) == 1

    async def test_a_settlement_that_races_with_the_expiry_is_accepted(self, lab: Lab, other_node: EventStore) -> None:
        """Late but not overtaken counts: an abandoned claim may still be settled until the event is claimed again."""
        await lab.publish(6)
        claims = await lab.claim(limit=6)
        await lab.let_the_lease_end()
        settle = [partial(_settled, lab, claim) for claim in claims]
        answers = await lab.race([*settle, partial(_expired, other_node), partial(_expired, lab.store)])
        assert answers[:6] == [True] * 6
        assert (await lab.store.counts()).completed == 6
        assert {(await lab.event(claim)).errors for claim in claims} == {()}

    async def test_of_a_late_settlement_and_a_claim_one_wins(self, lab: Lab, other_node: EventStore) -> None:
        """A second caller never gets an event whose lease is not over, however many callers race."""
        await lab.publish(6)
        claims = await lab.claim(limit=6)
        await _abandon(lab, other_node, *claims)
        settle = [partial(_settled, lab, claim) for claim in claims]
        takers = [partial(_taken, lab, other_node) for _ in claims]
        answers = await lab.race([call for pair in zip(takers, settle, strict=True) for call in pair])
        accepted = sum(answers[1::2])
        assert accepted + sum(answers[::2]) == 6
        counts = await lab.store.counts()
        assert (counts.completed, counts.processing, counts.pending) == (accepted, 6 - accepted, 0)
        for claim in claims:
            event = await lab.event(claim)
            assert (event.fence == 1) is (event.status is EventStatus.COMPLETED)

    async def test_handler_results_count_under_an_abandoned_event(self, lab: Lab, other_node: EventStore) -> None:
        """A handler claim may be completed or released until the event ends, also while the event waits for its next
        claim, unless another claim has taken the handler.
        """
        claim = await lab.claimed()
        one, two = (
            await handler_claim(lab, claim, ["a"], HandlerMode.PARALLEL),
            await handler_claim(lab, claim, ["b"], HandlerMode.PARALLEL),
        )
        await _abandon(lab, other_node, claim)
        assert isinstance((await lab.store.renew_handler_claims([one], lease=lab.lease))[0], float)
        assert (await lab.store.complete_handler_result(one, DONE)).status is ResultStatus.SUCCEEDED
        assert await lab.store.complete_event_if_done(claim.ref, ["a", "b"]) is None
        await lab.store.release_handler_claim(two)
        assert [result.status.value for result in await lab.store.list_results(claim.event.id)] == [
            "SUCCEEDED",
            "PENDING",
        ]
        with pytest.raises(LeaseLost):
            await lab.store.complete_handler_result(two, replace(DONE, handler_id="b"))

    async def test_a_late_last_handler_completes_the_event(self, lab: Lab, other_node: EventStore) -> None:
        """It works as ``settle_events`` with ``Complete``, also for a repeat."""
        claim = await lab.claimed()
        handler = await handler_claim(lab, claim, ["a"], HandlerMode.PARALLEL)
        await _abandon(lab, other_node, claim)
        await lab.store.complete_handler_result(handler, DONE)
        settled = await lab.store.complete_event_if_done(claim.ref, ["a"])
        assert settled == Settled(claim.event.id, EventStatus.COMPLETED)
        assert await other_node.complete_event_if_done(claim.ref, ["a"]) == settled
        assert (await lab.event(claim)).errors == ()
        assert (await lab.store.read_event_log(claim.event.id))[-1].action is Action.COMPLETED

    async def test_handler_results_are_refused_once_the_event_is_claimed_again(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """Raises ``LeaseLost`` if the claim is not current."""
        claim = await lab.claimed()
        handler = await handler_claim(lab, claim, ["a"], HandlerMode.PARALLEL)
        await _abandon(lab, other_node, claim)
        newer = await lab.claim_one(other_node, worker_id=BOB)
        assert await handler_claim(lab, newer, ["a"], HandlerMode.PARALLEL) != handler
        before = await lab.picture()
        with pytest.raises(LeaseLost):
            await lab.store.complete_handler_result(handler, DONE)
        with pytest.raises(LeaseLost):
            await lab.store.complete_event_if_done(claim.ref, [])
        assert await lab.picture() == before


def _without_identity(event: Event) -> Event:
    return replace(event, id=0, event_id="", payload_json="", due_ts=0.0 if event.status in _ENDED else event.due_ts)


_ENDED = frozenset({EventStatus.COMPLETED, EventStatus.COMPLETED_WITH_ERRORS, EventStatus.FAILED})
