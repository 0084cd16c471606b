"""What workers do over HTTP: claim events, with a long poll, and report start, completion and failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from durabus.clock import monotonic
from durabus.errors import LeaseLost
from durabus.http.api import Api, GrantedClaim
from durabus.http.auth.access import Principal
from durabus.http.problems import UNAUTHORISED, Problem
from durabus.http.schema.events import (
    CompletedDocument,
    CompleteDocument,
    FailDocument,
    FailedDocument,
    MaxRetriesDocument,
    StartDocument,
    StartedDocument,
    iso,
)
from durabus.http.schema.fields import as_number
from durabus.model.claim import Claim, ClaimRef, ClaimRequest
from durabus.model.event import Event
from durabus.model.log_entry import LogEntry
from durabus.model.settlement import Complete, Fail, Release, Settled, Settlement
from durabus.model.statuses import TERMINAL, Action, EventStatus
from durabus.worker.cancelling import without_expired
from durabus.worker.replies import tell_of_ends

LOOK_EVERY = 1.0
"""Seconds after which a long poll looks for work without a hint: hints may get lost."""
FIRST_PAUSE = 0.01


async def claim(
    api: Api,
    request: ClaimRequest,
    *,
    wait: float,
    receive: Callable[[], Awaitable[Any]],
    allowed: Callable[[], bool],
    listens: Callable[..., None],
) -> list[Claim]:
    """Claim events, waiting up to ``wait`` seconds for work.

    The wait ends early if the client disconnects, its token ends, or the server stops. Then nothing stays claimed.
    """
    claims = await claim_now(api, request)
    if claims or wait <= 0 or api.stopping.is_set():
        return claims
    gone = asyncio.create_task(_gone(receive))
    stopping = asyncio.create_task(api.stopping.wait())
    listens(begin=True)
    try:
        claims = await _wait(api, request, monotonic() + wait, {gone, stopping}, allowed)
        if claims and gone.done():
            await api.store.settle_events([Release(claim.ref) for claim in claims])
            return []
        return claims
    finally:
        listens(begin=False)
        await _end(gone, stopping)


async def claim_now(api: Api, request: ClaimRequest) -> list[Claim]:
    """Claim events that have not expired, and cancel those that have."""
    return await without_expired(api.store, request, await api.store.claim_next_events(request))


async def _wait(
    api: Api, request: ClaimRequest, deadline: float, ends: set[asyncio.Task[Any]], allowed: Callable[[], bool]
) -> list[Claim]:
    pause = FIRST_PAUSE
    while (left := deadline - monotonic()) > 0:
        hint = asyncio.create_task(api.store.wait_for_work(request.bus, timeout=min(left, LOOK_EVERY)))
        try:
            await asyncio.wait({hint, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if any(end.done() for end in ends):
                return []
            if not allowed():
                raise Problem(401, "this token ended while it waited for work: nothing was claimed", UNAUTHORISED)
            claims = await claim_now(api, request)
            if claims:
                return claims
            # The bus has work, but none with these tags. Hints then come at once, so pause longer each time.
            pause = min(2 * pause, LOOK_EVERY) if await hint else FIRST_PAUSE
        finally:
            await _end(hint)
        await asyncio.wait(
            ends, timeout=min(pause, max(deadline - monotonic(), 0)), return_when=asyncio.FIRST_COMPLETED
        )
    return []


async def _end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _gone(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


COMPLETING = frozenset({Action.COMPLETED, Action.COMPLETED_WITH_ERRORS})
FAILING = frozenset({Action.FAILED})
NO_CLAIM = "worker {worker!r} has no claim on it: the event was settled, reset, or taken over after its lease"


async def complete(api: Api, principal: Principal, id_: int, report: CompleteDocument) -> CompletedDocument:
    """End the event COMPLETED. A repeat returns the first record."""
    granted = _taken(api, principal, id_, report)
    entry = None if granted is None else await _written(api, _completion(granted.ref, report))
    if entry is None:
        ref = await _claim_of(api, principal, id_, report)
        done = None if ref is None else _completion(ref, report)
        entry = await _settle(api, principal, id_, report, done, actions=COMPLETING)
    return CompletedDocument(
        event_id=entry.id,
        worker_id=entry.worker_id or report.worker_id,
        action=entry.action,
        status_code=entry.status_code,
        execution_time_ms=as_number(entry.execution_time_ms),
        created_at=iso(entry.at_ts),
    )


async def fail(api: Api, principal: Principal, id_: int, report: FailDocument) -> FailedDocument | MaxRetriesDocument:
    """Record a failure: the event becomes PENDING and due later, or FAILED. A repeat returns the first record."""
    granted = _taken(api, principal, id_, report)
    if granted is not None:
        written = await _written(api, _failure(api, granted.ref, granted, report))
        if written is not None:
            return _failed(written, report, _max_retries(api, granted))
    event = await api.event(id_, principal)
    ref = await _claim_of(api, principal, id_, report, event)
    failure = None if ref is None else _failure(api, ref, event, report)
    entry = await _settle(api, principal, id_, report, failure, actions=FAILING)
    return _failed(entry, report, _max_retries(api, event))


def _failed(entry: LogEntry, report: FailDocument, max_retries: int) -> FailedDocument | MaxRetriesDocument:
    if entry.next_retry_ts is None:
        return MaxRetriesDocument(retry_count=len(entry.errors), max_retries=max_retries)
    return FailedDocument(
        event_id=entry.id,
        worker_id=entry.worker_id or report.worker_id,
        action=entry.action,
        status_code=entry.status_code,
        error_message=entry.error or "",
        execution_time_ms=as_number(entry.execution_time_ms),
        retry_scheduled=True,
        next_retry_at=iso(entry.next_retry_ts),
        created_at=iso(entry.at_ts),
    )


async def start(api: Api, principal: Principal, id_: int, report: StartDocument) -> StartedDocument:
    """Record that work began, and renew the lease. A repeat renews it again."""
    ref = await _claim_of(api, principal, id_, report)
    if ref is None:
        raise LeaseLost(id_, NO_CLAIM.format(worker=report.worker_id))
    started = (await api.store.start_events([ref]))[0]
    if isinstance(started, LeaseLost):
        await api.event(id_, principal)  # raises if there is no such event
        raise started
    expires = (await api.store.renew_event_claims([ref], lease=api.settings.lease))[0]
    if isinstance(expires, LeaseLost):
        raise expires
    return StartedDocument(
        event_id=started.id,
        worker_id=started.worker_id or report.worker_id,
        action=Action.STARTED,
        expires_at=iso(expires),
        created_at=iso(started.started_ts or started.updated_ts),
    )


def _completion(ref: ClaimRef, report: CompleteDocument) -> Complete:
    return Complete(ref, (), (), report.execution_time_ms, report.status_code)


def _failure(api: Api, ref: ClaimRef, claimed: GrantedClaim | Event, report: FailDocument) -> Fail:
    delay = api.settings.retry_delay if claimed.attempts < _max_retries(api, claimed) else None
    return Fail(ref, report.error_message, delay, (), report.execution_time_ms, report.status_code)


def _max_retries(api: Api, claimed: GrantedClaim | Event) -> int:
    return claimed.max_attempts or api.settings.max_retries


def _taken(api: Api, principal: Principal, id_: int, report: CompleteDocument) -> GrantedClaim | None:
    """The claim that the report means, if this server remembers it. Then no read has to precede the settlement."""
    proof = None if report.claim is None else ClaimRef(id_, report.claim.token, report.claim.fence)
    return api.granted.take(id_, principal, report.worker_id, proof)


async def _written(api: Api, settlement: Settlement) -> LogEntry | None:
    """Settle a remembered claim. Returns None if this wrote nothing: then only the store knows how the claim ended.

    A repeat wrote nothing too. Another server may have settled this claim and granted the worker a newer one, and
    this report may mean the newer one.
    """
    (outcome,) = (await api.store.settle_events([settlement], with_entries=True)).outcomes
    await _tell_of_end(api, outcome)
    return outcome.entry if isinstance(outcome, Settled) else None


async def _tell_of_end(api: Api, outcome: Settled | LeaseLost) -> None:
    """Wake the node that waits for the end of the event, if it has ended."""
    if isinstance(outcome, Settled) and outcome.entry is not None and outcome.status in TERMINAL:
        await tell_of_ends(api.store, [outcome.entry.metadata_json])


async def _settle(
    api: Api,
    principal: Principal,
    id_: int,
    report: CompleteDocument,
    settlement: Settlement | None,
    *,
    actions: frozenset[Action],
) -> LogEntry:
    """Settle the claim, if there is one. Returns the log entry that this report, or its first copy, led to."""
    lost: LeaseLost | None = None
    if settlement is not None:
        (outcome,) = (await api.store.settle_events([settlement], with_entries=True)).outcomes
        await _tell_of_end(api, outcome)
        if isinstance(outcome, Settled) and outcome.entry is not None:
            return outcome.entry
        lost = outcome if isinstance(outcome, LeaseLost) else None
        if lost is not None and report.claim is not None:
            await api.event(id_, principal)  # raises if there is no such event
            raise lost
    entries = await api.store.read_event_log(id_)
    for entry in reversed(entries):
        if entry.action in actions and _is_of(entry, settlement if lost is None else None, report.worker_id):
            return entry
    raise lost or LeaseLost(id_, NO_CLAIM.format(worker=report.worker_id))


def _is_of(entry: LogEntry, settled: Settlement | None, worker_id: str) -> bool:
    """Whether the entry belongs to the settled claim, by its fence. Without a claim the worker decides."""
    return entry.worker_id == worker_id if settled is None else entry.fence == settled.ref.fence


async def _claim_of(
    api: Api, principal: Principal, id_: int, report: CompleteDocument | StartDocument, event: Event | None = None
) -> ClaimRef | None:
    """The claim that the report proves, or else the one of the worker that it names.

    The store checks a proof, so the event is read only if the sender may be forbidden to see it.
    """
    if report.claim is None:
        return await _named(api, event or await api.event(id_, principal), report.worker_id)
    if event is None and principal.limited:
        await api.event(id_, principal)
    return ClaimRef(id_, report.claim.token, report.claim.fence)


async def _named(api: Api, event: Event, worker_id: str) -> ClaimRef | None:
    """The current claim on the event, or the last abandoned one, if it belongs to this worker."""
    holder = event.worker_id if event.status is EventStatus.PROCESSING else await _late_holder(api, event)
    if holder != worker_id:
        return None
    ref = (await api.store.current_claims([event.id]))[0]
    return ref if ref is not None and ref.fence == event.fence else None


async def _late_holder(api: Api, event: Event) -> str | None:
    """The last worker, if its lease expired and no worker has claimed the event since: its report still counts."""
    if event.status is not EventStatus.PENDING or not event.fence:
        return None
    newest = (await api.store.read_event_log(event.id))[-1]
    return newest.worker_id if newest.action is Action.ABANDONED else None
