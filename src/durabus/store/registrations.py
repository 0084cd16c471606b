"""Buses and handlers: metadata that travels, while code stays on its machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from durabus.model.handler import BusInfo, HandlerInfo, Registered


class Registrations(Protocol):
    """Who serves which bus."""

    async def register_handlers(
        self, bus: str, node: str, handlers: Sequence[HandlerInfo], *, kept_for: float | None
    ) -> None:
        """Make ``bus`` known, and that ``node`` has exactly these handlers for it.

        - What other nodes registered, under the same handler ids too, stays as it is.
        - A handler that the node had already keeps its ``created_ts``; pattern and ``last_seen_ts`` are replaced.
        - ``last_seen_ts`` is the store's clock. A stopped bus becomes active again. A repeat changes nothing else.
        - A registration that was not repeated for ``kept_for`` seconds is over, as if withdrawn; None: it has no end.
        """
        ...

    async def unregister_handler(self, bus: str, handler_id: str) -> bool:
        """Forget a handler, whichever nodes have it. False if it was not known: a repeat is harmless."""
        ...

    async def list_handlers(self, bus: str) -> Registered:
        """The handlers of ``bus`` in order of ``handler_id``, then ``node``.

        ``revision`` is another one, never seen before, after a handler appeared, went or changed its pattern on any
        node (for one whose time is over: after the next registration); a repeated registration keeps it. It is empty
        for an unknown bus.
        """
        ...

    async def list_buses(self, *, after: str = "", limit: int = 100) -> list[BusInfo]:
        """Registered buses with a name above ``after``, in order of name."""
        ...

    async def active_buses(self, *, after: str = "", limit: int = 100) -> list[str]:
        """Names above ``after`` of the buses that have PENDING or PROCESSING events, without scanning cold ones."""
        ...

    async def stop_bus(self, bus: str) -> None:
        """Mark a bus as stopped now. Its events stay; they can still be claimed. Unknown bus: nothing happens."""
        ...

    async def archive_buses(self, *, stopped_for: float, limit: int = 1000) -> int:
        """Forget buses, and their handlers, that were stopped ``stopped_for`` seconds ago or longer.

        A bus with PENDING or PROCESSING events is never forgotten. Returns how many were.
        """
        ...
