"""Renders templates as pages. Every value is escaped, and a page may load only the dashboard's own files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler

from durabus.http.api import api_of, principal_of
from durabus.http.asgi import AnyRequest
from durabus.http.auth.access import Principal, Scope
from durabus.http.dashboard import words
from durabus.http.dashboard.browser import ICON, SCRIPT, STYLE
from durabus.http.problems import Problem, problem_of
from durabus.views.live import LiveViews

Page = Response[bytes]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    # Not "no-referrer": with it browsers hide the origin of the dashboard's own forms, which the middleware checks.
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
}
FOR_EVER = "public, max-age=31536000, immutable"
MAX_FIELDS = 50
HTML = "text/html"

environment = Environment(
    loader=PackageLoader("durabus.http.dashboard"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
environment.filters.update(words.FILTERS)


def page_route(path: str, scope: Scope | None = Scope.READ) -> Callable[..., HTTPRouteHandler]:
    """The route of a page that changes nothing."""
    return get(
        path, opt={"scope": scope}, include_in_schema=False, media_type=HTML, exception_handlers={Exception: error_page}
    )


def action_route(path: str, scope: Scope | None = Scope.ADMIN) -> Callable[..., HTTPRouteHandler]:
    """The route of a form that changes something."""
    return post(
        path,
        status_code=200,
        opt={"scope": scope},
        include_in_schema=False,
        media_type=HTML,
        exception_handlers={Exception: error_page},
    )


def bus_of(request: AnyRequest) -> str:
    """The bus that a page shows. Raises ``Problem`` 403 if the viewer may not see it."""
    return api_of(request).bus(request.query_params.get("bus") or None, principal_of(request))


def live_views(request: AnyRequest) -> LiveViews:
    """The values that the app which serves a request reads in the background."""
    found: LiveViews = request.scope["live_views"]  # type: ignore[typeddict-item]
    return found


def linker(request: AnyRequest, bus: str) -> Callable[..., str]:
    """A function that makes addresses: below the mount point, on the same bus, without empty parameters."""
    default = api_of(request).settings.bus

    def link(path: str, **parameters: Any) -> str:
        given = {"bus": bus if bus != default else None, **parameters}
        query = urlencode({name: value for name, value in given.items() if value not in (None, "", ())})
        return f"{request.scope['mounted_at']}{path}" + (f"?{query}" if query else "")  # type: ignore[typeddict-item]

    return link


def render(request: AnyRequest, template: str, *, status: int = 200, bus: str | None = None, **values: Any) -> Page:
    """Render a template as a page."""
    principal, name = principal_of(request), bus_of(request) if bus is None else bus
    text = environment.get_template(template).render(
        **values,
        bus=name,
        principal=principal,
        may_change=principal.holds(Scope.ADMIN),
        has_tokens=api_of(request).tokens is not None,
        link=linker(request, name),
        path=request.scope["path"],
        home=request.scope["mounted_at"],  # type: ignore[typeddict-item]
        icon=f"{ICON}?v={fingerprint('icon.svg')}",
        style=f"{STYLE}?v={fingerprint('style.css')}",
        script=f"{SCRIPT}?v={fingerprint('script.js')}",
        scheme=api_of(request).store.features.scheme,
    )
    return Response(text.encode(), status_code=status, headers=HEADERS, media_type=HTML)


def error_page(request: AnyRequest, error: Exception) -> Page:
    """The page that shows an error."""
    problem = problem_of(error)
    if request.headers.get("accept") == "application/json":
        return Response(
            problem.body(), status_code=problem.status, headers=HEADERS, media_type="application/problem+json"
        )
    page = render(request, "error.html", status=problem.status, bus=_any_bus(request), problem=problem.document())
    for name, value in problem.headers.items():
        page.headers[name] = value
    return page


def _any_bus(request: AnyRequest) -> str:
    """A bus that the viewer may see, for an error page: the requested bus may be the cause of the error."""
    principal: Principal = principal_of(request)
    return min(principal.buses) if principal.buses else api_of(request).settings.bus


async def form_of(request: AnyRequest) -> dict[str, str]:
    """The fields of a form."""
    body = (await request.body()).decode()
    try:
        return dict(parse_qsl(body, max_num_fields=MAX_FIELDS, keep_blank_values=True, strict_parsing=bool(body)))
    except ValueError as error:
        raise Problem(400, f"the form cannot be read: {error}") from error


def redirect(path: str, headers: dict[str, str] | None = None) -> Page:
    """Redirect the browser to ``path``, which includes the mount point."""
    return Response(b"", status_code=303, headers={**HEADERS, "Location": path, **(headers or {})}, media_type=HTML)


@cache
def static(name: str) -> bytes:
    """The content of a static file."""
    return files("durabus.http.dashboard").joinpath("static", name).read_bytes()


@cache
def fingerprint(name: str) -> str:
    """A hash of a static file. It is part of the address, so browsers may cache the file for ever."""
    return hashlib.sha256(static(name)).hexdigest()[:12]


@get(STYLE, opt={"scope": None}, include_in_schema=False)
async def style_css() -> Response[bytes]:
    """The stylesheet."""
    return Response(static("style.css"), media_type="text/css", headers={"Cache-Control": FOR_EVER})


@get(SCRIPT, opt={"scope": None}, include_in_schema=False)
async def script_js() -> Response[bytes]:
    """The script."""
    return Response(static("script.js"), media_type="text/javascript", headers={"Cache-Control": FOR_EVER})


@get(ICON, opt={"scope": None}, include_in_schema=False)
async def icon_svg() -> Response[bytes]:
    """The icon in the browser's tab."""
    return Response(static("icon.svg"), media_type="image/svg+xml", headers={"Cache-Control": FOR_EVER})


ROUTES = [style_css, script_js, icon_svg]
