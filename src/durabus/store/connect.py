"""Open a store by its URL. The module of a store is imported only when its scheme is used."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from urllib.parse import urlsplit

from durabus.clock import Clock
from durabus.errors import UnknownStoreError
from durabus.store.contract import EventStore

BACKENDS = {
    "kafka": "durabus.stores.kafka.store:KafkaStore",
    "memory": "durabus.stores.memory.store:MemoryStore",
    "nats": "durabus.stores.nats.store:NatsStore",
    "postgresql": "durabus.stores.postgresql.store:PostgreSQLStore",
    "redis": "durabus.stores.redis.store:RedisStore",
    "rediss": "durabus.stores.redis.store:RedisStore",
    "sharded": "durabus.stores.sharded.store:ShardedStore",
    "sqlite": "durabus.stores.sqlite.store:SQLiteStore",
}
EXTRAS = {"kafka": "kafka", "nats": "nats", "postgresql": "postgres", "redis": "redis", "rediss": "redis"}
ENTRY_POINTS = "durabus.stores"
STORE_VARIABLE = "DURABUS_STORE"
DEFAULT_URL = "sqlite:///durabus.db"


def default_url() -> str:
    """Return the URL for a caller that names no store: ``DURABUS_STORE``, or else a SQLite file in the working folder.

    The memory store is never the default, because it loses acknowledged events when the process ends.
    """
    return os.environ.get(STORE_VARIABLE) or DEFAULT_URL


async def open_store(url: str | None = None, *, clock: Clock | None = None) -> EventStore:
    """Open the store behind ``url``: ``memory://``, ``sqlite:///path/to/file.db`` (four slashes: absolute path),
    ``postgresql://``, ``redis://``, ``nats://``, ``kafka://``, or ``sharded://`` with several of them.

    Without a ``url``, the environment variable ``DURABUS_STORE`` names the store, or else it is
    ``sqlite:///durabus.db``. ``clock`` is for tests, on stores that declare ``manual_clock``.
    """
    store = make_store(url, clock=clock)
    await store.open()
    return store


def make_store(url: str | None = None, *, clock: Clock | None = None) -> EventStore:
    """Return the store object for ``url``. It is not open yet."""
    url = default_url() if url is None else url
    scheme = urlsplit(url).scheme
    factory = _factory(scheme, url)
    return factory(url) if clock is None else factory(url, clock)


def _factory(scheme: str, url: str) -> Callable[..., EventStore]:
    if scheme in BACKENDS:
        module, name = BACKENDS[scheme].split(":")
        try:
            found: Callable[..., EventStore] = getattr(import_module(module), name).from_url
        except ModuleNotFoundError as error:
            if scheme not in EXTRAS or (error.name or "").startswith("durabus"):
                raise
            extra = f"pip install 'durabus[{EXTRAS[scheme]}]'"
            raise UnknownStoreError(
                f"{scheme}:// needs the package {error.name}, which is not installed: {extra}"
            ) from error
        return found
    from importlib.metadata import entry_points  # noqa: PLC0415  (it takes longer to import than a store)

    third_party = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
    if scheme in third_party:
        loaded: Callable[..., EventStore] = third_party[scheme].load()
        return loaded
    known = ", ".join(f"{name}://" for name in sorted({*BACKENDS, *third_party}))
    shown = f"{scheme}://" if scheme else repr(url)
    raise UnknownStoreError(f"no store for {shown}: known are {known} (add one as an entry point of {ENTRY_POINTS!r})")
