"""What it costs to cancel an event together with its descendants."""

from collections import Counter
from typing import Any, cast

import pytest

from durabus import EventStatus, EventStore, new_event
from durabus.stores.memory.store import MemoryStore
from durabus.worker.cancelling import cancel_events

CALLS_FOR_EACH_PART = 3
"""One call finds a part of the children, one cancels them, and one looks for their children."""
PART = 500


class Counted:
    """A store that counts its calls."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)

        async def counted(*args: Any, **options: Any) -> Any:
            self.calls[name] += 1
            return await found(*args, **options)

        return counted if callable(found) else found


@pytest.mark.parametrize("generations", [1, 2])
async def test_the_number_of_calls_grows_with_parts_of_the_descendants_and_not_with_each(generations: int) -> None:
    store = MemoryStore()
    await store.open()
    (parent,) = parents = await store.add_events([new_event("order", delay=3600)])
    for _ in range(generations):
        count = 10_000 // generations
        named = [parents[number % len(parents)].event_id for number in range(count)]
        parents = await store.add_events([new_event("item", delay=3600, parent_id=one) for one in named])
    counted = Counted(store)
    cancelled = await cancel_events(cast("EventStore", counted), parent.id, reason="withdrawn", children=True)
    assert len({event.id for event in cancelled}) == 10_001
    assert {event.status for event in cancelled} == {EventStatus.CANCELLED}
    assert (await store.counts()).pending == 0
    assert counted.calls.total() <= CALLS_FOR_EACH_PART * 10_000 // PART + 10, counted.calls
    await store.close()
