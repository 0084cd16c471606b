"""From ``redis://…`` to where the server is and how to speak with it."""

from __future__ import annotations

import re
from inspect import signature
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec
from redis.asyncio.connection import Connection
from redis.asyncio.connection import parse_url as parse_server_url

from durabus.errors import ConfigurationError

DEFAULT_PREFIX = "durabus"
DEFAULT_TIMEOUT = 10.0
MAX_TIMEOUT = 3600.0
_PREFIX = re.compile(r"[A-Za-z0-9._:-]{1,64}")


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """``timeout`` bounds every call, reconnecting and repeating included."""

    shown: str
    """The URL without its password, for messages."""
    options: dict[str, Any]
    """What redis-py's connection takes, the class of the connection among it."""
    prefix: str = DEFAULT_PREFIX
    timeout: float = DEFAULT_TIMEOUT


def parse_url(url: str) -> Address:
    """``redis://[user:password@]host[:port][/database][?prefix=…&timeout=…]``; ``rediss://`` speaks TLS.

    Other options are redis-py's, such as ``ssl_ca_certs``.
    """
    parts = urlsplit(url)
    ours = {"prefix": DEFAULT_PREFIX, "timeout": str(DEFAULT_TIMEOUT)}
    theirs: list[tuple[str, str]] = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in ours:
            ours[name] = value
        else:
            theirs.append((name, value))
    shown = _without_password(url)
    if not _PREFIX.fullmatch(ours["prefix"]):
        raise ConfigurationError(
            f"{shown}: prefix={ours['prefix']!r} must be 1 to 64 letters, digits or any of . _ : -"
        )
    path = parts.path.strip("/")
    if path and not path.isdecimal():
        raise ConfigurationError(f"{shown}: the path is the number of the database, such as /0, not /{path}")
    try:
        options = dict(parse_server_url(urlunsplit(parts._replace(query=urlencode(theirs)))))
    except ValueError as error:
        raise ConfigurationError(f"{shown}: {error}") from error
    _check_names(options, shown)
    return Address(shown=shown, options=options, prefix=ours["prefix"], timeout=_seconds(ours["timeout"], shown))


def _check_names(options: dict[str, Any], shown: str) -> None:
    """Refuse what the connection's class would not take: it would say so only when it connects."""
    made: type = options.get("connection_class", Connection)
    known = {name for base in made.__mro__ for name in signature(base.__init__).parameters}  # type: ignore[misc]
    known -= {"self", "args", "kwargs"}
    if unknown := sorted(options.keys() - known - {"connection_class"}):
        raise ConfigurationError(
            f"{shown}: no such option: {', '.join(unknown)}; there are prefix, timeout, and those of redis-py's "
            f"{made.__name__}: {', '.join(sorted(known))}"
        )


def _seconds(text: str, shown: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= MAX_TIMEOUT:
        raise ConfigurationError(f"{shown}: timeout={text!r} must be seconds, more than 0 and at most {MAX_TIMEOUT:g}")
    return number


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"
