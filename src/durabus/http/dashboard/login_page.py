"""The page to log in with a token, and the logout."""

from __future__ import annotations

from durabus.http.api import api_of
from durabus.http.asgi import AnyRequest
from durabus.http.auth.access import Scope
from durabus.http.dashboard.browser import LOGIN, cookie, safe_next
from durabus.http.dashboard.rendering import Page, action_route, form_of, page_route, redirect, render


@page_route(LOGIN, None)
async def login(request: AnyRequest) -> Page:
    """The form. On a server without tokens it redirects to the overview."""
    if api_of(request).tokens is None:
        return redirect(_home(request))
    return _form(request, request.query_params.get("next", ""), "", 200)


@action_route(LOGIN, None)
async def log_in(request: AnyRequest) -> Page:
    """Store the token in a cookie that no script can read and no other site can send."""
    form = await form_of(request)
    text, wanted = form.get("token", "").strip(), form.get("next", "")
    holder = api_of(request).holder(text, request.client.host if request.client else "")
    if holder is None:
        return _form(request, wanted, "This token is unknown, expired or revoked.", 401)
    if not holder.holds(Scope.READ):
        return _form(request, wanted, "This token does not have the scope read, which the dashboard needs.", 403)
    return redirect(safe_next(wanted, _root(request)), {"Set-Cookie": _cookie(request, text)})


@action_route("/dashboard/logout", None)
async def log_out(request: AnyRequest) -> Page:
    """Delete the cookie."""
    return redirect(_root(request) + LOGIN, {"Set-Cookie": _cookie(request, "")})


def _form(request: AnyRequest, wanted: str, refused: str, status: int) -> Page:
    return render(request, "login.html", status=status, bus=api_of(request).settings.bus, next=wanted, refused=refused)


def _root(request: AnyRequest) -> str:
    root: str = request.scope["mounted_at"]  # type: ignore[typeddict-item]
    return root


def _home(request: AnyRequest) -> str:
    return f"{_root(request)}/"


def _cookie(request: AnyRequest, token: str) -> str:
    secure = "https" in {request.scope["scheme"], request.headers.get("x-forwarded-proto", "")}
    return cookie(token, path=_root(request), secure=secure)


ROUTES = [login, log_in, log_out]
