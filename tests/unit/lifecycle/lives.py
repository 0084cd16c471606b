"""An event in every situation of its life, made by hand and not by the lifecycle that the tests judge."""

from __future__ import annotations

from msgspec.structs import replace

from durabus.lifecycle.state import AbandonedClaim, EventState, HandlerState, SettledClaim
from durabus.model import statuses
from durabus.model.claim import ClaimRef
from durabus.model.event import Event
from durabus.model.result import HandlerResult
from durabus.model.settlement import Settled
from durabus.model.statuses import Action, EventStatus, ResultStatus

NOW = 1000.0
LEASE = 30.0
FENCE = 3
MINE = ClaimRef(7, "mine", FENCE)
WRONG_TOKEN = ClaimRef(7, "theirs", FENCE)
OLD_FENCE = ClaimRef(7, "mine", FENCE - 1)
NEW_FENCE = ClaimRef(7, "mine", FENCE + 1)

PUBLISHED = Event(
    id=7,
    event_id="0190a000-0000-7000-8000-000000000007",
    bus="orders",
    type="order.placed",
    payload_json='{"order_id":7}',
    metadata_json='{"source":"web"}',
    tags=("vip",),
    priority=5,
    max_attempts=2,
    parent_id="0190a000-0000-7000-8000-000000000001",
    idempotency_key="order-7",
    created_ts=900.0,
    updated_ts=900.0,
    due_ts=900.0,
)
TAKEN = replace(
    PUBLISHED,
    status=EventStatus.PROCESSING,
    attempts=1,
    fence=FENCE,
    worker_id="host:1",
    updated_ts=990.0,
    picked_ts=990.0,
    expires_ts=NOW + 20,
)
AGAIN = replace(TAKEN, attempts=2, errors=("boom",))
ENDED = replace(TAKEN, updated_ts=995.0, expires_ts=None)
WAITING = replace(PUBLISHED, attempts=1, fence=FENCE, errors=("boom",), updated_ts=995.0, due_ts=NOW + 500)


def handler(handler_id: str, status: ResultStatus, error: str | None = None) -> HandlerState:
    return HandlerState(HandlerResult(handler_id=handler_id, status=status, attempts=1, error=error, fence=1))


def settled(action: Action, status: EventStatus) -> SettledClaim:
    return SettledClaim(MINE.token, MINE.fence, action, Settled(7, status))


FAILED_ONCE = settled(Action.FAILED, EventStatus.PENDING)
UNSETTLED = (handler("mail", ResultStatus.SUCCEEDED), handler("audit", ResultStatus.TRANSIENT, "busy"))
LEASE_ERROR = "lease expired (worker host:1)"
HOPELESS = (handler("mail", ResultStatus.UNRECOVERABLE, "no such address"), handler("audit", ResultStatus.TRANSIENT))

LIVES = {
    "pending": EventState(PUBLISHED),
    "not due": EventState(WAITING, settled=FAILED_ONCE),
    "due just now": EventState(replace(WAITING, due_ts=NOW), settled=FAILED_ONCE),
    "released": EventState(replace(PUBLISHED, fence=FENCE), settled=settled(Action.RELEASED, EventStatus.PENDING)),
    "claimed": EventState(TAKEN, MINE.token),
    "started": EventState(replace(TAKEN, started_ts=991.0), MINE.token),
    "last attempt": EventState(AGAIN, MINE.token),
    "unsettled": EventState(TAKEN, MINE.token, UNSETTLED),
    "hopeless": EventState(TAKEN, MINE.token, HOPELESS),
    "lease over": EventState(replace(TAKEN, expires_ts=NOW), MINE.token),
    "last lease over": EventState(replace(AGAIN, expires_ts=NOW), MINE.token),
    "abandoned": EventState(
        replace(PUBLISHED, attempts=1, fence=FENCE, errors=(LEASE_ERROR,), updated_ts=995.0, due_ts=995.0),
        abandoned=AbandonedClaim(MINE.token, "host:1", 990.0, 991.0),
    ),
    "completed": EventState(
        replace(ENDED, status=EventStatus.COMPLETED), settled=settled(Action.COMPLETED, EventStatus.COMPLETED)
    ),
    "with errors": EventState(
        replace(ENDED, status=EventStatus.COMPLETED_WITH_ERRORS, errors=("no such customer",)),
        None,
        HOPELESS,
        settled(Action.COMPLETED_WITH_ERRORS, EventStatus.COMPLETED_WITH_ERRORS),
    ),
    "failed": EventState(
        replace(ENDED, status=EventStatus.FAILED, attempts=2, errors=("boom", "bang")),
        settled=settled(Action.FAILED, EventStatus.FAILED),
    ),
    "cancelled": EventState(replace(ENDED, status=EventStatus.CANCELLED, fence=FENCE + 1)),
    "expired": EventState(
        replace(ENDED, status=EventStatus.CANCELLED), settled=settled(Action.CANCELLED, EventStatus.CANCELLED)
    ),
    "failed by expiry": EventState(replace(ENDED, status=EventStatus.FAILED, attempts=2, errors=("boom", LEASE_ERROR))),
}
LIVE = [name for name, state in LIVES.items() if state.event.status in statuses.LIVE]
PROCESSING = [name for name, state in LIVES.items() if state.event.status is EventStatus.PROCESSING]
