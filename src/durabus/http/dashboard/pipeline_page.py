"""The lakes that follow the store: lag, proof, tables, last runs and expectations, without a start of Spark."""

from __future__ import annotations

from durabus.http.api import api_of, principal_of
from durabus.http.asgi import AnyRequest
from durabus.http.dashboard.rendering import Page, page_route, render
from durabus.http.problems import Problem
from durabus.views.lakes import lakes_of

SHOWN_RUNS = 8


@page_route("/dashboard/pipeline")
async def pipeline(request: AnyRequest) -> Page:
    """The page. It concerns all buses, so tokens that are limited to tags or buses may not see it."""
    principal = principal_of(request)
    principal.check_whole_bus("the pipeline")
    if principal.buses:
        raise Problem(403, "the pipeline concerns all buses, and this token is limited to some of them")
    store = api_of(request).store
    lakes = await lakes_of(store)
    return render(request, "pipeline.html", now=await store.now(), lakes=lakes, shown_runs=SHOWN_RUNS)


ROUTES = [pipeline]
