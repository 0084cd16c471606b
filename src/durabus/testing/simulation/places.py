"""Where the events of a run are kept, and the ways there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Container

from durabus.store.connect import make_store
from durabus.store.contract import EventStore
from durabus.testing.simulation.host import Host
from durabus.testing.simulation.loop import VirtualLoop
from durabus.testing.simulation.network import Network, remote_store
from durabus.testing.simulation.scenario import Scenario
from durabus.testing.simulation.world import WorldClock


class StorePlace(ABC):
    """A store as a simulated fleet sees it: at the other end of a network."""

    def __init__(self, network: Network) -> None:
        self._network = network

    @property
    def fired(self) -> Counter[str]:
        """How often each fault happened."""
        return self._network.fired

    @abstractmethod
    def store_for(self, host: Host) -> EventStore:
        """What a process holds of it; not opened."""

    @abstractmethod
    def auditor(self) -> EventStore:
        """Straight to the store, past all faults: for the director."""

    def restart_server(self, seconds: float) -> None:
        """Crash the server, and start it again."""
        self._network.restart_server(seconds)

    def cut_off(self, host: Host, seconds: float) -> None:
        """Cut the ways between one process and the server."""
        self._network.cut_off(host, seconds)

    def heal(self) -> None:
        """No more faults."""
        self._network.heal()

    def close(self) -> None:  # noqa: B027  (most have nothing to put away)
        """The run is over."""


MakePlace = Callable[[VirtualLoop, Scenario], StorePlace]


def network_to(
    server: object, loop: VirtualLoop, scenario: Scenario, *, waits: Container[str], part: float = 1.0
) -> Network:
    """With the faults of a scenario, which befall ``part`` of the calls that it names."""
    return Network(
        loop,
        server,
        seed=scenario.seed,
        faults=frozenset(scenario.faults),
        often=scenario.often * part,
        lease=scenario.lease,
        waits=waits,
    )


class ServerPlace(StorePlace):
    """One store object, which stands for a server: it outlives the processes that use it."""

    def __init__(self, server: EventStore, loop: VirtualLoop, scenario: Scenario, *, waits: Container[str]) -> None:
        super().__init__(network_to(server, loop, scenario, waits=waits))
        self._server = server

    def store_for(self, host: Host) -> EventStore:  # noqa: ARG002  (all hosts are equal to it)
        """See ``StorePlace``."""
        return remote_store(self._network, self._server.features)

    def auditor(self) -> EventStore:
        """See ``StorePlace``."""
        return self._server


class MemoryPlace(ServerPlace):
    """The memory store."""

    def __init__(self, loop: VirtualLoop, scenario: Scenario) -> None:
        server = make_store("memory://", clock=WorldClock(loop))
        super().__init__(server, loop, scenario, waits=frozenset({"wait_for_work"}))
