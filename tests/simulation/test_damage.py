"""The replicated log on a broker with a damaged copy of a record: the node that reads it stops, the others go on."""

import asyncio

import pytest
from tests.replicated_log.pictures import pictures
from tests.simulation.judge import scenario_of
from tests.simulation.replicated_log_place import ReplicatedLogPlace

from durabus import new_event
from durabus.errors import DamagedLogError
from durabus.stores.replicated_log.store import ReplicatedLogStore
from durabus.testing.simulation.loop import VirtualLoop
from durabus.testing.simulation.world import world


@pytest.mark.parametrize("seed", [10, 20, 30])
@pytest.mark.parametrize("lane", ["control", "public"])
def test_a_node_that_reads_a_damaged_copy_stops_and_does_not_diverge(seed: int, lane: str) -> None:
    loop = VirtualLoop(seed)
    place = ReplicatedLogPlace(loop, scenario_of(seed, "replicated_log"))

    async def open_store() -> ReplicatedLogStore:
        store = place.auditor()
        assert isinstance(store, ReplicatedLogStore)
        await store.open()
        return store

    async def write(store: ReplicatedLogStore) -> None:
        await (store.stop_bus("b") if lane == "control" else store.add_events([new_event("t")]))

    async def main() -> None:
        stores = [await open_store() for _ in range(3)]
        await asyncio.gather(*map(write, stores))
        place.broker.damages = 1
        told = await asyncio.gather(*map(write, stores), return_exceptions=True)
        place.broker.damages = 0
        told = await asyncio.gather(*map(write, stores), return_exceptions=True)
        (stopped,) = [n for n, error in enumerate(told) if error is not None]
        assert isinstance(told[stopped], DamagedLogError)
        sound = [store for n, store in enumerate(stores) if n != stopped]
        first, second, late = await pictures(*sound, await open_store())
        assert first == second == late
        for store in stores:
            await store.close()

    with world(loop, seed):
        loop.run(main())
