"""``claim_next_events``: one call of one function; leases that are over and locks left behind go the long way first."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from durabus.backends.postgresql.locking import void_lock
from durabus.backends.postgresql.rows import Row, event_of, strings_of
from durabus.backends.postgresql.scans import WHOLE, Scan
from durabus.backends.postgresql.session import Session
from durabus.backends.postgresql.states import expire, load_handlers
from durabus.model.claim import Claim, ClaimRequest, event_lock_key
from durabus.model.event import Event
from durabus.model.statuses import EventStatus

EXPIRE_AT_ONCE = 1_000
"""Expired leases that one claim takes."""
_TRIES = 10

_rest = msgspec.json.Decoder(
    tuple[str | None, tuple[str, ...] | None, int, int | None, str | None, str | None, str | None]
).decode


def claim_arguments(request: ClaimRequest, scan: Scan, *, expired: bool = True) -> tuple[object, ...]:
    """What the functions take for a claim, after the clock."""
    return (
        request.bus,
        request.worker_id,
        request.token,
        max(request.limit, 0),
        request.lease,
        event_lock_key(request.mode, request.bus),
        list(request.tags) or None,
        0 if scan.thorough else scan.floor,
        expired,
        scan.thorough,
    )


def verdict_of(rows: Sequence[Row]) -> str | None:
    """Why the function left the claim to us; None if it did all there was to do."""
    return rows[0][2] if rows and rows[0][0] == 0 else None


async def claim_the_long_way(session: Session, request: ClaimRequest) -> list[Claim]:
    """In a transaction: take back what was lost, then claim."""
    expired = True
    for _ in range(_TRIES):
        rows = await session.all(
            "claim_next_events", session.clock, *claim_arguments(request, WHOLE, expired=expired), request.event_id
        )
        match verdict_of(rows):
            case "held":
                return await _held(session, request, rows[0][-1] or "")
            case "expired":
                # whoever takes them now will not claim them all: wait for him, then for nobody
                await session.all("take_turn", f"expired:{request.bus}")
                found = await session.all("expired_events", request.bus, await session.now(), EXPIRE_AT_ONCE)
                await expire(session, found, request.max_attempts)
                expired = False
            case "lock":
                await void_lock(session, event_lock_key(request.mode, request.bus) or "", request.max_attempts)
            case _:
                return await claims_of(session, request, rows)
    return []


async def claims_of(session: Session, request: ClaimRequest, rows: Sequence[Row]) -> list[Claim]:
    """Claims from the rows that the function answered."""
    bus, worker_id, token = request.bus, request.worker_id, request.token
    claims: list[Claim] = []
    with_results: list[int] = []
    revision = (rows[0][13] or "") if rows else ""
    for (
        id_, event_id, type_, payload, rest, attempts, generation, fence, has_results, created, due, picked, expires, _,
    ) in rows:  # fmt: skip
        # at most 15 keywords in one call: see rows.event_of
        event = Event(
            id=id_,
            event_id=event_id,
            bus=bus,
            type=type_,
            payload_json=payload,
            status=EventStatus.PROCESSING,
            attempts=attempts,
            generation=generation,
            fence=fence,
            worker_id=worker_id,
            created_ts=created,
            updated_ts=picked,
            due_ts=due,
            picked_ts=picked,
            expires_ts=expires,
        )
        if rest is not None:
            event = _with_rest(event, rest)
        if has_results:
            with_results.append(id_)
        claims.append(Claim(event, token, (), revision))
    return await _with_results(session, claims, with_results) if with_results else claims


def _with_rest(event: Event, rest: str) -> Event:
    metadata, tags, priority, max_attempts, parent_id, key, errors = _rest(rest)
    return replace(
        event,
        metadata_json=metadata,
        tags=tags or (),
        priority=priority,
        max_attempts=max_attempts,
        parent_id=parent_id,
        idempotency_key=key,
        errors=strings_of(errors),
    )


async def _with_results(session: Session, claims: list[Claim], ids: Sequence[int]) -> list[Claim]:
    handlers = await load_handlers(session, ids)
    return [
        replace(claim, results=tuple(handler.result for handler in handlers[claim.event.id]))
        if claim.event.id in handlers
        else claim
        for claim in claims
    ]


async def _held(session: Session, request: ClaimRequest, revision: str) -> list[Claim]:
    events = [event_of(row) for row in await session.all("held_events", request.token)]
    claims = [Claim(event, request.token, (), revision) for event in events]
    return await _with_results(session, claims, [event.id for event in events])
