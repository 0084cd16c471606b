"""The ASGI app: ``durabus serve`` runs it, and you can mount it into your own app."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any, cast

import msgspec
from litestar import Litestar, Response, get, route
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler

from durabus.errors import DurabusError
from durabus.http.api import Api
from durabus.http.asgi import AnyRequest, App, AsgiScope, Receive, Send
from durabus.http.auth.access import Principal, Scope
from durabus.http.auth.tokens import TokenFile
from durabus.http.dashboard import (
    dead_letters_page,
    events_page,
    login_page,
    overview_page,
    pipeline_page,
    rendering,
    schedules_page,
    workers_page,
)
from durabus.http.middleware import RequestMiddleware
from durabus.http.openapi import CONFIG, openapi_document
from durabus.http.problems import Code, Problem, problem_response
from durabus.http.routes import claims, events, operations, schedules
from durabus.http.settings import MAX_BATCH_BODY, Settings
from durabus.store.connect import default_url
from durabus.store.contract import EventStore
from durabus.views.live import LiveViews

logger = logging.getLogger("durabus.server")

PAGES = (
    rendering,
    login_page,
    overview_page,
    events_page,
    dead_letters_page,
    workers_page,
    schedules_page,
    pipeline_page,
)
ROUTES = [one for module in (events, claims, operations, schedules, *PAGES) for one in module.ROUTES]


class HttpApi:
    """An ASGI app. It works with a lifespan and, mounted into another app, without one."""

    def __init__(self, store: EventStore | str, settings: Settings, tokens: TokenFile | None) -> None:
        self.api = Api(store, settings, tokens)
        self._live_views = LiveViews(self.api.store, self.api.stopping)
        self._middleware = RequestMiddleware(cast("App", router()), self.api, self._live_views, tokens)

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        serve = self._live if scope["type"] == "lifespan" else self._middleware
        await serve(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document."""
        return openapi_document(_described())

    def stop(self) -> None:
        """End long polls and tails. Call it before a server stops."""
        self.api.stop()

    async def close(self) -> None:
        """Close what the app opened. With a lifespan the server does this. Repeatable."""
        try:
            await self._live_views.stop()
        finally:
            await self.api.end()

    async def _live(self, _scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Run the ASGI lifespan: open at startup, close at shutdown."""
        await receive()
        try:
            await self.api.begin()
        except Exception as error:
            # Report every error: without a message the server assumes an app without a lifespan, and serves it.
            if not isinstance(error, DurabusError):
                logger.exception("the API could not start")
            await send({"type": "lifespan.startup.failed", "message": str(error) or repr(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        try:
            await receive()
        finally:
            await self.close()
        await send({"type": "lifespan.shutdown.complete"})


def create_app(
    store: EventStore | str | None = None, *, settings: Settings | None = None, tokens: TokenFile | None = None
) -> HttpApi:
    """Make the HTTP API of ``store``: a URL, which the app opens and closes, or an open store, which you close.

    Without ``store`` the app uses the environment variable ``DURABUS_STORE``, or else ``sqlite:///durabus.db``.

    With ``tokens`` every request needs a token. Without them the app serves only requests from this machine.
    """
    if tokens is not None:
        tokens.check()
    return HttpApi(default_url() if store is None else store, settings or Settings(), tokens)


@cache
def router() -> Litestar:
    """Finds the handler of an address. It holds no store, so all apps of a process share one router."""
    return Litestar(
        [options_of([*ROUTES, openapi_json]), *ROUTES, openapi_json],
        guards=[check_scope],
        exception_handlers={Exception: problem_response},
        openapi_config=None,  # the framework would serve pages that load scripts from other hosts
        request_max_body_size=MAX_BATCH_BODY,
        logging_config=None,
    )


async def check_scope(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Refuse a sender without the scope that the route names. Scope None admits every sender.

    It is async because the framework would otherwise run it in a thread.
    """
    principal: Principal = connection.scope["user"]
    scope = handler.opt.get("scope", Scope.ADMIN)
    if scope is not None and not principal.holds(scope):
        raise Problem(403, f"this request needs a token with the scope {scope}", code=Code.SCOPE_MISSING)


@get("/openapi.json", opt={"scope": None}, include_in_schema=False)
async def openapi_json() -> Response[bytes]:
    """The OpenAPI document. Any valid token is enough; the middleware has checked it."""
    return Response(_encoded(), media_type="application/json")


def options_of(handlers: list[HTTPRouteHandler]) -> HTTPRouteHandler:
    """A handler for OPTIONS on every address. The framework's own omits methods where an address has two handlers."""
    methods: dict[str, set[str]] = {}
    paths = sorted({path for handler in handlers for path in handler.paths})
    for handler in handlers:
        for path in handler.paths:
            methods.setdefault(path.replace(":int", "").replace(":str", ""), {"OPTIONS"}).update(handler.http_methods)

    @route(paths, http_method=["OPTIONS"], status_code=204, opt={"scope": None}, include_in_schema=False)
    async def options(request: AnyRequest) -> Response[None]:
        return Response(None, headers={"Allow": ", ".join(sorted(methods[request.scope["path_template"]]))})

    return options


@cache
def _described() -> Litestar:
    """An app with the routes of the server, used only to make the OpenAPI document."""
    return Litestar(ROUTES, openapi_config=CONFIG, logging_config=None)


@cache
def _encoded() -> bytes:
    return msgspec.json.encode(openapi_document(_described()))
