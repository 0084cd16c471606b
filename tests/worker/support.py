"""Stores that misbehave, and small makers of handlers and claims."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from durabus.errors import LeaseLost, StoreUnavailableError
from durabus.model.claim import Claim, ClaimRef, ClaimRequest
from durabus.model.event import Event, NewEvent, new_event, new_event_id
from durabus.model.policies import BreakerPolicy, RetryPolicy
from durabus.model.result import HandlerResult
from durabus.model.settlement import Settlement
from durabus.model.statuses import EventStatus
from durabus.store.claims import SettleAnswer
from durabus.stores.memory.store import MemoryStore
from durabus.worker.dispatcher import Dispatcher
from durabus.worker.handler import Handler, HandlerFunction
from durabus.worker.worker import Worker, WorkerOptions

ONCE = RetryPolicy(max_retries=0)
STEADY = RetryPolicy(max_retries=3, base_delay=1.0, multiplier=2.0, jitter=0.0)


def make_handler(
    function: HandlerFunction,
    *,
    id: str = "h",  # noqa: A002
    pattern: str = "*",
    timeout: float | None = None,
    retry: RetryPolicy = STEADY,
) -> Handler:
    return Handler(
        handler_id=id, pattern=pattern, function=function, timeout=timeout, retry=retry, breaker=BreakerPolicy()
    )


def make_event(kind: str = "user.created", *, id: int = 1, attempts: int = 1, max_attempts: int | None = None) -> Event:  # noqa: A002
    return Event(
        id=id,
        event_id=new_event_id(),
        bus="default",
        type=kind,
        payload_json="null",
        status=EventStatus.PROCESSING,
        attempts=attempts,
        max_attempts=max_attempts,
        fence=attempts,
        created_ts=0.0,
        updated_ts=0.0,
        due_ts=0.0,
    )


def make_claim(
    kind: str = "user.created",
    *,
    attempts: int = 1,
    results: Sequence[HandlerResult] = (),
    max_attempts: int | None = None,
) -> Claim:
    return Claim(make_event(kind, attempts=attempts, max_attempts=max_attempts), "token", tuple(results))


async def filled(store: MemoryStore, count: int = 1, kind: str = "user.created", **options: Any) -> list[Event]:
    return await store.add_events([new_event(kind, {"n": n}, **options) for n in range(count)])


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until the condition holds, by asking again and again."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  (it has none)
            await asyncio.sleep(0.002)


class WatchedStore(MemoryStore):
    """Counts calls. A test can make calls fail before they take effect, or lose the reply after they did."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.settled: list[int] = []
        self.asked: list[int] = []
        self.added: list[int] = []
        self.failing: Counter[str] = Counter()
        self.losing: Counter[str] = Counter()

    def in_status(self, status: EventStatus) -> list[Event]:
        return [state.event for state in list(self._states.values()) if state.event.status is status]

    def _before(self, call: str) -> None:
        self.calls[call] += 1
        if self.failing[call]:
            self.failing[call] -= 1
            raise StoreUnavailableError(f"{call}: disk full")

    def _after(self, call: str) -> None:
        if self.losing[call]:
            self.losing[call] -= 1
            raise StoreUnavailableError(f"{call}: connection lost after it was done")

    async def claim_next_events(self, request: ClaimRequest) -> list[Claim]:
        self._before("claim")
        self.asked.append(request.limit)
        claims = await super().claim_next_events(request)
        self._after("claim")
        return claims

    async def settle_events(
        self,
        settlements: Sequence[Settlement],
        *,
        then_claim: ClaimRequest | None = None,
        connection: object | None = None,
        with_entries: bool = False,
    ) -> SettleAnswer:
        self._before("settle")
        self.settled.append(len(settlements))
        if then_claim is not None:
            self.asked.append(then_claim.limit)
        answer = await super().settle_events(
            settlements, then_claim=then_claim, connection=connection, with_entries=with_entries
        )
        self._after("settle")
        return answer

    async def renew_event_claims(self, refs: Sequence[ClaimRef], *, lease: float) -> list[float | LeaseLost]:
        self._before("renew")
        return await super().renew_event_claims(refs, lease=lease)

    async def add_events(self, new: Sequence[NewEvent], *, connection: object | None = None) -> list[Event]:
        self._before("add")
        self.added.append(len(new))
        return await super().add_events(new, connection=connection)

    async def wait_for_work(self, bus: str, *, timeout: float) -> bool:  # noqa: ASYNC109  (the contract's name)
        self._before("wait")
        return await super().wait_for_work(bus, timeout=timeout)


class Calls:
    """A handler that remembers the payloads' numbers and wakes the test."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._changed = asyncio.Condition()

    async def __call__(self, event: Event) -> None:
        self.numbers.append(event.payload["n"])
        async with self._changed:
            self._changed.notify_all()

    async def reach(self, count: int) -> None:
        async with self._changed, asyncio.timeout(20):
            await self._changed.wait_for(lambda: len(self.numbers) >= count)


@asynccontextmanager
async def working(store: WatchedStore, *functions: Callable[..., Any], **options: Any) -> AsyncIterator[Worker]:
    dispatcher = Dispatcher()
    retry = options.pop("retry", STEADY)
    for number, function in enumerate(functions):
        dispatcher.add(make_handler(function, id=f"h{number}", retry=retry))
    names = set(options) & set(WorkerOptions.__struct_fields__)
    tuned = WorkerOptions(**{"poll_interval": 0.02, **{name: options.pop(name) for name in names}})
    worker = Worker(store, "default", dispatcher, tuned, **options)
    worker.start()
    try:
        yield worker
    finally:
        await worker.stop(1.0)
        dispatcher.close()


async def all_completed(store: WatchedStore, count: int) -> None:
    await until(lambda: len(store.in_status(EventStatus.COMPLETED)) >= count)
