"""A parent is complete when its children are: who may end, and who goes back to the queue until they have."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from durabus.errors import StoreError
from durabus.model.claim import Claim
from durabus.model.event import Event
from durabus.model.query import EventQuery
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Release, Settlement
from durabus.model.statuses import LIVE, ResultStatus
from durabus.store.contract import EventStore

logger = logging.getLogger("durabus.worker")

WAIT_HERE = 0.25
"""How long a parent keeps its claim for children that are about to end."""
REST = 0.05
"""How long it then rests in the queue."""
LONGER = 1.5
"""How many times as long it rests every time it comes back: if its children took t seconds, it ends within 1.5 t."""
MAX_REST = 30.0
TROUBLE_PAUSE = 0.5


class Child(Protocol):
    """An event that a handler emitted."""

    @property
    def event_id(self) -> str:
        """Known before it is stored."""
        ...

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        ...

    async def stored(self) -> Event:
        """Wait until the store has it; raises if it was refused."""
        ...

    async def ended(self) -> None:
        """Wait for its end, as somebody who is not its parent would."""
        ...


class Children:
    """Decides, for the workers of one bus, whether an event whose handlers are done is complete."""

    def __init__(self, store: EventStore, *, may_wait: bool) -> None:
        self._store = store
        self._may_wait = may_wait
        """Not in a serial mode: the children may need the lock that the parent's claim holds."""

    async def after(
        self, claim: Claim, emitted: Sequence[Child], done: Complete, handlers: Sequence[str]
    ) -> Settlement:
        """``done``, or what is to become of the event until its children have ended.

        ``emitted`` are the children of this attempt; those of earlier ones are known to the store.
        """
        results = (*claim.results, *done.results)
        if done.errors or any(result.status is ResultStatus.UNRECOVERABLE for result in results):
            return done
        for child in emitted:
            try:
                await child.stored()
            except Exception as error:  # noqa: BLE001  (whatever kept it from being stored, the work is not done)
                # No result is kept: the handler that emitted it must run again, and which one it was is not known.
                text = f"child event {child.event_id} was not stored: {type(error).__name__}: {error}"
                return Fail(claim.ref, text, TROUBLE_PAUSE)
        if self._may_wait and not all(child.done for child in emitted):
            await _wait(emitted)
        if not await self._any_lives(claim.event, emitted):
            return done
        known = {result.handler_id for result in results}
        ran = (
            HandlerResult(handler_id=handler_id, status=ResultStatus.SUCCEEDED, attempts=1)
            for handler_id in handlers
            if handler_id not in known
        )
        return Release(claim.ref, _rest(claim.event), (*done.results, *ran))

    async def _any_lives(self, event: Event, emitted: Sequence[Child]) -> bool:
        if event.fence == 1 and all(child.done for child in emitted):
            return False
        query = EventQuery(parent_id=event.event_id, statuses=tuple(LIVE), limit=1)
        try:
            return bool((await self._store.find(query)).events)
        except StoreError as error:
            logger.warning("children of event %s not known, asking again: %s", event.event_id, error)
            return True


def _rest(event: Event) -> float:
    returns = event.fence - event.attempts
    return min(REST * LONGER ** min(returns, 30), MAX_REST)


async def _wait(children: Sequence[Child]) -> None:
    tasks = [asyncio.ensure_future(child.ended()) for child in children if not child.done]
    try:
        await asyncio.wait(tasks, timeout=WAIT_HERE)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
