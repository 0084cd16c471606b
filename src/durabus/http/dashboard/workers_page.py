"""Workers: live, late or gone, what they hold, and a way to take it from them."""

from __future__ import annotations

from durabus.http.api import api_of, principal_of
from durabus.http.dashboard.board import board_of
from durabus.http.dashboard.rendering import (
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
from durabus.http.problems import Problem
from durabus.views.workers import release_worker, roster

SHOWN = 5


@page_route("/dashboard/workers")
async def workers(request: AnyRequest) -> Page:
    """The list. Who sees only some tags sees only the workers that hold events with them."""
    api, principal, bus, board = api_of(request), principal_of(request), bus_of(request), board_of(request)
    held = await board.readings.in_flight(bus, principal)
    now = await api.store.now()
    if principal.tags:
        lines = roster(now, held, [], {})
    else:
        pulse = await board.pulse(bus)
        lines = roster(now, held, (await api.store.list_handlers(bus)).handlers, pulse.workers)
    return render(
        request,
        "workers.html",
        now=now,
        workers=[line for line in lines if not line.folded],
        folded=[line for line in lines if line.folded],
        released=request.query_params.get("released", ""),
        shown=SHOWN,
    )


@action_route("/dashboard/workers/release")
async def release(request: AnyRequest) -> Page:
    """Take everything from a worker: its events go back to the queue, what it still writes is refused."""
    api, principal = api_of(request), principal_of(request)
    form = await form_of(request)
    bus, worker_id = api.bus(form.get("bus") or None, principal), form.get("worker_id", "")
    if not worker_id:
        raise Problem(400, "worker_id is missing: whose events are to be released?")
    reason = f"worker released on the dashboard by {principal.name}"
    number = await release_worker(api.store, bus, worker_id, reason=reason, tags=principal.narrow(()))
    return redirect(linker(request, bus)("/dashboard/workers", released=f"{number} events of {worker_id}"))


ROUTES = [workers, release]
