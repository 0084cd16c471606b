"""Checks of a store and its server, for ``durabus doctor``: settings that lose events, and settings that may."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from durabus.errors import UnsupportedByStore
from durabus.store.connect import make_store

CHECKS = {
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
    """One problem or note about a store or its server."""

    level: Level
    """``error``: the store loses events or stops work. ``warning``: it may do so. ``note``: worth knowing."""
    setting: str
    value: str
    advice: str
    """What the setting leads to, and what to do about it."""


async def examine(url: str) -> list[Finding]:
    """Check the store behind ``url`` and return the findings, errors first. The list is empty if all is well.

    The checks change nothing in the store. Raises ``StoreError`` if the store cannot be reached.
    """
    make_store(url)  # refuses a URL that no store can be opened with
    scheme = urlsplit(url).scheme
    if scheme not in CHECKS:
        raise UnsupportedByStore(f"no checks for {scheme}:// stores: there are checks for {', '.join(CHECKS)}")
    look: Callable[[str], Awaitable[list[Finding]]] = import_module(CHECKS[scheme]).examine
    order: tuple[Level, ...] = ("error", "warning", "note")
    return sorted(await look(url), key=lambda finding: order.index(finding.level))
