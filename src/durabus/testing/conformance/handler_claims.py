"""Proof of ``durabus.store.results``: claims on single handlers of an event."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from durabus.errors import LeaseLost
from durabus.model.claim import Claim, HandlerClaim, HandlerClaimRequest, handler_lock_key, new_token
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail
from durabus.model.statuses import SETTLED, EventMode, EventStatus, HandlerMode, ResultStatus
from durabus.store.contract import EventStore
from durabus.testing.conformance.lab import ALICE, BOB, BUS, OTHER_BUS, Lab

SERIAL_MODES = pytest.mark.parametrize("mode", [EventMode.BUS_SERIAL, EventMode.GLOBAL_SERIAL])
BOTH_MODES = pytest.mark.parametrize("mode", list(HandlerMode))
IDS = ("mail", "audit", "bill")


def handler_request(
    lab: Lab,
    claim: Claim,
    handler_ids: Sequence[str] = IDS,
    mode: HandlerMode = HandlerMode.SERIAL,
    worker_id: str = ALICE,
) -> HandlerClaimRequest:
    """Return a request with a new token."""
    return HandlerClaimRequest(
        event=claim.ref,
        handler_ids=tuple(handler_ids),
        worker_id=worker_id,
        token=new_token(),
        lease=lab.lease,
        mode=mode,
    )


async def handler_claim(
    lab: Lab, claim: Claim, handler_ids: Sequence[str] = IDS, mode: HandlerMode = HandlerMode.SERIAL
) -> HandlerClaim:
    """Return a granted claim."""
    granted = await lab.store.claim_next_handler_result(handler_request(lab, claim, handler_ids, mode))
    assert granted is not None
    return granted


def outcome(status: ResultStatus = ResultStatus.SUCCEEDED, error: str | None = None) -> HandlerResult:
    """Return the result that a handler reports."""
    return HandlerResult(handler_id="any", status=status, error=error, value_json='{"ok":1}', execution_time_ms=1.5)


class HandlerClaimTests:
    """Two workers never hold one handler, and serial handlers never run together."""

    @BOTH_MODES
    async def test_a_handler_claim_has_a_lease_and_a_fence_of_its_own(
        self, lab: Lab, other_node: EventStore, mode: HandlerMode
    ) -> None:
        """In one atomic step, the handler gets status PROCESSING, ``attempts + 1``, ``fence + 1``, its own token and
        lease.
        """
        claim = await lab.claimed()
        now, request = await lab.store.now(), handler_request(lab, claim, mode=mode)
        granted = await lab.store.claim_next_handler_result(request)
        assert granted is not None
        assert (granted.id, granted.handler_id, granted.token) == (claim.event.id, "mail", request.token)
        assert (granted.attempts, granted.fence) == (1, 1)
        assert lab.same_time(granted.expires_ts, now + lab.lease)
        (result,) = await other_node.list_results(claim.event.event_id)
        assert (result.handler_id, result.status, result.attempts) == ("mail", ResultStatus.PROCESSING, 1)
        assert (result.fence, result.worker_id, result.expires_ts) == (1, ALICE, granted.expires_ts)
        assert await lab.event(claim) == claim.event

    async def test_handlers_are_claimed_in_the_order_asked_for(self, lab: Lab) -> None:
        """Claim the first of ``request.handler_ids`` that is neither settled nor under an unexpired claim, or None."""
        claim = await lab.claimed()
        requests = [handler_request(lab, claim, mode=HandlerMode.PARALLEL) for _ in range(4)]
        answers = [await lab.store.claim_next_handler_result(request) for request in requests]
        assert [None if answer is None else answer.handler_id for answer in answers] == [*IDS, None]

    @pytest.mark.parametrize("status", [status for status in ResultStatus if status is not ResultStatus.PROCESSING])
    async def test_a_settled_handler_is_passed_over_and_any_other_runs_again(
        self, lab: Lab, status: ResultStatus
    ) -> None:
        """Claim the first of ``request.handler_ids`` that is neither settled nor under an unexpired claim, or None."""
        claim = await lab.claimed()
        first = await handler_claim(lab, claim)
        await lab.store.complete_handler_result(first, outcome(status, "no"))
        second = await handler_claim(lab, claim)
        if status in SETTLED:
            assert second.handler_id == "audit"
        else:
            assert (second.handler_id, second.attempts, second.fence) == ("mail", 2, 2)

    async def test_nothing_is_granted_when_all_are_settled(self, lab: Lab) -> None:
        """Claim the first of ``request.handler_ids`` that is neither settled nor under an unexpired claim, or None."""
        claim = await lab.claimed()
        for _ in IDS:
            await lab.store.complete_handler_result(await handler_claim(lab, claim), outcome())
        assert await lab.store.claim_next_handler_result(handler_request(lab, claim)) is None
        assert await lab.store.claim_next_handler_result(handler_request(lab, claim, ())) is None
        assert await lab.store.list_locks() == []

    @BOTH_MODES
    async def test_of_many_racing_for_one_handler_one_gets_it(
        self, lab: Lab, other_node: EventStore, mode: HandlerMode
    ) -> None:
        """Claim the first of ``request.handler_ids`` that is neither settled nor under an unexpired claim, or None."""
        claim = await lab.claimed()
        requests = [handler_request(lab, claim, ("mail",), mode) for _ in range(12)]
        nodes = [lab.store, other_node] * 6
        answers = await lab.race(
            [partial(node.claim_next_handler_result, one) for node, one in zip(nodes, requests, strict=True)]
        )
        assert len([answer for answer in answers if answer is not None]) == 1

    async def test_parallel_handlers_run_together_and_take_no_lock(self, lab: Lab) -> None:
        """With ``mode`` parallel, there is no lock."""
        claim = await lab.claimed()
        granted = [await handler_claim(lab, claim, mode=HandlerMode.PARALLEL) for _ in IDS]
        assert {one.handler_id for one in granted} == set(IDS)
        assert await lab.store.list_locks() == []

    async def test_serial_handlers_run_one_at_a_time(self, lab: Lab, other_node: EventStore) -> None:
        """With ``mode`` serial, a claim needs the lock ``handler:event:{event_id}`` to be free or expired.

        The same step takes the lock under the claim's token and lease; it is renewed and freed with the claim.
        """
        claim = await lab.claimed()
        granted = await handler_claim(lab, claim)
        (lock,) = await lab.store.list_locks()
        assert (lock.key, lock.worker_id) == (handler_lock_key(claim.event.event_id), ALICE)
        assert lab.same_time(lock.expires_ts, granted.expires_ts)
        before = await lab.picture()
        assert await other_node.claim_next_handler_result(handler_request(lab, claim)) is None
        assert await lab.picture() == before
        await lab.store.complete_handler_result(granted, outcome())
        assert await lab.store.list_locks() == []
        assert (await handler_claim(lab, claim)).handler_id == "audit"

    async def test_serial_handlers_of_two_events_do_not_wait_for_each_other(self, lab: Lab) -> None:
        """With ``mode`` serial, a claim needs the lock ``handler:event:{event_id}`` to be free or expired."""
        first, second = await lab.claimed(), await lab.claimed()
        await handler_claim(lab, first)
        assert (await handler_claim(lab, second)).handler_id == "mail"
        assert len(await lab.store.list_locks()) == 2

    async def test_the_handler_lock_is_renewed_with_the_claim(self, lab: Lab, other_node: EventStore) -> None:
        """The same step takes the lock under the claim's token and lease; it is renewed and freed with the claim."""
        claim = await lab.claimed()
        await lab.store.renew_event_claims([claim.ref], lease=5 * lab.lease)
        granted = await handler_claim(lab, claim)
        await lab.advance(20 * lab.moment)
        (expiry,) = await lab.store.renew_handler_claims([granted], lease=lab.lease)
        assert isinstance(expiry, float)
        assert (await lab.store.list_results(claim.event.id))[0].expires_ts == expiry
        await lab.advance(20 * lab.moment)
        assert await other_node.claim_next_handler_result(handler_request(lab, claim)) is None
        (lock,) = await lab.store.list_locks()
        assert lab.same_time(lock.expires_ts, expiry)

    @BOTH_MODES
    async def test_a_handler_whose_lease_is_over_can_be_taken(
        self, lab: Lab, other_node: EventStore, mode: HandlerMode
    ) -> None:
        """Claim the first of ``request.handler_ids`` that is neither settled nor under an unexpired claim, or None."""
        claim = await lab.claimed()
        await lab.store.renew_event_claims([claim.ref], lease=5 * lab.lease)
        lost = await handler_claim(lab, claim, ("mail",), mode)
        await lab.advance(lab.lease - lab.margin)
        assert await other_node.claim_next_handler_result(handler_request(lab, claim, ("mail",), mode)) is None
        await lab.advance(lab.margin)
        taken = await other_node.claim_next_handler_result(handler_request(lab, claim, ("mail",), mode, BOB))
        assert taken is not None
        assert (taken.handler_id, taken.attempts, taken.fence) == ("mail", 2, lost.fence + 1)

    @pytest.mark.parametrize("write", ["complete", "release", "renew"])
    @pytest.mark.parametrize("taken_by", ["another handler", "name"])
    async def test_a_late_handler_does_not_touch_the_lock_of_another(
        self, lab: Lab, other_node: EventStore, taken_by: str, write: str
    ) -> None:
        """If the lock expires and another handler takes it, the handler claim is lost too."""
        claim = await lab.claimed()
        await lab.store.renew_event_claims([claim.ref], lease=5 * lab.lease)
        late = await handler_claim(lab, claim, ("mail",))
        await lab.let_the_lease_end()
        if taken_by == "name":
            key = handler_lock_key(claim.event.event_id)
            await other_node.claim_lock(key, worker_id=BOB, token=new_token(), lease=lab.lease)
        else:
            await other_node.claim_next_handler_result(handler_request(lab, claim, ("audit",), worker_id=BOB))
        before = await lab.picture()
        assert [lock.worker_id for lock in before.locks] == [BOB]
        if taken_by == "another handler":
            (_, mail) = before.results[claim.event.event_id]
            assert (mail.status, mail.attempts, mail.worker_id) == (ResultStatus.PENDING, 1, None)
        lost = False
        try:
            await self._write_late(lab, late, write)
        except LeaseLost:
            lost = True
        assert await lab.store.list_locks() == before.locks
        if taken_by == "another handler":
            assert lost
            assert await lab.picture() == before

    async def _write_late(self, lab: Lab, claim: HandlerClaim, write: str) -> None:
        match write:
            case "complete":
                await lab.store.complete_handler_result(claim, outcome())
            case "release":
                await lab.store.release_handler_claim(claim)
            case _:
                (answer,) = await lab.store.renew_handler_claims([claim], lease=5 * lab.lease)
                if isinstance(answer, LeaseLost):
                    raise answer

    async def test_no_handler_is_granted_under_a_claim_that_is_not_current(self, lab: Lab) -> None:
        """None too if ``request.event`` is not the event's current claim."""
        claim = await lab.claimed()
        await lab.settle_one(Fail(claim.ref, "no", 0.0))
        assert await lab.store.claim_next_handler_result(handler_request(lab, claim)) is None
        again = await lab.claim_one()
        assert await lab.store.claim_next_handler_result(handler_request(lab, claim)) is None
        await lab.settle_one(Complete(again.ref))
        assert await lab.store.claim_next_handler_result(handler_request(lab, again)) is None
        assert await lab.store.list_results(claim.event.id) == []

    async def test_a_handlers_lease_outlives_the_takeover_of_its_event(self, lab: Lab, other_node: EventStore) -> None:
        """The handler has its own lease, which stays valid until it expires even if another worker takes over the
        event. So there are never two valid claims on one handler.
        """
        claim = await lab.claimed()
        await lab.advance(20 * lab.moment)
        held = await handler_claim(lab, claim, ("mail",), HandlerMode.PARALLEL)
        await lab.advance(15 * lab.moment)
        taken = await lab.claim_one(other_node, worker_id=BOB)
        assert taken.event.id == claim.event.id
        asked = handler_request(lab, taken, ("mail",), HandlerMode.PARALLEL, BOB)
        assert await lab.store.claim_next_handler_result(asked) is None
        await lab.advance(20 * lab.moment)
        granted = await lab.store.claim_next_handler_result(asked)
        assert granted is not None
        assert granted.fence == held.fence + 1

    @BOTH_MODES
    async def test_a_repeat_returns_the_claim_that_the_token_holds(
        self, lab: Lab, other_node: EventStore, mode: HandlerMode
    ) -> None:
        """A repeat with the same token returns the claim that the token holds."""
        claim = await lab.claimed()
        request = handler_request(lab, claim, mode=mode)
        first = await lab.store.claim_next_handler_result(request)
        before = await lab.picture()
        assert await other_node.claim_next_handler_result(request) == first
        assert await lab.picture() == before

    async def test_threads_run_every_serial_handler_once_and_alone(self, lab: Lab) -> None:
        """With ``mode`` serial, a claim needs the lock ``handler:event:{event_id}`` to be free or expired."""
        claim = await lab.claimed()
        ids = [f"h{number:02}" for number in range(12)]
        inside: list[str] = []
        seen: list[str] = []

        async def work(node: EventStore, number: int) -> None:
            while len(seen) < len(ids):
                await anyio.lowlevel.checkpoint()
                request = handler_request(lab, claim, ids, worker_id=f"thread-{number}")
                granted = await node.claim_next_handler_result(request)
                if granted is not None:
                    inside.append(granted.handler_id)
                    assert inside == [granted.handler_id]
                    seen.append(granted.handler_id)
                    inside.clear()
                    await node.complete_handler_result(granted, outcome())

        await lab.race_in_threads(3, work)
        assert seen == ids

    async def test_handlers_run_under_a_serial_event_too(self, lab: Lab) -> None:
        """A request for the first of ``handler_ids`` that is neither settled nor under an unexpired claim."""
        await lab.publish()
        claim = await lab.claim_one(mode=EventMode.BUS_SERIAL)
        granted = await handler_claim(lab, claim)
        assert len(await lab.store.list_locks()) == 2
        await lab.store.complete_handler_result(granted, outcome())
        assert [lock.key for lock in await lab.store.list_locks()] == ["event:bus:orders"]


