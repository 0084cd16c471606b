"""The worker: it claims as many events as it has free slots, runs them, and settles finished ones in batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import msgspec

from durabus.clock import monotonic
from durabus.errors import ConfigurationError, DurabusError, LeaseLost, StoreClosedError, StoreError
from durabus.model.claim import DEFAULT_LEASE, Claim, ClaimRequest, new_token
from durabus.model.limits import check_batch
from durabus.model.settlement import Fail, Settled, Settlement
from durabus.model.statuses import TERMINAL, EventMode, ResultMode, Takeover
from durabus.store.contract import EventStore
from durabus.store.outage import Outage
from durabus.worker.children.children import Children
from durabus.worker.children.remote import AwaitedRuns
from durabus.worker.children.run_now import ChildRunner
from durabus.worker.children.waiting import event_lock
from durabus.worker.claim_table import CLAIMED_AGAIN, ClaimTable
from durabus.worker.claimed_event import ClaimedEvent
from durabus.worker.completer import Completer, FinishedEvent, SentClaim
from durabus.worker.dispatcher import Dispatcher
from durabus.worker.draining import Drained, drain, error_of_end
from durabus.worker.heartbeat import Heartbeat
from durabus.worker.poller import POLL_FLOOR, Poller
from durabus.worker.process_watch import ProcessWatch
from durabus.worker.progress import Keeper
from durabus.worker.replies import EndHints
from durabus.worker.serial import SerialBatch, WithoutLock
from durabus.worker.sharing import SharedEvents
from durabus.worker.slots import Slots
from durabus.worker.telemetry import Metrics

logger = logging.getLogger("durabus.worker")

AWAY_GRACE = 0.5
"""Seconds that a shutdown waits for cancelled calls of a store that is away."""
GRACE = 2.0
"""Seconds that a shutdown waits for cancelled handlers."""

OnSettled = Callable[[Claim, Settlement, Settled], None]
OnDied = Callable[[DurabusError], object]


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker claims events. All times are seconds."""

    concurrency: int = 100
    lease: float = DEFAULT_LEASE
    poll_interval: float = POLL_FLOOR
    mode: EventMode = EventMode.PARALLEL
    results: ResultMode = ResultMode.SOON
    takeover: Takeover = Takeover.PRESENCE

    def check(self, store: EventStore) -> None:
        """Raise ``ConfigurationError`` if no worker on this store can work with these options."""
        check_batch(self.concurrency, "concurrency")
        if not self.lease > max(store.features.minimum_lease, 0):
            raise ConfigurationError(
                f"lease={self.lease!r}: {store.features.scheme}:// needs more than {store.features.minimum_lease:g} s"
            )


DEFAULT_OPTIONS = WorkerOptions()


NOT_PREPARED = ("", "")


