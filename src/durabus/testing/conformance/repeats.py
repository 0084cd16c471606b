"""Proof that every call can be repeated. ``obeying`` skips tests of features that the store declares missing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import wraps
from typing import Any

import pytest

from durabus.errors import LeaseLost, UnsupportedByStore
from durabus.model.claim import HandlerClaim, HandlerClaimRequest, new_incarnation, new_token
from durabus.model.handler import HandlerInfo
from durabus.model.result import HandlerResult
from durabus.model.settlement import Cancel, Complete, Fail, Keep, Release, Settlement
from durabus.model.statuses import EventStatus, ResultStatus
from durabus.store.contract import EventStore
from durabus.store.processes import PRESENT_FOR
from durabus.testing.conformance.handler_claims import handler_request
from durabus.testing.conformance.lab import ALICE, BOB, BUS, Lab, VerbCall, batch, reader_lock

DECLARABLE = ("children", "idempotency_keys", "serial_modes")
"""Features that tests of other promises use."""


def obeying(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Return the test. It is skipped if the store refuses a feature that it declares missing. Other refusals fail."""

    @wraps(test)
    async def run(self: Any, *args: Any, **fixtures: Any) -> None:
        try:
            await test(self, *args, **fixtures)
        except (UnsupportedByStore, BaseExceptionGroup) as error:
            features = fixtures["lab"].store.features if "lab" in fixtures else None
            for feature in DECLARABLE:
                declared = features is not None and not getattr(features, feature)
                if declared and any(f"{feature}=False" in str(one) for one in _refusals(error)):
                    pytest.skip(f"declared: {feature}=False")
            raise

    return run


def _refusals(error: BaseException) -> Iterator[UnsupportedByStore]:
    if isinstance(error, UnsupportedByStore):
        yield error
    elif isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _refusals(one)


Preparation = Callable[[Lab], Awaitable[VerbCall]]
"""Brings the store into the state that a call needs, and returns the call."""
DONE = HandlerResult(handler_id="a", status=ResultStatus.SUCCEEDED, value_json="1", execution_time_ms=2.0)


async def _add(_lab: Lab) -> VerbCall:
    new = batch(3)
    return lambda node: node.add_events(new)


async def _claim(lab: Lab) -> VerbCall:
    await lab.publish(3)
    request = lab.request(limit=2)
    return lambda node: node.claim_next_events(request)


async def _take_over(lab: Lab) -> VerbCall:
    await lab.publish(3)
    await lab.claim(limit=2, worker_id=BOB)
    await lab.let_the_lease_end()
    request = lab.request(limit=3)
    return lambda node: node.claim_next_events(request)


async def _start(lab: Lab) -> VerbCall:
    claim = await lab.claimed()
    return lambda node: node.start_events([claim.ref])


async def _complete(lab: Lab) -> VerbCall:
    claim = await lab.claimed()
    return lambda node: node.settle_events([Complete(claim.ref, (DONE,), execution_time_ms=1.0, status_code=200)])


async def _complete_with_errors(lab: Lab) -> VerbCall:
    claim = await lab.claimed()
    return lambda node: node.settle_events([Complete(claim.ref, errors=("no",))])


async def _fail(lab: Lab) -> VerbCall:
    claim = await lab.claimed()
    return lambda node: node.settle_events([Fail(claim.ref, "no", 5 * lab.moment, (DONE,))])


async def _fail_for_good(lab: Lab) -> VerbCall:
    claim = await lab.claimed()
    return lambda node: node.settle_events([Fail(claim.ref, "no", None, (DONE,))])


async def _release(lab: Lab) -> VerbCall:
    claim = await lab.claimed()
    return lambda node: node.settle_events([Release(claim.ref, 5 * lab.moment, (DONE,))])


async def _settle_a_mixed_batch_and_claim(lab: Lab) -> VerbCall:
    await lab.publish(5)
    a, b, c = await lab.claim(limit=3)
    then = lab.request(limit=2)
    settlements: list[Settlement] = [Complete(a.ref), Fail(b.ref, "no", 5 * lab.moment), Release(c.ref, 5 * lab.moment)]
    return lambda node: node.settle_events(settlements, then_claim=then)


async def _reset(lab: Lab) -> VerbCall:
    claim = await lab.claimed()
    return lambda node: node.reset_event(claim.event.id, reason="stuck")


async def _cancel(lab: Lab) -> VerbCall:
    claim = await lab.claimed()
    return lambda node: node.cancel_event(claim.event.id, reason="not wanted")


async def _settle_as_cancelled(lab: Lab) -> VerbCall:
    claim = await lab.claimed()
    return lambda node: node.settle_events([Cancel(claim.ref, "expired", (DONE,))])


async def _requeue(lab: Lab) -> VerbCall:
    events = [await lab.ended(EventStatus.FAILED) for _ in range(2)]
    return lambda node: node.requeue_dead_letters([event.id for event in events])


