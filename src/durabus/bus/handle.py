"""The handle that ``emit`` returns: it waits for the event to be stored, to end, or for its result."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from durabus.errors import ConfigurationError, EventCancelled, EventFailed, EventNotStored
from durabus.model.claim import Claim
from durabus.model.event import Event, NewEvent
from durabus.model.payload import decode_as
from durabus.model.result import HandlerResult, MaxDepthError
from durabus.model.settlement import Cancel, Complete, Fail, Release, Settled, Settlement
from durabus.model.statuses import DEAD_LETTER, HISTORY, STEPS, EventStatus, ResultStatus
from durabus.store.contract import EventStore
from durabus.store.events import EventRef
from durabus.worker.children.children import Room
from durabus.worker.children.waiting import AwaitedChildren, handled_here, waiting_for


class AwaitedEnds(Protocol):
    """Learns the ends of events that callers wait for."""

    def begin_wait(self, handle: Handle, /) -> None:
        """Watch for the end of the event on every node, until ``end_wait`` is called."""
        ...

    def end_wait(self, handle: Handle, /) -> None:
        """A caller waits no longer."""
        ...


class BusLoop:
    """The event loop on which a bus was started. The bus and the handles of its events belong to it."""

    __slots__ = ("_bus", "children", "ends", "loop")

    def __init__(self, bus: str, children: AwaitedChildren, ends: AwaitedEnds, loop: asyncio.AbstractEventLoop) -> None:
        self._bus = bus
        self.children = children
        self.ends = ends
        self.loop = loop

    def refuse_other_loops(self) -> None:
        """Raise if the call comes from another event loop, or from a thread without one."""
        try:
            if asyncio.get_running_loop() is self.loop:
                return
            place = "another event loop"
        except RuntimeError:
            place = "a thread without an event loop"
        raise ConfigurationError(
            f"bus {self._bus!r} belongs to the event loop it was started on, and was called from {place}: "
            "use ctx.emit in a plain handler, and asyncio.run_coroutine_threadsafe or a SyncEventBus elsewhere"
        )


class HandleHolder(Protocol):
    """Holds an event for the success of the handler that emitted it."""

    @property
    def store(self) -> EventStore:
        """The store of its bus."""
        ...

    def let_go(self, handle: Handle) -> None:
        """Store the event now."""
        ...

    def added(self, handle: Handle) -> None:
        """The store has the event."""
        ...

    def drop(self, handle: Handle) -> None:
        """Forget the handle."""
        ...

    async def stored_event(self, handle: Handle) -> Event | BaseException:
        """Return the event that the store has, or why it has none."""
        ...


class Handle:
    """Await it for the event's end, ``stored()`` until it is durable, ``result()`` for the value of a handler."""

    __slots__ = (
        "_added",
        "_end",
        "_event",
        "_reason",
        "_result_type",
        "_results",
        "_stored",
        "_waiters",
        "bus_loop",
        "ended_here",
        "holder",
        "new",
        "room",
    )

    def __init__(self, new: NewEvent, result_type: Any = None) -> None:
        self.new = new
        self._result_type = result_type
        self.bus_loop: BusLoop
        self._stored: Event | BaseException | None = None
        self.holder: HandleHolder | None = None
        """Set while the event is held for the success of its handler, and after that until its number is known."""
        self.room: Room | None = None
        """The room for further events on its bus, if it is held and the bus has a limit."""
        self.ended_here = False
        """Whether a worker of this process ended it. Then the handle has its results, also if the store has not."""
        self._added = False
        """The store has the event, together with the success of its handler."""
        self._event: Event | BaseException | None = None
        self._results: tuple[HandlerResult, ...] = ()
        self._end: tuple[Claim, Settlement, Settled] | None = None
        self._reason: str | None = None
        # Only a wait makes a future: most events are emitted and never awaited.
        self._waiters: list[asyncio.Future[None]] | None = None

    @property
    def id(self) -> int | None:
        """The number the store gave the event; None until it is stored."""
        return self._stored.id if isinstance(self._stored, Event) else None

    @property
    def event_id(self) -> str:
        """The event's id, known before it is stored."""
        return self.new.event_id

    @property
    def is_stored(self) -> bool:
        """Whether the store has accepted the event durably."""
        return self._added or isinstance(self._stored, Event)

    @property
    def store(self) -> EventStore | None:
        """The store of its bus, if it is held for the success of its handler."""
        return None if self.holder is None else self.holder.store

    @property
    def done(self) -> bool:
        """Whether the event has ended."""
        return self._event is not None

    async def stored(self) -> Event:
        """Wait until the store has accepted the event durably. An event that is held is stored now."""
        _let_go(self)
        while self._stored is None:
            if self._added and self.holder is not None:
                self._stored = await self.holder.stored_event(self)
            else:
                await self._wait()
        return _value(self._stored)

    async def completed(self) -> Event:
        """Wait until the event is COMPLETED or a dead letter. Raises ``EventCancelled`` if it was cancelled."""
        if handled_here() is None:
            await self.ended()
        elif self._event is None:
            self.bus_loop.ends.begin_wait(self)
            try:
                stored = await self.stored()  # it has another event_id if its idempotency key was known
                with waiting_for(stored.event_id):
                    await self.bus_loop.children.wait(stored.event_id, stored.type, self)
            finally:
                self.bus_loop.ends.end_wait(self)
        if self._event is None:
            raise ConfigurationError(f"the wait for event {self.event_id} ended before it did")
        self._look_up_end()
        event = _value(self._event)
        if event.status is EventStatus.CANCELLED:
            raise EventCancelled(event.event_id, self._reason)
        return event

    async def ended(self) -> None:
        """Wait for the end without running the event, inside and outside of handlers."""
        _let_go(self)
        if self._event is None:
            self.bus_loop.ends.begin_wait(self)
            try:
                while self._event is None:
                    await self._wait()
            finally:
                self.bus_loop.ends.end_wait(self)

    async def results(self) -> tuple[HandlerResult, ...]:
        """Wait for the end and return the stored results. A handler that succeeded without a value may have none."""
        await self.completed()
        return tuple(result for result in self._results if result.status not in STEPS)

    async def result(self) -> Any:
        """Wait for the end and return the first value of a handler. Raises ``EventFailed`` for a dead letter.

        The value has the ``event_result_type`` of the event's class, if it has one. Inside a handler, a child that
        ended because its chain is too deep raises ``MaxDepthError``: every event of the chain ends without a retry.
        """
        event = await self.completed()
        if event.status in DEAD_LETTER:
            if handled_here() is not None:
                _refuse_deeper(self._results)
            raise EventFailed(event.event_id, event.status, event.errors)
        return value_in(self, self._results)

    def __await__(self) -> Generator[Any, None, Event]:
        """Wait for the end and return the event."""
        return self.completed().__await__()

    def drop(self) -> None:
        """Note that the handler did not succeed: the event is not stored."""
        if self.holder is not None:
            self.holder.drop(self)
        self.refuse(EventNotStored(self.event_id, self.new.type))

    def accept(self, event: Event | None = None) -> None:
        """Note that the event is stored; None if that happened together with the success of its handler."""
        if event is not None:
            self._stored = event
        elif self.holder is not None and not self._added:
            self._added = True
            self.holder.added(self)
        if self._waiters:
            self._notify()

    def refuse(self, error: BaseException) -> None:
        """Note that the event was not stored, or that this process will not learn its end."""
        if self._stored is None:
            self._stored = error
        self._event = error
        self._notify()

    def finish(self, event: Event, results: tuple[HandlerResult, ...], reason: str | None = None) -> None:
        """Note that the event has ended. A cancelled event has a ``reason``."""
        self._event, self._results, self._reason = event, results, reason
        if self._stored is None:
            self._stored = event
        if self._waiters:
            self._notify()

    def settle(self, claim: Claim, settlement: Settlement, settled: Settled) -> None:
        """Note that a worker of this process ended the event. The handle computes event and results on demand."""
        self._event, self._end, self.ended_here = claim.event, (claim, settlement, settled), True
        if self._waiters:
            self._notify()

    def _look_up_end(self) -> None:
        if self._end is not None:
            claim, settlement, settled = self._end
            self._end = None
            results = {result.handler_id: result for result in (*claim.results, *settlement.results)}
            self._results, errors = tuple(results.values()), claim.event.errors
            if isinstance(settlement, Cancel):
                self._reason = settlement.reason
            if settled.status not in HISTORY:
                errors = (*errors, _error_of(settlement, self._results))
            self._event = replace(claim.event, status=settled.status, errors=errors, expires_ts=None)

    async def _wait(self) -> None:
        self.bus_loop.refuse_other_loops()
        waiter = self.bus_loop.loop.create_future()
        self._waiters = [*(self._waiters or ()), waiter]
        try:
            await waiter
        finally:
            if self._waiters and waiter in self._waiters:
                self._waiters.remove(waiter)

    def _notify(self) -> None:
        waiters, self._waiters = self._waiters or (), None
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def awaited_event(handle: Handle) -> Event | NewEvent:
    """Return the event whose end the handle waits for: an older event may have had the same idempotency key."""
    stored = handle._stored  # noqa: SLF001  (a part of the handle that its users do not see)
    return stored if isinstance(stored, Event) else handle.new


