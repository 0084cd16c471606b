"""Parses ``postgresql://user:password@host:port/database?schema=durabus`` and its options."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import msgspec

from durabus.errors import ConfigurationError

DEFAULT_SCHEMA = "durabus"
DEFAULT_POOL = 8
MAX_POOL = 1000
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_SSL = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_OPTIONS = ("application_name", "connect_timeout", "listen", "pool", "pooler", "schema", "sslmode", "sslrootcert")


class PostgreSQLAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The server, the schema of the store, and the options of its connections."""

    host: str
    port: int
    database: str
    user: str | None = None
    password: str | None = None
    schema: str = DEFAULT_SCHEMA
    pool: int = DEFAULT_POOL
    """Maximum number of connections of one store object, beside those of its own thread."""
    listen: bool = True
    """Whether LISTEN/NOTIFY wakes workers."""
    prepared: bool = True
    """Whether each connection prepares its statements once. A pooler that changes connections forbids it."""
    application_name: str = "durabus"
    connect_timeout: float = 10.0
    sslmode: str | None = None
    sslrootcert: str | None = None

    def __repr__(self) -> str:
        return self.shown

    @property
    def shown(self) -> str:
        """The address for messages, without the password."""
        user = "" if self.user is None else f"{quote(self.user)}@"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"postgresql://{user}{host}:{self.port}/{quote(self.database)} (schema {self.schema})"

    @property
    def channel(self) -> str:
        """The NOTIFY channel of the schema."""
        return f"durabus:{self.schema}"


def parse_url(url: str) -> PostgreSQLAddress:
    """Return the address that a URL names. Raises for an unknown option. No message shows the URL and its password."""
    parts = urlsplit(url)
    try:
        port = parts.port or 5432
    except ValueError as error:
        raise ConfigurationError("postgresql: the port must be a number from 1 to 65535") from error
    database = unquote(parts.path[1:])
    if not parts.hostname or not database or "/" in database or parts.fragment:
        raise ConfigurationError(
            "postgresql: write postgresql://user:password@host:5432/database, with %-escapes for special characters"
        )
    given = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(given)
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown or len(options) != len(given):
        which = f"no such option {unknown}" if unknown else "an option is given twice"
        raise ConfigurationError(f"postgresql: {which}; there are {', '.join(_OPTIONS)}")
    pooler = _switch(options, "pooler", default=False)
    return PostgreSQLAddress(
        host=parts.hostname,
        port=port,
        database=database,
        user=None if parts.username is None else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
        listen=_switch(options, "listen", default=not pooler),
        prepared=not pooler,
        **_checked(options),
    )


def _checked(options: dict[str, str]) -> dict[str, Any]:
    schema = options.get("schema", DEFAULT_SCHEMA)
    if not _SCHEMA.fullmatch(schema):
        raise ConfigurationError(
            f"postgresql: schema={schema!r}: must be 1 to 48 lower-case letters, digits and underscores, "
            "and begin with a letter or underscore"
        )
    sslmode = options.get("sslmode")
    if sslmode is not None and sslmode not in _SSL:
        raise ConfigurationError(f"postgresql: sslmode={sslmode!r}: must be one of {', '.join(_SSL)}")
    pool = options.get("pool", str(DEFAULT_POOL))
    if not pool.isdecimal() or not 1 <= int(pool) <= MAX_POOL:
        raise ConfigurationError(f"postgresql: pool={pool!r}: must be a whole number from 1 to {MAX_POOL}")
    timeout = options.get("connect_timeout", "10")
    if not timeout.isdecimal() or int(timeout) < 1:
        raise ConfigurationError(f"postgresql: connect_timeout={timeout!r}: must be whole seconds, 1 or more")
    return {
        "schema": schema,
        "pool": int(pool),
        "connect_timeout": float(timeout),
        "application_name": options.get("application_name", "durabus"),
        "sslmode": sslmode,
        "sslrootcert": options.get("sslrootcert"),
    }


def _switch(options: dict[str, str], name: str, *, default: bool) -> bool:
    value = options.get(name)
    if value is None:
        return default
    if value not in ("on", "off"):
        raise ConfigurationError(f"postgresql: {name}={value!r}: must be on or off")
    return value == "on"