class Worker:
    """Serves one bus of one store.

    ``node`` is the address of the bus object, if handlers may emit children: a parent then completes after them.
    ``on_died`` is called when the worker ends although nothing stopped it, as when the store is closed: its events come
    back when their leases expire, and nothing in this process may go on waiting for them.
    """

    def __init__(
        self,
        store: EventStore,
        bus: str,
        dispatcher: Dispatcher,
        options: WorkerOptions = DEFAULT_OPTIONS,
        *,
        metrics: Metrics | None = None,
        outage: Outage | None = None,
        on_settled: OnSettled | None = None,
        on_died: OnDied | None = None,
        node: str | None = None,
    ) -> None:
        options.check(store)
        self._bus, self._dispatcher, missing = bus, dispatcher, dispatcher.missing
        self._concurrency = concurrency = options.concurrency
        halves = _runs_two_halves(store, concurrency)
        self._batch = concurrency // 2 if halves else concurrency
        self._lease, self._mode = lease, mode = options.lease, options.mode
        self._serial = None if mode is EventMode.PARALLEL else SerialBatch(concurrency)
        self.metrics, self._end_hints = metrics or Metrics(), EndHints(store, node)
        self._on_settled, self._on_died = on_settled, on_died
        self._wake = asyncio.Event()
        wake = self._wake.set
        self._calls_at_once = 2 if halves and self._serial is None else 1
        self._completer = Completer(store, enough=self._batch if self._calls_at_once > 1 else None, wake=wake)
        self._outage = outage = outage or Outage(logger, f"the store of bus {bus!r} fails")
        self._noticing_silence = self._outage.noticing_silence if _may_be_silent(store) else nullcontext
        poller = Poller(store, bus, poll_interval=options.poll_interval, wake=wake, nodes=missing.nodes, outage=outage)
        self._poller, self.resting = poller, poller.resting
        self._watch, self._keeper = ProcessWatch.of(store, options.takeover), (keeper := Keeper(store))
        self._slots = Slots(
            dispatcher,
            concurrency,
            done=self._done,
            died=self._slot_died,
            on_yield=self._slot_yielded,
            lock=event_lock(store, mode, bus),
            children=Children(store, may_wait=mode is EventMode.PARALLEL) if node is not None else None,
            keeper=keeper,
            strict=options.results is ResultMode.STRICT,
        )
        self._sharing = SharedEvents(store, bus, dispatcher, self._slots, options, keeper, self._watch, self._outage)
        metrics, completer = self.metrics, self._completer
        self._claims = ClaimTable(bus, dispatcher, completer, self._slots, lease=lease, metrics=metrics, wake=wake)
        self.children = ChildRunner(store, dispatcher, self._slots, self._claims, self._request, nudge=self.nudge)
        self._awaited = AwaitedRuns(self.children, store, bus, lease=lease, lock=self._slots.lock)
        self._without_lock = WithoutLock(store, missing, self._claims, self._poller, self.children, wake=wake)
        self._heartbeat = Heartbeat(
            store, lease=lease, held=self._claims.held, allowance=self._claims.allowance, lost=self._lost_from_thread
        )
        self.store_is_away = False
        """Whether the worker could not reach the store when it was stopped."""
        self._prepared = NOT_PREPARED
        """The token of the next claim, and the incarnation it was made for. Making a token lets other threads run. So a
        store's own thread would begin with an event before it gets the claim that was sent right behind the event."""
        self._stopping = self._died = False
        self._serving: list[asyncio.Task[None]] = []
        self._listening: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def in_flight(self) -> int:
        """The number of events that are claimed and not yet settled."""
        return len(self._claims.by_id)

    def start(self) -> None:
        """Begin to claim."""
        self._loop = asyncio.get_running_loop()
        self._poller.heard = self._sharing.heard
        self._sharing.start()
        self._heartbeat.start()
        self._dispatcher.batches.hurry(hurries=False)
        self._watch.join(self._claims.holds_any)
        self._serving = [
            self._loop.create_task(self._serve(), name=f"durabus-worker-{self._bus}")
            for _ in range(self._calls_at_once)
        ]
        self._listening = self._loop.create_task(self._poller.listen(), name=f"durabus-listen-{self._bus}")
        for task in (*self._serving, self._listening):
            task.add_done_callback(self._task_ended)

    def nudge(self) -> None:
        """Look for events to claim: there may be some."""
        self._poller.nudge()

    def look_for(self, id_: int) -> None:
        """Look for an event to claim, unless this worker has claimed it already."""
        if not self.children.is_running(id_):
            self._poller.nudge()

    def revoke(self, id_: int, reason: str) -> None:
        """Stop the event if it runs here: a caller has cancelled it."""
        self._claims.revoke(id_, reason)

    async def _serve(self) -> None:
        """Settle and claim until the worker is stopped and holds nothing. It drops nothing when the store fails.

        As many of these tasks run as there may be calls at once.
        """
        unanswered: SentClaim | None = None
        await self._watch.shown()
        while not self._stopping or self._has_work or unanswered:
            if self._serial is not None and self._waits_for_another_node():
                self._poller.skip()
                await self._awaited.look()
                continue
            may_claim = self._poller.should_claim and not self._stopping and bool(self._dispatcher)
            claim = may_claim and (free := self._free()) > 0
            may_call = self._completer.is_open and (claim or self._completer.waiting)
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
        self._wake.set()  # the other task may end too

    @property
    def _has_work(self) -> bool:
        return bool(self._claims.by_id or self._completer.waiting or self._without_lock.tasks)

    def _free(self) -> int:
        """How many events the worker may claim. A finished event frees its slot in the call that claims the next."""
        done = len(self._completer.waiting)
        if self._serial is not None:
            # One claim at a time holds the lock: the call that settles the last of a batch claims the next batch.
            return self._serial.size if len(self._claims.by_id) == done and self._completer.takes_all else 0
        busy = len(self._claims.by_id) - done - self._slots.yielded + self._completer.expected
        return min(self._batch, self._concurrency - busy)

    def _waits_for_another_node(self) -> bool:
        """Whether the event that holds the lock waits for a child, and there may be work behind the lock."""
        return bool(
            not self._completer.waiting and self._claims.by_id and self._slots.yielded and self._poller.should_claim
        )

    def _request(self, limit: int) -> ClaimRequest:
        # An awaited child may run on another node, under the lock of its parent. That node notices only after a while
        # that the parent's process has ended, so the lock must not be free at once.
        lends_lock = self._serial is not None and self._dispatcher.missing.any_remote()
        incarnation = "" if lends_lock else self._watch.incarnation
        (prepared_for, token), self._prepared = self._prepared, NOT_PREPARED
        return ClaimRequest(
            bus=self._bus,
            worker_id=self._dispatcher.worker_id,
            token=token if token and prepared_for == incarnation else new_token(incarnation),
            limit=limit,
            lease=self._lease,
            mode=self._mode,
            max_attempts=self._dispatcher.max_attempts,
        )

    async def _settle_and_claim(self, asked: SentClaim | None) -> None:
        call = self._completer.begin(0 if asked is None else asked.request.limit)
        try:
            with self._noticing_silence():
                outcomes, claims = await self._completer.send(call, None if asked is None else asked.request)
            if asked is not None:
                self._poller.on_claimed(len(claims), asked.request.limit)
                self._sharing.claimed(in_vain=not claims and self._poller.hinted_in_vain)
                if claims:
                    await self._dispatcher.missing.prepare(claims[0])
                self._accept(claims, asked.sent)
                self._prepared = (self._watch.incarnation, new_token(self._watch.incarnation))
            self._settled(call.batch, outcomes)
        finally:
            self._completer.end(call)
        if self._serial is not None and asked is not None and not claims:
            await self._awaited.look()

    def _accept(self, claims: Sequence[Claim], sent: float) -> None:
        """Run the claimed events. The worker first asked for them at ``sent``: their lease may have begun then."""
        deadline = self._claims.deadline(sent)
        late = bool(claims) and self._claims.came_late(deadline, len(claims))
        # A bus that has lost its last handler during this call handles nothing, also not as "no handler".
        given_back = self._stopping or late or not self._dispatcher
        put = self._claims.put_back if given_back else self._slots.put
        if self._serial is not None and claims:
            self._serial.begin(len(claims))
        for claim in claims:
            before = self._claims.by_id.get(claim.event.id)
            # If a settlement is under way, the store wrote it before this claim.
            if before is not None and not self._completer.is_under_way(before):
                self._claims.lose(before, CLAIMED_AGAIN)
            put(self._claims.add(claim, deadline))
        self._slots.go()

    def _done(self, claimed: ClaimedEvent, settlement: Settlement) -> None:
        """A slot is done with the event: settle it in the next call."""
        self._completer.add(claimed, settlement)
        if self._serial is None:
            return
        if not claimed.returning:
            self._serial.one_ran()
        if self._slots.is_drained:
            self._serial.end()
        elif self._serial.is_overdue:
            self._slots.give_back_rest()

    def _settled(self, batch: list[FinishedEvent], outcomes: Sequence[Settled | LeaseLost]) -> None:
        """The store has judged these settlements."""
        for (claimed, settlement), outcome in zip(batch, outcomes, strict=True):
            event = claimed.claim.event
            self._claims.settled(claimed)
            if claimed.owed:
                claimed.end_children(stored=not isinstance(outcome, LeaseLost))
            if isinstance(outcome, LeaseLost):
                if not claimed.lost:
                    claimed.lost = True
                    self._claims.report_lost(event, outcome.reason)
                continue
            if claimed.waits_next and not self._stopping:
                self._without_lock.hold(event)
            self.metrics.settled(event, outcome.status, failed=isinstance(settlement, Fail))
            if event.metadata_json is not None and outcome.status in TERMINAL:
                self._end_hints.ended(event)
            if self._on_settled is not None:
                try:
                    self._on_settled(claimed.claim, settlement, outcome)
                except Exception:
                    logger.exception("could not report the end of event %s to its handles", event.event_id)

    def _slot_yielded(self) -> None:
        """A handler waits for another event: the worker may claim one more."""
        if self._serial is not None:
            self._serial.wait()
            self._slots.give_back_rest()
        self._wake.set()

    def _slot_died(self, claimed: ClaimedEvent) -> None:
        self._claims.by_id.pop(claimed.claim.event.id, None)
        self._wake.set()

    def _lost_from_thread(self, held: ClaimedEvent, reason: str) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._claims.lose_expired, held, reason)

    async def stop(self, timeout: float) -> None:  # noqa: ASYNC109  (the whole of it is bounded)
        """Claim nothing more, finish what runs, give back what does not finish in ``timeout`` seconds."""
        stopped, self._stopping, self.children.closed = self._stopping, True, True
        if stopped or self._listening is None:
            return
        self._wake.set()
        self._listening.cancel()
        self._slots.drain()
        self._dispatcher.batches.hurry(hurries=True)
        self._without_lock.stop()
        drained, answered = await asyncio.gather(
            drain(self._serving, self._claims, self._outage, timeout), self._sharing.stop(timeout)
        )
        self.store_is_away = drained is Drained.STORE_IS_AWAY or not answered
        if drained is Drained.HANDLERS_RUN:
            for claimed in list(self._claims.by_id.values()):
                self._slots.give_back(claimed)
            await asyncio.wait(self._serving, timeout=GRACE)
        self._slots.closing = True
        left = {*self._serving, self._listening, *self._slots.tasks, *self._awaited.tasks, *self.children.tasks}
        left |= self._without_lock.tasks | self._end_hints.tasks | self._keeper.tasks | self._sharing.end()
        for task in left:
            task.cancel()
        # A handler that refuses to be cancelled is left behind: its event comes back when its lease expires.
        grace = AWAY_GRACE if self.store_is_away else GRACE
        await asyncio.gather(asyncio.wait(left, timeout=grace), self._heartbeat.stop(grace))
        # An idle worker learns here that its store is away: then the rest of the shutdown must not wait for it again.
        if not await self._watch.leave(self._claims.holds_any, tell=not self.store_is_away):
            self.store_is_away = True

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        cause = None if task.cancelled() else task.exception()
        if self._died or (cause is None and self._stopping):
            return
        self._died = self.children.closed = True
        error = error_of_end(self._bus, cause)
        logger.error("%s", error)
        for other in (*self._serving, self._listening):
            if other is not None:
                other.cancel()
        self._heartbeat.end()
        self._watch.drop(self._claims.holds_any)
        self._sharing.lose_all()
        self._claims.lose_all("the worker has ended")
        if self._on_died is not None:
            self._on_died(error)


def _may_be_silent(store: EventStore) -> bool:
    """Whether the store may fail to reply. One in this process cannot, and a timer would cost a tenth of its speed."""
    return store.features.shared_between_processes


def _runs_two_halves(store: EventStore, concurrency: int) -> bool:
    """Whether one half of a batch runs while the store settles the other: a store in this very thread cannot."""
    return concurrency >= 8 and store.features.shared_between_processes  # noqa: PLR2004
