"""Takes a lock, keeps it alive for as long as it is needed, and frees it."""

from __future__ import annotations

import asyncio
import logging

from durabus.clock import monotonic
from durabus.errors import LeaseLost, StoreClosedError, StoreError
from durabus.model.claim import LockClaim
from durabus.store.contract import EventStore
from durabus.worker.heartbeat import SAFETY, in_time

logger = logging.getLogger("durabus.locks")


async def take_lock(store: EventStore, key: str, *, worker_id: str, token: str, lease: float) -> LockClaim | None:
    """The store's ``claim_lock``. Who is cancelled before its answer leaves no lock behind that nobody knows of."""
    asking = asyncio.ensure_future(store.claim_lock(key, worker_id=worker_id, token=token, lease=lease))
    try:
        return await asyncio.shield(asking)
    except asyncio.CancelledError:
        done, _ = await asyncio.wait({asking}, timeout=lease)
        lock = asking.result() if done and not asking.cancelled() and asking.exception() is None else None
        if lock is not None:
            await free_lock(store, lock)
        raise


async def free_lock(store: EventStore, lock: LockClaim) -> None:
    """Give it back, if it is still held."""
    try:
        await store.release_lock(lock)
    except LeaseLost:
        return  # somebody else has it, and it is theirs now
    except StoreError as error:
        logger.warning("lock %s comes back only with its lease: %s", lock.key, error)


async def keep_lock(store: EventStore, lock: LockClaim, lease: float, sent: float) -> str:
    """Renew the lock until it is lost, and answer why; ``sent`` is when it was asked for, by the local clock."""
    deadline, pause = sent + lease * SAFETY, max(sent + lease / 3 - monotonic(), 0.0)
    while True:
        await asyncio.sleep(pause)
        began = monotonic()
        # What is past its deadline, as after a sleep of the machine, gets one more try.
        limit = deadline - began if deadline > began else lease / 10
        try:
            await in_time(store.renew_lock(lock, lease=lease), limit)
            deadline, pause = began + lease * SAFETY, lease / 3
            continue
        except LeaseLost as error:
            return error.reason
        except StoreClosedError as error:
            return str(error)
        except (StoreError, TimeoutError) as error:
            logger.warning("lock %s not renewed, trying again: %s", lock.key, str(error) or "no answer from the store")
        except Exception:
            logger.exception("lock %s not renewed, trying again", lock.key)  # whatever it was, the deadline stands
        pause = lease / 10
        if monotonic() + pause >= deadline:
            await asyncio.sleep(max(deadline - monotonic(), 0.0))
            return "could not be renewed in time"
