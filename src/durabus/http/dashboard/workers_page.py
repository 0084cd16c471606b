"""The lists of workers and of handlers: which are live, late or gone, and a button to release a worker's events."""

from __future__ import annotations

from durabus.http.api import api_of, principal_of
from durabus.http.asgi import AnyRequest
from durabus.http.dashboard.rendering import (
    Page,
    action_route,
    bus_of,
    form_of,
    linker,
    live_views,
    page_route,
    redirect,
    render,
)
from durabus.http.dashboard.words import plural
from durabus.http.problems import Problem
from durabus.views.workers import (
    RULE,
    WINDOW,
    count_attempts,
    registered_handlers,
    registrations,
    release_worker,
    workers_of,
)

SHOWN = 5
MAX_HANDLERS = 500


@page_route("/dashboard/workers")
async def workers(request: AnyRequest) -> Page:
    """The list of workers. A token that is limited to tags sees only workers that hold events with these tags."""
    api, principal, bus, live = api_of(request), principal_of(request), bus_of(request), live_views(request)
    held = await live.in_flight(bus, principal.narrow(()))
    now = await api.store.now()
    if principal.tags:
        found = workers_of(now, held, [], {})
    else:
        activity = await live.activity(bus)
        handlers = (await registrations(api.store, bus))[bus]
        found = workers_of(now, held, handlers, activity.workers)
    return render(
        request,
        "workers.html",
        now=now,
        workers=[worker for worker in found if not worker.hidden],
        hidden=[worker for worker in found if worker.hidden],
        released=request.query_params.get("released", ""),
        shown=SHOWN,
    )


@action_route("/dashboard/workers/release")
async def release(request: AnyRequest) -> Page:
    """Return all events of a worker to the queue. Later writes of this worker to them are refused."""
    api, principal = api_of(request), principal_of(request)
    form = await form_of(request)
    bus, worker_id = api.bus(form.get("bus") or None, principal), form.get("worker_id", "")
    if not worker_id:
        raise Problem(400, "worker_id is missing: send the worker whose events to release")
    reason = f"worker released on the dashboard by {principal.name}"
    number = await release_worker(api.store, bus, worker_id, reason=reason, tags=principal.narrow(()))
    return redirect(linker(request, bus)("/dashboard/workers", released=f"{plural(number, 'event')} of {worker_id}"))


@page_route("/dashboard/handlers")
async def handlers(request: AnyRequest) -> Page:
    """The list of handlers. It shows the whole bus, so tokens that are limited to tags may not see it."""
    api, principal, bus = api_of(request), principal_of(request), bus_of(request)
    principal.check_whole_bus("the list of handlers")
    found = await registered_handlers(api.store, bus)
    activity = await live_views(request).activity(bus)
    now = await api.store.now()
    await count_attempts(api.store, found, [one for one in activity.recent if one.at_ts > now - WINDOW])
    return render(
        request,
        "handlers.html",
        now=now,
        handlers=found[:MAX_HANDLERS],
        more=len(found) > MAX_HANDLERS,
        rule=f"more than {RULE.failure_ratio:.0%} of at least {RULE.minimum_samples} events failed within {WINDOW:g} s",
        open_for=RULE.open_for,
    )


ROUTES = [workers, release, handlers]
