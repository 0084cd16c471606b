"""What a store knows about a bus and its handlers: metadata, never code."""

from __future__ import annotations

import msgspec


class HandlerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A registered handler (a subscription) of one node. The same code on two nodes has the same ``handler_id``."""

    handler_id: str
    pattern: str
    node: str = ""
    """The node that registered the handler. The store sets it."""
    created_ts: float = 0.0
    """When the handler was first registered. The store sets it."""
    last_seen_ts: float = 0.0
    """When the handler was last registered. The store sets it."""


class Registered(msgspec.Struct, frozen=True):
    """The handlers of a bus, and a ``revision`` that identifies this list."""

    revision: str
    handlers: list[HandlerInfo]


class BusInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A registered bus."""

    bus: str
    created_ts: float
    last_seen_ts: float
    stopped_ts: float | None = None
