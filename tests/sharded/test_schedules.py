"""Schedules on shards: ids have no order across them, and no step covers a tick and the next state together."""

import asyncio
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from durabus import UnsupportedByStore, open_store
from durabus.model.query import EventQuery
from durabus.schedules.reading import LIVE
from durabus.schedules.schedule import state_bus
from durabus.schedules.scheduler import Scheduler
from durabus.schedules.schedules import Schedules

BUS = "default"


def url(folder: Path) -> str:
    return f"sharded://memory://|sqlite:///{folder}/1.db|memory://"


async def test_changes_find_the_newest_state(tmp_path: Path) -> None:
    store = await open_store(url(tmp_path))
    schedules = Schedules(store, BUS)
    for number in range(20):
        made = await schedules.put("s", 3_600.0 + number, "job")
        assert made.number == 3 * number + 1
        assert (await schedules.pause("s")).number == 3 * number + 2
        assert await schedules.delete("s")
        assert await schedules.get("s") is None
    numbers = [one.number for one in await schedules.history("s")]
    assert numbers == list(range(60, 0, -1))
    assert (await store.find(EventQuery(bus=state_bus(BUS), statuses=LIVE))).events == []
    with pytest.raises(UnsupportedByStore, match="overlap='queue'"):
        await schedules.put("s", 60.0, "job", overlap="queue")
    await store.close()


async def test_every_slot_has_one_tick(tmp_path: Path) -> None:
    store = await open_store(url(tmp_path))
    schedules, nodes = Schedules(store, BUS), [Scheduler(store, BUS), Scheduler(store, BUS)]
    await schedules.put("s", 0.1, "job", overlap="parallel", catch_up="all")
    for node in nodes:
        node.start()
    while len((await store.find(EventQuery(bus=BUS, type="job"))).events) < 15:  # noqa: ASYNC110  (a store has no event)
        await asyncio.sleep(0.05)
    assert await schedules.delete("s")
    for node in nodes:
        await node.stop(1.0)
    found = (await store.find(EventQuery(bus=BUS, type="job"))).events
    slots = sorted(datetime.fromisoformat(one.metadata["schedule_slot"]).timestamp() for one in found)
    assert {round((later - earlier) * 1000) for earlier, later in pairwise(slots)} == {100}
    await store.close()
