"""The claims that a worker holds, and how it gives them back or loses them."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from durabus.clock import monotonic
from durabus.model.claim import Claim
from durabus.model.event import Event
from durabus.model.settlement import Release
from durabus.worker.claimed_event import ClaimedEvent
from durabus.worker.completer import Completer
from durabus.worker.dispatcher import Dispatcher
from durabus.worker.heartbeat import SAFETY, came_late
from durabus.worker.slots import Slots
from durabus.worker.telemetry import Metrics

logger = logging.getLogger("durabus.worker")

CLAIMED_AGAIN = "its lease ended and this worker claimed it again"


class ClaimTable:
    """The claims of one worker, from the reply of the store to their settlement."""

    def __init__(
        self,
        bus: str,
        dispatcher: Dispatcher,
        completer: Completer,
        slots: Slots,
        *,
        lease: float,
        metrics: Metrics,
        wake: Callable[[], None],
    ) -> None:
        self._bus = bus
        self._dispatcher = dispatcher
        self._completer = completer
        self._slots = slots
        self._lease = lease
        self._metrics = metrics
        self._wake = wake
        self.by_id: dict[int, ClaimedEvent] = {}
        """The events that are claimed and not yet settled, by their number in the store."""
        self.held_without_lock = slots.executor.held_without_lock

    def holds(self, claimed: ClaimedEvent) -> bool:
        """Whether the claim is neither lost nor settled."""
        return self.by_id.get(claimed.ref.id) is claimed

    def is_at_work_on(self, claimed: ClaimedEvent) -> bool:
        """Whether the worker holds the claim and has no settlement for it yet."""
        return self.holds(claimed) and not self._completer.has(claimed)

    def deadline(self, sent: float) -> float:
        """When a claim ends by the local clock; ``sent`` is when the worker first asked for it."""
        return sent + self._lease * SAFETY

    def add(self, claim: Claim, deadline: float) -> ClaimedEvent:
        """Note a claim that the store granted."""
        claimed = self.by_id[claim.event.id] = ClaimedEvent(claim, deadline)
        return claimed

    def came_late(self, deadline: float, claims: int) -> bool:
        """Whether the reply of the store took so long that no handler may begin."""
        return came_late(deadline - monotonic(), self._lease, claims, self._bus)

    def put_back(self, claimed: ClaimedEvent, reason: str | None = None) -> None:
        """Release the event in the next call of the store, without losing an attempt."""
        self._completer.add(claimed, Release(claimed.ref, reason=reason))

    def settled(self, claimed: ClaimedEvent) -> None:
        """Forget a claim that the store has settled."""
        if self.by_id.get(claimed.ref.id) is claimed:
            del self.by_id[claimed.ref.id]

    def lose(self, claimed: ClaimedEvent, reason: str) -> None:
        """Stop the handler and write nothing: another claim may hold the event already."""
        del self.by_id[claimed.ref.id]
        self._completer.remove(claimed)
        claimed.end_children(stored=False)
        self.report_lost(claimed.claim.event, reason)
        self._slots.lose(claimed)
        self._wake()

    def revoke(self, id_: int, reason: str) -> None:
        """Stop the handler of an event that a caller cancelled through this process, and write nothing of it."""
        claimed = self.by_id.pop(id_, None)
        if claimed is not None:
            self._completer.remove(claimed)
            self._slots.lose(claimed)
            logger.info("event %s was cancelled while it ran: %s", claimed.claim.event.event_id, reason)
            self._wake()
        for held in [held for held in self.held_without_lock if held.ref.id == id_]:
            held.cancel_as_lost()

    def lose_expired(self, held: ClaimedEvent, reason: str) -> None:
        """The heartbeat gave up this claim. If it has a settlement, the store judges it."""
        if held in self.held_without_lock:
            self.report_lost(held.claim.event, reason)
            held.cancel_as_lost()
        elif self.is_at_work_on(held):
            self.lose(held, reason)

    def lose_all(self, reason: str) -> None:
        """The worker has ended: stop all that it holds."""
        for claimed in list(self.by_id.values()):
            self.lose(claimed, reason)
        for claimed in list(self.held_without_lock):
            claimed.cancel_as_lost()

    def report_lost(self, event: Event, reason: str) -> None:
        """Count and log a lost claim."""
        self._metrics.lost(event)
        logger.warning("claim on event %s (%s) lost: %s", event.event_id, event.type, reason)

    def held(self) -> list[ClaimedEvent]:
        """All claims that the heartbeat renews. The heartbeat thread calls this, so it copies at once."""
        return [*self.by_id.copy().values(), *self.held_without_lock.copy()]

    def holds_any(self) -> bool:
        """Whether the worker holds claims. The heartbeat thread calls this."""
        return bool(self.by_id or self.held_without_lock)

    def allowance(self, claimed: ClaimedEvent) -> float:
        """Seconds that the handlers of the event may take. The heartbeat thread calls this."""
        limit = self._dispatcher.allowance(claimed.claim.event.type)
        return math.inf if limit is None and claimed.has_begun else limit or 0.0  # they were unsubscribed since
