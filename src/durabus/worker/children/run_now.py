"""Claim one event by its id and run it before all others: a handler waits for its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager

from msgspec.structs import replace

from durabus.clock import monotonic
from durabus.errors import StoreError
from durabus.model.claim import ClaimRequest
from durabus.model.statuses import EventMode
from durabus.store.contract import EventStore
from durabus.worker.claim_table import CLAIMED_AGAIN, ClaimTable
from durabus.worker.claimed_event import ClaimedEvent, EventLock
from durabus.worker.dispatcher import Dispatcher
from durabus.worker.slots import Slots

logger = logging.getLogger("durabus.worker")

GRACE = 2.0
"""Seconds that a handler may take to end after it was cancelled."""
TAKE_BACK_STEP = 0.005


class ChildRunner:
    """Runs the events that handlers wait for. ``request`` makes a claim request for the given number of events."""

    def __init__(
        self,
        store: EventStore,
        dispatcher: Dispatcher,
        slots: Slots,
        claims: ClaimTable,
        request: Callable[[int], ClaimRequest],
        *,
        nudge: Callable[[], None],
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._slots = slots
        self._claims = claims
        self._request = request
        self._nudge = nudge
        self.closed = False
        """The worker has ended or is about to: nothing more may be claimed."""
        self.tasks: set[asyncio.Task[None]] = set()
        """Tasks that release claims on events that no handler awaits any more."""

    def nudge(self) -> None:
        """Let the worker look for events to claim."""
        self._nudge()

    def is_running(self, id_: int) -> bool:
        """Whether the worker holds a claim on the event."""
        return id_ in self._claims.by_id

    def has_handlers(self, event_type: str) -> bool:
        """Whether events of this type have handlers here."""
        return bool(self._dispatcher.route(event_type))

    def request_for(self, event_id: str, *, with_lock: bool) -> ClaimRequest:
        """A claim on one event. ``with_lock=False``: the event that waits for it holds the lock of this bus's mode."""
        request = replace(self._request(1), event_id=event_id)
        return request if with_lock else replace(request, mode=EventMode.PARALLEL)

    async def run_now(
        self,
        request: ClaimRequest,
        under: tuple[EventLock, ...],
        is_wanted: Callable[[], Awaitable[bool]] | None = None,
    ) -> ClaimedEvent | None:
        """Claim the event that ``request`` names and run it before all others; None if it cannot be claimed now.

        After the claim, ``is_wanted`` tells whether the event still has to run. A caller that is cancelled, such as a
        handler whose time is over, leaves no claim behind.
        """
        if self.closed:
            return None
        try:
            return await self._claim_and_run(request, under, is_wanted)
        except asyncio.CancelledError:
            if not self.closed:
                undoing = asyncio.create_task(self._undo(request))
                self.tasks.add(undoing)
                undoing.add_done_callback(self.tasks.discard)
            raise

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
        before = self._claims.by_id.get(claims[0].event.id)
        if before is not None:
            if before.ref == claims[0].ref:
                return None  # the store repeats a claim that this worker holds
            self._claims.lose(before, CLAIMED_AGAIN)
        await self._dispatcher.missing.prepare(claims[0])
        wanted = is_wanted is None or await is_wanted()
        claimed = self._claims.add(claims[0], self._claims.deadline(sent))
        if not wanted or self._claims.came_late(claimed.deadline, 1):
            self._claims.put_back(claimed)
            return None
        self._slots.put_first(claimed, under)
        return claimed

    async def _undo(self, request: ClaimRequest) -> None:
        """Give back what ``request`` may have claimed. Sent once more, it gets the same claim, or a new one."""
        try:
            claims = await self._store.claim_next_events(request)
        except StoreError as error:
            logger.warning("event %s comes back only with its lease: %s", request.event_id, error)
            return
        for claim in claims:
            if claim.event.id not in self._claims.by_id:
                self._claims.put_back(self._claims.add(claim, self._claims.deadline(monotonic())))

    def holds(self, claimed: ClaimedEvent) -> bool:
        """Whether the claim is neither lost nor settled."""
        return self._claims.holds(claimed)

    def claimed_event(self, id_: int | None) -> ClaimedEvent | None:
        """The event, if the worker holds a claim on it."""
        return None if id_ is None else self._claims.by_id.get(id_)

    def share_locks(self, event_id: str, locks: tuple[EventLock, ...]) -> AbstractContextManager[None]:
        """While the holder of ``locks`` waits for an event, that event runs under them, however it was claimed here."""
        return self._slots.shared_locks.share(event_id, locks)

    async def take_back(self, claimed: ClaimedEvent) -> None:
        """Put an event that ``run_now`` began back into the queue if it has not ended: nothing waits for it now."""
        if self._claims.is_at_work_on(claimed):
            self._slots.give_back(claimed)
            # A handler that refuses to be cancelled is left behind. A function in a thread cannot refuse or obey.
            until = monotonic() + GRACE
            while claimed.has_begun and (monotonic() < until or claimed.has_no_limit):  # noqa: ASYNC110  (nothing signals it)
                await asyncio.sleep(TAKE_BACK_STEP)

    async def take_locks_back(self, claimed: ClaimedEvent, locks: tuple[EventLock, ...]) -> None:
        """Nothing holds these locks any more for an event that ``run_now`` began: it continues without them.

        If it waits for an event that may run under them, it goes back to the queue.
        """
        if locks and self._slots.is_waiting(claimed):
            await self.take_back(claimed)
        claimed.locks = tuple(lock for lock in claimed.locks if lock not in locks)
