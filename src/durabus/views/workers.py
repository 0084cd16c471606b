"""Workers, handlers and locks: which are live, late, gone or missing, what they hold, and how to release that.

A breaker lives in its worker's process. This module applies the same rule to what the store knows: the attempts of all
workers in the last minute, and the results of the events that failed.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from durabus.model.claim import LockClaim
from durabus.model.event import Event
from durabus.model.handler import HandlerInfo
from durabus.model.limits import seconds
from durabus.model.pattern import matches
from durabus.model.policies import BreakerPolicy
from durabus.model.query import EventQuery
from durabus.model.result import HandlerResult
from durabus.model.statuses import EventStatus, ResultStatus
from durabus.store.contract import EventStore
from durabus.views.activity import AttemptEnd, WorkerSeen

LATE_AFTER = 30.0
"""Seconds after which a worker is late: it announces itself every ten seconds."""
GONE = 90.0
"""Seconds after which a worker is gone."""
HIDDEN_AFTER = 600.0
"""Seconds after which the views hide a worker that is gone."""
PAGE = 100
BUSES_AT_ONCE = 100
MAX_RELEASED = 1_000
RULE = BreakerPolicy()
WINDOW = seconds(RULE.window, "window")
LOOKED_AT = 50
"""Maximum number of failed events whose results are read to find the handlers that failed."""
UNHAPPY = frozenset({ResultStatus.TRANSIENT, ResultStatus.UNRECOVERABLE, ResultStatus.TIMED_OUT})

State = Literal["live", "late", "gone"]


class WorkerView(msgspec.Struct, kw_only=True):
    """One worker process."""

    worker_id: str
    last_seen_ts: float
    handlers: int = 0
    seen: WorkerSeen | None = None
    held: list[Event] = []
    now: float

    @property
    def overdue(self) -> int:
        """The number of held events whose lease is over."""
        return sum(event.expires_ts is not None and event.expires_ts < self.now for event in self.held)

    @property
    def state(self) -> State:
        """Live while it holds a lease or has announced itself in time; late or gone by the time of its silence."""
        if self.overdue:
            return "late"
        silent = self.now - self.last_seen_ts
        if self.held or silent <= LATE_AFTER:
            return "live"
        return "late" if silent <= GONE else "gone"

    @property
    def hidden(self) -> bool:
        """Whether it is gone for so long that the views hide it until a user asks for it."""
        return self.state == "gone" and self.now - self.last_seen_ts > HIDDEN_AFTER


def workers_of(
    now: float, held: Sequence[Event], handlers: Sequence[HandlerInfo], seen: Mapping[str, WorkerSeen]
) -> list[WorkerView]:
    """Return a view of each worker: late ones first, then live ones, then those that are gone."""
    holding: defaultdict[str, list[Event]] = defaultdict(list)
    for event in held:
        holding[event.worker_id or "unknown"].append(event)
    announced: defaultdict[str, list[HandlerInfo]] = defaultdict(list)
    for info in handlers:
        announced[info.node.rpartition(":")[0] or info.node].append(info)
    workers = [
        WorkerView(
            worker_id=name,
            last_seen_ts=max(
                [info.last_seen_ts for info in announced[name]]
                + [event.picked_ts or 0.0 for event in holding[name]]
                + ([seen[name].last_ts] if name in seen else [])
            ),
            handlers=len({info.handler_id for info in announced[name]}),
            seen=seen.get(name),
            held=holding[name],
            now=now,
        )
        for name in {*holding, *announced, *seen}
    ]
    rank = {"late": 0, "live": 1, "gone": 2}
    return sorted(workers, key=lambda worker: (rank[worker.state], worker.worker_id))


async def read_workers(store: EventStore, bus: str | None) -> list[WorkerView]:
    """Return a view of each worker that holds an event or has registered a handler, on one bus or on all buses."""
    held = await held_events(store, bus)
    handlers = [info for infos in (await registrations(store, bus)).values() for info in infos]
    return workers_of(await store.now(), held, handlers, {})


async def registrations(store: EventStore, bus: str | None) -> dict[str, list[HandlerInfo]]:
    """The registrations of one bus, or of every bus, by the name of the bus."""
    if bus is not None:
        return {bus: (await store.list_handlers(bus)).handlers}
    found: dict[str, list[HandlerInfo]] = {}
    after = ""
    while True:
        buses = await store.list_buses(after=after, limit=BUSES_AT_ONCE)
        for one in buses:
            found[one.bus] = (await store.list_handlers(one.bus)).handlers
        if len(buses) < BUSES_AT_ONCE:
            return found
        after = buses[-1].bus


async def held_events(
    store: EventStore,
    bus: str | None,
    *,
    worker_id: str | None = None,
    tags: tuple[str, ...] = (),
    limit: int = MAX_RELEASED,
) -> list[Event]:
    """Return PROCESSING events, newest first, at most ``limit``, of one worker or of all."""
    query = EventQuery(bus=bus, statuses=(EventStatus.PROCESSING,), tags=tags, limit=min(PAGE, limit))
    found: list[Event] = []
    while len(found) < limit:
        page = await store.find(query)
        found += [event for event in page.events if worker_id in (None, event.worker_id)]
        if page.next_before_id is None:
            break
        query = msgspec.structs.replace(query, before_id=page.next_before_id)
    return found[:limit]


class HeldLocks(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the locks that are held, in order of key."""

    locks: list[LockClaim]
    next_after: str | None
    """The key after which the next page begins; None after the last page."""
    at_ts: float


