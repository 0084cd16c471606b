"""Buses and handlers. The store holds their metadata, never their code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from durabus.model.handler import BusInfo, HandlerInfo, Registered


class Registrations(Protocol):
    """Which nodes have which handlers for which bus."""

    async def register_handlers(
        self, bus: str, node: str, handlers: Sequence[HandlerInfo], *, kept_for: float | None
    ) -> None:
        """Register ``bus``, and exactly these handlers of ``node`` for it.

        - The registrations of other nodes stay as they are, even under the same handler ids.
        - A handler that the node had already keeps its ``created_ts``; pattern and ``last_seen_ts`` are replaced.
        - ``last_seen_ts`` is the store's present time. A stopped bus becomes active again. A repeat changes nothing
          else.
        - A registration that is not repeated for ``kept_for`` seconds ends, as if it were withdrawn. With None it has
          no end.
        """
        ...

    async def unregister_handler(self, bus: str, handler_id: str) -> bool:
        """Delete a handler's registrations on every node. Returns False if there were none: a repeat is harmless."""
        ...

    async def list_handlers(self, bus: str) -> Registered:
        """Return the handlers of ``bus`` in order of ``handler_id``, then ``node``.

        ``revision`` becomes a new value, never used before, when a handler is added, is removed or changes its pattern
        on any node. A handler whose ``kept_for`` is over changes it with the next registration. A repeated registration
        keeps it. It is empty for an unknown bus.
        """
        ...

    async def list_buses(self, *, after: str = "", limit: int = 100) -> list[BusInfo]:
        """Return registered buses with a name above ``after``, in order of name."""
        ...

    async def active_buses(self, *, after: str = "", limit: int = 100) -> list[str]:
        """Return the names above ``after`` of buses with PENDING or PROCESSING events, without scanning others."""
        ...

    async def stop_bus(self, bus: str) -> None:
        """Mark a bus as stopped now. Its events stay and can still be claimed. An unknown bus is ignored."""
        ...

    async def archive_buses(self, *, stopped_for: float, limit: int = 1000) -> int:
        """Delete buses that were stopped ``stopped_for`` seconds ago or longer, and their handlers.

        A bus with PENDING or PROCESSING events is never deleted. Returns how many were deleted.
        """
        ...
