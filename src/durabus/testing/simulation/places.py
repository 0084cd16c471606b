"""Where the events of a run are kept, and the ways there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from durabus.store.connect import make_store
from durabus.store.contract import EventStore
from durabus.testing.simulation.host import Host
from durabus.testing.simulation.loop import VirtualLoop
from durabus.testing.simulation.network import Network, remote_store
from durabus.testing.simulation.scenario import Scenario
from durabus.testing.simulation.world import WorldClock


class Place(Protocol):
    """A store as a simulated fleet sees it."""

    @property
    def fired(self) -> Counter[str]:
        """How often each fault happened."""
        ...

    def store_for(self, host: Host) -> EventStore:
        """What a process holds of it; not opened."""
        ...

    def auditor(self) -> EventStore:
        """Straight to the store, past all faults: for the director."""
        ...

    def restart_server(self, seconds: float) -> None:
        """Crash the server, and start it again."""
        ...

    def heal(self) -> None:
        """No more faults."""
        ...

    def close(self) -> None:
        """The run is over."""
        ...


MakePlace = Callable[[VirtualLoop, Scenario], Place]


class MemoryPlace:
    """The memory store behind a network. It outlives its processes here, as a server does."""

    def __init__(self, loop: VirtualLoop, scenario: Scenario) -> None:
        self._server = make_store("memory://", clock=WorldClock(loop))
        self._network = Network(
            loop,
            self._server,
            seed=scenario.seed,
            faults=frozenset(scenario.faults),
            often=scenario.often,
            lease=scenario.lease,
            waits=frozenset({"wait_for_work"}),
        )

    @property
    def fired(self) -> Counter[str]:
        """See ``Place``."""
        return self._network.fired

    def store_for(self, host: Host) -> EventStore:  # noqa: ARG002  (all hosts are equal to it)
        """See ``Place``."""
        return remote_store(self._network, self._server.features)

    def auditor(self) -> EventStore:
        """See ``Place``."""
        return self._server

    def restart_server(self, seconds: float) -> None:
        """See ``Place``."""
        self._network.restart_server(seconds)

    def heal(self) -> None:
        """See ``Place``."""
        self._network.heal()

    def close(self) -> None:
        """See ``Place``."""