async def claimed_handler(lab: Lab) -> tuple[HandlerClaimRequest, HandlerClaim]:
    """Claim an event and one of its handlers."""
    claim = await lab.claimed()
    request = handler_request(lab, claim, ("a", "b"))
    granted = await lab.store.claim_next_handler_result(request)
    assert granted is not None
    return request, granted


async def _keep_results(lab: Lab) -> VerbCall:
    kept = [Keep((await lab.claimed()).ref, (DONE,)) for _ in range(2)]
    return lambda node: node.keep_results(kept)


async def _claim_handler(lab: Lab) -> VerbCall:
    request, _ = await claimed_handler(lab)
    return lambda node: node.claim_next_handler_result(request)


async def _complete_handler(lab: Lab) -> VerbCall:
    _, claim = await claimed_handler(lab)
    return lambda node: node.complete_handler_result(claim, DONE)


async def _release_handler(lab: Lab) -> VerbCall:
    _, claim = await claimed_handler(lab)
    return lambda node: node.release_handler_claim(claim)


async def _complete_if_done(lab: Lab) -> VerbCall:
    request, claim = await claimed_handler(lab)
    await lab.store.complete_handler_result(claim, DONE)
    return lambda node: node.complete_event_if_done(request.event, ["a"])


async def _claim_lock(lab: Lab) -> VerbCall:
    token = new_token()
    return lambda node: node.claim_lock("reader", worker_id=ALICE, token=token, lease=lab.lease)


async def _release_lock(lab: Lab) -> VerbCall:
    lock = await reader_lock(lab)
    return lambda node: node.release_lock(lock)


async def _save_position(lab: Lab) -> VerbCall:
    await lab.publish()
    lock, head = await reader_lock(lab), await lab.store.log_head()
    return lambda node: node.save_position("reader", head, lock=lock)


ANSWERED_ALIKE: list[Preparation] = [
    _add,
    _claim,
    _take_over,
    _start,
    _complete,
    _complete_with_errors,
    _fail,
    _fail_for_good,
    _release,
    _settle_a_mixed_batch_and_claim,
    _reset,
    _cancel,
    _settle_as_cancelled,
    _requeue,
    _keep_results,
    _claim_handler,
    _complete_handler,
    _release_handler,
    _complete_if_done,
    _claim_lock,
    _release_lock,
    _save_position,
]


async def _expire(lab: Lab) -> VerbCall:
    await lab.claimed()
    await lab.let_the_lease_end()
    return lambda node: node.expire_events()


async def _end_process(lab: Lab) -> VerbCall:
    dead = new_incarnation()
    await lab.publish_one()
    await lab.claim_one(token=new_token(dead))
    await lab.advance(PRESENT_FOR)
    return lambda node: node.end_process(dead)


async def _remove(lab: Lab) -> VerbCall:
    event = await lab.publish_one()
    return lambda node: node.remove_event(event.id)


async def _trim(lab: Lab) -> VerbCall:
    await lab.ended(EventStatus.COMPLETED)
    return lambda node: node.trim_event_history(BUS, older_than=0)


async def _cleanup(lab: Lab) -> VerbCall:
    await lab.ended(EventStatus.COMPLETED)
    return lambda node: node.cleanup_excess_events(BUS, keep=0)


async def _cleanup_results(lab: Lab) -> VerbCall:
    claim = await lab.claimed()
    await lab.settle_one(Complete(claim.ref, (DONE,)))
    return lambda node: node.cleanup_results()


async def _purge(lab: Lab) -> VerbCall:
    event = await lab.ended(EventStatus.FAILED)
    return lambda node: node.purge_dead_letters(created_until_ts=event.created_ts)


async def _purge_by_id(lab: Lab) -> VerbCall:
    event = await lab.ended(EventStatus.FAILED)

    async def purge(node: EventStore) -> int:
        return len(await node.purge_dead_letters_by_id([event.id]))

    return purge


async def _archive(lab: Lab) -> VerbCall:
    await lab.store.register_handlers(BUS, "n1", [], kept_for=None)
    await lab.store.stop_bus(BUS)
    return lambda node: node.archive_buses(stopped_for=0)


async def _unregister(lab: Lab) -> VerbCall:
    await lab.store.register_handlers(BUS, "n1", [HandlerInfo(handler_id="a", pattern="*")], kept_for=None)
    return lambda node: node.unregister_handler(BUS, "a")


EFFECTIVE_ONCE: list[Preparation] = [
    _expire,
    _end_process,
    _remove,
    _trim,
    _cleanup,
    _cleanup_results,
    _purge,
    _purge_by_id,
    _archive,
    _unregister,
]


def spoken(prepare: Preparation) -> str:
    """Return the name of a preparation as words."""
    return getattr(prepare, "__name__", "").strip("_").replace("_", " ")


