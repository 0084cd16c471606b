"""The rules of claims on one handler of an event, and of locks."""

from __future__ import annotations

from msgspec.structs import replace

from durabus.lifecycle.state import HELD, NOT_YOURS, Applied, EventState, HandlerState, LockState, Refused
from durabus.model.claim import HandlerClaim, HandlerClaimRequest, LockClaim
from durabus.model.result import HandlerResult
from durabus.model.settlement import Keep
from durabus.model.statuses import SETTLED, EventStatus, ResultStatus


def claim_handler(
    state: EventState, request: HandlerClaimRequest, now: float
) -> tuple[EventState, HandlerClaim] | None:
    """Claim the first requested handler that is neither settled nor under an unexpired claim.

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
        if result.status is ResultStatus.PROCESSING and result.expires_ts is not None and result.expires_ts > now:
            continue
        result = replace(
            result,
            status=ResultStatus.PROCESSING,
            attempts=result.attempts + 1,
            fence=result.fence + 1,
            worker_id=request.worker_id,
            expires_ts=now + request.lease,
        )
        claimed = HandlerState(result, request.token, handler.settled_token)
        return _with(state, claimed), handler_claim(state, claimed)
    return None


def renew_handler(state: EventState, claim: HandlerClaim, lease: float, now: float) -> Applied | Refused:
    """Extend a handler claim. Only the token decides, even if the lease is over."""
    handler = _held(state, claim)
    if handler is None:
        return Refused(NOT_YOURS)
    return Applied(_with(state, replace(handler, result=replace(handler.result, expires_ts=now + lease))))


def release_handler(state: EventState, claim: HandlerClaim) -> Applied | Refused:
    """Give up a handler claim; the handler gets its attempt back. A repeat changes nothing."""
    handler = _settleable(state, claim)
    if handler is None:
        return Applied(state) if _settled_so(state, claim, ResultStatus.PENDING) else Refused(NOT_YOURS)
    result = replace(
        handler.result,
        status=ResultStatus.PENDING,
        attempts=handler.result.attempts - 1,
        worker_id=None,
        expires_ts=None,
    )
    return Applied(_with(state, HandlerState(result, None, claim.token)))


def complete_handler(state: EventState, claim: HandlerClaim, outcome: HandlerResult) -> Applied | Refused:
    """Write what the handler did. Attempts and fence stay as the claim set them."""
    handler = _settleable(state, claim)
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
    """Write results under the claim on the event, which goes on. Late but not overtaken counts."""
    if not state.settles(keep.ref):
        return Refused(NOT_YOURS)
    return Applied(replace(state, handlers=merge_results(state.handlers, keep.results)))


def merge_results(handlers: tuple[HandlerState, ...], results: tuple[HandlerResult, ...]) -> tuple[HandlerState, ...]:
    """Return ``handlers`` after ``results`` have replaced those with the same handler id."""
    if not results:
        return handlers
    merged = {handler.result.handler_id: handler for handler in handlers}
    for result in results:
        old = merged.get(result.handler_id)
        fence = result.fence if old is None else max(result.fence, old.result.fence)
        merged[result.handler_id] = HandlerState(replace(result, fence=fence))
    return tuple(merged.values())


def void_handler(state: EventState, token: str) -> EventState:
    """End the handler claim ``token``: its lock expired and another handler took it. The attempt stays counted."""
    held = next((handler for handler in state.handlers if handler.token == token), None)
    if held is None:
        return state
    result = replace(held.result, status=ResultStatus.PENDING, worker_id=None, expires_ts=None)
    return _with(state, HandlerState(result, None, held.settled_token))


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
    return _current(state, claim) if state.event.status is EventStatus.PROCESSING else None


def _settleable(state: EventState, claim: HandlerClaim) -> HandlerState | None:
    """Return the handler that the claim may still settle.

    If the event was abandoned and has not been claimed again, its handler claims may still be settled.
    """
    return _current(state, claim) if state.abandoned is not None else _held(state, claim)


def _current(state: EventState, claim: HandlerClaim) -> HandlerState | None:
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
