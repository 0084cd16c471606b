"""A parent completes after its children. Until they have ended, it goes back to the queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from durabus.errors import StoreError
from durabus.model.claim import Claim
from durabus.model.event import Event, NewEvent
from durabus.model.query import EventQuery
from durabus.model.result import HandlerResult, first_success
from durabus.model.settlement import Complete, Release, Settlement
from durabus.model.statuses import LIVE, ResultStatus
from durabus.store.contract import EventStore

logger = logging.getLogger("durabus.worker")

WAIT_HERE = 2.0
"""Seconds that a parent keeps its claim for children that are about to end."""
WAITING_AT_MOST = 1_000
"""Maximum number of parents of one worker that do so. Each uses memory and renewals."""
AT_THE_LATEST = 300.0
"""Seconds after which a parent in the queue is claimed again, even if a child still lives: it then waits once more."""
WAITS = "its children have not ended"
REST = 0.05
"""Seconds that a parent rests in the queue of a store that cannot tell it when its children have ended."""
LONGER = 1.5
"""The factor by which each further rest is longer: if the children took t seconds, the parent ends within 1.5 t."""
MAX_REST = 30.0


class Room(Protocol):
    """The room for further events on a bus that may be full."""

    async def admit(self, count: int) -> None:
        """Raise if ``count`` more events would not fit."""
        ...


class Child(Protocol):
    """An event that a handler emitted."""

    @property
    def event_id(self) -> str:
        """The id of the event; it is known before the event is stored."""
        ...

    @property
    def new(self) -> NewEvent:
        """The event as it will be stored."""
        ...

    @property
    def store(self) -> EventStore | None:
        """The store of its bus, if it is held for the success of its handler."""
        ...

    @property
    def room(self) -> Room | None:
        """The room on its bus, if it is held for the success of its handler and its bus has a limit."""
        ...

    @property
    def is_stored(self) -> bool:
        """Whether the store has accepted it."""
        ...

    def accept(self) -> None:
        """Note that the store has the child, with its handler's success."""
        ...

    def drop(self) -> None:
        """Note that the child is not stored, because its handler has not succeeded."""
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


class SuccessKeeper(Protocol):
    """Stores the successes of the handlers of one event before the event ends."""

    is_shared: bool
    """Whether handlers of the event run on other nodes too, which may have emitted children."""

    async def keep_successes(self, results: tuple[HandlerResult, ...]) -> None:
        """Store the results of handlers that are done together with all that they emitted."""
        ...


class Children:
    """Decides, for the workers of one bus, whether an event whose handlers are done is complete."""

    def __init__(self, store: EventStore, *, may_wait: bool) -> None:
        self._store = store
        self._may_wait = may_wait
        """False in a serial mode: the children may need the lock that the parent's claim holds."""
        self._stopping = asyncio.Event()
        self._waiting = 0

    def stop(self) -> None:
        """Let no parent wait here any more: the worker stops."""
        self._stopping.set()

    async def after(
        self,
        claim: Claim,
        emitted: Sequence[Child],
        done: Complete,
        handlers: Sequence[str],
        progress: SuccessKeeper,
    ) -> Settlement:
        """Return ``done``, or a release of the event if its children have not ended.

        ``emitted`` are the children of this attempt; the store knows those of earlier attempts. A parent whose
        children have not ended is done with its work: the store learns that, and gets its children, before it waits.
        """
        results = (*claim.results, *done.results)
        if done.errors or any(result.status is ResultStatus.UNRECOVERABLE for result in results):
            return done
        known = {result.handler_id for result in results}
        ran = (
            first_success(handler_id, done.execution_time_ms if handler_id == done.handler_id else None)
            for handler_id in handlers
            if handler_id not in known
        )
        successes = (*done.results, *ran)
        if not all(child.done for child in emitted):
            if not self._may_wait or self._stopping.is_set() or self._waiting >= WAITING_AT_MOST:
                return self._release(claim, successes)
            await progress.keep_successes(successes)
            done = replace(done, results=successes, handler_id=None)
            await self._wait(emitted)
        return self._release(claim, successes) if await self._any_lives(claim.event, emitted, progress) else done

    def _release(self, claim: Claim, results: tuple[HandlerResult, ...]) -> Release:
        if not self._store.features.children:
            return Release(claim.ref, _rest(claim.event), results, WAITS)
        return Release(claim.ref, AT_THE_LATEST, results, WAITS, until_children=True)

    async def _wait(self, children: Sequence[Child]) -> None:
        self._waiting += 1
        tasks = {asyncio.create_task(_all_ended(children)), asyncio.create_task(_is_set(self._stopping))}
        try:
            await asyncio.wait(tasks, timeout=WAIT_HERE, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting -= 1
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _any_lives(self, event: Event, emitted: Sequence[Child], progress: SuccessKeeper) -> bool:
        if event.fence == 1 and not progress.is_shared and all(child.done for child in emitted):
            return False
        query = EventQuery(parent_ids=(event.event_id,), statuses=tuple(LIVE), limit=1)
        try:
            return bool((await self._store.find(query)).events)
        except StoreError as error:
            logger.warning("children of event %s not known, asking again: %s", event.event_id, error)
            return True


async def _all_ended(children: Sequence[Child]) -> None:
    await asyncio.gather(*(child.ended() for child in children), return_exceptions=True)


async def _is_set(event: asyncio.Event) -> None:
    await event.wait()


def _rest(event: Event) -> float:
    returns = event.fence - event.attempts
    return min(REST * LONGER ** min(returns, 30), MAX_REST)
