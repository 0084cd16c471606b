"""A parent completes after its children. Until they have ended, it goes back to the queue."""

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
"""Seconds that a parent keeps its claim for children that are about to end."""
REST = 0.05
"""Seconds that it then rests in the queue."""
LONGER = 1.5
"""The factor by which each further rest is longer: if the children took t seconds, the parent ends within 1.5 t."""
MAX_REST = 30.0
TROUBLE_PAUSE = 0.5


class Child(Protocol):
    """An event that a handler emitted."""

    @property
    def event_id(self) -> str:
        """The id of the event; it is known before the event is stored."""
        ...

    @property
    def is_stored(self) -> bool:
        """Whether the store has accepted it."""
        ...

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        ...

    async def stored(self) -> Event:
        """Wait until the event is stored; raises if the store refused it."""
        ...

    async def ended(self) -> None:
        """Wait for its end without running it."""
        ...


class Children:
    """Decides, for the workers of one bus, whether an event whose handlers are done is complete."""

    def __init__(self, store: EventStore, *, may_wait: bool) -> None:
        self._store = store
        self._may_wait = may_wait
        """False in a serial mode: the children may need the lock that the parent's claim holds."""

    async def after(
        self, claim: Claim, emitted: Sequence[Child], done: Complete, handlers: Sequence[str]
    ) -> Settlement:
        """Return ``done``, or a release of the event if its children have not ended.

        ``emitted`` are the children of this attempt; the store knows those of earlier attempts.
        """
        results = (*claim.results, *done.results)
        if done.errors or any(result.status is ResultStatus.UNRECOVERABLE for result in results):
            return done
        for child in emitted:
            try:
                await child.stored()
            except Exception as error:  # noqa: BLE001  (without the child the work is not done)
                # This keeps no result: it is not known which handler emitted the child, and that one must run again.
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
