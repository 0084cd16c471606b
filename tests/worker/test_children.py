"""How a parent waits in the queue for its children."""

from msgspec.structs import replace

from durabus import new_event
from durabus.model.claim import Claim, ClaimRequest, new_token
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Release
from durabus.stores.memory.store import MemoryStore
from durabus.worker.children.children import AT_THE_LATEST, MAX_REST, REST, Children


class Keeper:
    is_shared = False

    async def keep_successes(self, results: tuple[HandlerResult, ...]) -> None:
        raise AssertionError("there is nothing to keep")


async def parent_of_one(store: MemoryStore) -> Claim:
    (parent,) = await store.add_events([new_event("parent")])
    await store.add_events([new_event("child", parent_id=parent.event_id)])
    request = ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=1, lease=30, event_id=parent.event_id)
    (claim,) = await store.claim_next_events(request)
    return replace(claim, event=replace(claim.event, fence=2))


async def test_a_parent_waits_until_the_store_says_that_its_children_have_ended() -> None:
    store = MemoryStore()
    claim = await parent_of_one(store)
    rest = await Children(store, may_wait=False).after(claim, (), Complete(claim.ref), ("a",), Keeper())
    assert isinstance(rest, Release)
    assert (rest.until_children, rest.delay) == (True, AT_THE_LATEST)
    assert [result.handler_id for result in rest.results] == ["a"]


async def test_where_the_store_cannot_say_so_a_parent_is_asked_about_before_it_has_waited_half_as_long_again() -> None:
    store = MemoryStore()
    store.features = replace(store.features, children=False)
    claim = await parent_of_one(store)
    children, waited, longest = Children(store, may_wait=False), 0.0, 0.0
    for fence in range(2, 60):
        again = replace(claim, event=replace(claim.event, fence=fence))
        rest = await children.after(again, (), Complete(again.ref), (), Keeper())
        assert isinstance(rest, Release)
        assert not rest.until_children
        assert rest.delay <= min(waited / 2 + 1.5 * REST, MAX_REST) + 1e-9
        waited += rest.delay
        longest = rest.delay
    assert longest == MAX_REST
