"""The commands of a differential run. Each store of the run gets the same ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from durabus.model.claim import (
    ClaimRef,
    ClaimRequest,
    HandlerClaim,
    HandlerClaimRequest,
    OfferRequest,
    new_token,
)
from durabus.model.event import NewEvent
from durabus.model.query import EventQuery
from durabus.model.result import HandlerResult, offer
from durabus.model.settlement import Cancel, Complete, Fail, Keep, Release, Settlement
from durabus.model.statuses import EventStatus, HandlerMode, ResultStatus
from durabus.model.wait import Scalar, new_wait, waiting
from durabus.store.log import ARCHIVE
from durabus.testing.conformance.sides import (
    BUSES,
    HANDLERS,
    INCARNATIONS,
    KEYED,
    LEASE,
    MODES,
    OUTCOMES,
    TAGS,
    WORKERS,
    Side,
    SideStep,
    made_name,
)

Verb = Callable[[Side, SideStep], Awaitable[Any]]


async def _add(side: Side, step: SideStep) -> Any:
    new = [
        NewEvent(
            event_id=made_name("event", (step.a + n) % 40),
            bus=BUSES[(step.b + n) % 2],
            type=f"kind.{(step.c + n) % 3}",
            payload_json=f'{{"n":{step.a + n},"group":{(step.a + n) % 3}}}',
            metadata_json=KEYED[(step.a + step.b + n) % 5] if side.gives_keys else None,
            tags=TAGS[(step.c + n) % 4],
            priority=(0, 0, 5, -5)[(step.b + n) % 4],
            delay=(0.0, 0.0, 0.0, 7.0)[(step.a + n) % 4],
            max_attempts=(None, 1, 2, 3)[(step.c + step.a) % 4],
            parent_id=made_name("event", step.b % 40) if step.c % 4 == 1 else None,
            idempotency_key=f"key-{step.b % 6}" if step.c % 3 == 0 else None,
        )
        for n in range(1 + step.c % 3)
    ]
    return side.learn(await side.store.add_events(new))


def _request(side: Side, step: SideStep) -> ClaimRequest:
    if side.requests and step.c % 7 == 0:
        return side.requests[-1 - step.a % min(len(side.requests), 3)]
    request = ClaimRequest(
        bus=BUSES[step.a % 2],
        worker_id=WORKERS[step.b % 2],
        token=side.token(),
        limit=1 + step.c % 4,
        lease=LEASE,
        mode=MODES[step.b % 4],
        tags=TAGS[step.a % 4] if step.c % 4 == 0 else (),
        max_attempts=(None, None, 2)[step.b % 3],
        event_id=made_name("event", step.a % 40) if side.asks_by_name and step.c % 6 == 1 else None,
    )
    side.requests.append(request)
    return request


async def _claim(side: Side, step: SideStep) -> Any:
    return side.granted(await side.store.claim_next_events(_request(side, step)))


async def _start(side: Side, step: SideStep) -> Any:
    return await side.store.start_events([side.ref(step)])


async def _renew(side: Side, step: SideStep) -> Any:
    return await side.store.renew_event_claims([side.ref(step)], lease=LEASE + step.b % 5)


def _settlement(side: Side, step: SideStep) -> Settlement:
    if side.settled and step.b % 9 == 0:
        return side.settled[-1 - step.a % min(len(side.settled), 3)]
    ref, results = side.ref(step), _results(step)
    children = _children(side, ref, step)
    made: Settlement
    match step.b % 7:
        case 0 | 1:
            code, reason, only = (None, 200)[step.a % 2], _reason(step), (None, *HANDLERS)[step.c % 4]
            made = Complete(ref, results, (), float(step.a), code, reason, only, children)
        case 2:
            made = Complete(ref, results, errors=(f"error {step.a}",))
        case 3:
            made = Fail(ref, f"failed {step.a}", float(step.c % 3) * 4, results, children=children)
        case 4:
            made = Fail(ref, f"failed {step.a}", None, results, status_code=500)
        case 5:
            made = Cancel(ref, f"expired {step.a}", results)
        case _:
            waits, delay = side.has_children and step.a % 3 > 0, float(step.c % 3) * 4
            made = Release(ref, delay, results, _reason(step), children, waits)
    side.settled.append(made)
    return made


def _children(side: Side, ref: ClaimRef, step: SideStep) -> tuple[NewEvent, ...]:
    if not side.has_children or step.a % 4:
        return ()
    names = (made_name("event", step.c % 50), made_name("event", step.b % 50))
    bus, parent = BUSES[step.a % 2], side.names.get(ref.id, made_name("event", 0))
    return tuple(NewEvent(event_id=n, bus=bus, type="child", payload_json="1", parent_id=parent) for n in names)


def _reason(step: SideStep) -> str | None:
    return (None, "no handler")[step.c % 2]


async def _settle(side: Side, step: SideStep) -> Any:
    made = [_settlement(side, step)]
    if step.a % 3 == 0:
        made.append(_settlement(side, msgspec.structs.replace(step, a=step.a + 1, b=step.b + 1)))
    then = _request(side, msgspec.structs.replace(step, c=step.c + 1)) if step.c % 4 == 0 else None
    answer = await side.store.settle_events(made, then_claim=then, with_entries=step.a % 2 == 0)
    side.ended([one.ref for one in made])
    return [answer.outcomes, side.granted(answer.claims)]


async def _wait(side: Side, step: SideStep) -> Any:
    """End a claim with a wait: for an event that is stored already, or that a later command stores, or for none."""
    if not side.has_waits:
        return await _settle(side, step)
    ref = side.ref(step)
    until = None if step.a % 3 == 0 else await side.store.now() + (3.0, 12.0)[step.a % 2]
    where: dict[str, Scalar] = {"group": step.c % 3} if step.b % 3 else {}
    wait = new_wait(side.buses.get(ref.id, BUSES[0]), f"kind.{step.c % 3}", where, until)
    results = (*_results(step), waiting(f"{HANDLERS[step.b % 3]} > wait_for", wait))
    delay = 3600.0 if until is None else (3.0, 12.0)[step.a % 2]
    made = Fail(ref, f"failed {step.a}", delay, results) if step.b % 5 == 0 else Release(ref, delay, results)
    side.settled.append(made)
    answer = await side.store.settle_events([made])
    side.ended([ref])
    return answer.outcomes


async def _claim_handler(side: Side, step: SideStep) -> Any:
    if side.handler_requests and step.c % 5 == 0:
        request = side.handler_requests[-1 - step.a % min(len(side.handler_requests), 3)]
    else:
        request = HandlerClaimRequest(
            event=side.ref(step),
            handler_ids=HANDLERS[step.a % 3 :] + HANDLERS[: step.b % 2],
            worker_id=WORKERS[step.b % 2],
            token=side.token(),
            lease=LEASE,
            mode=HandlerMode.SERIAL if step.b % 2 else HandlerMode.PARALLEL,
        )
        side.handler_requests.append(request)
    claim = await side.store.claim_next_handler_result(request)
    if claim is not None and claim not in side.handlers:
        side.handlers.append(claim)
        side.running.append(claim)
    return claim


async def _claim_offers(side: Side, step: SideStep) -> Any:
    if side.offers and step.c % 6 == 0:
        request = side.offers[-1 - step.a % min(len(side.offers), 3)]
    else:
        request = OfferRequest(
            bus=BUSES[step.a % 2],
            handler_ids=HANDLERS[step.a % 3 :] + HANDLERS[: step.b % 2],
            worker_id=WORKERS[step.b % 2],
            token=side.token(),
            limit=50,  # events have other numbers in the other store, so all or none
            lease=LEASE,
            mode=HandlerMode.SERIAL if step.c % 2 else HandlerMode.PARALLEL,
        )
        side.offers.append(request)
    found = await side.store.claim_offered_handlers(request)
    found.sort(key=lambda one: (one.event.event_id, one.claim.handler_id))
    side.learn([one.event for one in found])  # a worker of another node may have published and offered them
    new = [one.claim for one in found if one.claim not in side.handlers]
    side.handlers += new
    side.running += new
    return sorted((side.plain(one) for one in found), key=str)


def _handler(side: Side, step: SideStep) -> HandlerClaim:
    ghost = HandlerClaim(id=999_999, handler_id="a", token=made_name("token", 0), fence=1, attempts=1, expires_ts=0.0)
    among = (side.running if side.running and step.c % 4 else side.handlers) or [ghost]
    found = among[step.a % len(among)]
    return msgspec.structs.replace(found, fence=found.fence + 1) if step.c % 9 == 0 else found


async def _finish_handler(side: Side, step: SideStep) -> Any:
    if not side.running and step.c % 8:
        return await _claim_handler(side, step)
    claim = _handler(side, step)
    if step.b % 5 != 1:
        side.running = [one for one in side.running if one != claim]
    match step.b % 5:
        case 0:
            return await side.store.release_handler_claim(claim, delay=float(step.a % 3) * 4)
        case 1:
            return await side.store.renew_handler_claims([claim], lease=LEASE)
        case _:
            status = OUTCOMES[step.c % 4]
            outcome = HandlerResult(handler_id=claim.handler_id, status=status, error=None if step.c % 4 < 2 else "no")
            return await side.store.complete_handler_result(claim, outcome)


async def _keep_results(side: Side, step: SideStep) -> Any:
    ref, status = side.ref(step), (ResultStatus.SUCCEEDED, *OUTCOMES)[step.b % 5]
    result = HandlerResult(handler_id=HANDLERS[step.c % 3], status=status, attempts=1, value_json="7")
    if step.b % 3 == 0:
        result = offer(HANDLERS[step.c % 3])
    if side.running and step.a % 5 == 0:
        return await side.store.keep_results([Keep(_handler(side, step), (result,))])
    return await side.store.keep_results([Keep(ref, (result,) * (step.a % 2 + 1), _children(side, ref, step))])


async def _complete_if_done(side: Side, step: SideStep) -> Any:
    return await side.store.complete_event_if_done(side.ref(step), HANDLERS[: step.b % 4])


async def _lock(side: Side, step: SideStep) -> Any:
    if step.b % 3 == 0 or not side.locks:
        key, worker = ("report", "event:bus:orders", "event:global")[step.a % 3], WORKERS[step.c % 2]
        again = side.locks[-1] if side.locks and step.c % 5 == 0 else None
        key, worker, token = (key, worker, side.token()) if again is None else (again.key, again.worker_id, again.token)
        lock = await side.store.claim_lock(key, worker_id=worker, token=token, lease=LEASE)
        if lock is not None:
            side.locks.append(lock)
        return lock
    lock = side.locks[-1 - step.a % min(len(side.locks), 3)]
    if step.b % 3 == 1:
        return await side.store.renew_lock(lock, lease=LEASE)
    return await side.store.release_lock(lock)


async def _expire(side: Side, step: SideStep) -> Any:
    return await side.store.expire_events(max_attempts=(None, 2)[step.a % 2])


async def _end_process(side: Side, step: SideStep) -> Any:
    incarnation = INCARNATIONS[step.a % 2]
    return await side.store.end_process(incarnation, max_attempts=(None, 2)[step.b % 2], limit=(1, 2, 1000)[step.c % 3])


async def _reset(side: Side, step: SideStep) -> Any:
    return await side.store.reset_event(side.id(step), reason="stuck")


async def _cancel(side: Side, step: SideStep) -> Any:
    reason = f"not wanted {step.b}"
    if step.c % 2:
        return await side.store.cancel_events([side.id(step), *side.ids[-3:], side.id(step)], reason=reason)
    return await side.store.cancel_event(side.id(step), reason=reason)


async def _requeue(side: Side, step: SideStep) -> Any:
    page = await side.store.list_dead_letters()
    if not page.events and step.b % 4:
        return None
    if page.events and step.b % 4:
        return await side.store.requeue_dead_letters([page.events[step.a % len(page.events)].id])
    return await side.store.requeue_dead_letters([side.id(step)])


async def _archive(side: Side, name: str, *, known: bool) -> Any:
    lock = await side.store.claim_lock(name, worker_id="lake", token=new_token(), lease=30.0)
    if lock is None:
        return None
    await side.store.save_position(name, await side.store.log_head() if known else None, lock=lock)
    await side.store.release_lock(lock)
    return sorted((await side.store.read_archives()).positions)


async def _forget(side: Side, step: SideStep) -> Any:
    bus = BUSES[step.a % 2]
    match step.b % 7:
        case 0:
            return await side.store.trim_event_history(bus, older_than=float(step.c % 9), limit=2)
        case 1:
            return await side.store.cleanup_excess_events(bus, keep=step.c % 3, limit=2)
        case 2:
            until = await side.store.now() - step.c % 20
            return await side.store.purge_dead_letters(created_until_ts=until, bus=(bus, None)[step.c % 2], limit=2)
        case 3:
            return await side.store.cleanup_results()
        case 4:
            return len(await side.store.purge_dead_letters_by_id([side.id(step), *side.ids[-3:]]))
        case 5:
            return await _archive(side, f"{ARCHIVE}{step.a % 2}", known=bool(step.c % 3))
        case _:
            return await side.store.remove_event(side.id(step))


async def _look(side: Side, step: SideStep) -> Any:
    bus, store = BUSES[step.a % 2], side.store
    match step.b % 6:
        case 0:
            return await store.counts(bus)
        case 1:
            query = EventQuery(bus=bus, tags=TAGS[step.c % 4], statuses=tuple(EventStatus)[: step.c % 7], limit=3)
            return await store.find(query)
        case 2:
            return await store.list_dead_letters(bus=bus, limit=2, offset=step.c % 3)
        case 3:
            return [await store.active_buses(), await store.list_locks()]
        case 4:
            return await store.list_results(side.id(step))
        case _:
            return await store.read_event_log(side.id(step))


def _results(step: SideStep) -> tuple[HandlerResult, ...]:
    if step.c % 3:
        return ()
    status = OUTCOMES[step.a % 4]
    return (
        HandlerResult(handler_id=HANDLERS[step.b % 3], status=status, attempts=1, error="no" if step.a % 2 else None),
    )


VERBS: dict[str, tuple[Verb, int]] = {
    "add": (_add, 8),
    "claim": (_claim, 12),
    "start": (_start, 3),
    "renew": (_renew, 3),
    "settle": (_settle, 14),
    "wait": (_wait, 6),
    "claim handler": (_claim_handler, 7),
    "finish handler": (_finish_handler, 7),
    "claim offers": (_claim_offers, 5),
    "keep results": (_keep_results, 7),
    "complete if done": (_complete_if_done, 4),
    "lock": (_lock, 4),
    "expire": (_expire, 4),
    "end process": (_end_process, 3),
    "reset": (_reset, 2),
    "cancel": (_cancel, 2),
    "requeue": (_requeue, 4),
    "forget": (_forget, 3),
    "look": (_look, 3),
    "advance": (_look, 9),
}