class RepeatTests:
    """The outcome of a call is unknown, so the caller repeats it, perhaps on another node."""

    @pytest.mark.parametrize("prepare", ANSWERED_ALIKE, ids=spoken)
    async def test_a_repeat_returns_what_the_first_call_returned(
        self, lab: Lab, other_node: EventStore, prepare: Preparation
    ) -> None:
        """Every call is safe to repeat with the same arguments after a lost reply: it either takes effect once, or
        returns what the first call returned.
        """
        call = await prepare(lab)
        first = await call(lab.store)
        before = await lab.picture()
        for node in (lab.store, other_node):
            await lab.advance(lab.moment)
            assert await call(node) == first
        assert await lab.picture() == before

    @pytest.mark.parametrize("prepare", EFFECTIVE_ONCE, ids=spoken)
    async def test_a_repeat_takes_effect_once(self, lab: Lab, other_node: EventStore, prepare: Preparation) -> None:
        """Every call is safe to repeat with the same arguments after a lost reply: it either takes effect once, or
        returns what the first call returned.
        """
        call = await prepare(lab)
        assert await call(lab.store) == 1
        before = await lab.picture()
        for node in (lab.store, other_node):
            assert await call(node) == 0
        assert await lab.picture() == before

    @pytest.mark.parametrize("then", ["claimed", "completed", "reset", "cancelled", "requeued"])
    async def test_a_repeated_settlement_returns_its_outcome_until_a_newer_one(
        self, lab: Lab, other_node: EventStore, then: str
    ) -> None:
        """An exact repeat of the newest settlement of an event (same token and fence, same kind) returns the outcome of
        the first call and writes nothing. A store that lost the server's reply repeats the call by itself. If the event
        was settled again in the meantime, the outcome of that repeat is ``LeaseLost`` too.
        """
        claim = await lab.claimed()
        settlement = Fail(claim.ref, "no", None if then == "requeued" else 0.0)
        (first,) = await lab.settle(settlement)
        if then == "requeued":
            await lab.store.requeue_dead_letters([claim.event.id])
        else:
            taken = await lab.claim_one(other_node, worker_id=BOB)
            if then == "completed":
                await lab.settle_one(Complete(taken.ref))
            if then == "reset":
                await lab.store.reset_event(claim.event.id, reason="stuck")
            if then == "cancelled":
                await lab.store.cancel_event(claim.event.id, reason="not wanted")
        before = await lab.picture()
        (again,) = await lab.settle(settlement)
        if then == "completed":
            assert isinstance(again, LeaseLost)
        else:
            assert again == first
        assert await lab.picture() == before

    @pytest.mark.parametrize("first", ["complete", "fail", "release", "cancel"])
    @pytest.mark.parametrize("second", ["complete", "fail", "release", "cancel"])
    async def test_another_kind_of_settlement_is_no_repeat(self, lab: Lab, first: str, second: str) -> None:
        """An exact repeat of the newest settlement of an event (same token and fence, same kind) returns the outcome of
        the first call and writes nothing.
        """
        claim = await lab.claimed()
        kinds: dict[str, Settlement] = {
            "complete": Complete(claim.ref),
            "fail": Fail(claim.ref, "no", 0.0),
            "release": Release(claim.ref),
            "cancel": Cancel(claim.ref, "expired"),
        }
        settled = await lab.settle_one(kinds[first])
        before = await lab.picture()
        (outcome,) = await lab.settle(kinds[second])
        if first == second:
            assert outcome == settled
        else:
            assert isinstance(outcome, LeaseLost)
        assert await lab.picture() == before

    async def test_a_repeated_renewal_extends_from_the_new_now(self, lab: Lab, other_node: EventStore) -> None:
        """Extend each lease to ``lease`` seconds from the store's present time, and return the new expiry of each."""
        _, handler = await claimed_handler(lab)
        (held,) = await lab.store.list_locks()
        await lab.advance(5 * lab.moment)
        now = await lab.store.now()
        for node in (lab.store, other_node):
            (expiry,) = await node.renew_handler_claims([handler], lease=lab.lease)
            assert isinstance(expiry, float)
            assert lab.same_time(expiry, now + lab.lease)
        (renewed,) = await lab.store.list_locks()
        assert renewed.expires_ts > held.expires_ts
        assert renewed.fence == held.fence

    async def test_registering_and_stopping_again_keeps_one_registration(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """Every call is safe to repeat with the same arguments after a lost reply: it either takes effect once, or
        returns what the first call returned.
        """
        handlers = [HandlerInfo(handler_id="a", pattern="*")]
        for node in (lab.store, other_node):
            await node.register_handlers(BUS, "n1", handlers, kept_for=None)
        assert len((await lab.store.list_handlers(BUS)).handlers) == 1
        for node in (lab.store, other_node):
            await node.stop_bus(BUS)
        (info,) = await lab.store.list_buses()
        assert info.stopped_ts is not None
