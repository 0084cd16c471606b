"""The bus of seeds 002 and 003: publish, emit, subscribe, start, shut down."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from typing import Any, Self, TypeVar, Unpack, overload

import msgspec

from durabus.bus.handle import Handle
from durabus.bus.outbox import Outbox
from durabus.bus.registry import Registry
from durabus.errors import ConfigurationError, EventBusShutdownError, InvalidEventError
from durabus.model.claim import DEFAULT_LEASE, Claim, default_worker_id
from durabus.model.event import DEFAULT_BUS, PublishOptions, new_event
from durabus.model.limits import Duration, check_batch, check_name, seconds
from durabus.model.pattern import ANY
from durabus.model.retry import RetryPolicy
from durabus.model.settlement import Settled, Settlement
from durabus.model.statuses import TERMINAL, EventMode
from durabus.store.connect import make_store
from durabus.store.contract import EventStore
from durabus.worker.dispatcher import Dispatcher
from durabus.worker.handler import DEFAULT_TIMEOUT, Handler, HandlerFunction, derived_id
from durabus.worker.loop import POLL_FLOOR, Worker
from durabus.worker.metrics import Metrics
from durabus.worker.nesting import event_lock, refuse_endless_wait
from durabus.worker.threads import HandlerThreads

logger = logging.getLogger("durabus.bus")

HANDLERS_KEPT_FOR = 300.0
"""How long events wait for the handlers of a node that is not heard of any more."""

F = TypeVar("F", bound=HandlerFunction)


class EventBus:
    """A named queue with the handlers that this process adds to it.

    Processes that open the same store and ``name`` form one fleet: every event is claimed by one of them. If they have
    different handlers, an event ends when each of them had it. For the handlers of a process that is not heard of any
    more it waits ``handlers_kept_for`` seconds, after a shutdown 30 s at most; None: until they are unregistered.
    """

    def __init__(
        self,
        store: str | EventStore = "memory://",
        *,
        name: str = DEFAULT_BUS,
        retry: RetryPolicy | Mapping[str, Any] | None = None,
        concurrency: int = 100,
        lease: Duration = DEFAULT_LEASE,
        poll_interval: Duration = POLL_FLOOR,
        mode: EventMode | str = EventMode.PARALLEL,
        shutdown_timeout: Duration = 30.0,
        handlers_kept_for: Duration | None = HANDLERS_KEPT_FOR,
    ) -> None:
        self.name = check_name(name, "bus")
        self.store: EventStore = make_store(store) if isinstance(store, str) else store
        self._owns_store = isinstance(store, str)
        self._retry = RetryPolicy().merged(retry)
        self._shutdown_timeout = seconds(shutdown_timeout, "shutdown_timeout")
        kept_for = None if handlers_kept_for is None else seconds(handlers_kept_for, "handlers_kept_for")
        self._registry = Registry(self.store, self.name, kept_for=kept_for)
        self._dispatcher = Dispatcher(
            worker_id=default_worker_id(),
            threads=HandlerThreads(check_batch(concurrency, "concurrency"), f"durabus-{self.name}"),
            elsewhere=self._registry,
        )
        self.metrics = Metrics()
        self._worker_options: dict[str, Any] = {
            "concurrency": concurrency,
            "lease": seconds(lease, "lease", allow_zero=False),
            "poll_interval": seconds(poll_interval, "poll_interval", allow_zero=False),
            "mode": _mode(mode),
        }
        self._lock = event_lock(self.store, _mode(mode), self.name)
        self._outbox = Outbox(
            self.store, self.name, ready=self._registry.announced, runs_here=self._worker_runs, lock=self._lock
        )
        self._worker: Worker | None = None
        self._opened = False
        self._opening = asyncio.Lock()
        self._started = False
        self._shut = False
        self._shutting_down: asyncio.Task[None] | None = None
        Worker(self.store, self.name, self._dispatcher, **self._worker_options)  # refuses bad options now

    @property
    def in_flight(self) -> int:
        """Events that this process has claimed and not yet settled."""
        return 0 if self._worker is None else self._worker.in_flight

    def subscribe(
        self,
        pattern: str | type | HandlerFunction = ANY,
        handler: HandlerFunction | None = None,
        *,
        id: str | None = None,  # noqa: A002  (the word users know)
        timeout: Duration | None = DEFAULT_TIMEOUT,
        retry: RetryPolicy | Mapping[str, Any] | None = None,
    ) -> str:
        """Call ``handler`` for every event whose type the pattern covers; ``subscribe(handler)`` takes all events.

        ``retry`` replaces the whole policy, or, as a mapping, only the fields it names. Answers the subscription's id:
        ``id`` if one is given, else one derived from pattern and function, equal on every node that runs the same code.
        """
        self._refuse_if_shut("subscribe")
        if self._started:
            self._outbox.bind()
        glob, function = _pattern_and_function(pattern, handler)
        subscription = Handler(
            handler_id=id if id is not None else self._free_id(glob, function),
            pattern=glob,
            function=function,
            timeout=timeout,
            retry=self._retry.merged(retry),
        )
        self._dispatcher.add(subscription)
        self._registry.announce(self._dispatcher.handlers)
        if self._started:
            self._start_worker()
        if self._worker is not None:
            self._worker.nudge()
        return subscription.id

    @overload
    def on(self, pattern: F) -> F: ...

    @overload
    def on(
        self,
        pattern: str | type = ANY,
        *,
        id: str | None = None,
        timeout: Duration | None = DEFAULT_TIMEOUT,
        retry: RetryPolicy | Mapping[str, Any] | None = None,
    ) -> Callable[[F], F]: ...

    def on(
        self,
        pattern: Any = ANY,
        *,
        id: str | None = None,  # noqa: A002  (the word users know)
        timeout: Duration | None = DEFAULT_TIMEOUT,
        retry: RetryPolicy | Mapping[str, Any] | None = None,
    ) -> Any:
        """``subscribe`` as a decorator: ``@bus.on("order.*")``, or ``@bus.on`` for all events."""

        def decorate(handler: HandlerFunction) -> HandlerFunction:
            self.subscribe(ANY if handler is pattern else pattern, handler, id=id, timeout=timeout, retry=retry)
            return handler

        return decorate if isinstance(pattern, str | type) else decorate(pattern)

    def unsubscribe(self, subscription_id: str) -> bool:
        """Stop calling a handler. False if there is no such subscription."""
        if self._started:
            self._outbox.bind()
        removed = self._dispatcher.remove(subscription_id) is not None
        if removed:
            self._registry.announce(self._dispatcher.handlers)
        return removed

    async def start(self) -> Self:
        """Open the store and begin to claim. What a crash left behind is taken up again once its lease is over."""
        self._refuse_if_shut("start")
        if self._started:
            self._outbox.bind()
        async with self._opening:
            if not self._opened and self._owns_store:
                await self.store.open()
            self._opened = True
            if not self._started:
                await self._registry.announced()
                self._refuse_if_shut("start")
                self._outbox.bind()
                self._started = True
                self._start_worker()
        return self

    async def publish(
        self,
        event_type: str | object,
        payload: Any = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        connection: object | None = None,
        **options: Unpack[PublishOptions],
    ) -> str:
        """Store an event, wait until this bus has dispatched it to its end, and answer its ``event_id``.

        Retries included: after it returns, the event is COMPLETED or a dead letter. A bus without subscriptions, or
        one that publishes on the caller's own ``connection``, only stores it: others will handle it.
        """
        self._refuse_if_shut("publish")
        if not isinstance(event_type, str):
            event_type, payload = _typed(event_type, payload)
        new = new_event(event_type, payload, bus=self.name, metadata=metadata, **options)
        if not self._started:
            await self.start()
        if connection is not None:
            # Nothing is announced first: that write would wait for the caller's own transaction.
            return (await self.store.add_events([new], connection=connection))[0].event_id
        if self._dispatcher:
            refuse_endless_wait(self._lock)
        handle = Handle(new)
        self._outbox.send(handle)
        event = await handle.stored()
        if self._worker is None or not self._dispatcher:
            self._outbox.drop(handle)
        elif event.status not in TERMINAL:
            self._worker.nudge()
            await handle.completed()
        return event.event_id

    def emit(
        self,
        event_type: str | object,
        payload: Any = None,
        metadata: Mapping[str, Any] | None = None,
        **options: Unpack[PublishOptions],
    ) -> Handle:
        """Hand an event over and return at once. Everything emitted in one turn of the loop is stored in one step.

        Await ``handle.stored()`` before you rely on it being durable.
        """
        if self._shut:
            self._refuse_if_shut("emit")
        if not isinstance(event_type, str):
            event_type, payload = _typed(event_type, payload)
        handle = Handle(new_event(event_type, payload, bus=self.name, metadata=metadata, **options))
        if not self._started:
            raise ConfigurationError("emit needs a started bus: await bus.start() first")
        self._outbox.send(handle)
        return handle

    async def wait_until_idle(self, timeout: Duration | None = None) -> bool:  # noqa: ASYNC109  (answers, does not raise)
        """Wait until everything this bus emitted or published has ended; False if ``timeout`` came first."""
        return await self._outbox.wait_until_empty(None if timeout is None else seconds(timeout, "timeout"))

    async def shutdown(self, timeout: Duration | None = None) -> None:  # noqa: ASYNC109  (passed on to the worker)
        """Take nothing new, finish what runs, give back what does not finish in time, close the store. Repeatable."""
        if self._started:
            self._outbox.bind()
        if self._shutting_down is None:
            limit = self._shutdown_timeout if timeout is None else seconds(timeout, "timeout")
            self._shut = True
            self._shutting_down = asyncio.get_running_loop().create_task(self._shut_down(limit))
        # Shielded: a caller that gives up waiting must not leave the bus half open.
        await asyncio.shield(self._shutting_down)

    async def _shut_down(self, limit: float) -> None:
        async with self._opening:  # a start that is under way ends first, and refuses to go on
            await self._outbox.flush(limit)
            if self._worker is not None:
                await self._worker.stop(limit)
            self._outbox.close(EventBusShutdownError(f"bus {self.name!r} was shut down before this event ended"))
            await self._registry.close()
            self._dispatcher.close()
            if self._owns_store:
                await self.store.close()

    async def __aenter__(self) -> Self:
        """Start."""
        return await self.start()

    async def __aexit__(self, *exc_info: object) -> None:
        """Shut down."""
        await self.shutdown()

    def _start_worker(self) -> None:
        """A bus without handlers claims nothing: its events are for those who have some."""
        self._registry.start()
        if self._worker is None and self._dispatcher.handlers:
            self._worker = Worker(
                self.store,
                self.name,
                self._dispatcher,
                metrics=self.metrics,
                on_settled=self._on_settled,
                on_died=self._outbox.close,
                **self._worker_options,
            )
            self._worker.start()

    def _worker_runs(self, id_: int) -> bool:
        return self._worker is not None and self._worker.is_running(id_)

    def _on_settled(self, claim: Claim, settlement: Settlement, settled: Settled) -> None:
        if settled.status in TERMINAL:
            for handle in self._outbox.take(claim.event.event_id):
                handle.settle(claim, settlement, settled)

    def _free_id(self, pattern: str, handler: HandlerFunction) -> str:
        """Two subscriptions of one function to one pattern are told apart by their order, which every node shares."""
        wanted = derived_id(pattern, handler)
        taken = {known.id for known in self._dispatcher.handlers}
        candidates: Iterable[str] = (wanted if n == 1 else f"{wanted}#{n}" for n in range(1, len(taken) + 2))
        chosen = next(candidate for candidate in candidates if candidate not in taken)
        if chosen != wanted:
            logger.warning(
                "subscription %r is told apart from others of that name only by the order of subscribing: give it an "
                "id=, or its results may be taken for another handler's when that order changes",
                chosen,
            )
        return chosen

    def _refuse_if_shut(self, verb: str) -> None:
        if self._shut:
            raise EventBusShutdownError(f"{verb} on bus {self.name!r}: it is shut down; make a new EventBus")


def type_name(event_class: type) -> str:
    """The event type of a class: its ``event_type`` attribute if it has one, else its name."""
    name = getattr(event_class, "event_type", event_class.__name__)
    return name if isinstance(name, str) else event_class.__name__


def _typed(event: object, payload: object) -> tuple[str, object]:
    """An event given as an object of its own class."""
    known = is_dataclass(event) or isinstance(event, msgspec.Struct) or hasattr(event, "model_dump")
    if not known or isinstance(event, type):
        raise InvalidEventError(
            f"event type={event!r}: must be a string, or one object (dataclass, msgspec struct, pydantic model)"
        )
    if payload is not None:
        raise InvalidEventError(f"{event!r} is an event of its own: a payload beside it would be lost")
    return type_name(type(event)), event


def _pattern_and_function(
    pattern: str | type | HandlerFunction, handler: HandlerFunction | None
) -> tuple[str, HandlerFunction]:
    if handler is None:
        if isinstance(pattern, str | type):
            raise ConfigurationError(f"subscribe({pattern!r}) has no handler: call subscribe(pattern, handler)")
        return ANY, pattern
    if isinstance(pattern, str):
        return pattern, handler
    if isinstance(pattern, type):
        return type_name(pattern), handler
    raise ConfigurationError(f"pattern={pattern!r}: must be a string such as 'user.*', or an event class")


def _mode(mode: EventMode | str) -> EventMode:
    try:
        return EventMode(mode)
    except ValueError:
        raise ConfigurationError(f"mode={mode!r}: must be one of {[m.value for m in EventMode]}") from None
