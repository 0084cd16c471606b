"""The worker: claims as many events as it has free slots, runs them, settles what is done in batches."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager

from msgspec.structs import replace

from durabus.clock import monotonic
from durabus.errors import DurabusError, EventBusShutdownError, LeaseLost, StoreClosedError, StoreError
from durabus.model.claim import DEFAULT_LEASE, Claim, ClaimRequest, new_token
from durabus.model.event import Event
from durabus.model.settlement import Fail, Release, Settled, Settlement
from durabus.model.statuses import EventMode
from durabus.store.contract import EventStore
from durabus.worker.children.children import Children
from durabus.worker.children.remote import AwaitedRuns
from durabus.worker.children.waiting import event_lock
from durabus.worker.completer import Completer, Outcome, SentClaim
from durabus.worker.context import check_options
from durabus.worker.dispatcher import LONGEST_DELAY, Dispatcher
from durabus.worker.heartbeat import SAFETY, Heartbeat, came_late
from durabus.worker.metrics import Metrics
from durabus.worker.outage import Outage
from durabus.worker.poller import POLL_FLOOR, Poller
from durabus.worker.serial import SerialBatch
from durabus.worker.slots import ClaimedEvent, EventLock, Slots
from durabus.worker.without_lock import WithoutLock

logger = logging.getLogger("durabus.worker")

TAKE_BACK_STEP = 0.005
DRAIN_STEP = 0.1
AWAY_PATIENCE = 1.5
"""How long a shutdown waits for a store that is away."""
ANSWER_PATIENCE = 2.0
"""The same while a settlement is under way and the store has not failed so far: what gets lost is worked again."""
AWAY_GRACE = 0.5
"""How long it then waits for calls that it had to cancel."""
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
        outage: Outage | None = None,
        on_settled: OnSettled | None = None,
        on_died: OnDied | None = None,
        waits_for_children: bool = False,
    ) -> None:
        check_options(store, concurrency, lease)
        self._store = store
        self._bus = bus
        self._dispatcher = dispatcher
        self._concurrency = concurrency
        # Two half batches, so that one is run while the store settles the other; a store in this very thread cannot.
        halves = concurrency >= 8 and store.features.shared_between_processes  # noqa: PLR2004
        self._batch = concurrency // 2 if halves else concurrency
        self._lease = lease
        self._mode = mode
        self._serial = None if mode is EventMode.PARALLEL else SerialBatch(concurrency)
        self.metrics = metrics or Metrics()
        self._on_settled = on_settled
        self._on_died = on_died
        self._running: dict[int, ClaimedEvent] = {}
        self._wake = asyncio.Event()
        self._calls_at_once = 2 if halves and self._serial is None else 1
        self._exchange = Completer(store, enough=self._batch if self._calls_at_once > 1 else None, wake=self._wake.set)
        self._outage = outage or Outage(logger, f"the store of bus {bus!r} fails")
        self._appetite = Poller(
            store,
            bus,
            poll_interval=poll_interval,
            wake=self._wake.set,
            nodes=dispatcher.nodes,
            outage=self._outage,
        )
        self._slots = Slots(
            dispatcher,
            concurrency,
            done=self._done,
            died=self._slot_died,
            lent=self._place_lent,
            lock=event_lock(store, mode, bus),
            children=Children(store, may_wait=mode is EventMode.PARALLEL) if waits_for_children else None,
        )
        self.store_is_away = False
        """Whether the worker was stopped and could not reach the store any more."""
        self._stopping = False
        self._died = False
        self._heartbeat = Heartbeat(
            store, lease=lease, held=self._held, allowance=self._allowance, lost=self._lost_from_thread
        )
        self._serving: list[asyncio.Task[None]] = []
        self._listening: asyncio.Task[None] | None = None
        self._without_lock = WithoutLock(
            store,
            dispatcher,
            self._slots.held_without_lock,
            lease=lease,
            resting=self._appetite.resting,
            request=lambda event_id: self.request_for(event_id, with_lock=False),
            put_back=self._end_wait,
            wake=self._wake.set,
        )
        self._awaited = AwaitedRuns(self, store, bus, lease=lease, lock=self._slots.lock)
        self._undoing: set[asyncio.Task[None]] = set()
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
        self._serving = [
            self._loop.create_task(self._serve(), name=f"durabus-worker-{self._bus}")
            for _ in range(self._calls_at_once)
        ]
        self._listening = self._loop.create_task(self._appetite.listen(), name=f"durabus-listen-{self._bus}")
        for task in (*self._serving, self._listening):
            task.add_done_callback(self._task_ended)

    def nudge(self) -> None:
        """There may be something to claim."""
        self._appetite.nudge()

    def has_handlers(self, event_type: str) -> bool:
        """Whether events of this type have handlers here."""
        return bool(self._dispatcher.route(event_type))

    def request_for(self, event_id: str, *, with_lock: bool) -> ClaimRequest:
        """A claim on one event. Without the lock of this bus's mode: the event that waits for it holds that lock."""
        mode = self._mode if with_lock else EventMode.PARALLEL
        return replace(self._request(1), event_id=event_id, mode=mode)

    async def run_at_once(
        self,
        request: ClaimRequest,
        under: tuple[EventLock, ...],
        is_wanted: Callable[[], Awaitable[bool]] | None = None,
    ) -> ClaimedEvent | None:
        """Claim the event that ``request`` names and run it before all others; None if it is not to be had now.

        ``is_wanted`` is asked between both. Who is cancelled meanwhile, such as a handler whose time is over, leaves no
        claim behind.
        """
        if self._stopping or self._died:
            return None
        try:
            return await self._claim_and_run(request, under, is_wanted)
        except asyncio.CancelledError:
            if not self._stopping:
                undoing = asyncio.create_task(self._undo(request))
                self._undoing.add(undoing)
                undoing.add_done_callback(self._undoing.discard)
            raise

    async def _undo(self, request: ClaimRequest) -> None:
        """Nobody knows whether it was granted. Asked for once more it is the same claim, or a new one: it goes back."""
        try:
            claims = await self._store.claim_next_events(request)
        except StoreError as error:
            logger.warning("event %s comes back only with its lease: %s", request.event_id, error)
            return
        for claim in claims:
            if claim.event.id not in self._running:
                running = ClaimedEvent(claim, monotonic() + self._lease * SAFETY)
                self._running[claim.event.id] = running
                self._put_back(running)

    def _is_at_work_on(self, running: ClaimedEvent) -> bool:
        return self.holds(running) and not self._exchange.has(running)

    async def _claim_and_run(
        self,
        request: ClaimRequest,
        under: tuple[EventLock, ...],
        is_wanted: Callable[[], Awaitable[bool]] | None,
    ) -> ClaimedEvent | None:
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
        wanted = is_wanted is None or await is_wanted()
        running = ClaimedEvent(claims[0], sent + self._lease * SAFETY)
        self._running[claims[0].event.id] = running
        if not wanted or self._came_late(running.deadline, 1):
            self._put_back(running)
            return None
        self._slots.put_first(running, under)
        return running

    def holds(self, running: ClaimedEvent) -> bool:
        """Whether the claim is neither lost nor settled."""
        return self._running.get(running.ref.id) is running

    async def take_back(self, running: ClaimedEvent) -> None:
        """Nobody waits any more for an event that was run at once: it goes back to the queue if it has not ended."""
        if self._is_at_work_on(running):
            self._slots.give_back(running)
            # A handler that refuses to be cancelled is left behind. A function in a thread cannot refuse or obey.
            until = monotonic() + GRACE
            while running.has_begun and (monotonic() < until or running.has_no_limit):  # noqa: ASYNC110  (no event tells)
                await asyncio.sleep(TAKE_BACK_STEP)

    def lending(self, event_id: str, locks: tuple[EventLock, ...]) -> AbstractContextManager[None]:
        """While the holder of ``locks`` waits for an event, that event runs under them, however it was claimed here."""
        return self._slots.lending(event_id, locks)

    def run_of(self, id_: int | None) -> ClaimedEvent | None:
        """The event on its way through this worker."""
        return None if id_ is None else self._running.get(id_)

    async def take_locks_back(self, running: ClaimedEvent, locks: tuple[EventLock, ...]) -> None:
        """Nobody holds these locks any more for an event of another bus that was run at once: it goes on without them.

        Unless it waits for an event that may run under them.
        """
        if locks and self._slots.is_waiting(running):
            await self.take_back(running)
        running.locks = tuple(lock for lock in running.locks if lock not in locks)

    async def stop(self, timeout: float) -> None:  # noqa: ASYNC109  (the whole of it is bounded)
        """Claim nothing more, finish what runs, give back what does not finish in ``timeout`` seconds."""
        if self._stopping or self._listening is None:
            self._stopping = True
            return
        self._stopping = True
        self._wake.set()
        self._listening.cancel()
        self._slots.drain()
        self._without_lock.stop()
        if await self._drain(timeout):
            for running in list(self._running.values()):
                self._slots.give_back(running)
            await asyncio.wait(self._serving, timeout=GRACE)
        self._slots.closing = True
        left = {*self._serving, self._listening, *self._slots.tasks, *self._awaited.tasks, *self._undoing}
        left |= self._without_lock.tasks
        for task in left:
            task.cancel()
        # A handler that refuses to be cancelled is left behind: what it holds runs out with its lease.
        grace = AWAY_GRACE if self.store_is_away else GRACE
        await asyncio.gather(asyncio.wait(left, timeout=grace), self._heartbeat.stop(grace))

    async def _drain(self, timeout: float) -> bool:  # noqa: ASYNC109  (it says whether something is left)
        """Wait until what runs is settled; whether something is left that can be given back.

        Nobody waits long for a store that is away: one that fails, or does not answer, while no handler runs.
        """
        left, silent, held = timeout, 0.0, len(self._running)
        while pending := (await asyncio.wait(self._serving, timeout=min(DRAIN_STEP, left)))[1]:
            left -= DRAIN_STEP
            only_the_store = not any(map(self._is_at_work_on, self._running.values()))
            silent = silent + DRAIN_STEP if only_the_store and len(self._running) == held else 0.0
            held = len(self._running)
            patience = ANSWER_PATIENCE if held and self._outage.since is None else AWAY_PATIENCE
            self.store_is_away = silent >= patience
            if self.store_is_away:
                logger.warning("the store is away: %s events come back when their lease is over", held)
                return False
            if left <= 0:
                break
        return bool(pending)

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
        for other in (*self._serving, self._listening):
            if other is not None:
                other.cancel()
        self._heartbeat.end()
        for running in list(self._running.values()):
            self._lose(running, "the worker has ended")
        for running in list(self._slots.held_without_lock):
            self._without_lock.lose(running)
        if self._on_died is not None:
            self._on_died(error)

    async def _serve(self) -> None:
        """Settle and claim until stopped and drained. A failing store is asked again; nothing is dropped.

        As many of these run as there may be calls at once.
        """
        unanswered: SentClaim | None = None
        while not self._stopping or self._running or self._exchange.waiting or self._without_lock.tasks or unanswered:
            if self._serial is not None and self._waits_for_another_node():
                self._appetite.leave_it()
                await self._awaited.look()
                continue
            free = self._free()
            claim = free > 0 and self._appetite.hungry and not self._stopping and bool(self._dispatcher)
            may_call = self._exchange.is_open and (claim or self._exchange.waiting)
            if not may_call and unanswered is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            asked = unanswered or (SentClaim(self._request(free), monotonic()) if claim else None)
            try:
                await self._settle_and_claim(asked)
                unanswered = None
                self._outage.answered()
            except StoreClosedError:
                raise
            except Exception as error:  # noqa: BLE001  (whatever it was, the worker lives)
                unanswered = asked
                await asyncio.sleep(self._outage.failed(error, unforeseen=not isinstance(error, StoreError)))

    def _free(self) -> int:
        """How many events may be claimed: what is done frees its slot in the very call that claims the next."""
        done = len(self._exchange.waiting)
        if self._serial is not None:
            # Its lock is not to be had twice: the last of a batch is settled in the call that claims the next one.
            return self._serial.size if len(self._running) == done and self._exchange.takes_all else 0
        busy = len(self._running) - done - self._slots.lent + self._exchange.expected
        return min(self._batch, self._concurrency - busy)

    def _waits_for_another_node(self) -> bool:
        """Whether the event that holds the lock waits for a child, and there may be work behind the lock."""
        return bool(not self._exchange.waiting and self._running and self._slots.lent and self._appetite.hungry)

    async def _settle_and_claim(self, asked: SentClaim | None) -> None:
        call = self._exchange.begin(0 if asked is None else asked.request.limit)
        try:
            outcomes, claims = await self._exchange.send(call, None if asked is None else asked.request)
            if asked is not None:
                self._appetite.ate(len(claims), asked.request.limit)
                if claims:
                    await self._dispatcher.prepare(claims[0])
                self._accept(claims, asked.sent)
            self._settled(call.batch, outcomes)
        finally:
            self._exchange.end(call)
        if self._serial is not None and asked is not None and not claims:
            await self._awaited.look()

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

    def _accept(self, claims: Sequence[Claim], sent: float) -> None:
        """Run what was claimed; ``sent`` is when it was first asked for, because the lease may have begun then."""
        deadline = sent + self._lease * SAFETY
        late = bool(claims) and self._came_late(deadline, len(claims))
        put = self._put_back if self._stopping or late else self._slots.put
        if self._serial is not None and claims:
            self._serial.begin(len(claims))
        for claim in claims:
            event = claim.event
            running = ClaimedEvent(claim, deadline)
            before = self._running.get(event.id)
            # What is under way was settled before it could be claimed again.
            if before is not None and not self._exchange.is_under_way(before):
                self._lose(before, "its lease ended and this worker claimed it again")
            self._running[event.id] = running
            put(running)
        self._slots.go()

    def _came_late(self, deadline: float, claims: int) -> bool:
        return came_late(deadline - monotonic(), self._lease, claims, self._bus)

    def _put_back(self, running: ClaimedEvent) -> None:
        self._exchange.add(running, Release(running.ref))

    def _end_wait(self, running: ClaimedEvent, reason: str) -> None:
        self._running[running.ref.id] = running
        self._exchange.add(running, Release(running.ref, 0.0, (), reason))

    def _settled(self, batch: list[Outcome], outcomes: Sequence[Settled | LeaseLost]) -> None:
        for (running, settlement), outcome in zip(batch, outcomes, strict=True):
            event = running.claim.event
            if self._running.get(event.id) is running:
                del self._running[event.id]
            if isinstance(outcome, LeaseLost):
                if not running.lost:
                    running.lost = True
                    self._report_lost(event, outcome.reason)
                continue
            if running.waits_next and not self._stopping:
                self._without_lock.hold(event.event_id)
            self.metrics.settled(event, outcome.status, failed=isinstance(settlement, Fail))
            if self._on_settled is not None:
                try:
                    self._on_settled(running.claim, settlement, outcome)
                except Exception:
                    logger.exception("the end of event %s could not be told to who waits for it", event.event_id)

    def _done(self, running: ClaimedEvent, settlement: Settlement) -> None:
        self._exchange.add(running, settlement)
        if running.gave_away and isinstance(settlement, Release) and settlement.delay <= LONGEST_DELAY:
            self._appetite.rest(settlement.delay)  # else no live node has the handler, and nobody would claim first
        if self._serial is None:
            return
        if not running.returning:
            self._serial.one_ran()
        if self._slots.is_drained:
            self._serial.end()
        elif self._serial.is_overdue:
            self._slots.give_back_rest()

    def _place_lent(self) -> None:
        if self._serial is not None:
            self._serial.wait()
            self._slots.give_back_rest()
        self._wake.set()

    def _slot_died(self, running: ClaimedEvent) -> None:
        self._running.pop(running.claim.event.id, None)
        self._wake.set()

    def _held(self) -> list[ClaimedEvent]:
        # Copied at once: this runs in the heartbeat's thread.
        return [*self._running.copy().values(), *self._slots.held_without_lock.copy()]

    def _allowance(self, running: ClaimedEvent) -> float:
        limit = self._dispatcher.allowance(running.claim.event.type)
        return math.inf if limit is None and running.has_begun else limit or 0.0  # they were unsubscribed since

    def _lost_from_thread(self, held: ClaimedEvent, reason: str) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel_lost, held, reason)

    def _cancel_lost(self, held: ClaimedEvent, reason: str) -> None:
        # What is done is with the store, or on the way: that will judge it.
        if held in self._slots.held_without_lock:
            self._report_lost(held.claim.event, reason)
            self._without_lock.lose(held)
        elif self._is_at_work_on(held):
            self._lose(held, reason)

    def _lose(self, running: ClaimedEvent, reason: str) -> None:
        """Another claim may hold the event already: stop the handler, write nothing."""
        del self._running[running.ref.id]
        self._exchange.remove(running)
        self._report_lost(running.claim.event, reason)
        self._slots.lose(running)
        self._wake.set()

    def _report_lost(self, event: Event, reason: str) -> None:
        self.metrics.lost(event)
        logger.warning("claim on event %s (%s) lost: %s", event.event_id, event.type, reason)
