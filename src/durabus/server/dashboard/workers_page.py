"""Workers: live, late or gone, what they hold, and a way to take it from them."""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

import msgspec

from durabus.model.event import Event
from durabus.model.handler import HandlerInfo
from durabus.model.query import EventQuery
from durabus.model.statuses import EventStatus
from durabus.server.access import Principal
from durabus.server.api import Api, api_of, principal_of
from durabus.server.dashboard.board import board_of
from durabus.server.dashboard.pulse import WorkerSeen
from durabus.server.dashboard.rendering import (
    AnyRequest,
    Page,
    action_route,
    bus_of,
    form_of,
    linker,
    page_route,
    redirect,
    render,
)
from durabus.server.problems import Problem

HEARD = 30.0
"""A worker announces itself every ten seconds; after three times that nobody believes it is well."""
GONE = 90.0
FOLDED = 600.0
SHOWN = 5
MAX_RELEASED = 1_000

State = Literal["live", "late", "gone"]


class WorkerLine(msgspec.Struct, kw_only=True):
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


@page_route("/dashboard/workers")
async def workers(request: AnyRequest) -> Page:
    """The list. Who sees only some tags sees only the workers that hold events with them."""
    api, principal, bus, board = api_of(request), principal_of(request), bus_of(request), board_of(request)
    held = await board.readings.in_flight(bus, principal)
    now = await api.store.now()
    if principal.tags:
        lines = lines_of(now, held, [], {})
    else:
        pulse = await board.pulse(bus)
        lines = lines_of(now, held, (await api.store.list_handlers(bus)).handlers, pulse.workers)
    return render(
        request,
        "workers.html",
        now=now,
        workers=[line for line in lines if not line.folded],
        folded=[line for line in lines if line.folded],
        released=request.query_params.get("released", ""),
        shown=SHOWN,
    )


def lines_of(
    now: float, held: list[Event], handlers: list[HandlerInfo], seen: dict[str, WorkerSeen]
) -> list[WorkerLine]:
    """All that is known of each, late ones first, then by name."""
    holding: defaultdict[str, list[Event]] = defaultdict(list)
    for event in held:
        holding[event.worker_id or "unknown"].append(event)
    announced: defaultdict[str, list[HandlerInfo]] = defaultdict(list)
    for info in handlers:
        announced[info.node.rpartition(":")[0] or info.node].append(info)
    lines = [
        WorkerLine(
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


@action_route("/dashboard/workers/release")
async def release(request: AnyRequest) -> Page:
    """Take everything from a worker: its events go back to the queue, what it still writes is refused."""
    api, principal = api_of(request), principal_of(request)
    form = await form_of(request)
    bus, worker_id = api.bus(form.get("bus") or None, principal), form.get("worker_id", "")
    if not worker_id:
        raise Problem(400, "worker_id is missing: whose events are to be released?")
    number = 0
    for event in await _held_by(api, principal, bus, worker_id):
        after = await api.store.reset_event(event.id, reason=f"worker released on the dashboard by {principal.name}")
        number += after.status is EventStatus.PENDING
    return redirect(linker(request, bus)("/dashboard/workers", released=f"{number} events of {worker_id}"))


async def _held_by(api: Api, principal: Principal, bus: str, worker_id: str) -> list[Event]:
    query = EventQuery(bus=bus, statuses=(EventStatus.PROCESSING,), tags=principal.narrow(()), limit=100)
    found: list[Event] = []
    while len(found) < MAX_RELEASED:
        page = await api.store.find(query)
        found += [event for event in page.events if event.worker_id == worker_id]
        if page.next_before_id is None:
            break
        query = msgspec.structs.replace(query, before_id=page.next_before_id)
    return found[:MAX_RELEASED]


ROUTES = [workers, release]
