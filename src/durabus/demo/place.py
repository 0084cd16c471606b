"""The store of the demo: a SQLite file, or a server that the demo starts."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from durabus.testing.servers.known import make_server

StoreKind = Literal["sqlite", "postgresql", "redis", "nats", "kafka"]

TITLES: dict[StoreKind, str] = {
    "sqlite": "SQLite",
    "postgresql": "PostgreSQL",
    "redis": "Redis",
    "nats": "NATS",
    "kafka": "Kafka",
}


@contextmanager
def store_in(folder: Path, kind: StoreKind) -> Iterator[str]:
    """Yields the URL of a new store in ``folder``. If it needs a server, that runs until the context ends."""
    if kind == "sqlite":
        yield _sqlite_url(folder)
        return
    # This blocks the event loop for a second, so that Ctrl-C waits until there is a server to stop.
    with make_server(kind, folder / kind) as server:
        yield server.url


def how_to_look(folder: Path, kind: StoreKind) -> str:
    """The command that opens the store in a kept folder."""
    if kind == "sqlite":
        return f"durabus dlq list --store {_sqlite_url(folder)}"
    return f"durabus dev up {kind} --data-dir {shlex.quote(str(folder / kind))}"


def _sqlite_url(folder: Path) -> str:
    return f"sqlite:///{quote(str(folder))}/shop.db"
