"""Histories that no author would think of: the commands of workers, administrators and a clock, chosen at random."""

import random
from collections.abc import Callable

from tests.pipeline.history import History

from durabus.model.claim import Claim
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Release, Settlement
from durabus.model.statuses import EventStatus, ResultStatus


class RandomHistory:
    """Commands of a worker, an administrator and a clock, chosen at random."""

    def __init__(self, history: History, seed: int) -> None:
        self.history, self.random = history, random.Random(seed)
        self.held: list[Claim] = []
        self.event_ids: list[str] = []

    async def run(self, steps: int) -> None:
        deeds = [self.publish, self.claim, self.settle, self.settle, self.wait, self.administer]
        for _ in range(steps):
            await self.random.choices(deeds, [4, 4, 3, 3, 1, 1])[0]()

    async def publish(self) -> None:
        parent = self.random.choice([None, *self.event_ids[-5:]])
        event = await self.history.publish(self.random.choice(["order.placed", "mail.sent"]), {}, parent_id=parent)
        self.event_ids.append(event.event_id)

    async def claim(self) -> None:
        worker = f"host:{self.random.randrange(3)}"
        self.held += await self.history.claim(worker, lease=self.random.choice([5.0, 300.0]), limit=2)

    async def settle(self) -> None:
        if not self.held:
            return
        claim = self.held.pop(self.random.randrange(len(self.held)))
        ends: list[Callable[[Claim], Settlement]] = [self._completed, self._failed, self._dead, self._released]
        await self.history.store.settle_events([self.random.choice(ends)(claim)])  # refused if it was overtaken
        self.history.clock.advance(self.random.random() * 3)

    def _completed(self, claim: Claim) -> Complete:
        took = self.random.random() * 100
        done = HandlerResult(handler_id="ship", status=ResultStatus.SUCCEEDED, attempts=1, execution_time_ms=took)
        return Complete(claim.ref, (done,), (), took)

    def _failed(self, claim: Claim) -> Fail:
        return Fail(claim.ref, f"no answer from {self.random.randrange(9)}", 0.0, execution_time_ms=2.5)

    def _dead(self, claim: Claim) -> Fail:
        done = HandlerResult(handler_id="ship", status=ResultStatus.SUCCEEDED, attempts=1, execution_time_ms=1.0)
        lost = HandlerResult(handler_id="mail", status=ResultStatus.UNRECOVERABLE, attempts=1, execution_time_ms=2.0)
        return Fail(claim.ref, "KeyError: 'customer'", None, (done, lost), execution_time_ms=3.5)

    def _released(self, claim: Claim) -> Release:
        return Release(claim.ref, reason="waits")

    async def wait(self) -> None:
        self.history.clock.advance(self.random.choice([10.0, 100.0, 2000.0]))
        await self.history.store.expire_events()

    async def administer(self) -> None:
        store = self.history.store
        page = await store.list_dead_letters(limit=1)
        if page.events:
            await store.requeue_dead_letters([page.events[0].id])
        if self.held and self.random.random() < 0.3:
            event = await store.get_event(self.held.pop().event.id)
            if event is not None and event.status is EventStatus.PROCESSING:
                await store.cancel_event(event.id, reason="not wanted")
