"""The store of a run, and how the processes of the fleet reach it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Container

from msgspec.structs import replace

from durabus.store.connect import make_store
from durabus.store.contract import EventStore
from durabus.store.features import Features
from durabus.store.processes import RENEWED_EVERY
from durabus.testing.simulation.loop import VirtualLoop
from durabus.testing.simulation.network import Network, remote_store
from durabus.testing.simulation.processes import Host
from durabus.testing.simulation.scenario import Scenario
from durabus.testing.simulation.world import WorldClock


class StorePlace(ABC):
    """A store as a simulated fleet sees it: at the other end of a network."""

    def __init__(self, network: Network) -> None:
        self._network = network

    @property
    def fired(self) -> Counter[str]:
        """The number of times that each fault has happened."""
        return self._network.fired

    @abstractmethod
    def store_for(self, host: Host) -> EventStore:
        """Return the store object of a process. It is not open yet."""

    @abstractmethod
    def auditor(self) -> EventStore:
        """Return a store object without faults, for the director."""

    def restart_server(self, seconds: float) -> None:
        """Crash the server, and start it again."""
        self._network.restart_server(seconds)

    def cut_off(self, host: Host, seconds: float) -> None:
        """Cut one process off from the server."""
        self._network.cut_off(host, seconds)

    def heal(self) -> None:
        """End all faults."""
        self._network.heal()

    def close(self) -> None:  # noqa: B027  (most places have nothing to release)
        """Release what the run used."""


MakePlace = Callable[[VirtualLoop, Scenario], StorePlace]


def network_to(
    server: object, loop: VirtualLoop, scenario: Scenario, *, waits: Container[str], part: float = 1.0
) -> Network:
    """Return a network with the faults of a scenario, for ``part`` of the calls that the scenario would disturb."""
    return Network(
        loop,
        server,
        seed=scenario.seed,
        faults=frozenset(scenario.faults),
        often=scenario.often * part,
        lease=scenario.lease,
        waits=waits,
    )


def with_presence(features: Features, scenario: Scenario) -> Features:
    """Return the features of a store that sees the end of processes, if the scenario has that."""
    return (
        replace(features, sees_ended_processes=True, presence_renewed_every=RENEWED_EVERY)
        if scenario.presence
        else features
    )


class ServerPlace(StorePlace):
    """One store object that plays the server. It outlives the processes that use it."""

    def __init__(self, server: EventStore, loop: VirtualLoop, scenario: Scenario, *, waits: Container[str]) -> None:
        super().__init__(network_to(server, loop, scenario, waits=waits))
        self._server = server

    def store_for(self, host: Host) -> EventStore:  # noqa: ARG002  (all hosts get the same)
        """See ``StorePlace``."""
        return remote_store(self._network, self._server.features)

    def auditor(self) -> EventStore:
        """See ``StorePlace``."""
        return self._server


class MemoryPlace(ServerPlace):
    """The memory store as the server."""

    def __init__(self, loop: VirtualLoop, scenario: Scenario) -> None:
        server = make_store("memory://", clock=WorldClock(loop))
        server.features = with_presence(server.features, scenario)
        super().__init__(server, loop, scenario, waits=frozenset({"wait_for_work"}))
