"""Questions to a store and the pages that answer them."""

from __future__ import annotations

import msgspec

from durabus.model.event import Event
from durabus.model.statuses import EventStatus


class EventQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which events to find. Every condition that is set must hold; results come newest ``id`` first."""

    bus: str | None = None
    statuses: tuple[EventStatus, ...] = ()
    """Any of these; empty means all."""
    type: str | None = None
    """A glob as in ``durabus.model.pattern``."""
    tags: tuple[str, ...] = ()
    """At least one of these; empty means all."""
    parent_id: str | None = None
    created_from_ts: float | None = None
    created_until_ts: float | None = None
    before_id: int | None = None
    """Keyset page: only ids below this one. Take it from the previous page's ``next_before_id``."""
    limit: int = 100


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page. ``next_before_id`` is None on the last one."""

    events: list[Event]
    next_before_id: int | None = None


class DeadLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters, newest first, and how many there are in all."""

    events: list[Event]
    total: int


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How many events are in each status. ``completed`` counts what retention has kept."""

    pending: int = 0
    processing: int = 0
    completed: int = 0
    completed_with_errors: int = 0
    failed: int = 0
