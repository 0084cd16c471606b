"""The list of schedules: when each one runs next, with buttons to pause, resume, run and delete it."""

from __future__ import annotations

from durabus.http.api import api_of
from durabus.http.asgi import AnyRequest
from durabus.http.dashboard.rendering import Page, action_route, bus_of, form_of, linker, page_route, redirect, render
from durabus.http.problems import Problem
from durabus.http.routes.schedules import ScheduleDesk

MAX_SCHEDULES = 500
VERBS = ("pause", "resume", "run", "delete")


@page_route("/dashboard/schedules")
async def schedules(request: AnyRequest) -> Page:
    """The schedules of the bus that the viewer may see."""
    desk = ScheduleDesk(request, bus_of(request))
    found = [one for one in await desk.schedules.list() if desk.sees(one)]
    return render(
        request,
        "schedules.html",
        now=await api_of(request).store.now(),
        schedules=[(one, desk.shown_name(one)) for one in found[:MAX_SCHEDULES]],
        more=len(found) > MAX_SCHEDULES,
        done=request.query_params.get("done", ""),
    )


@action_route("/dashboard/schedules/change")
async def change(request: AnyRequest) -> Page:
    """Pause, resume, run or delete a schedule."""
    form = await form_of(request)
    desk = ScheduleDesk(request, form.get("bus") or None)
    verb = form.get("verb", "")
    if verb not in VERBS:
        raise Problem(400, f"verb={verb!r}: must be one of {', '.join(VERBS)}")
    name = (await desk.seen(form.get("name", ""))).name
    actor, reason = desk.principal.name, "asked for on the dashboard"
    match verb:
        case "pause":
            await desk.schedules.pause(name, actor=actor, reason=reason)
        case "resume":
            await desk.schedules.resume(name, actor=actor, reason=reason)
        case "run":
            await desk.schedules.run_now(name, actor=actor, reason=reason)
        case _:
            await desk.schedules.delete(name, actor=actor, reason=reason)
    return redirect(linker(request, desk.bus)("/dashboard/schedules", done=f"{verb} {form['name']}"))


ROUTES = [schedules, change]