def value_in(handle: Handle, results: Iterable[HandlerResult]) -> Any:
    """Return the first value of a handler, as the type that the handle expects; None if no handler returned one."""
    kept = (r for r in results if r.status is ResultStatus.SUCCEEDED and r.value_json is not None)
    first = next(kept, None)
    if first is None or first.value_json is None:
        return None
    expected = handle._result_type  # noqa: SLF001  (a part of the handle that its users do not see)
    return first.value if expected is None else decode_as(first.value_json, expected)


async def ref_of(event: Event | Handle | EventRef) -> EventRef:
    """Return how the store names an event. An event that was just emitted is stored first."""
    if isinstance(event, Handle):
        event = await event.stored()
    return event.event_id if isinstance(event, Event) else event


def _let_go(handle: Handle) -> None:
    """Store an event now that is held for the success of its handler."""
    holder = handle.holder
    if holder is not None and not handle.is_stored and not handle.done:
        handle.holder = None
        holder.let_go(handle)


def _value(outcome: Event | BaseException) -> Event:
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _error_of(settlement: Settlement, results: Sequence[HandlerResult]) -> str:
    """The error text as the store has it. An event that completed with errors has those of unrecoverable handlers."""
    match settlement:
        case Complete():
            fatal = (result for result in results if result.status is ResultStatus.UNRECOVERABLE)
            return "; ".join(settlement.errors or [result.error or "unrecoverable error" for result in fatal])
        case Fail():
            return settlement.error
        case Release() | Cancel():
            return ""


def _refuse_deeper(results: Iterable[HandlerResult]) -> None:
    """Raise ``MaxDepthError`` in a handler that waits for a child which ended with this error."""
    for result in results:
        name, _, text = (result.error or "").partition(": ")
        if name == MaxDepthError.__name__:
            raise MaxDepthError(text)
