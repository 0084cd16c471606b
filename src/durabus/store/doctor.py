"""What the operator of a store should know about it: settings that lose events, and those that may."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from durabus.errors import UnsupportedByStore
from durabus.store.connect import make_store

DOCTORS = {
    "kafka": "durabus.stores.kafka.checks",
    "memory": "durabus.stores.memory.guarantees",
    "nats": "durabus.stores.nats.checks",
    "postgresql": "durabus.stores.postgresql.checks",
    "redis": "durabus.stores.redis.checks",
    "rediss": "durabus.stores.redis.checks",
    "sharded": "durabus.stores.sharded.guarantees",
    "sqlite": "durabus.stores.sqlite.checks",
}

Level = Literal["error", "warning", "note"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing about a store or its server."""

    level: Level
    """``error`` loses events or stops work, ``warning`` may do so, ``note`` is good to know."""
    setting: str
    value: str
    advice: str
    """What follows from it, and what to do."""


async def examine(url: str) -> list[Finding]:
    """What there is to say about the store behind ``url``; empty if all is well. Changes nothing there.

    Raises ``StoreError`` if it cannot be reached.
    """
    make_store(url)  # refuses what no store could be opened by
    scheme = urlsplit(url).scheme
    if scheme not in DOCTORS:
        raise UnsupportedByStore(f"no doctor for {scheme}:// stores: known are {', '.join(DOCTORS)}")
    look: Callable[[str], Awaitable[list[Finding]]] = import_module(DOCTORS[scheme]).examine
    order: tuple[Level, ...] = ("error", "warning", "note")
    return sorted(await look(url), key=lambda finding: order.index(finding.level))
