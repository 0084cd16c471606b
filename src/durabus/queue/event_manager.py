"""The event manager polls a queue, runs every registered handler, stores their results and finalizes the event."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from durabus.errors import ConfigurationError, DurabusError, LeaseLost, StoreClosedError, StoreError
from durabus.maintenance.services import Retention, delete_handler_states
from durabus.model.claim import OfferRequest, new_token
from durabus.model.event import Event
from durabus.model.limits import Duration, check_batch, choice, seconds
from durabus.model.policies import BreakerOption, BreakerPolicy, RetryPolicy, breaker_policy
from durabus.model.settlement import Fail, Release
from durabus.model.statuses import TERMINAL, OnUnhandled, Takeover
from durabus.queue.event_queue import EventQueue
from durabus.worker.dispatcher import Dispatcher
from durabus.worker.executor import TROUBLE_PAUSE
from durabus.worker.handler import Handler, HandlerFunction
from durabus.worker.missing_handlers import Unhandled
from durabus.worker.offers import MOST_IDS, OfferedRun, OfferRunner
from durabus.worker.progress import EventProgress, Keeper, ProgressParts
from durabus.worker.registry import ANNOUNCING, HANDLERS_KEPT_FOR, Registry
from durabus.worker.replies import tell_of_ends
from durabus.worker.telemetry import Metrics
from durabus.worker.threads import HandlerThreads, NotStarted, is_in_thread
from durabus.worker.worker import Worker, WorkerOptions

logger = logging.getLogger("durabus.manager")

CLEANUP_EVERY = 60.0
STOP_TIMEOUT = 30.0


@runtime_checkable
class EventHandler(Protocol):
    """A handler as an object, which is the recommended way. ``event_type`` may be a glob."""

    id: str
    event_type: str

    @property
    def handle(self) -> Callable[..., Any]:
        """An async or plain method that takes the event."""
        ...


class EventManager:
    """Runs the handlers of one process over an ``EventQueue``.

    Other managers and buses may serve the same queue. An event completes once every handler that any of them
    registered has finished.
    """

    def __init__(
        self,
        queue: EventQueue,
        *,
        poll_delay: Duration = 0.1,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        concurrency: int = 10,
        breaker: BreakerOption = True,
        takeover: Takeover | str = Takeover.PRESENCE,
    ) -> None:
        self.queue = queue
        self._takeover = choice(Takeover, takeover, "takeover")
        self._breaker = breaker_policy(breaker, BreakerPolicy())
        self._poll_delay = seconds(poll_delay, "poll_delay", allow_zero=False)
        self._retry = retry or RetryPolicy(max_retries=None)
        self._timeout = timeout
        self._concurrency = concurrency
        self._registry = Registry(queue.store, queue.bus, kept_for=HANDLERS_KEPT_FOR)
        self.metrics = Metrics()
        self._dispatcher = Dispatcher(
            worker_id=queue.worker_id,
            remote=self._registry,
            threads=HandlerThreads(check_batch(concurrency, "concurrency"), "durabus-manager"),
            unhandled=Unhandled(OnUnhandled.COMPLETE, self.metrics),
        )
        self._stop = asyncio.Event()
        self._died: DurabusError | None = None

    def register(
        self,
        handler: EventHandler | str,
        id: str | None = None,  # noqa: A002  (the word users know)
        function: HandlerFunction | None = None,
        *,
        batch: int | None = None,
        within: Duration | None = None,
    ) -> None:
        """Register a handler: ``register(handler_object)`` or ``register(event_type, id, function)``.

        ``batch`` and ``within`` make it a handler of batches, as in ``EventBus.subscribe``.
        Raises ``DuplicateHandlerError`` if the id is taken.
        """
        if isinstance(handler, str):
            if id is None or function is None:
                raise ConfigurationError(f"register({handler!r}, …): a function needs an explicit, unique id")
            event_type, handler_id, call = handler, id, function
        elif isinstance(handler, EventHandler):
            event_type, handler_id, call = handler.event_type, handler.id, handler.handle
        else:
            raise ConfigurationError(
                f"register({handler!r}): a handler object has `id`, `event_type` and `async def handle(self, event)`"
            )
        self._dispatcher.add(
            Handler(
                handler_id=handler_id,
                pattern=event_type,
                function=call,
                timeout=self._timeout,
                retry=self._retry,
                breaker=self._breaker,
                batch=batch,
                within=within,
            )
        )
        self._registry.announce(lambda: self._dispatcher.handlers)

    async def process_next(self) -> Event | None:
        """Do one step: poll, dispatch, settle. Returns the event, or None if there was none.

        If another process has a handler for the event that has not finished, the event goes back to the queue for it,
        because one step cannot wait. If there is no event, the step runs one handler that another process has offered.
        """
        await self._registry.refreshed()
        event = await self.queue.poll(max_attempts=self._dispatcher.max_attempts)
        claim = None if event is None else self.queue.claim_on(event.id)
        if event is None or claim is None:
            return await self._process_offered()
        progress = EventProgress(claim.ref, ProgressParts(Keeper(self.queue.store)))
        settled = progress.settled
        try:
            settlement = await self._dispatcher.dispatch(claim, progress)
        except NotStarted as error:
            logger.warning("event %s goes back to the queue: %s", event.event_id, error)
            settlement = Release(claim.ref, TROUBLE_PAUSE, tuple(settled), str(error))
        except BaseException:
            if is_in_thread(event):
                self.queue.forget_claim(event.id)  # a function still runs: the event comes back when its lease expires
            else:
                self.queue.give_back(claim, settled)
            raise
        outcome = (await self.queue.store.settle_events([progress.finished(settlement)])).outcomes[0]
        self.queue.forget_claim(event.id)
        if isinstance(outcome, LeaseLost):
            self.metrics.lost(event)
            raise outcome
        self.metrics.settled(event, outcome.status, failed=isinstance(settlement, Fail))
        if outcome.status in TERMINAL:
            await tell_of_ends(self.queue.store, [event.metadata_json])
        return event

    async def _process_offered(self) -> Event | None:
        """Run one handler for an event that another process coordinates. Returns the event, or None."""
        store, lease = self.queue.store, self.queue.abandoned_after
        request = OfferRequest(
            bus=self.queue.bus,
            handler_ids=tuple(handler.id for handler in self._dispatcher.handlers[:MOST_IDS]),
            worker_id=self.queue.worker_id,
            token=new_token(),
            lease=lease,
            mode=self._dispatcher.handler_mode,
        )
        runner = OfferRunner(store, self._dispatcher, Keeper(store), lease=lease)
        for offered in await runner.claim(request):
            run = OfferedRun(offered, math.inf)
            run.lost = True  # a caller that cancels this step leaves the handler to its lease
            settlement = await runner.run(run)
            outcomes = [] if settlement is None else await store.settle_handlers([settlement])
            for outcome in outcomes:
                if isinstance(outcome, LeaseLost):
                    self.metrics.lost(offered.event)
                    raise outcome
            return offered.event
        return None

    async def run_process_loop(self) -> None:
        """Run handlers until ``stop()``. It renews claims while handlers run, and deletes old handler states.

        Raises ``StoreClosedError`` if the store is closed meanwhile.
        """
        worker = Worker(
            self.queue.store,
            self.queue.bus,
            self._dispatcher,
            WorkerOptions(
                concurrency=self._concurrency,
                lease=self.queue.abandoned_after,
                poll_interval=self._poll_delay,
                takeover=self._takeover,
            ),
            metrics=self.metrics,
            outage=self._registry.outage,
            on_died=self._worker_died,
        )
        await self._announce()
        self._registry.start()
        worker.start()
        retention = Retention(self.queue.store, every=CLEANUP_EVERY)
        retention.start()
        try:
            await self._stop.wait()
        finally:
            # Shielded: a caller that gives up waiting must not leave a running worker behind.
            await asyncio.shield(asyncio.ensure_future(self._end(worker, retention)))
        if self._died is not None:
            error, self._died = self._died, None
            raise error

    def stop(self) -> None:
        """Let ``run_process_loop`` finish what runs and return; a loop that has not begun returns at once."""
        self._stop.set()

    async def cleanup_finalized_events(self) -> int:
        """Delete the handler states of COMPLETED events. Returns how many it deleted."""
        return await delete_handler_states(self.queue.store)

    async def _end(self, worker: Worker, retention: Retention) -> None:
        await retention.stop()
        await worker.stop(STOP_TIMEOUT)
        await self._registry.close(tell=not worker.store_is_away)
        self._stop.clear()

    async def _announce(self) -> None:
        """Announce the handlers before the first claim, however long the store is away."""
        while not self._stop.is_set():
            try:
                await self._registry.announced()
            except StoreClosedError:
                raise
            except StoreError as error:
                pause = self._registry.outage.failed(error, ANNOUNCING)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._stop.wait()
            else:
                return

    def _worker_died(self, error: DurabusError) -> None:
        self._died = error
        self._stop.set()
