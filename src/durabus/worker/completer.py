"""What is done goes to the store, and what is next comes from it, in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from durabus.errors import LeaseLost, StoreError
from durabus.model.claim import Claim, ClaimRequest
from durabus.model.limits import MAX_BATCH
from durabus.model.settlement import Settled, Settlement
from durabus.store.contract import EventStore
from durabus.worker.slots import ClaimedEvent

STORE_PAUSE = 0.5
"""How long to wait after the store failed before it is asked again."""
PAUSES_ASIDE = 10
"""How many such pauses a settlement rests that broke a call by itself."""

Outcome = tuple[ClaimedEvent, Settlement]


class SentClaim(NamedTuple):
    """A claim, and when it was first sent. If its answer is lost it may hold events, so it is asked for again."""

    request: ClaimRequest
    sent: float


class StoreCall:
    """A call of the store that is under way: what it settles, and how many events it asks for."""

    __slots__ = ("batch", "limit")

    def __init__(self, batch: list[Outcome], limit: int) -> None:
        self.batch = batch
        self.limit = limit


class Completer:
    """Outcomes on their way to the store.

    A second call may be sent while one is under way, once there is ``enough`` for it: then the store always has
    something to do, and small calls are still gathered into one.
    """

    def __init__(self, store: EventStore, *, enough: int | None, wake: Callable[[], None]) -> None:
        self._store = store
        self._enough = enough
        self._most = enough or MAX_BATCH
        self._wake = wake
        self.waiting: list[Outcome] = []
        self._calls: list[StoreCall] = []
        self._at_once = self._most
        """How many outcomes are settled in one call: few, after one of them broke a call."""

    @property
    def is_open(self) -> bool:
        """Whether a call may be sent now."""
        return not self._calls or (self._enough is not None and len(self.waiting) >= self._enough)

    @property
    def takes_all(self) -> bool:
        """Whether one call settles all that is waiting."""
        return len(self.waiting) <= self._at_once

    @property
    def expected(self) -> int:
        """How many events the calls under way may bring beyond those that they settle."""
        return sum(max(call.limit - len(call.batch), 0) for call in self._calls)

    def add(self, running: ClaimedEvent, settlement: Settlement) -> None:
        """To be settled in the next call."""
        self.waiting.append((running, settlement))
        if len(self.waiting) in {1, self._enough}:
            self._wake()

    def remove(self, running: ClaimedEvent) -> None:
        """Its claim is lost: nothing of it is to be written."""
        self.waiting = [outcome for outcome in self.waiting if outcome[0] is not running]

    def has(self, running: ClaimedEvent) -> bool:
        """Whether it is done, and with the store or on the way there: the store will judge it."""
        return self.is_under_way(running) or any(done is running for done, _ in self.waiting)

    def is_under_way(self, running: ClaimedEvent) -> bool:
        """Whether a call that settles it was sent, and its answer not dealt with."""
        return any(done is running for call in self._calls for done, _ in call.batch)

    def begin(self, limit: int) -> StoreCall:
        """Take what is waiting into a call; ``end`` it when its answer was dealt with."""
        call = StoreCall(self.waiting[: self._at_once], limit)
        self.waiting = self.waiting[self._at_once :]
        self._calls.append(call)
        return call

    def end(self, call: StoreCall) -> None:
        """Its answer was dealt with, or it failed and was taken back."""
        self._calls.remove(call)
        self._wake()

    async def send(
        self, call: StoreCall, request: ClaimRequest | None
    ) -> tuple[Sequence[Settled | LeaseLost], Sequence[Claim]]:
        """Settle, then claim. If that fails, everything is waiting again."""
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
        # One settlement may be what breaks the call: once it is found, it is put aside for a while, so that it keeps
        # neither the others from their end nor new ones from being claimed.
        if isinstance(error, StoreError):
            self.waiting += call.batch
            return
        self._at_once = 1
        if len(call.batch) > 1:
            self.waiting += call.batch
        elif call.batch:
            loop = asyncio.get_running_loop()
            loop.call_later(PAUSES_ASIDE * STORE_PAUSE, self._add_again, *call.batch[0])

    def _add_again(self, running: ClaimedEvent, settlement: Settlement) -> None:
        if not running.lost:
            self.add(running, settlement)
