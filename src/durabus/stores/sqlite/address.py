"""Parses ``sqlite:///relative.db`` and ``sqlite:////absolute.db``, with options behind a question mark."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from durabus.errors import ConfigurationError

_SYNCHRONOUS = ("full", "normal")


class SQLiteAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The path of the file, and how a commit is written to the disk."""

    path: Path
    synchronous: str = "full"
    """``full``: a commit is on the disk when it returns. ``normal``: it survives kill -9, maybe not a power cut."""

    def __post_init__(self) -> None:
        """Refuse an option or a path that SQLite would read differently than the user meant."""
        if self.synchronous not in _SYNCHRONOUS:
            raise ConfigurationError(
                f"synchronous={self.synchronous!r}: must be 'full' (survives a power cut) "
                "or 'normal' (survives kill -9)"
            )
        if "\0" in str(self.path):
            raise ConfigurationError(f"{str(self.path)!r}: the name of a file cannot contain a NUL character")
        if str(self.path) in ("", ".", ":memory:"):
            raise ConfigurationError(
                "sqlite needs a file (sqlite:///app.db, or sqlite:////var/lib/app.db for an absolute path); "
                "for a store without a file use memory://"
            )


def parse_url(url: str) -> SQLiteAddress:
    """Return the address that a URL names. Raises for an unknown option."""
    parts = urlsplit(url)
    if parts.netloc == ":memory:":
        return SQLiteAddress(path=Path(parts.netloc))
    if parts.netloc or parts.fragment or "://" not in url:
        raise ConfigurationError(
            f"{url!r}: write sqlite:///app.db for a relative path, sqlite:////var/lib/app.db for an absolute one"
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    synchronous = options.pop("synchronous", "full")
    if options:
        raise ConfigurationError(f"{url!r}: no such option {sorted(options)}; sqlite has only synchronous=full|normal")
    return SQLiteAddress(path=Path(unquote(parts.path[1:])), synchronous=synchronous.lower())
