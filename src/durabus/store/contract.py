"""The whole contract in one name."""

from __future__ import annotations

from typing import Protocol

from durabus.store.claims import Claims
from durabus.store.dead_letters import DeadLetters
from durabus.store.events import Events
from durabus.store.features import Features
from durabus.store.locks import Locks
from durabus.store.log import Log
from durabus.store.registrations import Registrations
from durabus.store.results import Results


class EventStore(Registrations, Events, Claims, Results, Locks, Log, DeadLetters, Protocol):
    """Everything a bus needs from a store. Batch first: one is a batch of one; an empty batch is answered empty.

    Every call is safe to repeat with the same arguments after a lost reply: it either takes effect once, or answers
    as the first time did. Leases are judged by the store's own clock; durations cross the wire, instants do not.
    """

    features: Features

    async def open(self) -> None:
        """Connect, install or upgrade the schema, verify it. Raises ``SchemaError`` on a newer or damaged one."""
        ...

    async def close(self) -> None:
        """Finish what was accepted, then let go of everything. Repeatable; other calls raise ``StoreClosedError``."""
        ...

    async def verify(self) -> None:
        """Check that the schema is exactly the one this version works with. Raises ``SchemaError``."""
        ...

    async def now(self) -> float:
        """The store's clock."""
        ...

    async def wait_for_work(self, bus: str, *, timeout: float) -> bool:  # noqa: ASYNC109  (it answers, it does not raise)
        """Wait until ``bus`` may have something to claim, at most ``timeout`` seconds; False if nothing was heard.

        What is there already ends the wait at once. A hint: it may come too early, for nothing, or not at all; with all
        hints lost only latency changes. It also comes when an event of ``bus`` becomes due or its lease ends, if this
        store object knows of it.
        """
        ...
