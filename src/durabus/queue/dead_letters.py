"""The dead-letter inspector lists, retries and purges dead letters. It needs a store and nothing else."""

from __future__ import annotations

from collections.abc import Callable

from durabus.errors import ConfigurationError, EventNotFound, NotADeadLetter
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
        return await purge_older(self._store, self._bus, age)


async def purge_older(
    store: EventStore,
    bus: str | None,
    age: float,
    *,
    at_once: int = MAX_BATCH,
    moved: Callable[[int], object] = lambda _number: None,
) -> int:
    """Delete dead letters created ``age`` seconds ago or earlier, in steps. Returns how many it deleted.

    It calls ``moved`` after each step with the number deleted so far.
    """
    cutoff, purged = await store.now() - age, 0
    while True:
        gone = await store.purge_dead_letters(created_until_ts=cutoff, bus=bus, limit=at_once)
        purged += gone
        moved(purged)
        if gone < at_once:
            return purged


async def dead_letter_ids(store: EventStore, bus: str | None) -> list[int]:
    """The ids of all dead letters. Read them before the first retry, so that one that fails again is not retried."""
    ids: list[int] = []
    while True:
        page = await store.list_dead_letters(bus=bus, limit=MAX_BATCH, offset=len(ids))
        ids += [event.id for event in page.events]
        if not page.events or len(ids) >= page.total:
            return ids


async def requeue_still_dead(store: EventStore, ids: list[int]) -> list[Event]:
    """Requeue those that are still dead letters, and return them. Skips those that were retried or purged meanwhile."""
    try:
        return await store.requeue_dead_letters(ids)
    except (EventNotFound, NotADeadLetter):
        if len(ids) == 1:
            return []
        # The call is all or none and one of them is gone, so requeue each by itself.
        return [event for id_ in ids for event in await requeue_still_dead(store, [id_])]
