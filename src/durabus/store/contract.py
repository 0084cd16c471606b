"""The whole contract in one name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from durabus.store.claims import Claims
from durabus.store.dead_letters import DeadLetters
from durabus.store.events import Events
from durabus.store.features import Features
from durabus.store.locks import Locks
from durabus.store.log import Log
from durabus.store.processes import Processes
from durabus.store.registrations import Registrations
from durabus.store.results import Results


class EventStore(Registrations, Events, Claims, Results, Locks, Processes, Log, DeadLetters, Protocol):
    """Everything a bus needs from a store.

    Calls take batches: one item is a batch of one, and an empty batch returns an empty list. Every call is safe to
    repeat with the same arguments after a lost reply: it either takes effect once, or returns what the first call
    returned. Only the store's own clock judges leases: callers send durations, never instants.
    """

    features: Features

    async def open(self) -> None:
        """Connect, install or upgrade the schema, verify it. Raises ``SchemaError`` if it is newer or damaged."""
        ...

    async def close(self) -> None:
        """Finish the calls that were accepted, then release every resource.

        A repeat does nothing. Any other call afterwards raises ``StoreClosedError``.
        """
        ...

    async def verify(self) -> None:
        """Check that the schema is exactly the one this version works with. Raises ``SchemaError``."""
        ...

    async def now(self) -> float:
        """Return the present time by the store's clock."""
        ...

    async def wait_for_work(self, bus: str, *, timeout: float) -> bool:  # noqa: ASYNC109  (at its end it returns False)
        """Wait until ``bus`` may have something to claim, at most ``timeout`` seconds. False if no hint came.

        The call returns at once if there is something to claim already. A hint may come too early, for nothing, or not
        at all: if every hint is lost, only latency suffers. A hint also comes when an event of ``bus`` becomes due or
        its lease ends, if this store object knows of the event.
        """
        ...

    async def wait_for_ends(self, node: str, *, timeout: float) -> bool:  # noqa: ASYNC109  (at its end it returns False)
        """Wait until an event that ``node`` waits for may have ended, at most ``timeout`` seconds.

        Returns False if no hint came. A hint comes from ``tell_ends``, in whichever process. It may come too early, for
        nothing, or not at all. A store object that cannot hear hints returns sooner, so that the caller looks itself.
        """
        ...

    async def tell_ends(self, nodes: Sequence[str]) -> None:
        """Wake the callers of ``wait_for_ends`` on these nodes: events that they wait for have ended.

        The caller has settled these events before. Nothing is stored.
        """
        ...
