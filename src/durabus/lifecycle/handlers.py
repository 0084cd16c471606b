"""The rules of claims on one handler of an event, and of locks."""

from __future__ import annotations

from hashlib import sha1

from msgspec.structs import replace

from durabus.lifecycle.state import HELD, NOT_YOURS, Applied, EventState, HandlerState, LockState, Refused
from durabus.model.claim import (
    ClaimRef,
    HandlerClaim,
    HandlerClaimRequest,
    LockClaim,
    OfferedHandler,
    OfferRequest,
    incarnation_of,
)
from durabus.model.result import OFFERABLE, OFFERED_AT_ONCE, HandlerResult
from durabus.model.settlement import HandlerSettlement, Keep
from durabus.model.statuses import LIVE, SETTLED, STEPS, EventStatus, HandlerMode, ResultStatus

MAX_LOGGED_BYTES = 4_096
"""The log keeps the value of a step up to this size."""


def claim_handler(
    state: EventState, request: HandlerClaimRequest, now: float, lock_key: str | None = None
) -> tuple[EventState, HandlerClaim] | None:
    """Claim the first requested handler that is neither settled nor under an unexpired claim.

    ``lock_key`` is the lock of a serial mode that the claim on the event holds. It is not free while the handler runs.

    A repeat returns the claim that its token holds. The event must be claimed under ``request.event``. The handler has
    its own lease, which stays valid until it expires even if another worker takes over the event. So there are never
    two valid claims on one handler.
    """
    if not holds_event(state, request):
        return None
    known = {handler.result.handler_id: handler for handler in state.handlers}
    for handler_id in request.handler_ids:
        handler = known.get(handler_id)
        if handler is not None and handler.token == request.token:
            return state, handler_claim(state, handler)
    for handler_id in request.handler_ids:
        handler = known.get(handler_id)
        if handler is None:
            handler = HandlerState(HandlerResult(handler_id=handler_id, status=ResultStatus.PENDING))
        result = handler.result
        if result.status in SETTLED:
            continue
        if result.status in OFFERABLE and result.expires_ts is not None and result.expires_ts > now:
            continue
        result = replace(
            result,
            status=ResultStatus.PROCESSING,
            attempts=result.attempts + 1,
            fence=result.fence + 1,
            worker_id=request.worker_id,
            expires_ts=now + request.lease,
        )
        claimed = HandlerState(result, request.token, handler.settled_token, lock_key)
        return _with(state, claimed), handler_claim(state, claimed)
    return None


def offered_handlers(state: EventState, request: OfferRequest, now: float) -> list[HandlerClaimRequest]:
    """Return a request for each handler of the event that is offered now and that ``request`` asks for.

    With ``mode`` serial, it is at most one: handlers that one token claims would share the lock.
    """
    if state.event.status is not EventStatus.PROCESSING or state.token is None:
        return []
    event = ClaimRef(state.event.id, state.token, state.event.fence)
    offered = [
        request.for_handler(event, result.handler_id)
        for result in state.results
        if result.status in OFFERABLE
        and result.expires_ts is not None
        and result.expires_ts <= now
        and result.handler_id in request.handler_ids
    ]
    return offered[:1] if request.mode is HandlerMode.SERIAL else offered


def held_handlers(state: EventState, token: str) -> list[OfferedHandler]:
    """Return the handlers of the event that a token has claimed."""
    if state.event.status not in LIVE:
        return []
    return [
        OfferedHandler(state.event, handler_claim(state, handler), state.results)
        for handler in state.handlers
        if handler.token == token
    ]


def has_offers(state: EventState) -> bool:
    """Return whether a handler of the event is offered or claimed, so that other workers may claim it some time."""
    return state.event.status in LIVE and any(handler.result.is_offered for handler in state.handlers)


def renew_handler(state: EventState, claim: HandlerClaim, lease: float, now: float) -> Applied | Refused:
    """Extend a handler claim. Only the token decides, even if the lease is over."""
    handler = _held(state, claim)
    if handler is None:
        return Refused(NOT_YOURS)
    return Applied(_with(state, replace(handler, result=replace(handler.result, expires_ts=now + lease))))


def settle_handler(state: EventState, settlement: HandlerSettlement, now: float) -> Applied | Refused:
    """End a handler claim, with an outcome or without one."""
    if settlement.outcome is None:
        return release_handler(state, settlement.claim, now + settlement.delay)
    return complete_handler(state, settlement.claim, settlement.outcome)


def release_handler(state: EventState, claim: HandlerClaim, offered_ts: float = OFFERED_AT_ONCE) -> Applied | Refused:
    """Give up a handler claim; the handler gets its attempt back and is offered again. A repeat changes nothing."""
    handler = _held(state, claim)
    if handler is None:
        return Applied(state) if _settled_so(state, claim, ResultStatus.PENDING) else Refused(NOT_YOURS)
    result = replace(
        handler.result,
        status=ResultStatus.PENDING,
        attempts=handler.result.attempts - 1,
        worker_id=None,
        expires_ts=offered_ts,
    )
    return Applied(_with(state, HandlerState(result, None, claim.token)))


