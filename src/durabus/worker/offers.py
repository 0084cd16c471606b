"""Handlers that this node runs for events which other nodes coordinate, each under a claim of its own."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from durabus.clock import monotonic
from durabus.errors import LeaseLost, StoreClosedError, StoreError
from durabus.model.claim import Claim, OfferedHandler, OfferRequest
from durabus.model.result import HandlerResult
from durabus.model.settlement import HandlerSettlement
from durabus.model.statuses import ResultStatus
from durabus.store.contract import EventStore
from durabus.store.outage import Outage
from durabus.worker.claimed_event import ClaimedEvent
from durabus.worker.coordination import failed_result, sleeping_result
from durabus.worker.dispatcher import Dispatcher
from durabus.worker.execution import describe
from durabus.worker.executor import TROUBLE_PAUSE
from durabus.worker.heartbeat import SAFETY, Heartbeat, came_late
from durabus.worker.outcomes import waits
from durabus.worker.progress import EventProgress, Keeper, ProgressParts
from durabus.worker.slots import SLOT, Slot, Slots
from durabus.worker.threads import NotStarted, is_in_thread, threads_ended

logger = logging.getLogger("durabus.worker")

LOOK_SOON = 0.02
"""Seconds until the worker looks for offers again after it has found some. Each further pause is ``LONGER`` as long."""
LONGER = 1.5
LOOK_AT_NODES = 1.0
"""Maximum seconds until a worker that need not look for offers considers again whether it must. This calls no store.
The first pauses are short, from ``LOOK_SOON`` on: a node that has just started still learns of the others."""
CURIOUS = 1.0
"""A worker that knows of no node without its handlers looks for offers after a hint that brought nothing, but at most
once in this many seconds: a new node may have come that it does not know yet. A hint that comes sooner is kept."""
MOST_IDS = 1_000
"""Maximum number of handler ids of one such look."""
GRACE = 2.0
"""Seconds that a shutdown waits for cancelled handlers, and for the store to settle them."""
AWAY_GRACE = 0.5
"""Seconds that a shutdown waits for a store that has not replied to it before."""

LAST_LEASE = "no attempt is left: the last one ended when the lease of its worker expired"


class OfferedRun(ClaimedEvent):
    """A handler that runs under its own claim. Another node holds the claim on the event."""

    __slots__ = ("offered",)

    def __init__(self, offered: OfferedHandler, deadline: float) -> None:
        # Without the token of the event's claim, nothing here can settle the event.
        super().__init__(Claim(offered.event, "", offered.results), deadline)
        self.offered = offered


class OfferRunner:
    """Runs offered handlers, one call for each. ``EventManager.process_next`` uses it alone."""

    def __init__(
        self, store: EventStore, dispatcher: Dispatcher, keeper: Keeper, *, lease: float, slots: Slots | None = None
    ) -> None:
        self._store = store
        self._lease = lease
        self._dispatcher = dispatcher
        self._parts = ProgressParts(keeper, slots=slots)

    async def claim(self, request: OfferRequest) -> list[OfferedHandler]:
        """Claim handlers that other nodes have offered."""
        return await self._store.claim_offered_handlers(request) if request.handler_ids else []

    async def run(self, run: OfferedRun) -> HandlerSettlement | None:
        """Call the handler and return how its claim ends. Whatever happens there, the claim gets a settlement.

        None if the claim has ended: the success was stored together with what the handler emitted.
        """
        claim = run.offered.claim
        progress = EventProgress(claim, self._parts, run)
        try:
            settlement = await self._call(run.offered, progress)
            result = settlement.outcome
            if result is not None and result.status is ResultStatus.SUCCEEDED and not run.returning:
                success = replace(result, attempts=claim.attempts, worker_id=self._dispatcher.worker_id)
                if await progress.keep_handler(success):
                    return None
        except asyncio.CancelledError as error:
            if run.lost:
                raise
            if not run.returning:
                return _failed(run, error)  # the handler cancelled its own task
            if is_in_thread(run.claim.event):
                await threads_ended(run.claim.event)
            return HandlerSettlement(claim)
        except (LeaseLost, NotStarted, StoreError) as error:
            logger.warning("handler %s of event %s is offered again: %s", claim.handler_id, run.ref.id, error)
            return HandlerSettlement(claim, None, TROUBLE_PAUSE)
        except Exception as error:
            logger.exception("handler %s of event %s failed outside of its call", claim.handler_id, run.ref.id)
            return _failed(run, error)
        return HandlerSettlement(claim) if run.returning else settlement

    async def _call(self, offered: OfferedHandler, progress: EventProgress) -> HandlerSettlement:
        """Call the handler within its attempts, and return how the claim on it ends."""
        granted = offered.claim
        if offered.event.metadata_json is not None and offered.event.has_expired:
            # An earlier claim has offered the handler. The node that has claimed the event too late cancels it.
            return HandlerSettlement(granted, None, TROUBLE_PAUSE)
        # Steps tell the time of the store from the time of their claim.
        event = replace(offered.event, picked_ts=granted.expires_ts - self._lease)
        mine = next(result for result in offered.results if result.handler_id == granted.handler_id)
        # An offer keeps the last error of the handler: without one, it has not begun.
        before = ResultStatus.PENDING if mine.error is None else ResultStatus.TRANSIENT
        rest = tuple(result for result in offered.results if result is not mine)
        claim = Claim(event, "", (*rest, replace(mine, status=before)))
        attempt = await self._dispatcher.call_alone(claim, granted.handler_id, progress, granted.attempts)
        if attempt is None:
            return HandlerSettlement(granted, None, TROUBLE_PAUSE)  # it is not here for this type any more
        if attempt.blocked_for:
            return HandlerSettlement(granted, None, attempt.blocked_for)
        if not attempt.calls:
            error = mine.error or LAST_LEASE
            return HandlerSettlement(granted, failed_result(mine.handler_id, ResultStatus.TRANSIENT, error, None))
        ((_, outcome, result),) = attempt.calls
        if outcome.is_suspended:
            events = [kept for kept in outcome.kept if kept.status is ResultStatus.WAITING]
            await asyncio.gather(*(progress.keep(kept, []) for kept in outcome.kept if kept not in events))
            if events:
                # The event that the handler waits for makes its own event due. Then the handler is offered again.
                return HandlerSettlement(granted, sleeping_result(mine.handler_id, outcome.left, events))
            return HandlerSettlement(granted, None, outcome.left)
        if outcome.status is not ResultStatus.SUCCEEDED:
            retry = min(waits(event, attempt.calls, fatal=False), default=None)
            failed = failed_result(mine.handler_id, outcome.status, outcome.error or "", retry, outcome.value)
            result = replace(failed, execution_time_ms=result.execution_time_ms)
        return HandlerSettlement(granted, result)


def _failed(run: OfferedRun, error: BaseException) -> HandlerSettlement:
    claim = run.offered.claim
    result = HandlerResult(handler_id=claim.handler_id, status=ResultStatus.TRANSIENT, error=describe(error))
    return HandlerSettlement(claim, result)


class OfferedHandlers:
    """Looks for offered handlers, runs up to ``limit`` of them beside the events of this node, and settles them.

    It looks only while another node lacks a handler of this one, and after hints that brought nothing.
    """

    def __init__(
        self,
        store: EventStore,
        bus: str,
        dispatcher: Dispatcher,
        slots: Slots,
        *,
        keeper: Keeper,
        limit: int,
        lease: float,
        poll_interval: float,
        outage: Outage,
        token: Callable[[], str],
    ) -> None:
        self._store = store
        self._bus = bus
        self._dispatcher = dispatcher
        self._slots = slots
        self._runner = OfferRunner(store, dispatcher, keeper, lease=lease, slots=slots)
        self._limit = limit
        self._lease = lease
        self._poll_interval = poll_interval
        self._outage = outage
        self._token = token
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heartbeat: Heartbeat[OfferedRun] | None = None
        self._wake = asyncio.Event()
        self._looked_at = -math.inf
        self._is_curious = False
        self._unanswered: tuple[OfferRequest, float] | None = None
        """A request whose reply is lost, and when it was first sent: it may hold handlers, so it is sent again."""
        self._stopping = False
        self._wanted: Counter[str] = Counter()
        self._runs: dict[OfferedRun, asyncio.Task[None]] = {}
        self._unsettled: list[tuple[OfferedRun, HandlerSettlement]] = []
        self._settling: asyncio.Task[None] | None = None
        self._serving: asyncio.Task[None] | None = None

    def holds_any(self) -> bool:
        """Whether handlers run here for events of other nodes. The heartbeat thread calls this."""
        return bool(self._runs)

    def start(self) -> None:
        """Begin to look for offers whenever another node lacks a handler of this one."""
        self._loop = asyncio.get_running_loop()
        self._serving = self._loop.create_task(self._serve(), name=f"durabus-offers-{self._bus}")

    def nudge(self, *, in_vain: bool = False) -> None:
        """Look for offers: there may be some. ``in_vain``: a hint brought no event, so it may be about an offer."""
        # Once curious, it waits until it may look: further hints change nothing.
        if (in_vain and not self._is_curious) or self._ids():
            self._wake.set()
        self._is_curious = self._is_curious or in_vain

    def want(self, wanted: Counter[str]) -> None:
        """Look for offers of these handlers of this node too: an event that this node coordinates waits for them."""
        self._wanted = wanted
        self.nudge()

    def lose_all(self) -> None:
        """The worker has ended: stop all handlers and write nothing of them."""
        self._stopping = True
        for task in (self._serving, self._settling):
            if task is not None:
                task.cancel()
        for run in self._runs:
            run.cancel_as_lost()
        if self._heartbeat is not None:
            self._heartbeat.end()

    async def stop(self, timeout: float) -> bool:  # noqa: ASYNC109  (the whole of it is bounded)
        """Claim nothing more, finish what runs, give back what does not finish in ``timeout`` seconds.

        Returns False if the store did not reply in time.
        """
        self._stopping, answered = True, True
        if self._serving is not None:
            self._wake.set()
            await asyncio.wait({self._serving}, timeout=GRACE)  # a claim that is under way is given back
            answered = self._serving.done()
            self._serving.cancel()
        if self._runs:
            await asyncio.wait(self._runs.values(), timeout=timeout)
            for run in self._runs:
                run.returning = True
                if run.task is not None:
                    run.task.cancel()
            if self._runs:
                await asyncio.wait(self._runs.values(), timeout=GRACE)
        if self._settling is not None:
            await asyncio.wait({self._settling}, timeout=GRACE if answered else AWAY_GRACE)
            answered = answered and self._settling.done()
            self._settling.cancel()
        if self._heartbeat is not None:
            await self._heartbeat.stop(GRACE if answered else AWAY_GRACE)
        return answered

    def _ids(self) -> tuple[str, ...]:
        lacked = self._dispatcher.missing.lacked_elsewhere()
        if not self._wanted:
            return lacked
        return (*lacked, *(one for one in self._wanted if self._wanted[one] > 0 and one not in lacked))

    async def _serve(self) -> None:
        """Claim offers until the worker is stopped. It pauses longer and longer while there are none."""
        pause = unaware = LOOK_SOON
        while not self._stopping or self._unanswered is not None:
            self._wake.clear()
            free, found = self._limit - len(self._runs), 0
            ids = self._ids()
            if free > 0 and self._is_curious and monotonic() >= self._looked_at + CURIOUS:
                ids = ids or tuple(handler.id for handler in self._dispatcher.handlers[:MOST_IDS])
                self._is_curious = False
            if (free > 0 and ids) or self._unanswered is not None:
                try:
                    found = await self._look(ids, free)
                except StoreClosedError:
                    return  # the worker ends too, and reports it
                except Exception as error:  # noqa: BLE001  (whatever it was, the worker lives)
                    await asyncio.sleep(self._outage.failed(error, unforeseen=not isinstance(error, StoreError)))
            pause = LOOK_SOON if found else min(pause * LONGER, self._poll_interval)
            unaware = min(unaware * LONGER, LOOK_AT_NODES)
            if self._stopping:
                break
            with suppress(TimeoutError):
                # A hint that came too soon after the last look is followed when its time comes.
                hinted = self._looked_at + CURIOUS - monotonic() if self._is_curious and free > 0 else LOOK_AT_NODES
                async with asyncio.timeout(min(pause if self._ids() and free > 0 else unaware, max(hinted, 0.0))):
                    await self._wake.wait()

    async def _look(self, ids: tuple[str, ...], free: int) -> int:
        request, sent = self._unanswered or (self._request(ids, free), monotonic())
        self._looked_at, self._unanswered = monotonic(), (request, sent)
        found = await self._runner.claim(request)
        self._unanswered = None
        if found:
            self._begin(found, sent + self._lease * SAFETY)
        return len(found)

    def _request(self, ids: tuple[str, ...], free: int) -> OfferRequest:
        return OfferRequest(
            bus=self._bus,
            handler_ids=ids,
            worker_id=self._dispatcher.worker_id,
            token=self._token(),
            limit=free,
            lease=self._lease,
            mode=self._dispatcher.handler_mode,
        )

    def _begin(self, found: Sequence[OfferedHandler], deadline: float) -> None:
        late = self._stopping or came_late(deadline - monotonic(), self._lease, len(found), self._bus)
        loop = asyncio.get_running_loop()
        for offered in found:
            run = OfferedRun(offered, deadline)
            if late:
                self._settle(run, HandlerSettlement(offered.claim))
                continue
            if self._slots.lock is not None:
                run.locks = (self._slots.lock,)  # the node that coordinates the event holds it
            self._runs[run] = loop.create_task(self._run(run), context=self._slots.variables.copy())
        if self._heartbeat is None and not late:
            self._heartbeat = Heartbeat(
                self._store,
                lease=self._lease,
                held=self._held,
                allowance=self._allowance,
                lost=self._lost_from_thread,
                renew=self._renew,
            )
            self._heartbeat.start()

    async def _run(self, run: OfferedRun) -> None:
        slot = Slot(self._slots)
        slot.claimed, run.task = run, asyncio.current_task()
        self._slots.loop = asyncio.get_running_loop()
        SLOT.set(slot)
        try:
            settlement = await self._runner.run(run)
        except BaseException:
            self._runs.pop(run, None)
            if not run.lost:
                raise
            return
        finally:
            run.task = None
            self._slots.leave(run)
            self._wake.set()
        if settlement is None or run.lost:
            self._runs.pop(run, None)
        else:
            self._settle(run, settlement)

    def _settle(self, run: OfferedRun, settlement: HandlerSettlement) -> None:
        self._unsettled.append((run, settlement))
        if self._settling is None or self._settling.done():
            self._settling = asyncio.get_running_loop().create_task(self._settle_all(), name="durabus-settle-handlers")

    async def _settle_all(self) -> None:
        """Settle what has ended, in batches, until nothing is left. While the store fails, this tries again."""
        while self._unsettled:
            batch, self._unsettled = self._unsettled, []
            try:
                outcomes = await self._store.settle_handlers([settlement for _, settlement in batch])
            except StoreClosedError:
                return
            except Exception as error:  # noqa: BLE001  (what a handler did must not be forgotten)
                self._unsettled = [*batch, *self._unsettled]
                await asyncio.sleep(self._outage.failed(error, unforeseen=not isinstance(error, StoreError)))
                continue
            for (run, _), outcome in zip(batch, outcomes, strict=True):
                self._runs.pop(run, None)
                if isinstance(outcome, LeaseLost) and not run.lost:
                    _report_lost(run, outcome.reason)
            self._wake.set()

    async def _renew(self, due: Sequence[OfferedRun]) -> list[float | LeaseLost]:
        return await self._store.renew_handler_claims([run.offered.claim for run in due], lease=self._lease)

    def _held(self) -> list[OfferedRun]:
        """All claims that the heartbeat renews. The heartbeat thread calls this, so it copies at once."""
        return list(self._runs.copy())

    def _allowance(self, run: OfferedRun) -> float:
        limit = self._dispatcher.allowance(run.claim.event.type)
        return math.inf if limit is None else limit

    def _lost_from_thread(self, run: OfferedRun, reason: str) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._lose, run, reason)

    def _lose(self, run: OfferedRun, reason: str) -> None:
        """Stop the handler and write nothing: another claim may hold it already. If it has ended, the store judges."""
        if run in self._runs and run.task is not None:
            _report_lost(run, reason)
            run.cancel_as_lost()


def _report_lost(run: OfferedRun, reason: str) -> None:
    event, handler_id = run.claim.event, run.offered.claim.handler_id
    logger.warning("claim on handler %s of event %s (%s) lost: %s", handler_id, event.event_id, event.type, reason)
