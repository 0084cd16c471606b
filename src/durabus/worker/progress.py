"""How the store learns what handlers did before their event ends, so that a crash does not repeat a success."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from durabus.errors import ConfigurationError, LeaseLost, StoreClosedError, StoreError
from durabus.model.claim import ClaimRef
from durabus.model.result import HandlerResult
from durabus.model.settlement import Keep, Settlement
from durabus.store.contract import EventStore
from durabus.worker.children.children import Child

logger = logging.getLogger("durabus.worker")

KEEP_AFTER = 0.025
"""Seconds after which the worker writes a success, if the event has not ended by then."""
PAUSE = 0.5
LONGEST_PAUSE = 4.0
"""Longest pause in seconds between two tries to write while the store fails."""

STEPS_END_WITHIN = 30.0
"""Seconds that an attempt waits for steps which its handler has left running."""

Unsent = tuple[Keep, asyncio.Future[None]]


class Keeper:
    """Writes results under claims that go on. Those of one turn of the event loop share one call of the store."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._unsent: list[Unsent] = []
        self._writing: set[asyncio.Task[None]] = set()

    async def keep(self, ref: ClaimRef, results: tuple[HandlerResult, ...]) -> None:
        """Return once the results are stored. Raises ``LeaseLost`` if the claim is not current any more.

        While the store fails, this tries again: what a handler did has an effect, and must not be forgotten.
        """
        pause = PAUSE
        while True:
            try:
                await self._send(Keep(ref, results))
            except StoreClosedError:
                raise
            except StoreError as error:
                logger.warning("results of event %s are not stored yet, trying again: %s", ref.id, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                return

    def keep_in_background(self, ref: ClaimRef, results: tuple[HandlerResult, ...]) -> None:
        """Write the results and wait for nothing: the settlement of the event will carry them, too."""
        self._send(Keep(ref, results)).add_done_callback(_note)

    def _send(self, keep: Keep) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        stored: asyncio.Future[None] = loop.create_future()
        self._unsent.append((keep, stored))
        if len(self._unsent) == 1:
            loop.call_soon(self._write_unsent)
        return stored

    def _write_unsent(self) -> None:
        unsent, self._unsent = self._unsent, []
        task = asyncio.get_running_loop().create_task(self._write(unsent))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self, unsent: list[Unsent]) -> None:
        outcomes: Sequence[BaseException | None]
        try:
            outcomes = await self._store.keep_results([keep for keep, _ in unsent])
        except Exception as error:  # noqa: BLE001  (those who wait get it, whatever it is)
            outcomes = [error] * len(unsent)
        for (_, stored), outcome in zip(unsent, outcomes, strict=True):
            if stored.done():
                continue  # the handler was cancelled and does not wait any more
            if outcome is None:
                stored.set_result(None)
            else:
                stored.set_exception(outcome)


def _note(stored: asyncio.Future[None]) -> None:
    error = None if stored.cancelled() else stored.exception()
    if error is not None and not isinstance(error, LeaseLost | StoreClosedError):  # the heartbeat reports a lost claim
        logger.warning("results of handlers are not stored before their event ends: %s", error)


class Parent(Protocol):
    """A claimed event, with the events that its handlers have emitted so far."""

    children: list[Child] | None


class EventProgress:
    """What the handlers of one claimed event have done so far.

    Every event has one, and few need more than ``settled``: the rest is made when it is needed.
    """

    __slots__ = ("_keeper", "_kept", "_parent", "_ref", "_running", "_strict", "_timer", "_unstored", "settled")

    def __init__(
        self, ref: ClaimRef, keeper: Keeper | None = None, *, strict: bool = False, parent: Parent | None = None
    ) -> None:
        self._ref = ref
        self._keeper = keeper
        self._strict = strict
        self._parent = parent
        self._kept = 0
        """How many of ``settled`` the store knows, or is about to know."""
        self._timer: asyncio.TimerHandle | None = None
        self._unstored: dict[str, HandlerResult] | None = None
        """Steps that have ended and that the store has not acknowledged."""
        self._running: set[asyncio.Future[None]] | None = None
        """One for each step that runs."""
        self.settled: list[HandlerResult] = []
        """The results that no further attempt will change."""

    @property
    def _children(self) -> Sequence[Child]:
        return () if self._parent is None else self._parent.children or ()

    async def settle(self, result: HandlerResult, *, others_run: bool) -> None:
        """Note a result for good. While other handlers run, the store learns of it soon, or at once with ``strict``."""
        self.settled.append(result)
        if not others_run or self._keeper is None:
            return
        if self._strict:
            for child in self._children:
                await child.stored()  # a success without its children would be no success
            await self._keeper.keep(self._ref, self._unkept())
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(KEEP_AFTER, self._keep_now)

    async def keep(self, result: HandlerResult) -> None:
        """Store the result of a step after the children that were emitted before it, and return once it is stored."""
        if self._keeper is None:
            raise ConfigurationError("durable steps need a handler that an EventBus or an EventManager runs")
        for child in self._children:
            if not child.is_stored:
                await child.stored()
        if self._unstored is None:
            self._unstored = {}
        self._unstored[result.handler_id] = result
        await self._keeper.keep(self._ref, (result,))
        del self._unstored[result.handler_id]

    def step_runs(self) -> Callable[[], None]:
        """Note that a step runs, and return what notes its end."""
        running: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        everything = self._running = self._running or set()
        everything.add(running)

        def ended() -> None:
            everything.discard(running)
            if not running.done():
                running.set_result(None)

        return ended

    async def steps_ended(self) -> None:
        """Wait for steps that still run although their handler has ended, as in a ``gather`` of which one part failed.

        Otherwise the next attempt would run them again beside themselves. A step that takes too long is left behind.
        """
        if self._running:
            await asyncio.wait(set(self._running), timeout=STEPS_END_WITHIN)

    def with_steps(self, settlement: Settlement) -> Settlement:
        """Return the settlement with the steps that have ended and that the store has not acknowledged."""
        if not self._unstored:
            return settlement
        return replace(settlement, results=(*settlement.results, *self._unstored.values()))

    def end(self) -> None:
        """Write nothing more: the settlement carries all results."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _unkept(self) -> tuple[HandlerResult, ...]:
        unkept, self._kept = tuple(self.settled[self._kept :]), len(self.settled)
        return unkept

    def _keep_now(self) -> None:
        self._timer = None
        if any(not child.is_stored for child in self._children):
            self._timer = asyncio.get_running_loop().call_later(KEEP_AFTER, self._keep_now)
        elif self._keeper is not None:
            self._keeper.keep_in_background(self._ref, self._unkept())
