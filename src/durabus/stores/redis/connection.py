"""The address in a ``redis://`` URL, connections to it, and the errors that the server's refusals become."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec
from redis.asyncio.connection import AbstractConnection, Connection
from redis.asyncio.connection import parse_url as parse_server_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    TryAgainError,
)

from durabus.errors import ConfigurationError, SchemaError, StoreError, StoreUnavailableError

DEFAULT_PREFIX = "durabus"
DEFAULT_TIMEOUT = 10.0
MAX_TIMEOUT = 3600.0
_PREFIX = re.compile(r"[A-Za-z0-9._:-]{1,64}")


class RedisAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed URL. ``timeout`` limits every call, including reconnects and repeats."""

    shown: str
    """The URL without its password, for messages."""
    options: dict[str, Any]
    """The options of redis-py's connection, including the class of the connection."""
    prefix: str = DEFAULT_PREFIX
    timeout: float = DEFAULT_TIMEOUT


def parse_url(url: str) -> RedisAddress:
    """Parse ``redis://[user:password@]host[:port][/database][?prefix=…&timeout=…]``; ``rediss://`` uses TLS.

    Other options are those of redis-py, such as ``ssl_ca_certs``.
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
    return RedisAddress(shown=shown, options=options, prefix=ours["prefix"], timeout=_seconds(ours["timeout"], shown))


def _check_names(options: dict[str, Any], shown: str) -> None:
    """Refuse options that the class of the connection does not know. It would report them only when it connects."""
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


MISSING_FUNCTION = "Function not found"
_PASSING = (AskError, BusyLoadingError, ClusterDownError, ReadOnlyError, TryAgainError)
_PASSING_TEXTS = ("BUSY ", "NOREPLICAS")


def is_passing(error: Exception) -> bool:
    """Return whether the same call may succeed a moment later: the server starts, fails over or moves slots."""
    return isinstance(error, _PASSING) or str(error).startswith(_PASSING_TEXTS)


def is_final(error: Exception) -> bool:
    """Return whether connecting again cannot help, because the server refuses this user."""
    return isinstance(error, AuthenticationError | NoPermissionError)


def moved_to(error: Exception) -> tuple[str, int] | None:
    """Return the address that a cluster node gives for the keys, if it gives one."""
    return (str(error.host), int(error.port)) if isinstance(error, MovedError) else None


def unreachable(shown: str, error: BaseException | None) -> StoreUnavailableError:
    """Return the error for a call that got no connection."""
    why = "" if error is None else f": {str(error) or type(error).__name__}"
    return StoreUnavailableError(f"no connection to {shown}{why}. Is the server running? Nothing was sent")


def unanswered(shown: str, seconds: float, error: BaseException | None) -> StoreUnavailableError:
    """Return the error for a call that was sent and got no reply."""
    why = f" ({error})" if error is not None and str(error) else ""
    return StoreUnavailableError(
        f"no answer from {shown} within {seconds:g} s{why}: the call may or may not have taken effect, repeating it "
        "is safe"
    )


def refused(shown: str, error: Exception) -> StoreError:
    """Return the error for a call that the server refused. The call changed nothing."""
    text = str(error)
    for meant, make in _REFUSALS:
        if text.startswith(meant) if isinstance(meant, str) else isinstance(error, meant):
            return make(shown, text)
    return StoreError(f"{shown} refused the call: {text}")


def _gone(shown: str, _text: str) -> StoreError:
    return SchemaError(
        f"the data of this store on {shown} are gone (flushed, evicted, or restarted without persistence): "
        "accepted events are lost. Open the store again to begin with an empty one"
    )


def _other_schema(shown: str, text: str) -> StoreError:
    found = text.removeprefix("DURABUSSCHEMA ")
    return SchemaError(f"the store on {shown} has schema {found}, which this version of durabus does not work with")


def _login_refused(shown: str, text: str) -> StoreError:
    return StoreError(f"{shown} does not accept the user or password of the URL: {text}")


def _forbidden(shown: str, text: str) -> StoreError:
    return StoreError(
        f"the user of {shown} lacks a right (it needs FCALL, FUNCTION LOAD, its keys and channels): {text}"
    )


def _full(shown: str, text: str) -> StoreError:
    return StoreUnavailableError(
        f"{shown} is out of memory and wrote nothing: raise maxmemory, trim history or purge dead letters ({text})"
    )


def _replica(shown: str, _text: str) -> StoreError:
    return StoreUnavailableError(f"{shown} is a read-only replica and wrote nothing: give the address of the primary")


def _loading(shown: str, _text: str) -> StoreError:
    return StoreUnavailableError(f"{shown} still loads its data and wrote nothing: try again later")


def _no_disk(shown: str, text: str) -> StoreError:
    return StoreUnavailableError(f"{shown} cannot write to its disk and wrote nothing: {text}")


def _wrong_type(shown: str, text: str) -> StoreError:
    return SchemaError(f"a key of the store on {shown} is not of the type that durabus gave it: {text}")


def _foreign_entry(shown: str, text: str) -> StoreError:
    return SchemaError(
        f"another program wrote to the event_log stream of the store on {shown}, and Redis refuses new entries: "
        f"XDEL the foreign entries, and set position in meta to the number of the last one ({text})"
    )


def _too_old(shown: str, text: str) -> StoreError:
    return SchemaError(f"{shown} has no functions: durabus needs Redis 7.0 or newer, or Valkey ({text})")


def _not_now(shown: str, text: str) -> StoreError:
    return StoreUnavailableError(f"{shown} cannot serve this now and wrote nothing: {text}")


_REFUSALS: list[tuple[type[Exception] | tuple[type[Exception], ...] | str, Callable[[str, str], StoreError]]] = [
    ("DURABUSGONE", _gone),
    ("DURABUSSCHEMA", _other_schema),
    (AuthenticationError, _login_refused),
    (NoPermissionError, _forbidden),
    (OutOfMemoryError, _full),
    (ReadOnlyError, _replica),
    (BusyLoadingError, _loading),
    ("MISCONF", _no_disk),
    ("WRONGTYPE", _wrong_type),
    ("The ID specified in XADD", _foreign_entry),
    ("unknown command", _too_old),
    ("NOREPLICAS", _not_now),
    ("BUSY ", _not_now),
    (_PASSING, _not_now),
]


CLIENT_NAME = "durabus"


class Connector:
    """Connects to the server that holds the keys. On a cluster it may not be the node that the URL names."""

    def __init__(self, address: RedisAddress) -> None:
        self.address = address
        self._moved: tuple[str, int] | None = None

    def follow(self, place: tuple[str, int]) -> None:
        """Connect to ``place`` from now on. An empty host means the present host."""
        host = place[0] or self.address.options.get("host", "localhost")
        self._moved = (host, place[1])

    async def connect(self) -> AbstractConnection:
        """Return a new connection, ready for commands. Raises ``RedisError`` or ``OSError``."""
        options = dict(self.address.options)
        make: type[AbstractConnection] = options.pop("connection_class", Connection)
        if self._moved is not None:
            options["host"], options["port"] = self._moved
        connection = make(
            **{"client_name": CLIENT_NAME, "socket_keepalive": True, **options},
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=None,
        )
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
        except (RedisError, OSError):
            # The node that the keys moved to may be gone: the next connection goes to the URL again.
            self._moved = None
            raise
        return connection


async def disconnect(connection: AbstractConnection | None) -> None:
    """Close a connection, whatever its state."""
    if connection is not None:
        await asyncio.shield(connection.disconnect(nowait=True))


def command(*parts: str | bytes | int) -> bytes:
    """Encode a command for the Redis protocol."""
    given = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"*%d\r\n" % len(given) + arguments(given)


def arguments(parts: Iterable[bytes]) -> bytes:
    """Encode arguments for the Redis protocol."""
    return b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


async def ask(connection: AbstractConnection, *parts: str | bytes | int) -> Any:
    """Send one command and return its reply. Raises ``RedisError``."""
    await connection.send_packed_command([command(*parts)], check_health=False)
    return await connection.read_response()