class SerialLockTests:
    """Handlers that were claimed under the lock of a serial mode keep it."""

    @SERIAL_MODES
    async def test_the_lock_of_a_serial_mode_waits_for_the_handlers_that_were_claimed_under_it(
        self, lab: Lab, other_node: EventStore, mode: EventMode
    ) -> None:
        """With ``request.mode`` bus-serial or global-serial, events are claimed only if the lock ``event:bus:{bus}`` or
        ``event:global`` is free or expired, and no claim on a handler that was made under it is valid: such a claim
        outlives the claim on its event (``renew_handler_claims``).
        """
        if not lab.store.features.serial_modes:
            return
        _, second = await lab.publish(2)
        running = await _left_behind(lab, mode)
        assert await lab.claim(other_node, mode=mode) == []
        assert await lab.store.renew_handler_claims([running], lease=lab.lease) != []
        assert await lab.claim(other_node, mode=mode) == []
        await lab.store.complete_handler_result(running, outcome())
        assert (await lab.claim_one(other_node, mode=mode)).event.id == second.id

    @SERIAL_MODES
    async def test_a_late_handler_under_the_lock_of_a_serial_mode_loses_its_claim(
        self, lab: Lab, other_node: EventStore, mode: EventMode
    ) -> None:
        """Those whose leases are over end with this step, as in ``claim_next_handler_result``."""
        if not lab.store.features.serial_modes:
            return
        _, second = await lab.publish(2)
        late = await _left_behind(lab, mode)
        await lab.let_the_lease_end()
        assert (await lab.claim_one(other_node, mode=mode)).event.id == second.id
        (renewed,) = await lab.store.renew_handler_claims([late], lease=lab.lease)
        assert isinstance(renewed, LeaseLost)
        (result,) = await lab.store.list_results(late.id)
        assert (result.status, result.attempts, result.worker_id) == (ResultStatus.PENDING, 1, None)

    @pytest.mark.parametrize("bus", [BUS, OTHER_BUS])
    async def test_the_results_of_an_event_that_fails_with_its_lock_stay_as_they_are(
        self, lab: Lab, other_node: EventStore, bus: str
    ) -> None:
        """After the event has ended, they stay as they are until ``cleanup_results``; those of a dead letter until it
        is requeued or purged.
        """
        if not lab.store.features.serial_modes:
            return
        await lab.publish_one(max_attempts=1)
        claim = await lab.claim_one(mode=EventMode.GLOBAL_SERIAL)
        await handler_claim(lab, claim, mode=HandlerMode.PARALLEL)
        before = await lab.store.list_results(claim.event.id)
        await lab.publish_one(bus=bus)
        await lab.let_the_lease_end()
        await lab.claim_one(other_node, bus=bus, mode=EventMode.GLOBAL_SERIAL)
        assert (await lab.event(claim)).status is EventStatus.FAILED
        assert await lab.store.list_results(claim.event.id) == before

    @SERIAL_MODES
    async def test_handlers_that_were_claimed_without_a_lock_block_no_serial_mode(
        self, lab: Lab, other_node: EventStore, mode: EventMode
    ) -> None:
        """If the event was claimed in a serial mode, its lock is not free until then."""
        if not lab.store.features.serial_modes:
            return
        _, second = await lab.publish(2)
        await _left_behind(lab, EventMode.PARALLEL)
        assert (await lab.claim_one(other_node, mode=mode)).event.id == second.id


async def _left_behind(lab: Lab, mode: EventMode) -> HandlerClaim:
    """Return a claim on a handler of the first event, which waits for its next claim."""
    claim = await lab.claim_one(mode=mode)
    running = await handler_claim(lab, claim, mode=HandlerMode.PARALLEL)
    await lab.settle_one(Fail(claim.ref, "no", 3600.0))
    return running
