"""Claims on one handler's part of an event, and on lock resources: the same rules in small."""

from __future__ import annotations

from msgspec.structs import replace

from durabus.lifecycle.state import HELD, NOT_YOURS, Applied, EventState, HandlerState, LockState, Refused
from durabus.model.claim import HandlerClaim, HandlerClaimRequest, LockClaim
from durabus.model.result import HandlerResult
from durabus.model.statuses import SETTLED, EventStatus, ResultStatus


def claim_handler(
    state: EventState, request: HandlerClaimRequest, now: float
) -> tuple[EventState, HandlerClaim] | None:
    """The first of the asked handlers that is neither settled nor validly claimed; a repeat gets its own claim again.

    The event must be claimed under ``request.event``; the handler's lease is its own and outlives a takeover of the
    event until it expires, so that never two valid claims on one handler exist.
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
    """Extend a handler claim; judged by the token alone."""
    handler = _held(state, claim)
    if handler is None:
        return Refused(NOT_YOURS)
    return Applied(_with(state, replace(handler, result=replace(handler.result, expires_ts=now + lease))))


def release_handler(state: EventState, claim: HandlerClaim) -> Applied | Refused:
    """Give a handler claim back, and its attempt with it. A repeat changes nothing."""
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
    """Write what the handler did. Attempts and fence stay those of the claim."""
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


def void_handler(state: EventState, token: str) -> EventState:
    """Somebody took the handler lock that the claim ``token`` let expire: that claim is over, its attempt spent."""
    held = next((handler for handler in state.handlers if handler.token == token), None)
    if held is None:
        return state
    result = replace(held.result, status=ResultStatus.PENDING, worker_id=None, expires_ts=None)
    return _with(state, HandlerState(result, None, held.settled_token))


def handlers_done(state: EventState, handler_ids: tuple[str, ...]) -> bool:
    """Whether nothing is left to run: all settled, or one of them said that it is of no use."""
    statuses = {handler.result.handler_id: handler.result.status for handler in state.handlers}
    return ResultStatus.UNRECOVERABLE in statuses.values() or all(statuses.get(h) in SETTLED for h in handler_ids)


def holds_event(state: EventState, request: HandlerClaimRequest) -> bool:
    """Whether the request's event claim is the current one."""
    return (
        state.event.status is EventStatus.PROCESSING
        and state.token == request.event.token
        and state.event.fence == request.event.fence
    )


def handler_claim(state: EventState, handler: HandlerState) -> HandlerClaim:
    """The claim that ``handler`` is under."""
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
    """Free, or its lease is over. ``fence`` must be above every fence this key ever had; a repeat keeps the old one."""
    if lock is not None and lock.token is not None:
        if lock.token == token:
            return lock
        if lock.expires_ts > now:
            return Refused(HELD)
    return LockState(key=key, fence=fence, worker_id=worker_id, token=token, expires_ts=now + lease)


def renew_lock(lock: LockState | None, claim: LockClaim, lease: float, now: float) -> LockState | Refused:
    """Extend a held lock; judged by the token alone."""
    if lock is None or lock.token != claim.token or lock.fence != claim.fence:
        return Refused(NOT_YOURS)
    return replace(lock, expires_ts=now + lease)


def release_lock(lock: LockState | None, claim: LockClaim) -> LockState | Refused:
    """Free a held lock. The fence stays, so that the next holder's is larger."""
    if lock is None or lock.fence != claim.fence or (lock.token is not None and lock.token != claim.token):
        return Refused(NOT_YOURS)
    return replace(lock, token=None, expires_ts=0.0)


def _find(state: EventState, handler_id: str) -> HandlerState | None:
    return next((h for h in state.handlers if h.result.handler_id == handler_id), None)


def _held(state: EventState, claim: HandlerClaim) -> HandlerState | None:
    return _current(state, claim) if state.event.status is EventStatus.PROCESSING else None


def _settleable(state: EventState, claim: HandlerClaim) -> HandlerState | None:
    """The row to write to: also under an event that was abandoned, while nobody has claimed it since."""
    return _current(state, claim) if state.abandoned is not None else _held(state, claim)


def _current(state: EventState, claim: HandlerClaim) -> HandlerState | None:
    handler = _find(state, claim.handler_id)
    if handler is None or handler.token != claim.token or handler.result.fence != claim.fence:
        return None
    return handler


def _settled_so(state: EventState, claim: HandlerClaim, status: ResultStatus) -> bool:
    """Whether the row is as this claim left it when it settled with ``status``."""
    handler = _find(state, claim.handler_id)
    if handler is None or handler.token is not None or handler.settled_token != claim.token:
        return False
    return handler.result.fence == claim.fence and handler.result.status is status


def _with(state: EventState, changed: HandlerState) -> EventState:
    others = {handler.result.handler_id: handler for handler in state.handlers}
    others[changed.result.handler_id] = changed
    return replace(state, handlers=tuple(others.values()))
