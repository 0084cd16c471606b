"""How a worker ends: it finishes what it holds when it is stopped, and reports why it ended when it was not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from enum import Enum, auto

from durabus.errors import DurabusError, EventBusShutdownError, StoreClosedError
from durabus.store.outage import Outage
from durabus.worker.claim_table import ClaimTable

logger = logging.getLogger("durabus.worker")

DRAIN_STEP = 0.1
AWAY_PATIENCE = 1.5
"""Seconds that a shutdown waits for a store that is away."""
ANSWER_PATIENCE = 2.0
"""Seconds that a shutdown waits while a settlement is under way and the store has not failed. If the settlement is
lost, the event runs again."""


class Drained(Enum):
    """What a shutdown found when it stopped waiting."""

    EMPTY = auto()
    """The worker has settled all that it held."""
    HANDLERS_RUN = auto()
    """Some events are left, and the store can take them back."""
    STORE_IS_AWAY = auto()
    """Some events are left, and the store fails or does not reply."""


async def drain(
    serving: Sequence[asyncio.Task[None]],
    claims: ClaimTable,
    outage: Outage,
    timeout: float,  # noqa: ASYNC109  (it returns what is left)
) -> Drained:
    """Wait until the worker has settled all that it holds, at most ``timeout`` seconds.

    It does not wait long for a store that is away: one that fails, or does not reply, while no handler runs.
    """
    left, silent, held = timeout, 0.0, len(claims.by_id)
    while (await asyncio.wait(serving, timeout=min(DRAIN_STEP, left)))[1]:
        left -= DRAIN_STEP
        only_the_store = not any(map(claims.is_at_work_on, claims.by_id.values()))
        silent = silent + DRAIN_STEP if only_the_store and len(claims.by_id) == held else 0.0
        held = len(claims.by_id)
        if silent >= (ANSWER_PATIENCE if held and outage.since is None else AWAY_PATIENCE):
            logger.warning("the store is away: %s events come back when their lease is over", held)
            return Drained.STORE_IS_AWAY
        if left <= 0:
            return Drained.HANDLERS_RUN
    return Drained.EMPTY


def error_of_end(bus: str, cause: BaseException | None) -> DurabusError:
    """The error that ends all waits for a worker that ended although nothing stopped it."""
    if isinstance(cause, StoreClosedError):
        return StoreClosedError(f"the store was closed under the worker of bus {bus!r}, which ends: {cause}")
    return EventBusShutdownError(
        f"the worker of bus {bus!r} was ended from outside ({cause or 'its task was cancelled'}): "
        "shut the bus down before its event loop ends"
    )
