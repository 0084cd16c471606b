"""Cancelled events: a caller cancels one with its descendants; a worker cancels what has expired before it begins."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from durabus.errors import EventEnded, InvalidEventError
from durabus.model.claim import Claim, ClaimRequest
from durabus.model.event import Event
from durabus.model.query import EventQuery
from durabus.model.settlement import Cancel
from durabus.model.statuses import LIVE, EventStatus
from durabus.store.contract import EventStore
from durabus.store.events import EventRef
from durabus.worker.replies import tell_of_ends

AT_ONCE = 500
"""Maximum number of parents that one call asks about, of children that it returns, and of events that it cancels."""
WITH_LIVE_CHILDREN = tuple(status for status in EventStatus if status is not EventStatus.COMPLETED)
"""A COMPLETED event has no live children: it completed after them."""
EXPIRED = "expired"
"""How the reason of an event that has expired begins."""
ROUNDS = 1_000
"""Maximum number of times that one request claims again because all that it got had expired."""


async def cancel_events(
    store: EventStore,
    ref: EventRef,
    *,
    reason: str,
    children: bool = False,
    sees: Callable[[Event], bool] = lambda _event: True,
) -> list[Event]:
    """Cancel an event and, with ``children``, its live descendants that the caller ``sees``; parents come first.

    Returns the cancelled events. A repeat returns the event itself again. Raises ``EventEnded`` if there was nothing to
    cancel, and ``EventNotFound``.
    """
    check_reason(reason)
    first = await store.cancel_event(ref, reason=reason)
    cancelled = [first] if first.status is EventStatus.CANCELLED else []
    if children:
        cancelled += [event async for event in _cancel_descendants(store, first, reason, sees)]
    if not cancelled:
        raise EventEnded(ref, first.status)
    await tell_of_ends(store, [event.metadata_json for event in cancelled])
    return cancelled


def check_reason(reason: str) -> str:
    """Return the reason of a cancellation, or raise if it says nothing."""
    if not isinstance(reason, str) or not reason.strip():
        raise InvalidEventError(f"reason={reason!r}: say in a few words why the event is cancelled; the log keeps it")
    return reason


async def _cancel_descendants(
    store: EventStore, first: Event, reason: str, sees: Callable[[Event], bool]
) -> AsyncIterator[Event]:
    """Cancel one generation after the other: a parent that has ended gets no more children."""
    known, parents = {first.event_id}, [first.event_id]
    while parents:
        found: list[str] = []
        async for page in _children(store, parents):
            # A publisher may name any parent, so a chain of parents may lead back to its beginning.
            children = [child for child in page if child.event_id not in known and sees(child)]
            names = [child.event_id for child in children]
            known.update(names)
            found += names
            live = [child.id for child in children if child.status in LIVE]
            for after in await store.cancel_events(live, reason=reason) if live else ():
                # An event that was removed meanwhile is None.
                if after is not None and after.status is EventStatus.CANCELLED:
                    yield after
        parents = found


async def _children(store: EventStore, parents: Sequence[str]) -> AsyncIterator[list[Event]]:
    for start in range(0, len(parents), AT_ONCE):
        some, before = tuple(parents[start : start + AT_ONCE]), None
        while True:
            query = EventQuery(parent_ids=some, statuses=WITH_LIVE_CHILDREN, before_id=before, limit=AT_ONCE)
            page = await store.find(query)
            yield page.events
            before = page.next_before_id
            if before is None:
                break


def expired(claim: Claim) -> Cancel:
    """Return the settlement of a claimed event that has expired."""
    event = claim.event
    waited = (event.picked_ts or event.created_ts) - event.created_ts
    after = event.expires_after or 0.0
    return Cancel(claim.ref, f"{EXPIRED} {after:g} s after it was published, and was claimed after {waited:.3g} s")


async def without_expired(store: EventStore, request: ClaimRequest, claims: Sequence[Claim]) -> list[Claim]:
    """Cancel those of the claimed events that have expired, and return the others.

    If all of them have expired, the request is sent again: its token holds nothing then, so it is a new request.
    """
    for _ in range(ROUNDS):
        late = [claim for claim in claims if claim.event.metadata_json is not None and claim.event.has_expired]
        if not late:
            break
        in_time = [claim for claim in claims if claim not in late]
        answer = await store.settle_events([expired(claim) for claim in late], then_claim=None if in_time else request)
        await tell_of_ends(store, [claim.event.metadata_json for claim in late])
        claims = in_time or answer.claims
    return [claim for claim in claims if not claim.event.has_expired]
