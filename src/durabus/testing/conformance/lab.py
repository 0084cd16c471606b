"""The lab of a conformance test: a store, a clock, and pictures of the whole store."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import anyio
import anyio.to_thread
import msgspec

from durabus.clock import ManualClock
from durabus.errors import LeaseLost
from durabus.model.claim import Claim, ClaimRequest, LockClaim, new_token
from durabus.model.event import Event, NewEvent, new_event
from durabus.model.log_entry import LogEntry
from durabus.model.query import Counts, EventQuery
from durabus.model.result import HandlerResult
from durabus.model.settlement import Cancel, Complete, Fail, Release, Settled, Settlement
from durabus.model.statuses import EventStatus
from durabus.store.contract import EventStore
from durabus.store.log import START

T = TypeVar("T")

BUS = "orders"
OTHER_BUS = "mail"
ALICE = "host-a:1"
BOB = "host-b:2"
LOST = f"lease expired (worker {ALICE})"

Opener = Callable[[], Awaitable[EventStore]]
VerbCall = Callable[[EventStore], Awaitable[object]]
"""A call of one verb of the contract."""


class CallerTransaction(Protocol):
    """A transaction on the caller's own connection."""

    @property
    def connection(self) -> object:
        """The connection for ``add_events`` and ``settle_events``."""

    async def commit(self) -> None:
        """Commit the transaction."""

    async def rollback(self) -> None:
        """Roll the transaction back."""

    async def close(self) -> None:
        """Release the connection."""


Beginner = Callable[[], Awaitable[CallerTransaction]]


class Picture(msgspec.Struct, frozen=True):
    """All events, results, locks and log entries of a store. Equal pictures mean that nothing changed."""

    events: list[Event]
    results: dict[str, list[HandlerResult]]
    log: list[LogEntry]
    locks: list[LockClaim]
    counts: Counts