async def list_held_locks(store: EventStore, *, after: str, limit: int) -> HeldLocks:
    """Return the held locks with a key above ``after``, at most ``limit``."""
    locks, now = await store.list_locks(after=after, limit=limit), await store.now()
    return HeldLocks(locks=locks, next_after=locks[-1].key if len(locks) == limit else None, at_ts=now)


async def release_worker(
    store: EventStore, bus: str | None, worker_id: str, *, reason: str, tags: tuple[str, ...] = ()
) -> int:
    """Release all events of a worker: they go back to the queue, and the store refuses what the worker still writes.

    Returns how many went back. It does not touch an event that another claim holds by then.
    """
    number = 0
    for event in await held_events(store, bus, worker_id=worker_id, tags=tags):
        (claim,) = await store.current_claims([event.id])
        if claim is None or claim.fence != event.fence:
            continue
        after = await store.reset_event(event.id, reason=reason)
        number += after.status is EventStatus.PENDING
    return number


class HandlerView(msgspec.Struct, kw_only=True):
    """One handler of a bus, and the nodes that have it."""

    bus: str
    handler_id: str
    patterns: list[str]
    nodes: list[str]
    last_seen_ts: float
    node: str
    """The node that announced it last."""
    now: float
    succeeded: int = 0
    failed: int = 0
    unrecoverable: int = 0
    """Failures that do not count for the breaker, because the event itself is at fault."""
    last_error: str | None = None
    last_error_id: int | None = None

    @property
    def silent_for(self) -> float:
        """Seconds since a node last announced it."""
        return max(self.now - self.last_seen_ts, 0.0)

    @property
    def missing(self) -> bool:
        """Whether no live node has it: events that match it wait until its registration ends."""
        return self.silent_for > LATE_AFTER

    @property
    def samples(self) -> int:
        """Events of the last minute, if ``count_attempts`` has counted them."""
        return self.succeeded + self.failed

    @property
    def breaker(self) -> str:
        """The state of the breaker according to its rule."""
        samples, failed = self.samples - self.unrecoverable, self.failed - self.unrecoverable
        if samples >= RULE.minimum_samples and failed > RULE.failure_ratio * samples:
            return "open"
        return "failing" if self.failed else "closed"


async def registered_handlers(store: EventStore, bus: str | None) -> list[HandlerView]:
    """The handlers that nodes have registered on one bus, or on all buses."""
    now, registered = await store.now(), await registrations(store, bus)
    return [handler for name, infos in registered.items() for handler in _handlers_of(name, infos, now)]


def _handlers_of(bus: str, registered: Sequence[HandlerInfo], now: float) -> list[HandlerView]:
    by_id: defaultdict[str, list[HandlerInfo]] = defaultdict(list)
    for info in registered:
        by_id[info.handler_id].append(info)
    handlers = []
    for handler_id, infos in sorted(by_id.items()):
        newest = max(infos, key=lambda info: info.last_seen_ts)
        handlers.append(
            HandlerView(
                bus=bus,
                handler_id=handler_id,
                patterns=sorted({info.pattern for info in infos}),
                nodes=[info.node for info in infos],
                last_seen_ts=newest.last_seen_ts,
                node=newest.node,
                now=now,
            )
        )
    return handlers


async def count_attempts(store: EventStore, handlers: Sequence[HandlerView], attempts: Sequence[AttemptEnd]) -> None:
    """Count a failed event as a failure of the handlers that its results name, and as a success of the others.

    As in a breaker, only the newest attempt of an event counts. If there are too many failures, only the newest ones
    and the successes of the same time count.
    """
    ended: dict[int, AttemptEnd] = {one.id: one for one in attempts}
    failed = [one for one in ended.values() if one.failed]
    since = failed[-LOOKED_AT].at_ts if len(failed) > LOOKED_AT else 0.0
    failed = failed[-LOOKED_AT:]
    results = await asyncio.gather(*(store.list_results(one.id) for one in failed))
    blamed = [{r.handler_id: r for r in found if r.status in UNHAPPY} for found in results]
    by_type = Counter(one.type for one in ended.values() if not one.failed and one.at_ts >= since)
    for handler in handlers:
        handler.succeeded = sum(n for type_, n in by_type.items() if any(matches(p, type_) for p in handler.patterns))
        for one, names in zip(failed, blamed, strict=True):
            if any(matches(pattern, one.type) for pattern in handler.patterns):
                _blame(handler, one.id, names)


def _blame(handler: HandlerView, id_: int, blamed: dict[str, HandlerResult]) -> None:
    result = blamed.get(handler.handler_id)
    if result is not None:
        handler.failed += 1
        handler.unrecoverable += result.status is ResultStatus.UNRECOVERABLE
        handler.last_error, handler.last_error_id = result.error or result.status, id_
    elif blamed:
        handler.succeeded += 1
