"""A scene for each call that may be made twice because its reply was lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from durabus.conformance.lab import ALICE, BOB, BUS, Lab, batch
from durabus.model.claim import HandlerClaim, HandlerClaimRequest, LockClaim, new_token
from durabus.model.handler import HandlerInfo
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Release, Settlement
from durabus.model.statuses import EventStatus, ResultStatus
from durabus.store.contract import EventStore

Call = Callable[[EventStore], Awaitable[object]]
Scenario = Callable[[Lab], Awaitable[Call]]
DONE = HandlerResult(handler_id="a", status=ResultStatus.SUCCEEDED, value_json="1", execution_time_ms=2.0)


async def _add(_lab: Lab) -> Call:
    new = batch(3)
    return lambda node: node.add_events(new)


async def _claim(lab: Lab) -> Call:
    await lab.publish(3)
    request = lab.request(limit=2)
    return lambda node: node.claim_next_events(request)


async def _take_over(lab: Lab) -> Call:
    await lab.publish(3)
    await lab.claim(limit=2, worker_id=BOB)
    await lab.let_the_lease_end()
    request = lab.request(limit=3)
    return lambda node: node.claim_next_events(request)


async def _start(lab: Lab) -> Call:
    claim = await lab.claimed()
    return lambda node: node.start_events([claim.ref])


async def _complete(lab: Lab) -> Call:
    claim = await lab.claimed()
    return lambda node: node.settle_events([Complete(claim.ref, (DONE,), execution_time_ms=1.0, status_code=200)])


async def _complete_with_errors(lab: Lab) -> Call:
    claim = await lab.claimed()
    return lambda node: node.settle_events([Complete(claim.ref, errors=("no",))])


async def _fail(lab: Lab) -> Call:
    claim = await lab.claimed()
    return lambda node: node.settle_events([Fail(claim.ref, "no", 5 * lab.moment, (DONE,))])


async def _fail_for_good(lab: Lab) -> Call:
    claim = await lab.claimed()
    return lambda node: node.settle_events([Fail(claim.ref, "no", None, (DONE,))])


async def _release(lab: Lab) -> Call:
    claim = await lab.claimed()
    return lambda node: node.settle_events([Release(claim.ref, 5 * lab.moment, (DONE,))])


async def _settle_a_mixed_batch_and_claim(lab: Lab) -> Call:
    await lab.publish(5)
    a, b, c = await lab.claim(limit=3)
    then = lab.request(limit=2)
    settlements: list[Settlement] = [Complete(a.ref), Fail(b.ref, "no", 5 * lab.moment), Release(c.ref, 5 * lab.moment)]
    return lambda node: node.settle_events(settlements, then_claim=then)


async def _reset(lab: Lab) -> Call:
    claim = await lab.claimed()
    return lambda node: node.reset_event(claim.event.id, reason="stuck")


async def _requeue(lab: Lab) -> Call:
    events = [await lab.ended(EventStatus.FAILED) for _ in range(2)]
    return lambda node: node.requeue_dead_letters([event.id for event in events])


async def claimed_handler(lab: Lab) -> tuple[HandlerClaimRequest, HandlerClaim]:
    """An event with one of its handlers claimed."""
    claim = await lab.claimed()
    request = HandlerClaimRequest(
        event=claim.ref, handler_ids=("a", "b"), worker_id=ALICE, token=new_token(), lease=lab.lease
    )
    granted = await lab.store.claim_next_handler_result(request)
    assert granted is not None
    return request, granted


async def _claim_handler(lab: Lab) -> Call:
    request, _ = await claimed_handler(lab)
    return lambda node: node.claim_next_handler_result(request)


async def _complete_handler(lab: Lab) -> Call:
    _, claim = await claimed_handler(lab)
    return lambda node: node.complete_handler_result(claim, DONE)


async def _release_handler(lab: Lab) -> Call:
    _, claim = await claimed_handler(lab)
    return lambda node: node.release_handler_claim(claim)


async def _complete_if_done(lab: Lab) -> Call:
    request, claim = await claimed_handler(lab)
    await lab.store.complete_handler_result(claim, DONE)
    return lambda node: node.complete_event_if_done(request.event, ["a"])


async def _lock(lab: Lab) -> LockClaim:
    lock = await lab.store.claim_lock("reader", worker_id=ALICE, token=new_token(), lease=lab.lease)
    assert lock is not None
    return lock


async def _claim_lock(lab: Lab) -> Call:
    token = new_token()
    return lambda node: node.claim_lock("reader", worker_id=ALICE, token=token, lease=lab.lease)


async def _release_lock(lab: Lab) -> Call:
    lock = await _lock(lab)
    return lambda node: node.release_lock(lock)


async def _save_position(lab: Lab) -> Call:
    await lab.publish()
    lock, head = await _lock(lab), await lab.store.log_head()
    return lambda node: node.save_position("reader", head, lock=lock)


ANSWERED_ALIKE: list[Scenario] = [
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
    _requeue,
    _claim_handler,
    _complete_handler,
    _release_handler,
    _complete_if_done,
    _claim_lock,
    _release_lock,
    _save_position,
]


async def _expire(lab: Lab) -> Call:
    await lab.claimed()
    await lab.let_the_lease_end()
    return lambda node: node.expire_events()


async def _remove(lab: Lab) -> Call:
    event = await lab.publish_one()
    return lambda node: node.remove_event(event.id)


async def _trim(lab: Lab) -> Call:
    await lab.ended(EventStatus.COMPLETED)
    return lambda node: node.trim_event_history(BUS, older_than=0)


async def _cleanup(lab: Lab) -> Call:
    await lab.ended(EventStatus.COMPLETED)
    return lambda node: node.cleanup_excess_events(BUS, keep=0)


async def _cleanup_results(lab: Lab) -> Call:
    claim = await lab.claimed()
    await lab.settle_one(Complete(claim.ref, (DONE,)))
    return lambda node: node.cleanup_results()


async def _purge(lab: Lab) -> Call:
    event = await lab.ended(EventStatus.FAILED)
    return lambda node: node.purge_dead_letters(created_until_ts=event.created_ts)


async def _purge_by_id(lab: Lab) -> Call:
    event = await lab.ended(EventStatus.FAILED)

    async def purge(node: EventStore) -> int:
        return len(await node.purge_dead_letters_by_id([event.id]))

    return purge


async def _archive(lab: Lab) -> Call:
    await lab.store.register_handlers(BUS, "n1", [], kept_for=None)
    await lab.store.stop_bus(BUS)
    return lambda node: node.archive_buses(stopped_for=0)


async def _unregister(lab: Lab) -> Call:
    await lab.store.register_handlers(BUS, "n1", [HandlerInfo(handler_id="a", pattern="*")], kept_for=None)
    return lambda node: node.unregister_handler(BUS, "a")


EFFECTIVE_ONCE: list[Scenario] = [
    _expire,
    _remove,
    _trim,
    _cleanup,
    _cleanup_results,
    _purge,
    _purge_by_id,
    _archive,
    _unregister,
]


def spoken(scenario: Scenario) -> str:
    """The name of a scene as words."""
    return getattr(scenario, "__name__", "").strip("_").replace("_", " ")
