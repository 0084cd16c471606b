"""Queries for events, and the pages that a store returns."""

from __future__ import annotations

import msgspec

from durabus.model.event import Event
from durabus.model.statuses import EventStatus


class EventQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which events to find. An event must meet every condition that is set. Newest ``id`` comes first."""

    bus: str | None = None
    statuses: tuple[EventStatus, ...] = ()
    """The event has one of these statuses; empty means any."""
    type: str | None = None
    """A pattern as in ``durabus.model.pattern``."""
    tags: tuple[str, ...] = ()
    """The event has at least one of these tags; empty means any."""
    parent_ids: tuple[str, ...] = ()
    """The event is a child of one of these events; empty means any."""
    created_from_ts: float | None = None
    created_until_ts: float | None = None
    before_id: int | None = None
    """Only ids below this one. Take it from ``next_before_id`` of the previous page."""
    limit: int = 100


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of events. ``next_before_id`` is None on the last page."""

    events: list[Event]
    next_before_id: int | None = None


class DeadLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters, newest first, and their total number."""

    events: list[Event]
    total: int


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How many events are in each status.

    ``completed`` and ``cancelled`` count only events that retention has not deleted.
    """

    pending: int = 0
    processing: int = 0
    completed: int = 0
    completed_with_errors: int = 0
    failed: int = 0
    cancelled: int = 0
