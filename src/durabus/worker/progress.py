"""How the store learns what handlers did before their event ends, so that a crash does not repeat a success."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from durabus.errors import ConfigurationError, LeaseLost, StoreClosedError, StoreError
from durabus.model.claim import Claim, ClaimRef, HandlerClaim
from durabus.model.result import HandlerResult
from durabus.model.settlement import Cancel, Complete, Keep, Settlement
from durabus.model.statuses import ResultStatus
from durabus.store.contract import EventStore
from durabus.store.features import require
from durabus.worker.children.children import Child

logger = logging.getLogger("durabus.worker")

KEEP_AFTER = 0.025
"""Seconds after which the worker writes a success, if the event has not ended by then."""
PAUSE = 0.5
LONGEST_PAUSE = 4.0
"""Longest pause in seconds between two tries to write while the store fails."""

SUCCESSES = frozenset({ResultStatus.SUCCEEDED, ResultStatus.KEPT})
STEPS_END_WITHIN = 30.0
"""Seconds that an attempt waits for steps which its handler has left running."""

Unsent = tuple[Keep, asyncio.Future[None]]


class Keeper:
    """Writes results under claims that go on. Those of one turn of the event loop share one call of the store."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._unsent: list[Unsent] = []
        self.tasks: set[asyncio.Task[None]] = set()
        """Those that write."""

    def require(self, feature: str, what: str) -> None:
        """Raise ``UnsupportedByStore`` unless the store has the feature."""
        require(self._store.features, feature, what)

    @property
    def store_with_children(self) -> EventStore | None:
        """The store, if it can store children together with results; else None."""
        return self._store if self._store.features.children else None

    async def keep(
        self, ref: ClaimRef | HandlerClaim, results: tuple[HandlerResult, ...], children: Sequence[Child] = ()
    ) -> None:
        """Return once results and children are stored. Raises ``LeaseLost`` if the claim is not current any more.

        While the store fails, this tries again: what a handler did has an effect, and must not be forgotten.
        """
        pause = PAUSE
        while True:
            try:
                await self._send(Keep(ref, results, tuple(child.new for child in children)))
            except StoreClosedError:
                raise
            except StoreError as error:
                logger.warning("results of event %s are not stored yet, trying again: %s", ref.id, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                for child in children:
                    child.accept()
                return

    def keep_in_background(
        self, ref: ClaimRef | HandlerClaim, results: tuple[HandlerResult, ...], children: Sequence[Child] = ()
    ) -> asyncio.Future[None]:
        """Write the results once, and wait for nothing: the settlement of the event will carry them, too.

        The future ends with the write, or with its error.
        """
        kept = self._send(Keep(ref, results, tuple(child.new for child in children)))
        if children:
            kept.add_done_callback(partial(_note_children, children))
        return kept

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
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _write(self, unsent: list[Unsent]) -> None:
        outcomes: Sequence[BaseException | None]
        try:
            outcomes = await self._store.keep_results([keep for keep, _ in unsent])
        except Exception as error:  # noqa: BLE001  (those who wait get it, whatever it is)
            outcomes = [error] * len(unsent)
        except asyncio.CancelledError:  # the worker has stopped, and the store does not answer
            for _, stored in unsent:
                stored.cancel()
            raise
        for (_, stored), outcome in zip(unsent, outcomes, strict=True):
            if stored.done():
                continue  # the handler was cancelled and does not wait any more
            if outcome is None:
                stored.set_result(None)
            else:
                stored.set_exception(outcome)


def _note_children(children: Sequence[Child], stored: asyncio.Future[None]) -> None:
    if not stored.cancelled() and stored.exception() is None:
        for child in children:
            child.accept()


class Parent(Protocol):
    """A claimed event, with the events that its handlers have emitted so far."""

    children: list[Child] | None
    owed: Sequence[Child]
    """Those that the settlement carries."""
    claim: Claim
    lost: bool
    """Another claim may hold the event."""


class SlotYielder(Protocol):
    """The slots in which events run, for a handler that waits."""

    variables: contextvars.Context
    """The context variables that each slot begins with."""

    def yield_slot(self, claimed: Any) -> None:
        """Let another event run while this one waits."""
        ...

    def resume(self, claimed: Any) -> None:
        """Count the event again: its wait is over."""
        ...


class EventHolder(Protocol):
    """Keeps the claims of events that only wait for handlers of other nodes."""

    def holding(self, claimed: Any) -> AbstractContextManager[None]:
        """Inside the block, the event only waits."""
        ...


class ProgressParts:
    """What the progress of every event of a worker uses. A call outside of a worker has only some of it, or nothing."""

    __slots__ = ("holder", "keeper", "slots", "store", "strict")

    def __init__(
        self,
        keeper: Keeper | None = None,
        *,
        strict: bool = False,
        slots: SlotYielder | None = None,
        holder: EventHolder | None = None,
    ) -> None:
        self.keeper = keeper
        self.strict = strict
        self.slots = slots
        self.holder = holder
        self.store = None if keeper is None else keeper.store_with_children
        """The store that can store children together with the success that they belong to; None if it cannot."""


NO_PARTS = ProgressParts()


class EventProgress(msgspec.Struct, eq=False):
    """What the handlers of one claimed event have done so far.

    Every event has one, and few need more than ``settled``: the rest is made when it is needed.
    """

    ref: ClaimRef | HandlerClaim
    parts: ProgressParts = NO_PARTS
    parent: Parent | None = None
    settled: list[HandlerResult] = msgspec.field(default_factory=list)
    """The results that no further attempt will change."""
    is_shared: bool = False
    """Whether handlers of the event run on other nodes too."""
    _owed: dict[str, list[Child]] | None = None
    """What handlers and steps that have succeeded emitted, by their name: it must be stored with the success."""
    _kept: int = 0
    """How many of ``settled`` the store knows, or gets from a call that repeats until it does."""
    _timer: asyncio.TimerHandle | None = None
    """The next write."""
    is_over: bool = False
    """The handlers have ended: nothing that their tasks and threads do counts any more."""
    lost: LeaseLost | None = None
    """Why the store has refused a step: another claim holds the event, or it has ended."""
    _unstored: dict[str, HandlerResult] | None = None
    """Steps that have ended and that the store has not acknowledged."""
    _running: set[Future[None]] | None = None
    """One for each step that runs, in the event loop or in a thread."""

    @property
    def _keeper(self) -> Keeper | None:
        return self.parts.keeper

    def held(self) -> AbstractContextManager[None]:
        """Inside the block, the event only waits for handlers of other nodes."""
        return nullcontext() if self.parts.holder is None else self.parts.holder.holding(self.parent)

    def yield_slot(self) -> None:
        """Let another event run while this one waits for its batch."""
        if self.parts.slots is not None and self.parent is not None:
            self.parts.slots.yield_slot(self.parent)

    def resume(self) -> None:
        """Count the event again: its wait is over."""
        if self.parts.slots is not None and self.parent is not None:
            self.parts.slots.resume(self.parent)

    async def offer(self, offers: tuple[HandlerResult, ...]) -> None:
        """Offer handlers to other nodes. In the same step, the store learns of the results so far."""
        if self._keeper is None:
            raise ConfigurationError("only a worker can offer handlers to other nodes")
        self.is_shared = True
        results = (*self._unkept(), *offers)
        if results:
            await self._keeper.keep(self.ref, results, self._unstored_children())

    async def keep_handler(self, success: HandlerResult) -> bool:
        """Store the success of a handler that has its own claim together with what it emitted. The claim ends with it.

        Returns False, and stores nothing, if it emitted nothing.
        """
        children = self._unstored_children()
        if self._keeper is None or not children:
            return False
        try:
            await self._keeper.keep(self.ref, (success,), children)
        except BaseException:
            for child in self._unstored_children():
                child.drop()
            raise
        return True

    def learn(self, results: tuple[HandlerResult, ...]) -> None:
        """Note the results of all handlers of the event, those on other nodes included."""
        if self.parent is not None:
            self.parent.claim = replace(self.parent.claim, results=results)

    def fresh_variables(self) -> contextvars.Context:
        """Return the context variables that a slot begins with."""
        slots = self.parts.slots
        return contextvars.copy_context() if slots is None else slots.variables.copy()

    def owe(self, name: str, children: list[Child]) -> None:
        """Store these together with the success of this handler or step."""
        if children:
            self._owed = self._owed or {}
            self._owed[name] = children

    def _unstored_children(self, names: Collection[str] | None = None) -> list[Child]:
        owed = self._owed or {}
        return [child for name in owed if names is None or name in names for child in owed[name] if not child.is_stored]

    async def settle(self, result: HandlerResult, *, others_run: bool) -> None:
        """Note a result for good. While other handlers run, the store learns of it soon, or at once with ``strict``."""
        self.settled.append(result)
        if not others_run or self._keeper is None:
            return
        if self.parts.strict:
            await self._keeper.keep(self.ref, self._unkept(), self._unstored_children())
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(KEEP_AFTER, self._keep_now, PAUSE)

    async def keep(self, result: HandlerResult, children: list[Child]) -> None:
        """Store the result of a step together with what it emitted, and return once that is stored."""
        if self._keeper is None:
            raise ConfigurationError("durable steps need a handler that an EventBus or an EventManager runs")
        if self._unstored is None:
            self._unstored = {}
        self._unstored[result.handler_id] = result
        self.owe(result.handler_id, children)
        try:
            await self._keeper.keep(self.ref, (result,), children)
        except LeaseLost as lost:
            self.lost = lost
            raise
        del self._unstored[result.handler_id]

    async def keep_successes(self, results: tuple[HandlerResult, ...]) -> None:
        """Store the results of handlers that are done together with all that they emitted."""
        if self._keeper is not None and (children := self._unstored_children()):
            await self._keeper.keep(self.ref, results, children)

    def require(self, feature: str, what: str) -> None:
        """Raise ``UnsupportedByStore`` unless the store has the feature."""
        if self._keeper is None:
            raise ConfigurationError(f"{what} needs a handler that an EventBus or an EventManager runs")
        self._keeper.require(feature, what)

    def running_steps(self) -> set[Future[None]]:
        """Return the set to which each step adds a future while it runs. Threads add theirs, too."""
        if self._running is None:
            self._running = set()
        return self._running

    async def steps_ended(self) -> None:
        """Wait for steps that still run although their handler has ended, as in a ``gather`` of which one part failed.

        Otherwise the next attempt would run them again beside themselves. A step that takes too long is left behind.
        """
        running = tuple(self._running or ())
        if running:
            await asyncio.wait([asyncio.wrap_future(step) for step in running], timeout=STEPS_END_WITHIN)

    def finished(self, settlement: Settlement, *, is_lost: bool = False) -> Settlement:
        """Return the settlement with what the store has not acknowledged: steps that have ended, and children.

        Children go with the success of their handler. If the settlement does not carry it, they are dropped.
        """
        self.end()
        if self._unstored:
            settlement = replace(settlement, results=(*settlement.results, *self._unstored.values()))
        if self._owed is None or self.parent is None:
            return settlement
        done = {result.handler_id for result in settlement.results if result.status in SUCCESSES}
        names = self._owed.keys() if isinstance(settlement, Complete) else done
        children = {} if is_lost else dict.fromkeys(self._unstored_children(names))
        for child in self._unstored_children():
            if child not in children:
                child.drop()
        if isinstance(settlement, Cancel) or not children:
            return settlement
        self.parent.owed = list(children)
        return replace(settlement, children=tuple(child.new for child in children))

    def end(self) -> None:
        """Write nothing more: the settlement carries all results, or an offer does."""
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _unkept(self) -> tuple[HandlerResult, ...]:
        unkept, self._kept = tuple(self.settled[self._kept :]), len(self.settled)
        return unkept

    def _keep_now(self, pause: float) -> None:
        """Write what the store does not know. If that fails, write it again after ``pause`` seconds."""
        self._timer = None
        if self._keeper is None:
            return
        unkept = tuple(self.settled[self._kept :])
        count = self._kept + len(unkept)

        def note(stored: asyncio.Future[None]) -> None:
            error = None if stored.cancelled() else stored.exception()
            if stored.cancelled() or isinstance(error, LeaseLost | StoreClosedError):
                return  # the heartbeat reports a lost claim
            if error is None:
                self._kept = max(self._kept, count)
            elif not isinstance(error, StoreError):
                logger.error("results of event %s are not stored before it ends", self.ref.id, exc_info=error)
            elif not self.is_over:
                logger.warning("results of event %s are not stored yet, trying again: %s", self.ref.id, error)
                if self._timer is None:  # another success may have ended meanwhile: its write carries all
                    loop = asyncio.get_running_loop()
                    self._timer = loop.call_later(pause, self._keep_now, min(2 * pause, LONGEST_PAUSE))

        self._keeper.keep_in_background(self.ref, unkept, self._unstored_children()).add_done_callback(note)
