"""A fresh store of each kind for a test that must hold on all of them."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from durabus import EventStore

SHARED = ("sqlite", "postgresql", "redis", "nats", "kafka")
"""Stores that several processes share."""
EVERYWHERE = ("memory", *SHARED)


def fresh_url(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """Return the URL of an empty store. Servers start once a run; a test has its own database, prefix or file there."""
    match kind:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{folder / 'bus.db'}"
        case "postgresql":
            return str(request.getfixturevalue("postgresql_store_url"))
        case "kafka":
            return f"{request.getfixturevalue('kafka_url')}?prefix={request.getfixturevalue('kafka_prefixes').take()}"
    return f"{request.getfixturevalue(f'{kind}_url')}?prefix=t{uuid4().hex}"


def lasting_url(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """Return a URL as ``fresh_url`` does, for several tests. On PostgreSQL it names a schema, not a database."""
    if kind == "postgresql":
        return f"{request.getfixturevalue('postgresql_url')}?schema=t{uuid4().hex}"
    return fresh_url(kind, request, folder)


def short_lease(store: EventStore) -> float:
    """Return a lease that ends soon, but not before this store can renew it on a busy machine."""
    return max(0.5, 1.2 * store.features.minimum_lease)