def complete_handler(state: EventState, claim: HandlerClaim, outcome: HandlerResult) -> Applied | Refused:
    """Write what the handler did. Attempts and fence stay as the claim set them."""
    handler = _held(state, claim)
    if handler is None:
        return Applied(state) if _settled_so(state, claim, outcome.status) else Refused(NOT_YOURS)
    result = replace(
        handler.result,
        status=outcome.status,
        error=outcome.error,
        value_json=outcome.value_json,
        execution_time_ms=outcome.execution_time_ms,
        expires_ts=None,
    )
    return Applied(_with(state, HandlerState(result, None, claim.token)))


def keep_results(state: EventState, keep: Keep) -> Applied | Refused:
    """Write results under the claim on the event or on one of its handlers, which goes on.

    Late but not overtaken counts.
    """
    ref = keep.ref
    if not state.settles(ref) if isinstance(ref, ClaimRef) else _held(state, ref) is None:
        return Refused(NOT_YOURS)
    return Applied(replace(state, handlers=merge_results(state.handlers, keep.results)))


def merge_results(handlers: tuple[HandlerState, ...], results: tuple[HandlerResult, ...]) -> tuple[HandlerState, ...]:
    """Return ``handlers`` after ``results`` have replaced those with the same handler id.

    A wait that was met meanwhile stays as it is: the worker that still waits does not know yet.
    """
    if not results:
        return handlers
    merged = {handler.result.handler_id: handler for handler in handlers}
    for result in results:
        old = merged.get(result.handler_id)
        if old is not None and result.status is ResultStatus.WAITING and old.result.status in STEPS:
            continue
        if old is not None and _comes_too_late(result, old):
            continue
        fence = result.fence if old is None else max(result.fence, old.result.fence)
        merged[result.handler_id] = HandlerState(replace(result, fence=fence))
    return tuple(merged.values())


def _comes_too_late(new: HandlerResult, old: HandlerState) -> bool:
    """Return whether ``new`` offers a handler that is offered, claimed or settled already: the offer is a repeat.

    An offer has the fence that its worker knows. Each claim on the handler raises the fence.
    """
    if new.status is not ResultStatus.PENDING or new.expires_ts is None:
        return False
    known = old.result
    return known.fence != new.fence or known.is_offered or known.status in SETTLED


def void_handler(state: EventState, token: str) -> EventState:
    """End the handler claim ``token``: its lock expired and another handler took it. The attempt stays counted.

    The handler is offered again.
    """
    held = next((handler for handler in state.handlers if handler.token == token), None)
    if held is None:
        return state
    return _with(state, _voided(held, OFFERED_AT_ONCE))


def runs_under(state: EventState, lock_key: str, now: float) -> bool:
    """Return whether a worker may still run a handler of the event that it claimed under a lock of a serial mode.

    The lock is not free then, although the claim on the event may have ended.
    """
    return state.event.status in LIVE and any(
        handler.lock_key == lock_key and (handler.result.expires_ts or 0.0) > now for handler in state.handlers
    )


def void_handlers_under(state: EventState, lock_key: str, now: float) -> EventState:
    """End the handler claims under a lock that another claim takes. It may do so only once their leases are over.

    The handlers are offered again.
    """
    over = [one for one in state.handlers if one.lock_key == lock_key and (one.result.expires_ts or 0.0) <= now]
    if state.event.status not in LIVE or not over:
        return state
    return replace(state, handlers=tuple(_voided(h, OFFERED_AT_ONCE) if h in over else h for h in state.handlers))


def _voided(handler: HandlerState, offered_ts: float | None = None) -> HandlerState:
    result = replace(handler.result, status=ResultStatus.PENDING, worker_id=None, expires_ts=offered_ts)
    return HandlerState(result, None, handler.settled_token)


def void_handlers(handlers: tuple[HandlerState, ...]) -> tuple[HandlerState, ...]:
    """End all handler claims: the event is cancelled."""
    return tuple(handler if handler.token is None else _voided(handler) for handler in handlers) if handlers else ()


def ended_handler_claims(before: EventState, after: EventState) -> set[str]:
    """Return the tokens of the handler claims that a step has ended."""
    held = {(handler.result.handler_id, handler.token) for handler in after.handlers}
    return {h.token for h in before.handlers if h.token is not None and (h.result.handler_id, h.token) not in held}


def stopped_until(before: tuple[HandlerState, ...], after: tuple[HandlerState, ...]) -> float:
    """Return when the last lease is over of the handler claims that a step ended; 0 if it ended none.

    The worker of such a claim learns of the end at its next renewal, so it may run the handler until then.
    """
    held = {(handler.result.handler_id, handler.token) for handler in after}
    ended = (h for h in before if h.token is not None and (h.result.handler_id, h.token) not in held)
    return max((handler.result.expires_ts or 0.0 for handler in ended), default=0.0)


