"""The event bus: publish and emit events, subscribe handlers, start and shut down."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Self, Unpack

from durabus.bus.finder import Finder, FindRequest, Where
from durabus.bus.handle import Handle, ref_of
from durabus.bus.history import ARCHIVE_AFTER, HistoryLimit, check_archive_after, check_history
from durabus.bus.new_events import (
    MAX_DEPTH,
    add_to_parent,
    check_max_depth,
    forwarder,
    make_event,
    result_type,
)
from durabus.bus.options import BusOptions, check_serve, seconds_or_none
from durabus.bus.publisher import Publisher
from durabus.bus.requests import Requests
from durabus.bus.scheduling import Scheduling
from durabus.bus.shutdown import Shutdown
from durabus.bus.subscribing import pattern_of
from durabus.bus.sync_handle import HandlerEmitter
from durabus.errors import ConfigurationError, EventBusShutdownError
from durabus.model.claim import DEFAULT_LEASE, Claim, default_worker_id
from durabus.model.event import DEFAULT_BUS, EmitOptions, Event, NewEvent
from durabus.model.limits import Duration, check_batch, check_name, choice, seconds
from durabus.model.pattern import ANY
from durabus.model.policies import BreakerOption, BreakerPolicy, RetryPolicy, breaker_policy
from durabus.model.settlement import Settled, Settlement
from durabus.model.statuses import TERMINAL, Completion, EventMode, HandlerMode, OnUnhandled, ResultMode, Takeover
from durabus.store.connect import make_store
from durabus.store.contract import EventStore
from durabus.store.events import EventRef
from durabus.worker.cancelling import cancel_events
from durabus.worker.children.emissions import EmittingCall
from durabus.worker.children.waiting import AwaitedChildren, event_lock
from durabus.worker.poller import POLL_FLOOR
from durabus.worker.registry import HANDLERS_KEPT_FOR, Registry, check_kept_for
from durabus.worker.telemetry import Metrics, Tracing, tell_settled
from durabus.worker.worker import Worker


class EventBus(Scheduling):
    """A named queue with the handlers that this process adds to it.

    Processes that open the same store and ``name`` form one fleet: one of them claims each event. An event completes
    once every handler registered by any running process has finished. It waits ``handlers_kept_for`` seconds for the
    handlers of a process that announces itself no more (None: until they are unregistered), 30 s after a shutdown.
    ``serve=False`` is for processes that only publish, as a web app that imports the module with the handlers: the bus
    neither claims events nor announces handlers. ``start(serve=True)`` and ``durabus worker`` serve it nevertheless.
    Without a ``store``, the environment variable ``DURABUS_STORE`` names it; without that, ``sqlite:///durabus.db``.
    ``takeover="lease"``: the claims of a process that has ended are free when their leases are over, and not sooner.

    ``mode`` says which events exclude each other, in every process that serves the bus. ``handler_mode`` says whether
    the handlers of one event run one by one or side by side, and ``completion`` whether the event needs all of them or
    the first value. ``event_timeout`` bounds one attempt of an event, all its handlers together. ``max_depth`` bounds
    the levels of children in a chain of events. docs/proof/runtime.md describes the rest.
    """

    def __init__(
        self,
        store: str | EventStore | None = None,
        *,
        name: str = DEFAULT_BUS,
        serve: bool = True,
        retry: RetryPolicy | Mapping[str, Any] | None = None,
        breaker: BreakerOption = True,
        concurrency: int = 100,
        lease: Duration = DEFAULT_LEASE,
        poll_interval: Duration = POLL_FLOOR,
        mode: EventMode | str = EventMode.PARALLEL,
        handler_mode: HandlerMode | str = HandlerMode.SERIAL,
        completion: Completion | str = Completion.ALL,
        results: ResultMode | str = ResultMode.SOON,
        takeover: Takeover | str = Takeover.PRESENCE,
        unhandled: OnUnhandled | str = OnUnhandled.COMPLETE,
        max_depth: int = MAX_DEPTH,
        event_timeout: Duration | None = None,
        event_slow_timeout: Duration | None = None,
        handler_slow_timeout: Duration | None = 30.0,
        max_history_size: int | None = None,
        max_history_drop: bool = True,
        shutdown_timeout: Duration = 30.0,
        handlers_kept_for: Duration | None = HANDLERS_KEPT_FOR,
        archive_after: Duration = ARCHIVE_AFTER,
        tracing: Tracing | None = None,
    ) -> None:
        options = BusOptions(
            name=check_name(name, "bus"),
            serve=check_serve(serve),
            retry=RetryPolicy().merged(retry),
            breaker=breaker_policy(breaker, BreakerPolicy()),
            concurrency=check_batch(concurrency, "concurrency"),
            lease=seconds(lease, "lease", allow_zero=False),
            poll_interval=seconds(poll_interval, "poll_interval", allow_zero=False),
            mode=choice(EventMode, mode, "mode"),
            handler_mode=choice(HandlerMode, handler_mode, "handler_mode"),
            completion=choice(Completion, completion, "completion"),
            results=choice(ResultMode, results, "results"),
            takeover=choice(Takeover, takeover, "takeover"),
            unhandled=choice(OnUnhandled, unhandled, "unhandled"),
            max_depth=check_max_depth(max_depth),
            event_timeout=seconds_or_none(event_timeout, "event_timeout"),
            event_slow_timeout=seconds_or_none(event_slow_timeout, "event_slow_timeout"),
            handler_slow_timeout=seconds_or_none(handler_slow_timeout, "handler_slow_timeout"),
            max_history_size=check_history(max_history_size, drop=max_history_drop),
            max_history_drop=max_history_drop,
            shutdown_timeout=seconds(shutdown_timeout, "shutdown_timeout"),
            handlers_kept_for=check_kept_for(handlers_kept_for),
            archive_after=check_archive_after(archive_after),
            tracing=tracing,
        )
        self.name = options.name
        self._owns_store = isinstance(store, str | None)
        self.store: EventStore = make_store(store) if isinstance(store, str | None) else store
        options.check(self.store)
        self.shutdown_timeout = options.shutdown_timeout
        self.metrics = Metrics()
        self._build_parts(options)

    def _build_parts(self, options: BusOptions) -> None:
        store, name = self.store, options.name
        self._registry = Registry(store, name, kept_for=options.handlers_kept_for)
        emitter = HandlerEmitter(self.emit, lambda: self._publisher.loop)
        super().__init__(options, remote=self._registry, metrics=self.metrics, emitter=emitter)
        self._history = HistoryLimit(store, options)
        self._finder = Finder(store, name)
        self._children = AwaitedChildren(
            store,
            name,
            event_lock(store, options.mode, name),
            lease=options.lease,
            has_remote=self._registry.has_remote_handlers,
        )
        self._publisher = Publisher(
            store,
            name,
            ready=self._registry.announced,
            children=self._children,
            finder=self._finder,
            history=self._history,
        )
        self._requests = Requests(store, self._publisher)
        self._shutdown = Shutdown(
            store,
            options,
            publisher=self._publisher,
            finder=self._finder,
            registry=self._registry,
            history=self._history,
        )
        self._worker: Worker | None = None
        self._serve = options.serve
        self._opened = self._started = self._shut = False
        self._opening = asyncio.Lock()
        self._shutting_down: asyncio.Task[None] | None = None

    @property
    def store_is_away(self) -> bool:
        """Whether the bus could not reach its store when it was shut down."""
        return self._shutdown.store_is_away

    @property
    def in_flight(self) -> int:
        """The number of events that this process has claimed and not yet settled."""
        return 0 if self._worker is None else self._worker.in_flight

    def forward(self, target: EventBus, pattern: str | type = ANY, *, id: str | None = None) -> str:  # noqa: A002
        """Copy every event that the pattern covers to another bus, as its child; returns the subscription's id.

        An event visits each bus once, so circles end: ``metadata["event_path"]`` names the buses it came through.
        """
        subscription_id = id or f"forward:{self.name}>{target.name}:{pattern_of(pattern)}"
        return self.subscribe(pattern, forwarder(self.name, target), id=subscription_id)

    async def start(self, *, serve: bool = False) -> Self:
        """Open the store and begin to claim. It claims what a crash left behind, at once or after the lease.

        ``serve=True`` makes a bus claim that was created to publish only.
        """
        self._refuse_if_shut("start")
        if self._started:
            self._publisher.bind()
        async with self._opening:
            if serve and not self._serve:
                self._serve = True
                self._subscriptions_changed()
            await self._open()
            if not self._started:
                # Only now: the process may have forked between the creation of the bus and its start.
                self._dispatcher.worker_id = default_worker_id()
                self._registry.name_node()
                await self._registry.announced()
                await self._declare()
                self._refuse_if_shut("start")
                self._publisher.bind()
                self._started = True
                self._start_worker()
        return self

    async def open(self) -> None:
        """Open the store and start nothing. ``publish(connection=…)`` needs no more, and does it by itself."""
        if not self._opened:
            async with self._opening:
                self._refuse_if_shut("open")
                await self._open()

    async def _open(self) -> None:
        if not self._opened and self._owns_store:
            await self.store.open()
        self._opened = True

    async def publish(
        self,
        event_type: str | object,
        payload: Any = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        connection: object | None = None,
        **options: Unpack[EmitOptions],
    ) -> str:
        """Store an event, wait for its end, retries included, and return its ``event_id``.

        After it returns, the event is COMPLETED or a dead letter. It only stores the event, and does not wait, if the
        event has a ``delay``, if this bus has no subscriptions or does not serve, or if it publishes on the caller's
        own ``connection``. The latter does not start the bus either.
        """
        self._refuse_if_shut("publish")
        new, run = make_event(self._options, event_type, payload, metadata, options)
        if connection is not None:
            # It announces no handlers first: that write would wait for the caller's own transaction.
            await self.open()
            return (await self.store.add_events([new], connection=connection))[0].event_id
        if not self._started:
            await self.start()
        handle = self._send(new, None, run)
        worker = None if new.delay or not self._dispatcher else self._worker
        if worker is not None:
            self._publisher.ends.address_one(handle)
        event = await handle.stored()
        if worker is None:
            self._publisher.drop(handle)
        elif event.status not in TERMINAL:
            worker.look_for(event.id)
            await handle.completed()
        return event.event_id

    def emit(
        self,
        event_type: str | object,
        payload: Any = None,
        metadata: Mapping[str, Any] | None = None,
        **options: Unpack[EmitOptions],
    ) -> Handle:
        """Emit an event and return at once. The bus stores all events of one turn of the loop in one step.

        It is durable once ``await handle.stored()`` has returned, or with the success of the handler that emits it.
        """
        self._refuse_if_shut("emit")
        new, run = make_event(self._options, event_type, payload, metadata, options)
        if not self._started:
            raise ConfigurationError("emit needs a started bus: await bus.start() first")
        return self._send(new, None if isinstance(event_type, str) else result_type(event_type), run)

    async def find(
        self,
        event_type: str | type = ANY,
        *,
        where: Where | None = None,
        child_of: Event | Handle | str | None = None,
        past: bool | Duration = True,
        future: bool | Duration = False,
        **fields: Any,
    ) -> Event | None:
        """Return the newest stored event of this bus that matches, or else the next one that any node publishes.

        ``past`` is True, or the greatest age in seconds. ``future`` is True to wait for ever, or a number of seconds;
        it does not wait for handlers. ``fields`` must be equal in the payload; ``child_of`` also finds grandchildren.
        Returns None if there is no such event, if the time is over, or after a shutdown. It also finds events that
        this bus has emitted and not stored yet, as soon as they are stored.
        """
        await self._start_for("find")
        ancestor = child_of if isinstance(child_of, str | None) else child_of.event_id
        wanted = FindRequest(pattern_of(event_type), where, ancestor, fields, self.name)
        return await self._finder.find(wanted, self._publisher.watch, past=past, future=future)

    async def cancel(self, event: Event | Handle | EventRef, reason: str, *, children: bool = False) -> list[Event]:
        """Cancel an event that is PENDING or PROCESSING and, with ``children``, its live descendants.

        The store ends the event at once and refuses what its handler still does. A handler in this process gets
        ``CancelledError`` at once, in another process when its claim is renewed next: a third of the lease at most. A
        plain function goes on in its thread. Returns the cancelled events, parents first. Raises ``EventEnded`` if the
        event has ended, and ``EventNotFound``.
        """
        self._refuse_if_shut("cancel")
        await self.open()
        cancelled = await cancel_events(self.store, await ref_of(event), reason=reason, children=children)
        for one in cancelled:
            if self._worker is not None:
                self._worker.revoke(one.id, reason)
            self._publisher.cancelled(one, reason)
        return cancelled

    async def wait_until_idle(self, timeout: Duration | None = None) -> bool:  # noqa: ASYNC109  (returns, does not raise)
        """Wait until everything this bus emitted or published has ended; False if ``timeout`` came first."""
        return await self._publisher.wait_until_empty(None if timeout is None else seconds(timeout, "timeout"))

    async def shutdown(self, timeout: Duration | None = None) -> None:  # noqa: ASYNC109  (passed on to the worker)
        """Take nothing new, finish what runs, give back what does not finish in time, close the store.

        It may be called twice.
        """
        if self._started:
            self._publisher.bind()
        if self._shutting_down is None:
            limit = self.shutdown_timeout if timeout is None else seconds(timeout, "timeout")
            self._shut = True
            self._shutting_down = asyncio.get_running_loop().create_task(self._shut_down(limit))
        # Shielded: a caller that gives up waiting must not leave the bus half open.
        await asyncio.shield(self._shutting_down)

    async def _shut_down(self, limit: float) -> None:
        async with self._opening:  # a start that is under way ends first, and raises
            try:
                await self._shutdown.run(self._worker, self._scheduler, limit)
            finally:
                self._dispatcher.close()
                if self._owns_store:
                    await self._shutdown.close_store()

    async def __aenter__(self) -> Self:
        """Start."""
        return await self.start()

    async def __aexit__(self, *exc_info: object) -> None:
        """Shut down."""
        await self.shutdown()

    def _before_subscriptions_change(self, verb: str | None) -> None:
        if verb is not None:
            self._refuse_if_shut(verb)
        if self._started:
            self._publisher.bind()

    def _subscriptions_changed(self) -> None:
        if not self._serve:
            return
        self._registry.announce(lambda: self._dispatcher.handlers)
        if self._worker is not None:
            self._worker.nudge()
        elif self._started:
            self._start_worker()

    def _start_worker(self) -> None:
        """Start the worker. A bus without handlers, or that does not serve, has none: other nodes claim its events."""
        self._registry.start()
        if self._serve and self._worker is None and self._dispatcher:
            self._worker = Worker(
                self.store,
                self.name,
                self._dispatcher,
                self._options,
                metrics=self.metrics,
                outage=self._registry.outage,
                on_settled=self._on_settled,
                on_died=self._publisher.close,
                node=self._publisher.ends.node,
            )
            self._children.runner = self._worker.children
            self._worker.start()
            self._start_scheduler()

    def _on_settled(self, claim: Claim, settlement: Settlement, settled: Settled) -> None:
        if self._options.tracing is not None:
            tell_settled(self._options.tracing, claim.event, settled.status)
        if settled.status in TERMINAL:
            self._history.one_ended()
            if self._publisher.by_event_id:  # a process that only works has none
                for handle in self._publisher.take(claim.event.event_id):
                    handle.settle(claim, settlement, settled)

    def _send(self, new: NewEvent, expected: Any, run: EmittingCall | None) -> Handle:
        handle = Handle(new, expected)
        self._publisher.send(handle, run)
        if new.parent_id is not None:
            add_to_parent(handle)
        return handle

    async def _start_for(self, verb: str) -> None:
        self._refuse_if_shut(verb)
        if not self._started:
            await self.start()

    def _refuse_if_shut(self, verb: str) -> None:
        if self._shut:
            raise EventBusShutdownError(f"{verb} on bus {self.name!r}: it is shut down; make a new EventBus")
