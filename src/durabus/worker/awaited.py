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
from durabus.errors import DurabusError, LeaseLost, StoreError
from durabus.model.claim import new_token
from durabus.store.contract import EventStore
from durabus.worker.lock_keeping import keep_lock

logger = logging.getLogger("durabus.worker")

SHORTER = 2 / 3
"""The part of a claim's lease that the word of a parent's node lasts."""
LOOK_AT = 20
"""How many children of one bus are looked at together."""


def _prefix(bus: str) -> str:
    return f"event:awaited:{bus}:"


@asynccontextmanager
async def announced(store: EventStore, bus: str, event_id: str, worker_id: str, lease: float) -> AsyncIterator[None]:
    """While this is open, nodes that have the handlers may run the event without its bus's lock."""
    token, shorter, sent = new_token(), lease * SHORTER, monotonic()
    lock = await store.claim_lock(_prefix(bus) + event_id, worker_id=worker_id, token=token, lease=shorter)
    if lock is None:
        yield  # somebody else waits for it too
        return
    renewing = asyncio.create_task(keep_lock(store, lock, shorter, sent))
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        try:
            await store.release_lock(lock)
        except LeaseLost:
            pass  # it had ended by itself
        except StoreError as error:
            logger.warning("event %s is announced as awaited until %s s from now: %s", event_id, shorter, error)


async def awaited_events(store: EventStore, bus: str) -> list[str]:
    """The ids of the events of a bus that are announced."""
    prefix = _prefix(bus)
    locks = await store.list_locks(after=prefix, limit=LOOK_AT)
    return [lock.key.removeprefix(prefix) for lock in locks if lock.key.startswith(prefix)]


async def until_withdrawn(store: EventStore, bus: str, event_id: str, lease: float) -> None:
    """Return when the event is not announced any more, or nobody can tell."""
    key = _prefix(bus) + event_id
    while True:
        await asyncio.sleep(lease / 10)
        try:
            locks = await store.list_locks(after=key[:-1], limit=LOOK_AT)
        except DurabusError as error:
            logger.warning("cannot tell whether event %s is still awaited: %s", event_id, error)
            return
        if all(lock.key != key for lock in locks):
            return
