"""Who works on a bus: workers live, late or gone, what they hold, and how it is taken from them."""

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
"""A worker announces itself every ten seconds; after three times that nobody believes it is well."""
GONE = 90.0
FOLDED = 600.0
PAGE = 100
MAX_RELEASED = 1_000

State = Literal["live", "late", "gone"]


class WorkerSeen(msgspec.Struct):
    """What the log tells of a worker."""

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
        """Events whose lease it has let go by."""
        return sum(event.expires_ts is not None and event.expires_ts < self.now for event in self.held)

    @property
    def state(self) -> State:
        """Live while it holds a lease or was heard of lately; late when it should have been."""
        if self.overdue:
            return "late"
        silent = self.now - self.heard_ts
        if self.held or silent <= HEARD:
            return "live"
        return "late" if silent <= GONE else "gone"

    @property
    def folded(self) -> bool:
        """Gone so long that only the curious want to see it."""
        return self.state == "gone" and self.now - self.heard_ts > FOLDED


def roster(
    now: float, held: Sequence[Event], handlers: Sequence[HandlerInfo], seen: Mapping[str, WorkerSeen]
) -> list[WorkerView]:
    """All that is known of each worker, late ones first, then by name."""
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


class HandlerView(msgspec.Struct, kw_only=True):
    """One handler of a bus, whichever nodes have it."""

    bus: str
    handler_id: str
    patterns: list[str]
    nodes: list[str]
    last_seen_ts: float
    node: str
    """Where it was last seen."""
    now: float

    @property
    def silent_for(self) -> float:
        """Seconds since a node last announced it."""
        return max(self.now - self.last_seen_ts, 0.0)

    @property
    def missing(self) -> bool:
        """Whether no live node has it: events that it matches wait for it until its registration ends."""
        return self.silent_for > HEARD


def handler_lines(bus: str, registered: Sequence[HandlerInfo], now: float) -> list[HandlerView]:
    """The handlers of a bus by their ids."""
    by_id: defaultdict[str, list[HandlerInfo]] = defaultdict(list)
    for info in registered:
        by_id[info.handler_id].append(info)
    lines = []
    for handler_id, infos in sorted(by_id.items()):
        newest = max(infos, key=lambda info: info.last_seen_ts)
        lines.append(
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
    return lines


async def held_events(
    store: EventStore,
    bus: str | None,
    *,
    worker_id: str | None = None,
    tags: tuple[str, ...] = (),
    limit: int = MAX_RELEASED,
) -> list[Event]:
    """PROCESSING events, newest first, at most ``limit``: of one worker, or of all."""
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
    """Take everything from a worker: its events go back to the queue, and what it still writes is refused.

    What has changed hands since it was listed is left alone.
    """
    number = 0
    for event in await held_events(store, bus, worker_id=worker_id, tags=tags):
        (claim,) = await store.current_claims([event.id])
        if claim is None or claim.fence != event.fence:
            continue
        after = await store.reset_event(event.id, reason=reason)
        number += after.status is EventStatus.PENDING
    return number
