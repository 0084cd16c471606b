"""How much of what has ended a bus keeps, and what becomes of the bus itself when nobody serves it any more."""

from __future__ import annotations

import asyncio
import logging
import random
from weakref import WeakKeyDictionary

from durabus.clock import monotonic
from durabus.errors import ConfigurationError, DurabusError, HistoryFullError, StoreError
from durabus.store.contract import EventStore

logger = logging.getLogger("durabus.bus")

TRIM_AT_ONCE = 10_000
TRIM_AFTER = 100
"""So many events end, at most, before the excess is forgotten."""
ARCHIVE_EVERY = 5.0
"""Seconds between two looks for buses to forget, on average: of all that leave one store object, the next one looks."""
ARCHIVE_AT_ONCE = 1_000
ARCHIVE_ROUNDS = 20
"""One that leaves forgets so many times that number at most: it wants to go."""
MIN_ARCHIVE_AFTER = 60.0

_next_look: WeakKeyDictionary[EventStore, float] = WeakKeyDictionary()
"""When it is time to look again, by the local clock."""


class HistoryLimit:
    """``max_history_size`` COMPLETED events are kept, the newest; live events and dead letters are never dropped.

    Without ``max_history_drop`` nothing is dropped: a full bus refuses what is published, until somebody trims it.
    """

    def __init__(self, store: EventStore, bus: str, *, size: int | None, drop: bool) -> None:
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 0):
            raise ConfigurationError(f"max_history_size={size!r}: must be a whole number of 0 or more, or None")
        if size == 0 and not drop:
            raise ConfigurationError("max_history_size=0 with max_history_drop=False: nothing could be published")
        self._store = store
        self._bus = bus
        self.size = size
        self._drop = drop
        self._ended = 0
        self._trimming: asyncio.Task[bool] | None = None

    async def admit(self, count: int) -> None:
        """Refuse events that would not fit."""
        if self.size is None or self._drop:
            return
        counts = await self._store.counts(self._bus)
        kept = counts.pending + counts.processing + counts.completed + counts.completed_with_errors + counts.failed
        if kept + count > self.size:
            raise HistoryFullError(
                f"bus {self._bus!r} holds {kept} events, {count} more are above max_history_size={self.size}: trim it "
                "(store.cleanup_excess_events), or let it drop the oldest COMPLETED ones (max_history_drop=True)"
            )

    def one_ended(self) -> None:
        """An event of this bus has ended here."""
        if self.size is None or not self._drop:
            return
        self._ended += 1
        self._trim_if_due()

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
            self._trim_if_due()  # what ended meanwhile was maybe not seen

    async def _trim(self) -> bool:
        """Whether the store could."""
        self._ended = 0
        try:
            keep = self.size or 0
            while await self._store.cleanup_excess_events(self._bus, keep=keep, limit=TRIM_AT_ONCE) == TRIM_AT_ONCE:
                pass
        except StoreError as error:
            self._ended = 1  # the next one that ends tries again
            logger.warning("the history of bus %r is not trimmed yet: %s", self._bus, error)
            return False
        return True


def check_archive_after(seconds: float) -> float:
    """Long enough for the other nodes of a bus to say that it is not stopped."""
    if seconds < MIN_ARCHIVE_AFTER:
        raise ConfigurationError(
            f"archive_after={seconds:g}: must be at least {MIN_ARCHIVE_AFTER:g} s, so that nodes that serve the "
            "bus have time to say so"
        )
    return seconds


async def leave(store: EventStore, bus: str, *, archive_after: float) -> None:
    """A node goes: the bus is stopped until another one announces its handlers, as each does every ten seconds.

    Buses that have been stopped for ``archive_after`` seconds are forgotten by who leaves, now and then, as many as
    came meanwhile: so a million short-lived buses leave as many behind as that time brings.
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
        logger.warning("buses that stopped long ago are not forgotten yet: %s", error)
