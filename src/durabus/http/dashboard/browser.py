"""Checks for browsers only: the cookie that holds the token, and the proof that a form came from the dashboard.

A token in a cookie opens pages, never the API: a form of another site can send cookies, but no Authorization header.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from durabus.http.asgi import AsgiScope
from durabus.http.problems import Code, Problem

PREFIX = "/dashboard/"
LOGIN = "/dashboard/login"
STYLE = "/dashboard/style.css"
SCRIPT = "/dashboard/script.js"
ICON = "/dashboard/icon.svg"
OPEN = frozenset({LOGIN, STYLE, SCRIPT, ICON})
"""These exact paths need no login: they reveal nothing about the stored data."""
COOKIE = "durabus_token"
MAX_FORM = 65_536
FORM_TYPE = re.compile(rb"\s*application/x-www-form-urlencoded\s*(?:;.*)?", re.IGNORECASE)


def is_page(path: str) -> bool:
    """Whether an address belongs to the dashboard."""
    return path == "/" or path.startswith(PREFIX)


def navigates(method: str, headers: dict[bytes, bytes]) -> bool:
    """Whether the browser's own headers say that a person opens a page."""
    sent = (headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest"))
    return method == "GET" and sent == (b"navigate", b"document")


def wants_html(method: str, headers: dict[bytes, bytes]) -> bool:
    """Whether a browser asks for a page."""
    return method == "GET" and b"text/html" in headers.get(b"accept", b"")


def cookie_token(headers: dict[bytes, bytes]) -> str:
    """The token that the login form stored; empty if there is none.

    The standard parser is not used: it drops all cookies if another program on this host has set one it rejects.
    """
    pairs = (part.strip().partition("=") for part in headers.get(b"cookie", b"").decode("latin-1").split(";"))
    return next((value for name, _, value in pairs if name == COOKIE), "")


def cookie(token: str, *, path: str, secure: bool) -> str:
    """The header that stores a token until the browser is closed. An empty token deletes the cookie."""
    made = f"{COOKIE}={token}; Path={path or '/'}; HttpOnly; SameSite=Strict"
    return made + ("; Secure" if secure else "") + ("" if token else "; Max-Age=0")


def check_same_origin(headers: dict[bytes, bytes]) -> None:
    """Refuse a form that another site's page sent. Browsers always send the page's origin."""
    origin = headers.get(b"origin", b"")
    if not origin or origin.partition(b"://")[2] != headers.get(b"host"):
        raise Problem(
            403,
            "the Origin header must name this server: the form came from another site, or a proxy in between "
            "changed the Host header",
            code=Code.FOREIGN_SITE,
        )


def check_form(body: bytes, content_type: bytes) -> None:
    """Refuse a body that is not a form."""
    if not FORM_TYPE.fullmatch(content_type):
        raise Problem(415, "the body must be a form: send Content-Type: application/x-www-form-urlencoded")
    if not body.isascii():
        raise Problem(400, "the form is not URL-encoded")


def to_login(scope: AsgiScope) -> Problem:
    """Redirect a browser to the login form, which then redirects it to the page it asked for."""
    wanted = scope["mounted_at"] + scope["path"]
    query = scope.get("query_string", b"").decode("latin-1")
    there = quote(wanted + (f"?{query}" if query else ""), safe="")
    headers = {"Location": f"{scope['mounted_at']}{LOGIN}?next={there}"}
    return Problem(303, "log in first", headers, code=Code.TOKEN_MISSING)


def safe_next(wanted: str, mounted_at: str) -> str:
    """The page to open after the login: a dashboard page, never an address of another site."""
    home = f"{mounted_at}/"
    ours = wanted.partition("?")[0] == home or wanted.startswith(f"{mounted_at}{PREFIX}")
    return wanted if ours and wanted.isprintable() and "\\" not in wanted else home
