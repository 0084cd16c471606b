"""Groups of dead letters, and retry or purge of many: in steps that visit each event once.

The browser requests one step after the other. The server keeps nothing between steps, so a step may run on any server.
Closing the page stops the work.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Iterable
from functools import lru_cache
from typing import Literal

import msgspec

from durabus.clock import monotonic
from durabus.errors import EventNotFound, NotADeadLetter
from durabus.model.event import Event
from durabus.model.query import EventQuery
from durabus.model.statuses import DEAD_LETTER, EventStatus
from durabus.queue.dead_letters import requeue_still_dead
from durabus.store.contract import EventStore
from durabus.store.events import EventRef

MAX_ID = 2**63 - 1
DEAD = (EventStatus.FAILED, EventStatus.COMPLETED_WITH_ERRORS)
AT_ONCE = 200
STEP = 500
"""Number of dead letters that one step examines."""
GROUPED = 1_000
GROUPED_WITHIN = 0.04
"""The page groups at most this many of the newest dead letters, and spends at most this many seconds on it."""
COUNTED = 10_000
COUNTED_WITHIN = 1.0
MAX_SHAPE_CHARS = 200
# Parts that differ between two failures of one kind: ids and numbers.
_VARIES = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|0x[0-9a-fA-F]+|\b[0-9a-f]{16,}\b|\d+(?:\.\d+)?")

BulkOperation = Literal["retry", "purge"]


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for dead letters. A dead letter must match every field that is set."""

    bus: str
    type: str | None = None
    tags: tuple[str, ...] = ()
    group: str = ""
    """A value that ``fingerprint`` returned."""
    id: int | None = None

    def holds(self, event: Event) -> bool:
        """Whether an event matches the fields that a store cannot filter by."""
        return (self.id is None or event.id == self.id) and (not self.group or fingerprint(event) == self.group)


class Group(msgspec.Struct, kw_only=True):
    """Dead letters of one type that failed in the same way."""

    key: str
    type: str
    error: str
    count: int = 0
    first_ts: float
    last_ts: float
    sample: int
    """The id of the newest one."""


class Grouped(msgspec.Struct, frozen=True):
    """The groups, largest first. ``older``: there are older dead letters that were not examined."""

    groups: list[Group]
    looked_at: int
    older: bool


class SelectedCount(msgspec.Struct, frozen=True):
    """The number of selected dead letters, and the newest few. ``capped``: counting stopped at a limit."""

    number: int
    capped: bool
    newest: list[Event]


class BulkStep(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one step. ``before``: where the next step begins; None after the last."""

    done: int
    before: int | None


def error_of(event: Event) -> str:
    """The newest error of an event."""
    return event.errors[-1] if event.errors else "no error was recorded"


@lru_cache(maxsize=4096)
def shape_of(error: str) -> str:
    """An error without the parts that differ from one failure to the next."""
    return _VARIES.sub("…", error.strip().partition("\n")[0])[:MAX_SHAPE_CHARS]


def fingerprint(event: Event) -> str:
    """A value that is equal for dead letters of one type that failed in the same way."""
    return _fingerprint(event.type, shape_of(error_of(event)))


@lru_cache(maxsize=4096)
def _fingerprint(type_: str, shape: str) -> str:
    return hashlib.sha256(f"{type_}\n{shape}".encode()).hexdigest()[:16]


async def count_dead_letters(store: EventStore, bus: str | None) -> int:
    """The number of dead letters of one bus, or of all buses."""
    counts = await store.counts(bus)
    return counts.failed + counts.completed_with_errors


async def dead_letters_named(store: EventStore, refs: Iterable[EventRef]) -> list[int]:
    """The ids of these dead letters. Raises ``EventNotFound`` or ``NotADeadLetter`` for the first that is none."""
    ids: list[int] = []
    for ref in refs:
        found = await store.get_event(ref)
        if found is None:
            raise EventNotFound(ref)
        if found.status not in DEAD_LETTER:
            raise NotADeadLetter(ref, found.status)
        ids.append(found.id)
    return ids


async def group_dead_letters(store: EventStore, selection: Selection) -> Grouped:
    """Group the newest dead letters."""
    groups: dict[str, Group] = {}
    number, deadline, older = 0, monotonic() + GROUPED_WITHIN, False
    async for page, before in _pages(store, selection, None):
        for event in page:
            _count(groups, event)
        number += len(page)
        if before is not None and (number >= GROUPED or monotonic() > deadline):
            older = True
            break
    return Grouped(sorted(groups.values(), key=lambda group: -group.count), number, older)


def _count(groups: dict[str, Group], event: Event) -> None:
    key, at = fingerprint(event), event.updated_ts
    group = groups.get(key)
    if group is None:
        error = shape_of(error_of(event))
        group = groups[key] = Group(key=key, type=event.type, error=error, first_ts=at, last_ts=at, sample=event.id)
    group.count += 1
    group.first_ts, group.last_ts = min(group.first_ts, at), max(group.last_ts, at)


async def count_selected(store: EventStore, selection: Selection) -> SelectedCount:
    """Count the selected dead letters."""
    number, deadline, newest = 0, monotonic() + COUNTED_WITHIN, list[Event]()
    async for page, _ in _pages(store, selection, None):
        number += len(page)
        newest = newest or page[:5]
        if number > COUNTED or monotonic() > deadline:
            return SelectedCount(min(number, COUNTED), capped=True, newest=newest)
    return SelectedCount(number, capped=False, newest=newest)


async def take_step(store: EventStore, selection: Selection, operation: BulkOperation, before: int | None) -> BulkStep:
    """Retry or purge the next dead letters, newest first. Events that are no longer dead letters are skipped."""
    chosen: list[Event] = []
    looked_at, following = 0, None
    async for page, next_before in _pages(store, selection, before):
        chosen += page
        looked_at += AT_ONCE
        following = next_before
        if looked_at >= STEP:
            break
    ids = [event.id for event in chosen]
    retry = operation == "retry"
    done = await requeue_still_dead(store, ids) if retry else await store.purge_dead_letters_by_id(ids)
    return BulkStep(done=len(done), before=following)


async def _pages(
    store: EventStore, selection: Selection, before: int | None
) -> AsyncIterator[tuple[list[Event], int | None]]:
    """Yield pages of selected dead letters, newest first, each with the id before which the next page begins."""
    if selection.id is not None:
        before = min(selection.id + 1, MAX_ID)
    query = EventQuery(
        bus=selection.bus,
        statuses=DEAD,
        type=selection.type,
        tags=selection.tags,
        limit=1 if selection.id is not None else AT_ONCE,
    )
    while True:
        page = await store.find(msgspec.structs.replace(query, before_id=before))
        before = None if selection.id is not None else page.next_before_id
        yield [event for event in page.events if selection.holds(event)], before
        if before is None:
            return
