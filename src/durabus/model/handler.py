"""What a store knows of a bus and of its handlers: metadata, never code."""

from __future__ import annotations

import msgspec


class HandlerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A registered handler (a subscription) of one node. The same code on two nodes has the same ``handler_id``."""

    handler_id: str
    pattern: str
    node: str = ""
    """Who announced it; set by the store."""
    created_ts: float = 0.0
    """Set by the store when the handler is first registered."""
    last_seen_ts: float = 0.0
    """Set by the store at every registration."""


class Registered(msgspec.Struct, frozen=True):
    """The handlers of a bus, and the ``revision`` that tells this list from any other one."""

    revision: str
    handlers: list[HandlerInfo]


class BusInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A registered bus."""

    bus: str
    created_ts: float
    last_seen_ts: float
    stopped_ts: float | None = None
