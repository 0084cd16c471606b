"""Keeps a lock alive for as long as it is needed."""

from __future__ import annotations

import asyncio
import logging

from durabus.clock import monotonic
from durabus.errors import LeaseLost, StoreClosedError, StoreError
from durabus.model.claim import LockClaim
from durabus.store.contract import EventStore
from durabus.worker.heartbeat import SAFETY

logger = logging.getLogger("durabus.locks")


async def keep_lock(store: EventStore, lock: LockClaim, lease: float, sent: float) -> str:
    """Renew the lock until it is lost, and answer why; ``sent`` is when it was asked for, by the local clock."""
    deadline, pause = sent + lease * SAFETY, lease / 3
    while True:
        await asyncio.sleep(pause)
        began = monotonic()
        try:
            # What is past its deadline, as after a sleep of the machine, gets one more try.
            async with asyncio.timeout(max(deadline - began, lease / 10)):
                await store.renew_lock(lock, lease=lease)
            deadline, pause = began + lease * SAFETY, lease / 3
        except LeaseLost as error:
            return error.reason
        except StoreClosedError as error:
            return str(error)
        except (StoreError, TimeoutError) as error:
            logger.warning("lock %s not renewed, trying again: %s", lock.key, str(error) or "no answer from the store")
            pause = min(lease / 10, max(deadline - monotonic(), 0.0))
        if monotonic() >= deadline:
            return "could not be renewed in time"
