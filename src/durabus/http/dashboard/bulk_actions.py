"""Dead letters in groups, and what is done with many of them: one step at a time, each event visited once.

The browser asks for step after step. Nothing is remembered between them, so a step may run on any server, and whoever
closes the page has stopped the work.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from functools import lru_cache
from typing import Literal

import msgspec

from durabus.clock import monotonic
from durabus.errors import EventNotFound, NotADeadLetter
from durabus.http.api import Api
from durabus.http.auth.access import Principal
from durabus.http.schema.fields import MAX_ID
from durabus.model.event import Event
from durabus.model.query import EventQuery
from durabus.model.statuses import EventStatus

DEAD = (EventStatus.FAILED, EventStatus.COMPLETED_WITH_ERRORS)
AT_ONCE = 200
STEP = 500
"""Dead letters that one step looks at."""
GROUPED = 1_000
GROUPED_WITHIN = 0.04
"""How far the page looks for groups: so many of the newest, and no longer than that."""
COUNTED = 10_000
COUNTED_WITHIN = 1.0
MAX_SHAPE_CHARS = 200
# What differs between two failures of one kind: ids, numbers, quoted values.
_VARIES = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|0x[0-9a-fA-F]+|\b[0-9a-f]{16,}\b|\d+(?:\.\d+)?")

Deed = Literal["retry", "purge"]


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters. Everything that is set must hold."""

    bus: str
    type: str | None = None
    tags: tuple[str, ...] = ()
    group: str = ""
    """As ``fingerprint`` makes it."""
    id: int | None = None

    def holds(self, event: Event) -> bool:
        """What the store cannot be asked for."""
        return (self.id is None or event.id == self.id) and (not self.group or fingerprint(event) == self.group)


class Group(msgspec.Struct, kw_only=True):
    """Dead letters of one type that failed alike."""

    key: str
    type: str
    error: str
    count: int = 0
    first_ts: float
    last_ts: float
    sample: int
    """The newest one's id."""


class Grouped(msgspec.Struct, frozen=True):
    """The groups, largest first. ``older``: there are dead letters that nobody looked at."""

    groups: list[Group]
    looked_at: int
    older: bool


class BulkStep(msgspec.Struct, frozen=True, kw_only=True):
    """What one step did. ``before``: where the next one begins; None after the last."""

    done: int
    before: int | None


def error_of(event: Event) -> str:
    """The newest error."""
    return event.errors[-1] if event.errors else "no error was recorded"


@lru_cache(maxsize=4096)
def shape_of(error: str) -> str:
    """An error without what differs from one failure to the next."""
    return _VARIES.sub("…", error.strip().partition("\n")[0])[:MAX_SHAPE_CHARS]


def fingerprint(event: Event) -> str:
    """The same for dead letters of one type that failed alike."""
    return _fingerprint(event.type, shape_of(error_of(event)))


@lru_cache(maxsize=4096)
def _fingerprint(type_: str, shape: str) -> str:
    return hashlib.sha256(f"{type_}\n{shape}".encode()).hexdigest()[:16]


async def group_dead_letters(api: Api, principal: Principal, selection: Selection) -> Grouped:
    """The newest dead letters in groups."""
    groups: dict[str, Group] = {}
    number, deadline, older = 0, monotonic() + GROUPED_WITHIN, False
    async for page, before in _pages(api, principal, selection, None):
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


async def count_selected(api: Api, principal: Principal, selection: Selection) -> tuple[int, bool, list[Event]]:
    """How many there are, whether somebody stopped counting, and the newest few."""
    number, deadline, newest = 0, monotonic() + COUNTED_WITHIN, list[Event]()
    async for page, _ in _pages(api, principal, selection, None):
        number += len(page)
        newest = newest or page[:5]
        if number > COUNTED or monotonic() > deadline:
            return min(number, COUNTED), True, newest
    return number, False, newest


async def take_step(api: Api, principal: Principal, selection: Selection, deed: Deed, before: int | None) -> BulkStep:
    """Do it to the next few, from the newest on. An event that somebody else dealt with meanwhile is left alone."""
    chosen: list[Event] = []
    looked_at, following = 0, None
    async for page, next_before in _pages(api, principal, selection, before):
        chosen += page
        looked_at += AT_ONCE
        following = next_before
        if looked_at >= STEP:
            break
    ids = [event.id for event in chosen]
    done = await _retry(api, ids) if deed == "retry" else len(await api.store.purge_dead_letters_by_id(ids))
    return BulkStep(done=done, before=following)


async def _retry(api: Api, ids: list[int]) -> int:
    try:
        await api.store.requeue_dead_letters(ids)
    except (EventNotFound, NotADeadLetter):
        # One of them is gone: all or none, so each by itself.
        return sum([await _retry_one(api, id_) for id_ in ids])
    return len(ids)


async def _retry_one(api: Api, id_: int) -> bool:
    try:
        await api.store.requeue_dead_letters([id_])
    except (EventNotFound, NotADeadLetter):
        return False
    return True


async def _pages(
    api: Api, principal: Principal, selection: Selection, before: int | None
) -> AsyncIterator[tuple[list[Event], int | None]]:
    """What is selected, newest id first, some at a time, each with where the next ones begin."""
    if selection.id is not None:
        before = min(selection.id + 1, MAX_ID)
    query = EventQuery(
        bus=selection.bus,
        statuses=DEAD,
        type=selection.type,
        tags=principal.narrow(selection.tags),
        limit=1 if selection.id is not None else AT_ONCE,
    )
    while True:
        page = await api.store.find(msgspec.structs.replace(query, before_id=before))
        before = None if selection.id is not None else page.next_before_id
        yield [event for event in page.events if selection.holds(event)], before
        if before is None:
            return
