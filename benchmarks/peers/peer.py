"""What a peer must be able to do to be compared."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Protocol

PAYLOAD = {"order_id": 10_000_001, "customer": "c-48121", "total": "129.90", "currency": "EUR", "lines": [1, 2, 3]}
BATCH = 1_000
SLOTS = 100
"""Jobs that may run side by side in one worker process, where that can be set."""

NAMES = ("durabus", "pgqueuer", "oban", "procrastinate", "dbos")
"""Modules of this package; each has a ``PEER``."""


class Peer(Protocol):
    """Every call is made in a process of its own."""

    package: str
    """As it is installed; its version goes into the table."""
    settings: str
    """What differs from its defaults, or is worth knowing beside its figures."""
    unfinished: str
    """SQL that answers whether anything is left to do."""
    uvloop: bool
    """Whether its own worker command runs on uvloop."""
    slow: bool
    """Takes a tenth of the jobs of the others, to be done today."""
    batches: bool
    """Whether it can publish many in one call."""

    async def install(self, url: str) -> None:
        """Make its tables."""
        ...

    async def publish_single(self, url: str, count: int) -> float:
        """One call after the other; answers seconds, connecting left out."""
        ...

    async def publish_batches(self, url: str, count: int) -> float:
        """``BATCH`` in one call; answers seconds, connecting left out. A peer without such a call fills its queue."""
        ...

    async def drain(self, url: str, go: Callable[[], Awaitable[None]], stop: Callable[[], Awaitable[None]]) -> int:
        """Call ``go`` when all is set up but for the start, work until ``stop`` returns; answers how many jobs ran."""
        ...


def peer(name: str) -> Peer:
    found: Peer = import_module(f"benchmarks.peers.{name}").PEER
    return found
