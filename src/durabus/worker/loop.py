"""The worker: claims as many events as it has free slots, runs them, settles what is done in batches."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence

from durabus.clock import monotonic
from durabus.errors import ConfigurationError, LeaseLost, StoreClosedError, StoreError
from durabus.model.claim import DEFAULT_LEASE, Claim, ClaimRequest, new_token
from durabus.model.event import Event
from durabus.model.limits import check_batch
from durabus.model.settlement import Fail, Settled, Settlement
from durabus.model.statuses import EventMode
from durabus.store.contract import EventStore
from durabus.worker.dispatcher import Dispatcher
from durabus.worker.heartbeat import SAFETY, Heartbeat, Held
from durabus.worker.metrics import Metrics
from durabus.worker.slots import Running, Slots

logger = logging.getLogger("durabus.worker")

POLL_FLOOR = 1.0
STORE_PAUSE = 0.5
"""How long to wait after the store failed before it is asked again."""

HINT_PAUSE = 0.05
GRACE = 2.0
"""How long a shutdown waits for handlers that it had to cancel."""

OnSettled = Callable[[Claim, Settlement, Settled], None]


class Worker:
    """Serves one bus of one store."""

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
        self.metrics = metrics or Metrics()
        self._on_settled = on_settled
        self._running: dict[int, Running] = {}
        self._outcomes: list[tuple[Running, Settlement]] = []
        self._slots = Slots(dispatcher, concurrency, done=self._done, died=self._slot_died)
        self._hungry = True
        self._sated = asyncio.Event()
        self._hinted = False
        self._hinted_in_vain = False
        self._wake = asyncio.Event()
        self._stopping = False
        self._failed_claim: ClaimRequest | None = None
        self._heartbeat = Heartbeat(store, lease=lease, held=self._held, lost=self._lost_from_thread)
        self._tasks: list[asyncio.Task[None]] = []
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

    def nudge(self) -> None:
        """There may be something to claim."""
        self._hungry = True
        self._sated.clear()
        self._wake.set()

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
        left = {*self._tasks, *self._slots.tasks}
        for task in left:
            task.cancel()
        # A handler that refuses to be cancelled is left behind: what it holds runs out with its lease.
        await asyncio.wait(left, timeout=GRACE)
        await self._heartbeat.stop()

    async def _serve(self) -> None:
        """Settle and claim until stopped and drained. A failing store is asked again; nothing is dropped."""
        while not (self._stopping and not self._running):
            # What is done frees its slot in the very call that claims the next.
            busy = len(self._running) - len(self._outcomes)
            free = min(self._batch, self._concurrency - busy)
            claim = free > 0 and self._hungry and not self._stopping and bool(self._dispatcher)
            if not self._outcomes and not claim:
                self._wake.clear()
                await self._wake.wait()
                continue
            try:
                await self._settle_and_claim(free if claim else 0)
            except StoreClosedError:
                logger.error("the store was closed under the worker of bus %r: it stops", self._bus)  # noqa: TRY400
                raise
            except StoreError as error:
                logger.warning("store failed, trying again in %s s: %s", STORE_PAUSE, error)
                await asyncio.sleep(STORE_PAUSE)
            except Exception:
                logger.exception("worker of bus %r failed, trying again in %s s", self._bus, STORE_PAUSE)
                await asyncio.sleep(STORE_PAUSE)

    async def _settle_and_claim(self, limit: int) -> None:
        batch, self._outcomes = self._outcomes, []
        request = self._request(limit) if limit else None
        sent = monotonic()
        try:
            if batch:
                settlements = [settlement for _, settlement in batch]
                answer = await self._store.settle_events(settlements, then_claim=request)
                outcomes, claims = answer.outcomes, answer.claims
            else:
                outcomes, claims = [], [] if request is None else await self._store.claim_next_events(request)
        except Exception:
            self._outcomes = batch + self._outcomes
            self._failed_claim = request
            raise
        self._failed_claim = None
        self._settled(batch, outcomes)
        if limit:
            self._hinted_in_vain, self._hinted = self._hinted and not claims, False
            if len(claims) < limit:
                self._hungry = False
                self._sated.set()
            self._accept(claims, sent + self._lease * SAFETY)

    def _request(self, limit: int) -> ClaimRequest:
        """A new request, or the one whose answer was lost: repeating it cannot claim twice."""
        if self._failed_claim is not None:
            return self._failed_claim
        return ClaimRequest(
            bus=self._bus,
            worker_id=self._dispatcher.worker_id,
            token=new_token(),
            limit=limit,
            lease=self._lease,
            mode=self._mode,
            max_attempts=self._dispatcher.max_attempts,
        )

    def _accept(self, claims: Sequence[Claim], deadline: float) -> None:
        if not claims:
            return
        for claim in claims:
            running = Running(claim, deadline)
            id_ = claim.event.id
            if id_ in self._running:
                self._lose(self._running[id_], "its lease ended and this worker claimed it again")
            self._running[id_] = running
            self._slots.put(running)
        self._slots.go()

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
                self._on_settled(running.claim, settlement, outcome)

    def _done(self, running: Running, settlement: Settlement) -> None:
        self._outcomes.append((running, settlement))
        if len(self._outcomes) == 1:
            self._wake.set()

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

    def _held(self) -> list[Held]:
        return list(self._running.copy().values())  # copied at once: this runs in the heartbeat's thread

    def _lost_from_thread(self, held: Held, reason: str) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel_lost, held, reason)

    def _cancel_lost(self, held: Held, reason: str) -> None:
        running = self._running.get(held.ref.id)
        if running is held and not running.lost:
            self._lose(running, reason)

    def _lose(self, running: Running, reason: str) -> None:
        """Another claim may hold the event already: stop the handler, write nothing."""
        del self._running[running.claim.event.id]
        self._report_lost(running.claim.event, reason)
        self._slots.lose(running)
        self._wake.set()

    def _report_lost(self, event: Event, reason: str) -> None:
        self.metrics.lost(event)
        logger.warning("claim on event %s (%s) lost: %s", event.event_id, event.type, reason)
