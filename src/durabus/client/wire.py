"""Turns the documents of the API into the library's own values."""

from __future__ import annotations

import msgspec

from durabus.errors import LeaseLost
from durabus.http.schema.claims import (
    NO_METADATA,
    ClaimDocument,
    ClaimsDocument,
    DeadLetterListDocument,
    OutcomeDocument,
    PurgedDocument,
    RenewalDocument,
    RenewedDocument,
    SettledDocument,
    WholeEventDocument,
    WholeEventsDocument,
)
from durabus.model.claim import Claim
from durabus.model.event import Event
from durabus.model.query import Counts, DeadLetterPage
from durabus.model.settlement import Settled

UNKNOWN_REASON = "the server did not say why"


class ProblemText(msgspec.Struct):
    """The fields of a problem document that the client reads. All are optional: a proxy may have sent it."""

    detail: str = ""
    error: str = ""
    code: str | None = None


def events(body: bytes) -> list[Event]:
    """Whole events."""
    return [_event(one) for one in msgspec.json.decode(body, type=WholeEventsDocument).events]


def dead_letters(body: bytes) -> DeadLetterPage:
    """A page of dead letters."""
    page = msgspec.json.decode(body, type=DeadLetterListDocument)
    return DeadLetterPage(events=[_event(one) for one in page.events], total=page.total)


def claims(body: bytes) -> list[Claim]:
    """Granted claims."""
    return [_claim(one) for one in msgspec.json.decode(body, type=ClaimsDocument).claims]


def outcomes(body: bytes) -> list[Settled | LeaseLost]:
    """One outcome for each settlement."""
    return [_outcome(one) for one in msgspec.json.decode(body, type=SettledDocument).outcomes]


def renewals(body: bytes) -> list[float | LeaseLost]:
    """For each claim, when its new lease ends, or why the claim was lost."""
    return [_renewal(one) for one in msgspec.json.decode(body, type=RenewedDocument).claims]


def purged(body: bytes) -> int:
    """How many dead letters were deleted."""
    return msgspec.json.decode(body, type=PurgedDocument).purged


def counts(body: bytes) -> Counts:
    """Events by status."""
    return msgspec.json.decode(body, type=Counts)


def problem(body: bytes) -> tuple[str, str | None]:
    """Text and code of a problem document. Any other body, such as a proxy's, is shortened."""
    try:
        found = msgspec.json.decode(body, type=ProblemText)
    except msgspec.DecodeError:
        return body[:200].decode(errors="replace"), None
    return found.detail or found.error, found.code


def _event(document: WholeEventDocument) -> Event:
    metadata = bytes(document.metadata)
    return Event(
        id=document.id,
        event_id=document.event_id,
        bus=document.bus,
        type=document.type,
        payload_json=bytes(document.payload).decode(),
        metadata_json=None if metadata == bytes(NO_METADATA) else metadata.decode(),
        tags=tuple(document.tags.split(",")) if document.tags else (),
        priority=document.priority,
        max_attempts=document.max_retries,
        parent_id=document.parent_id,
        idempotency_key=document.idempotency_key,
        status=document.status,
        attempts=document.attempts,
        generation=document.generation,
        fence=document.fence,
        worker_id=document.worker_id,
        errors=document.errors,
        created_ts=document.created_ts,
        updated_ts=document.updated_ts,
        due_ts=document.due_ts,
        picked_ts=document.picked_ts,
        started_ts=document.started_ts,
        expires_ts=document.expires_ts,
    )


def _claim(document: ClaimDocument) -> Claim:
    return Claim(_event(document.event), document.token, document.results, document.revision)


def _outcome(document: OutcomeDocument) -> Settled | LeaseLost:
    if document.status is None:
        return LeaseLost(document.id, document.lost or UNKNOWN_REASON)
    return Settled(document.id, document.status, document.next_retry_ts)


def _renewal(document: RenewalDocument) -> float | LeaseLost:
    if document.expires_ts is None:
        return LeaseLost(document.id, document.lost or UNKNOWN_REASON)
    return document.expires_ts
