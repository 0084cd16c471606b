"""The completer settles finished events, and claims the next ones in the same call of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from durabus.errors import LeaseLost, StoreError
from durabus.model.claim import Claim, ClaimRequest
from durabus.model.limits import MAX_BATCH
from durabus.model.settlement import Settled, Settlement
from durabus.store.contract import EventStore
from durabus.worker.claimed_event import ClaimedEvent

STORE_PAUSE = 0.5
"""Seconds to wait after the store failed before the next call."""
PAUSES_ASIDE = 10
"""Number of such pauses that a settlement waits after it alone made a call fail."""

FinishedEvent = tuple[ClaimedEvent, Settlement]
"""A claimed event whose handlers have ended, and the settlement that the store has to write."""


class SentClaim(NamedTuple):
    """A claim request, and when it was first sent. If the reply is lost it may hold events, so it is sent again."""

    request: ClaimRequest
    sent: float


class StoreCall:
    """A call of the store that is under way: the settlements it carries, and how many events it asks for."""

    __slots__ = ("batch", "limit")

    def __init__(self, batch: list[FinishedEvent], limit: int) -> None:
        self.batch = batch
        self.limit = limit


class Completer:
    """Sends the settlements of finished events to the store.

    A second call may be sent while one is under way, once ``enough`` settlements wait for it: so the store always has
    something to do, and small calls still share one.
    """

    def __init__(self, store: EventStore, *, enough: int | None, wake: Callable[[], None]) -> None:
        self._store = store
        self._enough = enough
        self._most = enough or MAX_BATCH
        self._wake = wake
        self._wake_at = frozenset({1, enough})
        self.waiting: list[FinishedEvent] = []
        self._calls: list[StoreCall] = []
        self._at_once = self._most
        """How many settlements go into one call: few, after one of them made a call fail."""

    @property
    def is_open(self) -> bool:
        """Whether a call may be sent now."""
        return not self._calls or (self._enough is not None and len(self.waiting) >= self._enough)

    @property
    def takes_all(self) -> bool:
        """Whether one call can carry all settlements that wait."""
        return len(self.waiting) <= self._at_once

    @property
    def expected(self) -> int:
        """How many events the calls under way may bring beyond those that they settle."""
        return sum(max(call.limit - len(call.batch), 0) for call in self._calls) if self._calls else 0

    def add(self, claimed: ClaimedEvent, settlement: Settlement) -> None:
        """Settle the event in the next call."""
        self.waiting.append((claimed, settlement))
        if len(self.waiting) in self._wake_at:
            self._wake()

    def remove(self, claimed: ClaimedEvent) -> None:
        """Write nothing of the event: its claim is lost."""
        self.waiting = [finished for finished in self.waiting if finished[0] is not claimed]

    def has(self, claimed: ClaimedEvent) -> bool:
        """Whether the event has a settlement that waits or is under way: the store will judge it."""
        return self.is_under_way(claimed) or any(done is claimed for done, _ in self.waiting)

    def is_under_way(self, claimed: ClaimedEvent) -> bool:
        """Whether a call that settles the event was sent and has not ended."""
        return any(done is claimed for call in self._calls for done, _ in call.batch)

    def begin(self, limit: int) -> StoreCall:
        """Move waiting settlements into a call. The caller ends it with ``end`` once it has used the reply."""
        call = StoreCall(self.waiting[: self._at_once], limit)
        self.waiting = self.waiting[self._at_once :]
        self._calls.append(call)
        if self._enough is not None and len(self.waiting) >= self._enough:
            self._wake()  # there is enough for a second call
        return call

    def end(self, call: StoreCall) -> None:
        """The caller has used the reply, or the call failed and its settlements wait again.

        It looks for more itself, so this wakes no other task.
        """
        self._calls.remove(call)

    async def send(
        self, call: StoreCall, request: ClaimRequest | None
    ) -> tuple[Sequence[Settled | LeaseLost], Sequence[Claim]]:
        """Settle, then claim. If the call fails, its settlements wait again."""
        try:
            if not call.batch:
                return [], [] if request is None else await self._store.claim_next_events(request)
            answer = await self._store.settle_events([one for _, one in call.batch], then_claim=request)
        except Exception as error:
            self._take_back(call, error)
            raise
        self._at_once = min(2 * self._at_once, self._most)
        return answer.outcomes, answer.claims

    def _take_back(self, call: StoreCall, error: Exception) -> None:
        # One settlement may make the call fail. Once it is found it rests for a while, so that it blocks neither the
        # other settlements nor new claims.
        self._wake()  # the caller pauses, and another call may succeed before that is over
        if isinstance(error, StoreError):
            self.waiting += call.batch
            return
        self._at_once = 1
        if len(call.batch) > 1:
            self.waiting += call.batch
        elif call.batch:
            loop = asyncio.get_running_loop()
            loop.call_later(PAUSES_ASIDE * STORE_PAUSE, self._add_again, *call.batch[0])

    def _add_again(self, claimed: ClaimedEvent, settlement: Settlement) -> None:
        if not claimed.lost:
            self.add(claimed, settlement)
