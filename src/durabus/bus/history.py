"""How many ended events a bus keeps, and how a bus that no node serves any more is archived."""

from __future__ import annotations

import asyncio
import logging
import random
from weakref import WeakKeyDictionary

from msgspec.structs import astuple

from durabus.bus.options import BusOptions
from durabus.clock import monotonic
from durabus.errors import ConfigurationError, DurabusError, HistoryFullError, StoreError
from durabus.model.limits import Duration, seconds
from durabus.store.contract import EventStore

logger = logging.getLogger("durabus.bus")

TRIM_AT_ONCE = 10_000
TRIM_AFTER = 100
"""Maximum number of events that end before the bus deletes the excess."""
ARCHIVE_EVERY = 5.0
"""Average seconds between two searches for buses to archive. The next bus that leaves the store object searches."""
ARCHIVE_AT_ONCE = 1_000
ARCHIVE_ROUNDS = 20
"""Maximum number of such batches that a leaving bus archives: it has to end soon."""
ARCHIVE_AFTER = 86_400.0
"""Seconds that the store remembers a bus that no node serves any more."""
MIN_ARCHIVE_AFTER = 60.0

_next_look: WeakKeyDictionary[EventStore, float] = WeakKeyDictionary()
"""When the next search is due, by the local clock."""


class HistoryLimit:
    """Keeps the newest ``max_history_size`` ended events; it never drops live events and dead letters.

    Without ``max_history_drop`` it drops nothing: a full bus refuses new events until a user trims it.
    """

    def __init__(self, store: EventStore, options: BusOptions) -> None:
        self._store = store
        self._bus = options.name
        self.size = options.max_history_size
        self._drop = options.max_history_drop
        self.node: str | None = None
        """The address of this node: results of events that other nodes wait for stay until those have read them."""
        self._ended = 0
        self._trimming: asyncio.Task[bool] | None = None

    @property
    def is_limited(self) -> bool:
        """Whether the bus may be full."""
        return self.size is not None and not self._drop

    async def admit(self, count: int) -> None:
        """Raise ``HistoryFullError`` if ``count`` more events would not fit."""
        if self.size is None or self._drop:
            return
        counts = await self._store.counts(self._bus)
        kept = sum(astuple(counts))
        if kept + count > self.size:
            raise HistoryFullError(
                f"bus {self._bus!r} holds {kept} events, {count} more are above max_history_size={self.size}: trim it "
                "(store.cleanup_excess_events), or let it drop the oldest ended ones (max_history_drop=True)"
            )

    def one_ended(self) -> None:
        """Count an event of this bus that ended in this process."""
        if self.size is None or not self._drop:
            return
        self._ended += 1
        self._trim_if_due()

    def give_up(self) -> None:
        """Trim nothing more: the store does not reply."""
        if self._trimming is not None:
            self._trimming.cancel()

    async def close(self) -> None:
        """Trim for the last time."""
        while self._trimming is not None:
            await asyncio.gather(self._trimming, return_exceptions=True)
        if self._ended:
            await self._trim()

    def _trim_if_due(self) -> None:
        if self._ended >= min(TRIM_AFTER, (self.size or 0) // 10 + 1) and self._trimming is None:
            self._trimming = asyncio.get_running_loop().create_task(self._trim())
            self._trimming.add_done_callback(self._trimmed)

    def _trimmed(self, task: asyncio.Task[bool]) -> None:
        self._trimming = None
        if task.cancelled():
            return
        if task.exception() is not None:
            logger.error("the history of bus %r was not trimmed: %s", self._bus, task.exception())
        elif task.result():
            self._trim_if_due()  # it may have missed events that ended meanwhile

    async def _trim(self) -> bool:
        """Delete the excess. Returns whether the store could."""
        self._ended = 0
        try:
            keep = self.size or 0
            gone = TRIM_AT_ONCE
            while gone == TRIM_AT_ONCE:
                gone = await self._store.cleanup_excess_events(self._bus, keep=keep, limit=TRIM_AT_ONCE, node=self.node)
        except StoreError as error:
            self._ended = 1  # the next one that ends tries again
            logger.warning("the history of bus %r is not trimmed yet: %s", self._bus, error)
            return False
        return True


def check_history(size: int | None, *, drop: bool) -> int | None:
    """Return ``max_history_size``, or raise if it is no size or leaves no room for any event."""
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 0):
        raise ConfigurationError(f"max_history_size={size!r}: must be a whole number of 0 or more, or None")
    if size == 0 and not drop:
        raise ConfigurationError("max_history_size=0 with max_history_drop=False: nothing could be published")
    return size


def check_archive_after(value: Duration) -> float:
    """Return seconds; raise if the other nodes of a bus could not announce in this time that they serve it."""
    found = seconds(value, "archive_after")
    if found < MIN_ARCHIVE_AFTER:
        raise ConfigurationError(
            f"archive_after={found:g}: must be at least {MIN_ARCHIVE_AFTER:g} s, so that nodes that serve the "
            "bus have time to announce it"
        )
    return found


async def leave(store: EventStore, bus: str, *, archive_after: float) -> None:
    """Mark the bus as stopped; another node that serves it undoes this when it next announces its handlers.

    Now and then a leaving node also archives buses that have been stopped for ``archive_after`` seconds. So of a
    million short-lived buses, the store keeps only those of that time.
    """
    try:
        await store.stop_bus(bus)
    except DurabusError as error:
        logger.warning("bus %r was not marked as stopped: %s", bus, error)
        return
    if monotonic() < _next_look.get(store, 0.0):
        return
    _next_look[store] = monotonic() + ARCHIVE_EVERY * random.uniform(0.5, 1.5)
    try:
        for _ in range(ARCHIVE_ROUNDS):
            if await store.archive_buses(stopped_for=archive_after, limit=ARCHIVE_AT_ONCE) < ARCHIVE_AT_ONCE:
                break
    except DurabusError as error:
        logger.warning("buses that stopped long ago are not archived yet: %s", error)