class Lab:
    """A fresh store under test. The fixture ``other_node`` is a second one on the same data.

    ``lease`` is an ordinary lease, ``moment`` is a much shorter time, and ``margin`` says how close to an instant the
    suite may look. In real time the first two are short and the last is long, because a machine may stall for a while.
    """

    def __init__(self, store: EventStore, *, clock: ManualClock, open_another: Opener, begin: Beginner) -> None:
        self.store = store
        self.clock = clock
        self.open_another = open_another
        self.begin = begin
        self.manual = store.features.manual_clock
        self.shared = store.features.shared_between_processes
        self.lease = 30.0 if self.manual else max(2.0, 2 * store.features.minimum_lease)
        self.moment = self.lease / 30
        self.margin = 2.0**-10 if self.manual else 10 * self.moment

    async def advance(self, seconds: float) -> None:
        """Let time pass: at once on a manual clock, else by waiting."""
        if self.manual:
            self.clock.advance(seconds)
        else:
            await anyio.sleep(seconds)

    async def let_the_lease_end(self) -> None:
        """Let exactly ``lease`` pass."""
        await self.advance(self.lease)

    def same_time(self, actual: float | None, expected: float) -> bool:
        """Return whether two times agree: exactly on a manual clock, roughly in real time."""
        return actual is not None and abs(actual - expected) <= (0.0 if self.manual else self.margin)

    async def publish(
        self, count: int = 1, *, bus: str = BUS, kind: str = "order.placed", **options: Any
    ) -> list[Event]:
        """Publish ``count`` events in one batch, with the payloads ``{"n": 0}``, ``{"n": 1}`` and so on."""
        return await self.store.add_events([new_event(kind, {"n": n}, bus=bus, **options) for n in range(count)])

    async def publish_one(self, **options: Any) -> Event:
        """Publish one event."""
        (event,) = await self.publish(**options)
        return event

    def request(
        self, *, bus: str = BUS, worker_id: str = ALICE, lease: float | None = None, **options: Any
    ) -> ClaimRequest:
        """Return a claim request with a new token."""
        options.setdefault("token", new_token())
        return ClaimRequest(bus=bus, worker_id=worker_id, lease=self.lease if lease is None else lease, **options)

    async def claim(self, node: EventStore | None = None, **options: Any) -> list[Claim]:
        """Claim events on ``node`` (the first node if not given)."""
        return await (node or self.store).claim_next_events(self.request(**options))

    async def claim_one(self, node: EventStore | None = None, **options: Any) -> Claim:
        """Claim exactly one event."""
        (claim,) = await self.claim(node, **options)
        return claim

    async def claimed(self, **options: Any) -> Claim:
        """Publish an event and claim it for Alice."""
        await self.publish_one(**options)
        return await self.claim_one(bus=options.get("bus", BUS))

    async def settle(self, *settlements: Settlement) -> list[Settled | LeaseLost]:
        """Settle the claims in one batch."""
        return (await self.store.settle_events(settlements)).outcomes

    async def settle_one(self, settlement: Settlement) -> Settled:
        """Settle one claim, which must be current."""
        (outcome,) = await self.settle(settlement)
        assert isinstance(outcome, Settled), outcome
        return outcome

    async def ended(self, status: EventStatus, **options: Any) -> Event:
        """Publish an event and bring it to ``status``."""
        event = await self.publish_one(**options)
        if status is not EventStatus.PENDING:
            claims = await self.claim(bus=event.bus, limit=10_000)
            claim = next(one for one in claims if one.event.id == event.id)
            if status is not EventStatus.PROCESSING:
                await self.settle_one(ending(claim, status))
        found = await self.store.get_event(event.id)
        assert found is not None
        assert found.status is status
        return found

    async def event(self, ref: Event | Claim | int | str, node: EventStore | None = None) -> Event:
        """Return the event as it is now. It must exist."""
        key = ref.id if isinstance(ref, Event) else ref.event.id if isinstance(ref, Claim) else ref
        found = await (node or self.store).get_event(key)
        assert found is not None
        return found

    async def all_events(self) -> list[Event]:
        """Return every event, newest first."""
        events: list[Event] = []
        before: int | None = None
        while True:
            page = await self.store.find(EventQuery(before_id=before, limit=1000))
            events += page.events
            before = page.next_before_id
            if before is None:
                return events

    async def log(self, node: EventStore | None = None, *, after: str = START, limit: int = 1000) -> list[LogEntry]:
        """Return the whole log, read page by page."""
        entries: list[LogEntry] = []
        while True:
            page = await (node or self.store).read_log(after=after, limit=limit)
            entries += page.entries
            if not page.entries:
                return entries
            after = page.next

    async def trail(self, ref: Event | Claim) -> list[str]:
        """Return the actions of one event's log entries."""
        event = ref if isinstance(ref, Event) else ref.event
        return [entry.action.value for entry in await self.store.read_event_log(event.event_id)]

    async def picture(self) -> Picture:
        """Return the picture of the store."""
        events = await self.all_events()
        return Picture(
            events=events,
            results={event.event_id: await self.store.list_results(event.id) for event in events},
            log=await self.log(),
            locks=await self.store.list_locks(limit=1000),
            counts=await self.store.counts(),
        )

    async def race(self, calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
        """Run all calls at the same time as tasks. Returns their results in order."""
        answers: dict[int, T] = {}

        async def run(number: int, call: Callable[[], Awaitable[T]]) -> None:
            answers[number] = await call()

        async with anyio.create_task_group() as group:
            for number, call in enumerate(calls):
                group.start_soon(run, number, call)
        return [answers[number] for number in range(len(calls))]

    async def race_in_threads(self, count: int, work: Callable[[EventStore, int], Awaitable[T]]) -> list[T]:
        """Run ``work`` in ``count`` threads, each with its own event loop and, if the store is shared, its own node."""
        start = threading.Barrier(count)

        async def main(number: int) -> T:
            node = await self.open_another() if self.shared else self.store
            try:
                start.wait(timeout=30)
                with anyio.fail_after(30):
                    return await work(node, number)
            finally:
                if self.shared:
                    await node.close()

        limiter = anyio.CapacityLimiter(count)

        async def in_thread(number: int) -> T:
            return await anyio.to_thread.run_sync(anyio.run, main, number, limiter=limiter)

        return await self.race([partial(in_thread, number) for number in range(count)])


def ending(claim: Claim, status: EventStatus) -> Settlement:
    """Return the settlement that brings a claimed event to the terminal ``status``."""
    match status:
        case EventStatus.COMPLETED:
            return Complete(claim.ref)
        case EventStatus.COMPLETED_WITH_ERRORS:
            return Complete(claim.ref, errors=("no such customer",))
        case EventStatus.CANCELLED:
            return Cancel(claim.ref, "expired")
        case _:
            return Fail(claim.ref, "out of order", delay=None)


def numbers(events: Sequence[Event | Claim]) -> list[int]:
    """Return the ``n`` of each payload of ``Lab.publish``."""
    return [(one.event if isinstance(one, Claim) else one).payload["n"] for one in events]


def batch(count: int, *, bus: str = BUS, kind: str = "order.placed", **options: Any) -> list[NewEvent]:
    """Return ``count`` events that are not published yet."""
    return [new_event(kind, {"n": n}, bus=bus, **options) for n in range(count)]


async def end(lab: Lab, claim: Claim, how: str) -> None:
    """End a claim in the named way."""
    match how:
        case "complete" | "complete with errors":
            await lab.settle_one(Complete(claim.ref, errors=("no",) if how == "complete with errors" else ()))
        case "fail":
            await lab.settle_one(Fail(claim.ref, "no", 5 * lab.moment))
        case "fail for good":
            await lab.settle_one(Fail(claim.ref, "no", None))
        case "release":
            await lab.settle_one(Release(claim.ref))
        case "reset":
            await lab.store.reset_event(claim.event.id, reason="stuck")
        case "cancel":
            await lab.store.cancel_event(claim.event.id, reason="not wanted")
        case "if done":
            assert await lab.store.complete_event_if_done(claim.ref, []) is not None
        case "remove":
            assert await lab.store.remove_event(claim.event.id)
        case "lease":
            await lab.let_the_lease_end()
        case _:
            raise ValueError(how)


async def reader_lock(lab: Lab, name: str = "reader") -> LockClaim:
    """Claim the lock of a reader of the log."""
    lock = await lab.store.claim_lock(name, worker_id=ALICE, token=new_token(), lease=lab.lease)
    assert lock is not None
    return lock
