"""The workers of a bus: whether they are live, late or gone, which events they hold, and how to release those."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from durabus.model.event import Event
from durabus.model.handler import HandlerInfo
from durabus.model.query import EventQuery
from durabus.model.statuses import EventStatus
from durabus.store.contract import EventStore

HEARD = 30.0
"""Seconds after which a worker is late: it announces itself every ten seconds."""
GONE = 90.0
"""Seconds after which a worker is gone."""
FOLDED = 600.0
"""Seconds after which the views fold a worker that is gone."""
PAGE = 100
BUSES_AT_ONCE = 100
MAX_RELEASED = 1_000

State = Literal["live", "late", "gone"]


class WorkerSeen(msgspec.Struct):
    """The events of a worker that the log shows."""

    last_ts: float
    done: int = 0
    failed: int = 0
    lost: int = 0


class WorkerView(msgspec.Struct, kw_only=True):
    """One worker process."""

    worker_id: str
    heard_ts: float
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
        silent = self.now - self.heard_ts
        if self.held or silent <= HEARD:
            return "live"
        return "late" if silent <= GONE else "gone"

    @property
    def folded(self) -> bool:
        """Whether it is gone for so long that the views hide it until a user unfolds them."""
        return self.state == "gone" and self.now - self.heard_ts > FOLDED


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
    lines = [
        WorkerView(
            worker_id=name,
            heard_ts=max(
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
    return sorted(lines, key=lambda line: (rank[line.state], line.worker_id))


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
