"""Computes what a transition changes in the tables. Each store writes the changes with its own statements."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from durabus.errors import EventNotFound, LeaseLost
from durabus.lifecycle.handlers import ended_handler_claims
from durabus.lifecycle.state import EventState
from durabus.model.claim import handler_lock_key
from durabus.model.event import Event
from durabus.model.settlement import Settled, Settlement
from durabus.model.statuses import EventStatus
from durabus.store.events import EventRef
from durabus.stores.sql.rows import Row, handler_to

NO_EVENT = "no such event"
"""Why a claim on an event that is not stored is refused."""
AT_ONCE = 1_000
"""Maximum number of events that one transaction trims or purges, so that other writers wait only briefly."""


class StoredEvent(msgspec.Struct, frozen=True):
    """An event's state in the database, and the lock that its claim holds."""

    state: EventState
    lock_key: str | None
    has_results: bool
    live: bool = True
    """Whether the event is in the queue. PostgreSQL has locked its row then."""


def changed_handlers(before: EventState, after: EventState) -> tuple[list[Row], list[Row]]:
    """Return the rows of the handlers to write, and (id, handler_id) of those to delete."""
    id_ = after.event.id
    known = {handler.result.handler_id: handler for handler in before.handlers}
    changed = [handler for handler in after.handlers if known.pop(handler.result.handler_id, None) != handler]
    return [handler_to(id_, handler) for handler in changed], [(id_, handler_id) for handler_id in known]


def freed_handler_locks(before: EventState, after: EventState) -> list[Row]:
    """Return (key, token) of the serial lock of each handler whose claim has ended."""
    key = handler_lock_key(before.event.event_id)
    return [(key, token) for token in ended_handler_claims(before, after)]


def found_event(ref: EventRef, found: Sequence[Event | None]) -> Event:
    """Return the event of a call about one reference. Raises ``EventNotFound``."""
    (event,) = found
    if event is None:
        raise EventNotFound(ref)
    return event


def completed(settlements: Sequence[Settlement]) -> list[Settled | LeaseLost]:
    """Return the outcomes of a batch of plain completions."""
    return [Settled(one.ref.id, EventStatus.COMPLETED) for one in settlements]


async def purge_in_parts(purge: Callable[[int], Awaitable[int]], limit: int) -> int:
    """Call ``purge`` with the number of events to delete until it finds fewer. Each call is one transaction.

    Returns how many events it has deleted.
    """
    purged = 0
    while purged < limit:
        count = await purge(min(limit - purged, AT_ONCE))
        purged += count
        if count < AT_ONCE:
            break
    return purged


async def purge_ids_in_parts(purge: Callable[[Sequence[int]], Awaitable[list[int]]], ids: Sequence[int]) -> list[int]:
    """Call ``purge`` with some of the ids at a time. Returns the ids that it has deleted."""
    purged: list[int] = []
    for part in in_parts([id_ for id_ in ids if 0 < id_ < 2**63]):
        purged += await purge(part)
    return purged


def in_parts(ids: Sequence[int]) -> list[Sequence[int]]:
    """Split ids into the parts that one transaction each trims or purges."""
    return [ids[start : start + AT_ONCE] for start in range(0, len(ids), AT_ONCE)]
