"""Finding children: what it costs, many parents in one call, and what the index leaves behind."""

import redis
from tests.redis.server import keys_of

from durabus.model.event import Event, new_event
from durabus.model.query import EventQuery
from durabus.stores.redis.store import RedisStore


async def found(store: RedisStore, query: EventQuery) -> list[Event]:
    """Return the events of all pages."""
    page = await store.find(query)
    events = list(page.events)
    while page.next_before_id is not None:
        page = await store.find(EventQuery(parent_ids=query.parent_ids, limit=query.limit, before_id=events[-1].id))
        events += page.events
    return events


async def test_the_cost_of_finding_children_does_not_depend_on_other_events(
    store: RedisStore, admin: redis.Redis
) -> None:
    async def commands_of_a_search() -> int:
        before = sum(one["calls"] for one in admin.info("commandstats").values())
        assert len(await found(store, EventQuery(parent_ids=(parent.event_id,)))) == 3
        return int(sum(one["calls"] for one in admin.info("commandstats").values()) - before)

    (parent,) = await store.add_events([new_event("order")])
    await store.add_events([new_event("item", parent_id=parent.event_id) for _ in range(3)])
    alone = await commands_of_a_search()
    await store.add_events([new_event("other") for _ in range(5_000)])
    assert await commands_of_a_search() == alone


async def test_the_children_of_many_parents_are_found_page_by_page(store: RedisStore) -> None:
    """One parent has more children than one call looks at, and most have few, in between and before."""
    parents = await store.add_events([new_event("order") for _ in range(200)])
    names = [parent.event_id for parent in parents]
    owners = [names[n % 200] if n % 3 else names[0] for n in range(2_500)]
    children = await store.add_events([new_event("item", parent_id=owner) for owner in owners])
    others = [new_event("item", parent_id=name) for name in names[100:]]
    await store.add_events(others)
    asked = tuple(names[:100]) * 2
    expected = [child.id for child in children if child.parent_id in asked]
    for limit in (7, 300, 5_000):
        events = await found(store, EventQuery(parent_ids=asked, limit=limit))
        assert [event.id for event in events] == expected[::-1]


async def test_the_index_of_children_goes_with_them(url: str, store: RedisStore, admin: redis.Redis) -> None:
    (parent,) = await store.add_events([new_event("order")])
    child, other = await store.add_events([new_event("item", parent_id=parent.event_id) for _ in range(2)])
    await store.cancel_event(child.id, reason="not wanted")
    assert await found(store, EventQuery(parent_ids=(parent.event_id,), bus="elsewhere")) == []
    assert await store.trim_event_history("default", older_than=0) == 1
    assert [event.id for event in await found(store, EventQuery(parent_ids=(parent.event_id,)))] == [other.id]
    assert await store.remove_event(other.id)
    prefix = url.rpartition("=")[2]
    assert f"{{{prefix}}}:events:by_parent" not in keys_of(admin, prefix)
