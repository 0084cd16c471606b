"""Children whose parent waits for them under a lock, while only other nodes have their handlers.

The parent's node says so by a lock, ``event:awaited:{bus}:{event_id}``. It ends before the parent's own lock can: who
runs such a child looks at it now and then, and stops when it is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from durabus.clock import monotonic
from durabus.errors import StoreClosedError, StoreError
from durabus.model.claim import new_token
from durabus.model.statuses import EventStatus
from durabus.store.contract import EventStore
from durabus.worker.lock_keeping import free_lock, keep_lock, take_lock

logger = logging.getLogger("durabus.worker")

SHORTER = 2 / 3
"""The part of a claim's lease that the word of a parent's node lasts."""
LOOK_AT = 20
"""How many children of one bus are looked at together."""
LOOK_EVERY = 0.5
"""How often who runs such a child looks, at most: so long its parent cannot end after it gave up."""


def _prefix(bus: str) -> str:
    return f"event:awaited:{bus}:"


@asynccontextmanager
async def announced(store: EventStore, bus: str, event_id: str, worker_id: str, lease: float) -> AsyncIterator[None]:
    """While this is open, nodes that have the handlers may run the event without its bus's lock."""
    token, shorter, sent = new_token(), lease * SHORTER, monotonic()
    lock = await take_lock(store, _prefix(bus) + event_id, worker_id=worker_id, token=token, lease=shorter)
    if lock is None:
        yield  # somebody else waits for it too
        return
    renewing = asyncio.create_task(keep_lock(store, lock, shorter, sent))
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        await free_lock(store, lock)


async def awaited_events(store: EventStore, bus: str) -> list[str]:
    """The ids of the events of a bus that are announced."""
    prefix = _prefix(bus)
    locks = await store.list_locks(after=prefix, limit=LOOK_AT)
    return [lock.key.removeprefix(prefix) for lock in locks if lock.key.startswith(prefix)]


async def is_awaited(store: EventStore, bus: str, event_id: str) -> bool:
    """Whether the event is announced now. False if nobody can tell."""
    key = _prefix(bus) + event_id
    try:
        locks = await store.list_locks(after=key[:-1], limit=LOOK_AT)
    except Exception as error:  # noqa: BLE001  (whatever it is, nobody can tell)
        logger.warning("cannot tell whether event %s is still awaited: %s", event_id, error)
        return False
    return any(lock.key == key for lock in locks)


async def until_withdrawn(store: EventStore, bus: str, event_id: str, lease: float) -> None:
    """Return when the event is not announced any more, or nobody can tell."""
    while True:
        await asyncio.sleep(min(lease / 10, LOOK_EVERY))
        if not await is_awaited(store, bus, event_id):
            return


async def until_let_go(store: EventStore, event_id: str, lease: float) -> None:
    """Return when nobody runs the event any more that was announced before: until then it uses its parent's lock.

    Who claimed it looks before it begins whether it is still announced, so a child seen at rest will not begin.
    """
    deadline = monotonic() + lease
    while monotonic() < deadline:
        try:
            event = await store.get_event(event_id)
        except StoreClosedError:
            return
        except StoreError as error:
            logger.warning("cannot tell whether event %s still runs, asking again: %s", event_id, error)
        else:
            if event is None or event.status is not EventStatus.PROCESSING:
                return
        await asyncio.sleep(min(lease / 100, LOOK_EVERY))
