"""The fold of a log keeps the contract, on a log that is in memory."""

from pathlib import Path
from typing import ClassVar

from tests.fold.simulated_log import SimulatedLog
from tests.fold.simulated_store import simulated_store

from durabus.clock import ManualClock
from durabus.conformance import StoreConformance
from durabus.store.contract import EventStore


class TestFoldStore(StoreConformance):
    logs: ClassVar[dict[Path, SimulatedLog]] = {}

    async def open_store(self, place: Path, clock: ManualClock) -> EventStore:
        store = simulated_store(self.logs.setdefault(place, SimulatedLog(clock)), clock=clock)
        await store.open()
        return store

    async def forget(self, place: Path) -> None:
        del self.logs[place]
