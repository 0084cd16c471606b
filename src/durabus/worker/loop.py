"""The worker: claims as many events as it has free slots, runs them, settles what is done in batches."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from durabus.clock import monotonic
from durabus.errors import (
    ConfigurationError,
    DurabusError,
    EventBusShutdownError,
    LeaseLost,
    StoreClosedError,
    StoreError,
)
from durabus.model.claim import DEFAULT_LEASE, Claim, ClaimRequest, new_token
from durabus.model.event import Event
from durabus.model.limits import MAX_BATCH, check_batch
from durabus.model.pattern import matches
from durabus.model.settlement import Fail, Release, Settled, Settlement
from durabus.model.statuses import EventMode
from durabus.store.contract import EventStore
from durabus.worker.awaited import awaited_events, until_withdrawn
from durabus.worker.children import Children
from durabus.worker.dispatcher import Dispatcher
from durabus.worker.heartbeat import SAFETY, Heartbeat
from durabus.worker.metrics import Metrics
from durabus.worker.nesting import event_lock
from durabus.worker.slots import EventLock, Running, Slots

logger = logging.getLogger("durabus.worker")

POLL_FLOOR = 1.0
STORE_PAUSE = 0.5
"""How long to wait after the store failed before it is asked again."""

PAUSES_ASIDE = 10
"""How many such pauses a settlement rests that broke a call by itself."""
HINT_PAUSE = 0.05
TAKE_BACK_STEP = 0.005
GRACE = 2.0
"""How long a shutdown waits for handlers that it had to cancel."""

OnSettled = Callable[[Claim, Settlement, Settled], None]
OnDied = Callable[[DurabusError], None]


class Worker:
    """Serves one bus of one store.

    ``on_died`` is told when it ends without having been stopped, as when the store is closed under it: what it held
    comes back with its leases, and nobody may go on waiting for it here.
    """

    def __init__(
        self,
        store: EventStore,
        bus: str,
        dispatcher: Dispatcher,
        *,
        concurrency: int = 100,
        lease: float = DEFAULT_LEASE,
        poll_interval: float = POLL_FLOOR,
        mode: EventMode = EventMode.PARALLEL,
        metrics: Metrics | None = None,
        on_settled: OnSettled | None = None,
        on_died: OnDied | None = None,
        waits_for_children: bool = False,
    ) -> None:
        check_batch(concurrency, "concurrency")
        if not lease > max(store.features.minimum_lease, 0):
            raise ConfigurationError(
                f"lease={lease!r}: {store.features.scheme}:// needs more than {store.features.minimum_lease:g} s"
            )
        self._store = store
        self._bus = bus
        self._dispatcher = dispatcher
        self._concurrency = concurrency
        # Two half batches, so that one is run while the store settles the other; a store in this very thread cannot.
        halves = concurrency >= 8 and store.features.shared_between_processes  # noqa: PLR2004
        self._batch = concurrency // 2 if halves else concurrency
        self._lease = lease
        self._poll_interval = poll_interval
        self._mode = mode
        self._serial = mode is not EventMode.PARALLEL
        self.metrics = metrics or Metrics()
        self._on_settled = on_settled
        self._on_died = on_died
        self._running: dict[int, Running] = {}
        self._outcomes: list[tuple[Running, Settlement]] = []
        self._settling: list[tuple[Running, Settlement]] = []
        self._at_once = MAX_BATCH
        """How many outcomes are settled in one call: few, after one of them broke a call."""
        self._wake = asyncio.Event()
        self._slots = Slots(
            dispatcher,
            concurrency,
            done=self._done,
            died=self._slot_died,
            freed=self._wake.set,
            lock=event_lock(store, mode, bus),
            children=Children(store, may_wait=mode is EventMode.PARALLEL) if waits_for_children else None,
        )
        self._hungry = True
        self._sated = asyncio.Event()
        self._hinted = False
        self._hinted_in_vain = False
        self._stopping = False
        self._died = False
        self._unanswered: tuple[ClaimRequest, float] | None = None
        """A claim whose answer was lost, and when it was first sent: it may hold events, so it is asked for again."""
        self._heartbeat = Heartbeat(
            store, lease=lease, held=self._held, allowance=self._allowance, lost=self._lost_from_thread
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._watching: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def in_flight(self) -> int:
        """Events claimed and not yet settled."""
        return len(self._running)

    def is_running(self, id_: int) -> bool:
        """Whether this worker holds a claim on the event."""
        return id_ in self._running

    def start(self) -> None:
        """Begin to claim."""
        self._loop = asyncio.get_running_loop()
        self._heartbeat.start()
        self._tasks = [
            self._loop.create_task(self._serve(), name=f"durabus-worker-{self._bus}"),
            self._loop.create_task(self._listen(), name=f"durabus-listen-{self._bus}"),
        ]
        for task in self._tasks:
            task.add_done_callback(self._task_ended)

    def nudge(self) -> None:
        """There may be something to claim."""
        self._hungry = True
        self._sated.clear()
        self._wake.set()

    def has_handlers(self, event_type: str) -> bool:
        """Whether events of this type have handlers here."""
        return bool(self._dispatcher.route(event_type))

    def request_for(self, event_id: str, *, with_lock: bool) -> ClaimRequest:
        """A claim on one event. Without the lock of this bus's mode: the event that waits for it holds that lock."""
        mode = self._mode if with_lock else EventMode.PARALLEL
        return replace(self._request(1), event_id=event_id, mode=mode)

    async def run_at_once(self, request: ClaimRequest, under: tuple[EventLock, ...]) -> Running | None:
        """Claim the event that ``request`` names and run it before all others; None if it is not to be had now."""
        if self._stopping or self._died:
            return None
        sent = monotonic()
        claims = await self._store.claim_next_events(request)
        if not claims:
            return None
        before = self._running.get(claims[0].event.id)
        if before is not None:
            if before.ref == claims[0].ref:
                return None  # this very claim, answered once more
            self._lose(before, "its lease ended and this worker claimed it again")
        await self._dispatcher.prepare(claims[0])
        running = Running(claims[0], sent + self._lease * SAFETY)
        self._running[claims[0].event.id] = running
        self._slots.put_first(running, under)
        return running

    async def _look_for_awaited(self) -> None:
        """There may be work behind the lock, and part of it what the lock's own holder waits for, here or elsewhere."""
        try:
            await self._run_awaited()
        except StoreClosedError:
            raise
        except StoreError as error:
            logger.warning("cannot look for awaited events, trying again: %s", error)

    async def _run_awaited(self) -> None:
        if not self._store.features.claims_by_event_id or self._slots.lock is None:
            return
        for event_id in await awaited_events(self._store, self._bus):
            event = await self._store.get_event(event_id)
            if event is None or not self.has_handlers(event.type):
                continue
            running = await self.run_at_once(self.request_for(event_id, with_lock=False), (self._slots.lock,))
            if running is not None:
                task = asyncio.create_task(self._watch_awaited(running))
                self._watching.add(task)
                task.add_done_callback(self._watching.discard)

    async def _watch_awaited(self, running: Running) -> None:
        """Nobody may wait for it any more, and then its parent's lock is no excuse: stop."""
        withdrawn = asyncio.create_task(
            until_withdrawn(self._store, self._bus, running.claim.event.event_id, self._lease)
        )
        try:
            while not withdrawn.done() and self._running.get(running.ref.id) is running:
                await asyncio.wait({withdrawn}, timeout=self._lease / 10)
            if withdrawn.done():
                await self.take_back(running)
        finally:
            withdrawn.cancel()

    async def take_back(self, running: Running) -> None:
        """Nobody waits any more for an event that was run at once: it goes back to the queue if it has not ended."""
        if self._running.get(running.ref.id) is running and not self._is_done(running):
            self._slots.give_back(running)
            for _ in range(int(GRACE / TAKE_BACK_STEP)):  # a handler that refuses to be cancelled is left behind
                if not running.has_begun:
                    break
                await asyncio.sleep(TAKE_BACK_STEP)

    async def stop(self, timeout: float) -> None:  # noqa: ASYNC109  (the whole of it is bounded)
        """Claim nothing more, finish what runs, give back what does not finish in ``timeout`` seconds."""
        if self._stopping or not self._tasks:
            self._stopping = True
            return
        self._stopping = True
        self._wake.set()
        serve, listen = self._tasks
        listen.cancel()
        await asyncio.wait({serve}, timeout=timeout)
        if not serve.done():
            for running in list(self._running.values()):
                self._slots.give_back(running)
            await asyncio.wait({serve}, timeout=GRACE)
        left = {*self._tasks, *self._slots.tasks, *self._watching}
        for task in left:
            task.cancel()
        # A handler that refuses to be cancelled is left behind: what it holds runs out with its lease.
        await asyncio.wait(left, timeout=GRACE)
        await self._heartbeat.stop()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        cause = None if task.cancelled() else task.exception()
        if self._died or (cause is None and self._stopping):
            return
        self._died = True
        error: DurabusError
        if isinstance(cause, StoreClosedError):
            error = StoreClosedError(f"the store was closed under the worker of bus {self._bus!r}, which ends: {cause}")
        else:
            error = EventBusShutdownError(
                f"the worker of bus {self._bus!r} was ended from outside ({cause or 'its task was cancelled'}): "
                "shut the bus down before its event loop ends"
            )
        logger.error("%s", error)
        for other in self._tasks:
            other.cancel()
        self._heartbeat.end()
        for running in list(self._running.values()):
            self._lose(running, "the worker has ended")
        if self._on_died is not None:
            self._on_died(error)

    async def _serve(self) -> None:
        """Settle and claim until stopped and drained. A failing store is asked again; nothing is dropped."""
        while not self._stopping or self._running or self._outcomes or self._unanswered:
            # What is done frees its slot in the very call that claims the next.
            if self._serial:
                free = 1 if len(self._running) == len(self._outcomes) else 0  # its lock is not to be had twice
                if not free and not self._outcomes and self._slots.lent and self._hungry:
                    self._hungry, self._hinted_in_vain = False, True
                    self._sated.set()
                    await self._look_for_awaited()
                    continue
            else:
                busy = len(self._running) - len(self._outcomes) - self._slots.lent
                free = min(self._batch, self._concurrency - busy)
            claim = free > 0 and self._hungry and not self._stopping and bool(self._dispatcher)
            if not self._outcomes and not claim and self._unanswered is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            try:
                await self._settle_and_claim(free if claim else 0)
            except StoreClosedError:
                raise
            except StoreError as error:
                logger.warning("store failed, trying again in %s s: %s", STORE_PAUSE, error)
                await asyncio.sleep(STORE_PAUSE)
            except Exception:
                # One settlement may be what breaks the call: once it is found, it is put aside for a while, so that it
                # keeps neither the others from their end nor new ones from being claimed.
                self._at_once = 1
                logger.exception("worker of bus %r failed, trying again in %s s", self._bus, STORE_PAUSE)
                await asyncio.sleep(STORE_PAUSE)

    async def _settle_and_claim(self, limit: int) -> None:
        batch, self._outcomes = self._outcomes, []
        if len(batch) > self._at_once:
            batch, self._outcomes = batch[: self._at_once], batch[self._at_once :]
        self._settling = batch
        asked = self._unanswered or ((self._request(limit), monotonic()) if limit else None)
        request = None if asked is None else asked[0]
        try:
            if batch:
                settlements = [settlement for _, settlement in batch]
                answer = await self._store.settle_events(settlements, then_claim=request)
                outcomes, claims = answer.outcomes, answer.claims
            else:
                outcomes, claims = [], [] if request is None else await self._store.claim_next_events(request)
        except Exception as error:
            if len(batch) == 1 and self._loop is not None and not isinstance(error, StoreError):
                self._loop.call_later(PAUSES_ASIDE * STORE_PAUSE, self._settle_again, *batch[0])
            else:
                self._outcomes += batch
            self._settling, self._unanswered = [], asked
            raise
        self._settling, self._unanswered = [], None
        if self._at_once < MAX_BATCH:
            self._at_once *= 2
        if asked is not None:
            self._hinted_in_vain, self._hinted = self._hinted and not claims, False
            if len(claims) < asked[0].limit:
                self._hungry = False
                self._sated.set()
            if claims:
                await self._dispatcher.prepare(claims[0])
            self._accept(claims, asked[1], batch)
        self._settled(batch, outcomes)
        if self._serial and asked is not None and not claims:
            await self._look_for_awaited()

    def _request(self, limit: int) -> ClaimRequest:
        return ClaimRequest(
            bus=self._bus,
            worker_id=self._dispatcher.worker_id,
            token=new_token(),
            limit=limit,
            lease=self._lease,
            mode=self._mode,
            max_attempts=self._dispatcher.max_attempts,
        )

    def _accept(self, claims: Sequence[Claim], sent: float, batch: list[tuple[Running, Settlement]]) -> None:
        """Run what was claimed; ``sent`` is when it was first asked for, because the lease may have begun then.

        ``batch`` was settled in the same call, before the claim: its events may be among the claimed.
        """
        deadline, put = sent + self._lease * SAFETY, self._put_back if self._stopping else self._slots.put
        settled: set[Running] = set()
        for claim in claims:
            event = claim.event
            running = Running(claim, deadline)
            before = self._running.get(event.id)
            if before is not None:
                settled = settled or {running for running, _ in batch}
                if before not in settled:
                    self._lose(before, "its lease ended and this worker claimed it again")
            self._running[event.id] = running
            put(running)
        self._slots.go()

    def _put_back(self, running: Running) -> None:
        self._done(running, Release(running.ref))

    def _settled(self, batch: list[tuple[Running, Settlement]], outcomes: Sequence[Settled | LeaseLost]) -> None:
        for (running, settlement), outcome in zip(batch, outcomes, strict=True):
            event = running.claim.event
            if self._running.get(event.id) is running:
                del self._running[event.id]
            if isinstance(outcome, LeaseLost):
                if not running.lost:
                    running.lost = True
                    self._report_lost(event, outcome.reason)
                continue
            self.metrics.settled(event, outcome.status, failed=isinstance(settlement, Fail))
            if self._on_settled is not None:
                try:
                    self._on_settled(running.claim, settlement, outcome)
                except Exception:
                    logger.exception("the end of event %s could not be told to who waits for it", event.event_id)

    def _done(self, running: Running, settlement: Settlement) -> None:
        self._outcomes.append((running, settlement))
        if len(self._outcomes) == 1:
            self._wake.set()

    def _settle_again(self, running: Running, settlement: Settlement) -> None:
        if not running.lost:
            self._done(running, settlement)

    def _slot_died(self, running: Running) -> None:
        self._running.pop(running.claim.event.id, None)
        self._wake.set()

    async def _listen(self) -> None:
        """Turn the store's hints into wake-ups; without any, wake at the poll floor."""
        while True:
            await self._sated.wait()
            asked = monotonic()
            try:
                heard = await self._store.wait_for_work(self._bus, timeout=self._poll_interval)
            except StoreClosedError:
                raise
            except Exception as error:  # noqa: BLE001  (hints may fail in any way; the poll floor stands behind them)
                logger.warning("no hints from the store, polling: %s", error)
                await asyncio.sleep(self._poll_interval)
                heard = False
            in_vain = self._hinted_in_vain and monotonic() - asked < HINT_PAUSE
            if heard and (in_vain or self._dispatcher.gave_away):
                # There is work that this worker may not have, such as behind a lock, or that others have the handler
                # for: do not ask in circles, and let the others ask first.
                await asyncio.sleep(HINT_PAUSE * random.uniform(1, 2))
            self._hinted = heard
            self.nudge()

    def _held(self) -> list[Running]:
        return list(self._running.copy().values())  # copied at once: this runs in the heartbeat's thread

    def _allowance(self, running: Running) -> float:
        """How long its handlers may take: this too runs in the heartbeat's thread, so it does not touch the routes."""
        event_type = running.claim.event.type
        handlers = [handler for handler in self._dispatcher.handlers if matches(handler.pattern, event_type)]
        if not handlers and running.has_begun:
            return math.inf  # they were unsubscribed since
        # A plain function counts twice: it may wait for a thread as long as it may run.
        limits = [math.inf if h.timeout is None else h.timeout * (1 if h.is_async else 2) for h in handlers]
        return sum(limits)

    def _lost_from_thread(self, held: Running, reason: str) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel_lost, held, reason)

    def _cancel_lost(self, held: Running, reason: str) -> None:
        # What is done is with the store, or on the way: that will judge it.
        if self._running.get(held.ref.id) is held and not self._is_done(held):
            self._lose(held, reason)

    def _is_done(self, running: Running) -> bool:
        return any(done is running for done, _ in (*self._settling, *self._outcomes))

    def _lose(self, running: Running, reason: str) -> None:
        """Another claim may hold the event already: stop the handler, write nothing."""
        del self._running[running.ref.id]
        self._outcomes = [outcome for outcome in self._outcomes if outcome[0] is not running]
        self._report_lost(running.claim.event, reason)
        self._slots.lose(running)
        self._wake.set()

    def _report_lost(self, event: Event, reason: str) -> None:
        self.metrics.lost(event)
        logger.warning("claim on event %s (%s) lost: %s", event.event_id, event.type, reason)