def end_handler_claims(state: EventState, incarnation: str, now: float) -> EventState:
    """End the leases of handler claims that belong to a process that has ended. Only time decides from then on."""
    if not any(_runs_in(handler, incarnation, now) for handler in state.handlers):
        return state
    ended = (
        replace(one, result=replace(one.result, expires_ts=now)) if _runs_in(one, incarnation, now) else one
        for one in state.handlers
    )
    return replace(state, handlers=tuple(ended))


def _runs_in(handler: HandlerState, incarnation: str, now: float) -> bool:
    expires = handler.result.expires_ts
    return expires is not None and expires > now and incarnation_of(handler.token or "") == incarnation


def end_lock(lock: LockState, incarnation: str, now: float) -> LockState:
    """End the lease of a lock that belongs to a process that has ended, unless it is over. The fence stays."""
    lives = lock.token is not None and lock.expires_ts > now and incarnation_of(lock.token) == incarnation
    return replace(lock, expires_ts=now) if lives else lock


def handlers_done(state: EventState, handler_ids: tuple[str, ...]) -> bool:
    """Return whether no handler is left to run: all are settled, or one result is UNRECOVERABLE."""
    statuses = {handler.result.handler_id: handler.result.status for handler in state.handlers}
    return ResultStatus.UNRECOVERABLE in statuses.values() or all(statuses.get(h) in SETTLED for h in handler_ids)


def holds_event(state: EventState, request: HandlerClaimRequest) -> bool:
    """Return whether the request carries the current claim of the event."""
    return (
        state.event.status is EventStatus.PROCESSING
        and state.token == request.event.token
        and state.event.fence == request.event.fence
    )


def handler_claim(state: EventState, handler: HandlerState) -> HandlerClaim:
    """Return the claim that holds ``handler``."""
    return HandlerClaim(
        id=state.event.id,
        handler_id=handler.result.handler_id,
        token=handler.token or "",
        fence=handler.result.fence,
        attempts=handler.result.attempts,
        expires_ts=handler.result.expires_ts or 0.0,
    )


def logged(result: HandlerResult) -> HandlerResult:
    """Return a result as the log keeps it: of a large value of a step only the SHA-1 and the size."""
    text = result.value_json
    if result.status is not ResultStatus.KEPT or text is None or len(text.encode()) <= MAX_LOGGED_BYTES:
        return result
    data = text.encode()
    digest = sha1(data, usedforsecurity=False).hexdigest()
    return replace(result, value_json=f'{{"sha1":"{digest}","bytes":{len(data)}}}')


def claim_lock(
    lock: LockState | None, *, key: str, worker_id: str, token: str, lease: float, fence: int, now: float
) -> LockState | Refused:
    """Take a lock that is free or whose lease is over. A repeat returns the lock unchanged.

    The caller gives a ``fence`` that is larger than every fence this key ever had.
    """
    if lock is not None and lock.token is not None:
        if lock.token == token:
            return lock
        if lock.expires_ts > now:
            return Refused(HELD)
    return LockState(key=key, fence=fence, worker_id=worker_id, token=token, expires_ts=now + lease)


def renew_lock(lock: LockState | None, claim: LockClaim, lease: float, now: float) -> LockState | Refused:
    """Extend a held lock. Only the token decides, even if the lease is over."""
    if lock is None or lock.token != claim.token or lock.fence != claim.fence:
        return Refused(NOT_YOURS)
    return replace(lock, expires_ts=now + lease)


def release_lock(lock: LockState | None, claim: LockClaim) -> LockState | Refused:
    """Free a held lock. The fence stays, so that the next holder gets a larger one."""
    if lock is None or lock.fence != claim.fence or (lock.token is not None and lock.token != claim.token):
        return Refused(NOT_YOURS)
    return replace(lock, token=None, expires_ts=0.0)


def _find(state: EventState, handler_id: str) -> HandlerState | None:
    return next((h for h in state.handlers if h.result.handler_id == handler_id), None)


def _held(state: EventState, claim: HandlerClaim) -> HandlerState | None:
    """Return the handler that the claim holds. It holds it until the event ends or another claim takes the handler.

    The claim on the event may end before: the next worker that claims the event finds the handler claimed.
    """
    if state.event.status not in LIVE:
        return None
    handler = _find(state, claim.handler_id)
    if handler is None or handler.token != claim.token or handler.result.fence != claim.fence:
        return None
    return handler


def _settled_so(state: EventState, claim: HandlerClaim, status: ResultStatus) -> bool:
    """Return whether the newest settlement of the handler is this claim's, with ``status``."""
    handler = _find(state, claim.handler_id)
    if handler is None or handler.token is not None or handler.settled_token != claim.token:
        return False
    return handler.result.fence == claim.fence and handler.result.status is status


def _with(state: EventState, changed: HandlerState) -> EventState:
    others = {handler.result.handler_id: handler for handler in state.handlers}
    others[changed.result.handler_id] = changed
    return replace(state, handlers=tuple(others.values()))
