"""Proof that a worker that lost its claim can write nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from durabus.errors import LeaseLost
from durabus.model.claim import Claim, ClaimRef, HandlerClaim, HandlerClaimRequest, LockClaim, new_token
from durabus.model.result import HandlerResult
from durabus.model.settlement import Cancel, Complete, Fail, Keep, Release, Settlement
from durabus.model.statuses import ResultStatus
from durabus.store.contract import EventStore
from durabus.testing.conformance.handler_claims import handler_claim
from durabus.testing.conformance.lab import ALICE, BOB, Lab

Loss = Callable[[Lab, EventStore, Claim], Awaitable[ClaimRef]]
Write = Callable[[Lab, ClaimRef], Awaitable[object]]
DONE = HandlerResult(handler_id="a", status=ResultStatus.SUCCEEDED, value_json="1")


async def _taken_over(lab: Lab, other_node: EventStore, claim: Claim) -> ClaimRef:
    await lab.let_the_lease_end()
    await lab.claim_one(other_node, worker_id=BOB)
    return claim.ref


async def _expired(lab: Lab, other_node: EventStore, claim: Claim) -> ClaimRef:
    await lab.let_the_lease_end()
    assert await other_node.expire_events() == 1
    return claim.ref


async def _reset(_lab: Lab, other_node: EventStore, claim: Claim) -> ClaimRef:
    await other_node.reset_event(claim.event.id, reason="stuck")
    return claim.ref


async def _cancelled(_lab: Lab, other_node: EventStore, claim: Claim) -> ClaimRef:
    await other_node.cancel_event(claim.event.id, reason="not wanted")
    return claim.ref


async def _abandoned_and_cancelled(lab: Lab, other_node: EventStore, claim: Claim) -> ClaimRef:
    await lab.let_the_lease_end()
    assert await other_node.expire_events() == 1
    await other_node.cancel_event(claim.event.id, reason="not wanted")
    return claim.ref


async def _removed(_lab: Lab, other_node: EventStore, claim: Claim) -> ClaimRef:
    assert await other_node.remove_event(claim.event.id)
    return claim.ref


async def _finished_by_another(lab: Lab, other_node: EventStore, claim: Claim) -> ClaimRef:
    await lab.let_the_lease_end()
    taken = await lab.claim_one(other_node, worker_id=BOB)
    await lab.settle_one(Complete(taken.ref))
    return claim.ref


async def _brought_back(lab: Lab, other_node: EventStore, claim: Claim) -> ClaimRef:
    await lab.let_the_lease_end()
    taken = await lab.claim_one(other_node, worker_id=BOB)
    await lab.settle_one(Fail(taken.ref, "no", None))
    await other_node.requeue_dead_letters([claim.event.id])
    return claim.ref


async def _wrong_token(_lab: Lab, _other_node: EventStore, claim: Claim) -> ClaimRef:
    return ClaimRef(claim.event.id, new_token(), claim.event.fence)


async def _wrong_fence(_lab: Lab, _other_node: EventStore, claim: Claim) -> ClaimRef:
    return ClaimRef(claim.event.id, claim.token, claim.event.fence + 1)


def _settling(name: str, make: Callable[[ClaimRef], Settlement]) -> Write:
    async def write(lab: Lab, ref: ClaimRef) -> object:
        return (await lab.settle(make(ref)))[0]

    write.__name__ = name
    return write


async def _renew(lab: Lab, ref: ClaimRef) -> object:
    return (await lab.store.renew_event_claims([ref], lease=9 * lab.lease))[0]


async def _start(lab: Lab, ref: ClaimRef) -> object:
    return (await lab.store.start_events([ref]))[0]


async def _keep_results(lab: Lab, ref: ClaimRef) -> object:
    return (await lab.store.keep_results([Keep(ref, (DONE,))]))[0]


async def _claim_handler(lab: Lab, ref: ClaimRef) -> object:
    request = HandlerClaimRequest(event=ref, handler_ids=("z",), worker_id=ALICE, token=new_token(), lease=lab.lease)
    return await lab.store.claim_next_handler_result(request)


async def _complete_if_done(lab: Lab, ref: ClaimRef) -> object:
    try:
        return await lab.store.complete_event_if_done(ref, [])
    except LeaseLost as lost:
        return lost


LOSSES = [
    _taken_over,
    _reset,
    _cancelled,
    _abandoned_and_cancelled,
    _removed,
    _finished_by_another,
    _brought_back,
    _wrong_token,
    _wrong_fence,
]
WRITES = [
    _settling("complete", lambda ref: Complete(ref, (DONE,), status_code=200)),
    _settling("complete plainly", Complete),
    _settling("complete with errors", lambda ref: Complete(ref, (DONE,), errors=("no",))),
    _settling("fail", lambda ref: Fail(ref, "no", 0.0, (DONE,))),
    _settling("fail for good", lambda ref: Fail(ref, "no", None, (DONE,))),
    _settling("release", lambda ref: Release(ref, 0.0, (DONE,))),
    _settling("cancel", lambda ref: Cancel(ref, "expired", (DONE,))),
    _renew,
    _start,
    _keep_results,
    _claim_handler,
    _complete_if_done,
]


LOST_WRITES = [(loss, write) for loss in LOSSES for write in WRITES]
# The last holder can still settle an abandoned event: see late_settlements.
LOST_WRITES += [(_expired, write) for write in (_renew, _start, _claim_handler)]


def _name(function: Callable[..., object]) -> str:
    return function.__name__.strip("_").replace("_", " ")


class StaleWriterTests:
    """Writes of lost claims are refused and change nothing."""

    @pytest.mark.parametrize(("loss", "write"), LOST_WRITES, ids=_name)
    async def test_a_write_under_a_lost_claim_changes_nothing(
        self, lab: Lab, other_node: EventStore, loss: Loss, write: Write
    ) -> None:
        """Every write is one conditional step on (status, token, fence).

        A write that does not match changes nothing.
        """
        ref = await loss(lab, other_node, await lab.claimed())
        before = await lab.picture()
        answer = await write(lab, ref)
        assert answer is None if write is _claim_handler else isinstance(answer, LeaseLost)
        assert await lab.picture() == before

    @pytest.mark.parametrize("write", ["complete", "renew", "release"])
    @pytest.mark.parametrize(
        "loss",
        ["taken over", "event cancelled", "event completed", "removed", "wrong token", "wrong fence"],
    )
    async def test_a_write_under_a_lost_handler_claim_changes_nothing(self, lab: Lab, loss: str, write: str) -> None:
        """Raises ``LeaseLost`` if the claim is not current."""
        event_claim = await lab.claimed()
        claim = await self._lose(lab, loss, event_claim, await handler_claim(lab, event_claim, ["a"]))
        before = await lab.picture()
        match write:
            case "complete":
                with pytest.raises(LeaseLost):
                    await lab.store.complete_handler_result(claim, DONE)
            case "release":
                with pytest.raises(LeaseLost):
                    await lab.store.release_handler_claim(claim)
            case "renew":
                (answer,) = await lab.store.renew_handler_claims([claim], lease=9 * lab.lease)
                assert isinstance(answer, LeaseLost)
        assert await lab.picture() == before

    async def _lose(self, lab: Lab, loss: str, event_claim: Claim, claim: HandlerClaim) -> HandlerClaim:
        match loss:
            case "taken over":
                await lab.store.renew_event_claims([event_claim.ref], lease=9 * lab.lease)
                await lab.let_the_lease_end()
                await handler_claim(lab, event_claim, ["a"])
            case "event cancelled":
                await lab.store.cancel_event(event_claim.event.id, reason="not wanted")
            case "event completed":
                await lab.settle_one(Complete(event_claim.ref, errors=("enough",)))
            case "removed":
                await lab.store.remove_event(event_claim.event.id)
            case "wrong token":
                return replace(claim, token=new_token(), fence=claim.fence)
            case "wrong fence":
                return replace(claim, token=claim.token, fence=claim.fence + 1)
        return claim

    @pytest.mark.parametrize("write", ["renew", "release", "save_position"])
    @pytest.mark.parametrize("loss", ["taken over", "wrong token", "wrong fence", "taken and released"])
    async def test_a_write_under_a_lost_lock_changes_nothing(
        self, lab: Lab, other_node: EventStore, loss: str, write: str
    ) -> None:
        """A lock does not stop a holder whose lease is over: the protected resource must compare fences."""
        lock = await lab.store.claim_lock("reader", worker_id=ALICE, token=new_token(), lease=lab.lease)
        assert lock is not None
        await lab.publish(2)
        first, second = (entry.position for entry in await lab.log())
        await lab.store.save_position("reader", first, lock=lock)
        if loss.startswith("taken"):
            await lab.let_the_lease_end()
            taken = await other_node.claim_lock("reader", worker_id=BOB, token=new_token(), lease=lab.lease)
            assert taken is not None
            if loss == "taken and released":
                await other_node.release_lock(taken)
        else:
            token = new_token() if loss == "wrong token" else lock.token
            fence = lock.fence + 1 if loss == "wrong fence" else lock.fence
            lock = LockClaim(
                key=lock.key, worker_id=lock.worker_id, token=token, fence=fence, expires_ts=lock.expires_ts
            )
        before = await lab.picture()
        with pytest.raises(LeaseLost):
            await self._write(lab, write, lock, second)
        assert await lab.picture() == before
        assert await lab.store.read_position("reader") == first

    async def _write(self, lab: Lab, write: str, lock: LockClaim, position: str) -> None:
        match write:
            case "renew":
                await lab.store.renew_lock(lock, lease=9 * lab.lease)
            case "release":
                await lab.store.release_lock(lock)
            case "save_position":
                await lab.store.save_position("reader", position, lock=lock)
