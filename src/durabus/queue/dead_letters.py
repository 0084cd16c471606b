"""The dead-letter inspector lists, retries and purges dead letters. It needs a store and nothing else."""

from __future__ import annotations

from durabus.errors import ConfigurationError
from durabus.model.event import Event
from durabus.model.limits import MAX_BATCH, check_batch, seconds
from durabus.model.query import DeadLetterPage
from durabus.store.contract import EventStore
from durabus.store.events import EventRef

DAY = 86_400.0


class DLQInspector:
    """Manages the dead letters of one bus, or of all buses."""

    def __init__(self, store: EventStore, *, bus: str | None = None) -> None:
        self._store = store
        self._bus = bus

    async def list(self, limit: int = 100, offset: int = 0) -> DeadLetterPage:
        """Return a page of dead letters, newest first, and the number of all."""
        check_batch(limit)
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise ConfigurationError(f"offset={offset!r}: must be a whole number of 0 or more")
        return await self._store.list_dead_letters(bus=self._bus, limit=limit, offset=offset)

    async def retry(self, event: EventRef) -> Event:
        """Put a dead letter back into the queue with a full reset: PENDING, no retries, no errors.

        Handlers that succeeded do not run again. Raises ``EventNotFound`` or ``NotADeadLetter``.
        """
        return (await self._store.requeue_dead_letters([event]))[0]

    async def purge(self, older_than_days: float = 30) -> int:
        """Delete dead letters created ``older_than_days`` days ago or earlier. Returns how many it deleted."""
        if (
            isinstance(older_than_days, bool)
            or not isinstance(older_than_days, int | float)
            or not older_than_days >= 0
        ):
            raise ConfigurationError(f"older_than_days={older_than_days!r}: must be a number of 0 or more")
        age = seconds(older_than_days * DAY, "older_than_days in seconds")
        cutoff, purged = await self._store.now() - age, 0
        while True:
            gone = await self._store.purge_dead_letters(created_until_ts=cutoff, bus=self._bus, limit=MAX_BATCH)
            purged += gone
            if gone < MAX_BATCH:
                return purged
