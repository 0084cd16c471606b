"""What the API sends, as the library's own values."""

from __future__ import annotations

import msgspec

from durabus.errors import LeaseLost
from durabus.model.claim import Claim
from durabus.model.event import Event
from durabus.model.query import Counts, DeadLetterPage
from durabus.model.result import HandlerResult
from durabus.model.settlement import Settled
from durabus.model.statuses import EventStatus

NO_METADATA = b"null"


class _Event(msgspec.Struct):
    id: int
    event_id: str
    bus: str
    type: str
    tags: str
    status: EventStatus
    payload: msgspec.Raw
    metadata: msgspec.Raw
    priority: int
    attempts: int
    max_retries: int | None
    generation: int
    fence: int
    worker_id: str | None
    errors: tuple[str, ...]
    parent_id: str | None
    idempotency_key: str | None
    created_ts: float
    updated_ts: float
    due_ts: float
    picked_ts: float | None
    started_ts: float | None
    expires_ts: float | None

    def event(self) -> Event:
        metadata = bytes(self.metadata)
        return Event(
            id=self.id,
            event_id=self.event_id,
            bus=self.bus,
            type=self.type,
            payload_json=bytes(self.payload).decode(),
            metadata_json=None if metadata == NO_METADATA else metadata.decode(),
            tags=tuple(self.tags.split(",")) if self.tags else (),
            priority=self.priority,
            max_attempts=self.max_retries,
            parent_id=self.parent_id,
            idempotency_key=self.idempotency_key,
            status=self.status,
            attempts=self.attempts,
            generation=self.generation,
            fence=self.fence,
            worker_id=self.worker_id,
            errors=self.errors,
            created_ts=self.created_ts,
            updated_ts=self.updated_ts,
            due_ts=self.due_ts,
            picked_ts=self.picked_ts,
            started_ts=self.started_ts,
            expires_ts=self.expires_ts,
        )


class _Events(msgspec.Struct):
    events: list[_Event]


class _DeadLetters(msgspec.Struct):
    events: list[_Event]
    total: int


class _Claim(msgspec.Struct):
    token: str
    event: _Event
    results: tuple[HandlerResult, ...]
    revision: str

    def claim(self) -> Claim:
        return Claim(self.event.event(), self.token, self.results, self.revision)


class _Claims(msgspec.Struct):
    claims: list[_Claim]


class _Outcome(msgspec.Struct):
    id: int
    status: EventStatus | None = None
    next_retry_ts: float | None = None
    lost: str | None = None

    def outcome(self) -> Settled | LeaseLost:
        if self.status is None:
            return LeaseLost(self.id, self.lost or "the server did not say why")
        return Settled(self.id, self.status, self.next_retry_ts)


class _Settled(msgspec.Struct):
    outcomes: list[_Outcome]


class _Renewal(msgspec.Struct):
    id: int
    expires_ts: float | None = None
    lost: str | None = None

    def renewal(self) -> float | LeaseLost:
        if self.expires_ts is None:
            return LeaseLost(self.id, self.lost or "the server did not say why")
        return self.expires_ts


class _Renewed(msgspec.Struct):
    claims: list[_Renewal]


class _Purged(msgspec.Struct):
    purged: int


class _Problem(msgspec.Struct):
    detail: str = ""
    error: str = ""
    code: str | None = None


def events(body: bytes) -> list[Event]:
    """Whole events."""
    return [one.event() for one in msgspec.json.decode(body, type=_Events).events]


def dead_letters(body: bytes) -> DeadLetterPage:
    """A page of dead letters."""
    page = msgspec.json.decode(body, type=_DeadLetters)
    return DeadLetterPage(events=[one.event() for one in page.events], total=page.total)


def claims(body: bytes) -> list[Claim]:
    """Granted claims."""
    return [one.claim() for one in msgspec.json.decode(body, type=_Claims).claims]


def outcomes(body: bytes) -> list[Settled | LeaseLost]:
    """One for each settlement."""
    return [one.outcome() for one in msgspec.json.decode(body, type=_Settled).outcomes]


def renewals(body: bytes) -> list[float | LeaseLost]:
    """One for each claim."""
    return [one.renewal() for one in msgspec.json.decode(body, type=_Renewed).claims]


def purged(body: bytes) -> int:
    """How many went."""
    return msgspec.json.decode(body, type=_Purged).purged


def counts(body: bytes) -> Counts:
    """Events by status."""
    return msgspec.json.decode(body, type=Counts)


def problem(body: bytes) -> tuple[str, str | None]:
    """Text and code of a problem document; anything else, as from a proxy, is cut short."""
    try:
        found = msgspec.json.decode(body, type=_Problem)
    except msgspec.DecodeError:
        return body[:200].decode(errors="replace"), None
    return found.detail or found.error, found.code
