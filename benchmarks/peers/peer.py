"""What a peer must be able to do to be compared."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from importlib.metadata import version
from typing import Protocol

import msgspec

PAYLOAD = {"order_id": 10_000_001, "customer": "c-48121", "total": "129.90", "currency": "EUR", "lines": [1, 2, 3]}
BATCH = 1_000
SLOTS = 100
"""Jobs that may run side by side in one worker process, where that can be set."""

POSTGRESQL = ("durabus", "pgqueuer", "oban", "procrastinate", "dbos")
REDIS = ("durabus_redis", "streaq", "saq", "arq", "taskiq", "dramatiq", "celery", "rq")
"""Modules of this package; each has a ``PEER``."""
OLDER = frozenset({"arq", "saq"})
"""Peers that need an older redis-py, and so another environment."""

Turn = Callable[[], Awaitable[None]]


class Peer(Protocol):
    """A task queue to compare with. The runner makes every call in a process of its own."""

    package: str
    """The name of its distribution. The version of that goes into the table."""
    settings: str
    """What differs from its defaults, or is worth knowing beside its figures."""
    unfinished: str
    """SQL, or a script on Redis, that returns whether anything is left to do."""
    uvloop: bool
    """Whether its own worker command runs on uvloop."""
    slow: bool
    """Whether it runs a tenth of the jobs of the others, because it is slow."""
    batches: bool
    """Whether it can publish many in one call."""

    async def install(self, url: str) -> None:
        """Make its tables."""
        ...

    async def publish_single(self, url: str, count: int) -> float:
        """Publish one job after the other. Returns the seconds without those for connecting."""
        ...

    async def publish_batches(self, url: str, count: int) -> float:
        """Publish ``BATCH`` jobs in one call. Returns the seconds without those for connecting.

        A peer without such a call fills its queue.
        """
        ...

    async def drain(self, url: str, go: Turn, stop: Turn) -> int:
        """Call ``go`` once the worker is ready, then work until ``stop`` returns. Returns how many jobs ran."""
        ...


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a peer without running it."""

    version: str
    settings: str
    unfinished: str
    slow: bool
    batches: bool

    @classmethod
    def of(cls, one: Peer) -> About:
        return cls(
            version=version(one.package),
            settings=one.settings,
            unfinished=one.unfinished,
            slow=one.slow,
            batches=one.batches,
        )


def peer(name: str) -> Peer:
    found: Peer = import_module(f"benchmarks.peers.{name}").PEER
    return found
