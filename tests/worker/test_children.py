"""How long a parent rests for its children."""

from msgspec.structs import replace

from durabus import new_event
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.settlement import Complete, Release
from durabus.stores.memory.store import MemoryStore
from durabus.worker.children.children import MAX_REST, REST, Children


async def test_a_parent_is_asked_about_before_it_has_waited_half_as_long_again() -> None:
    store = MemoryStore()
    (parent,) = await store.add_events([new_event("parent")])
    await store.add_events([new_event("child", parent_id=parent.event_id)])
    request = ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=1, lease=30, event_id=parent.event_id)
    (claim,) = await store.claim_next_events(request)
    children, waited, longest = Children(store, may_wait=False), 0.0, 0.0
    for fence in range(2, 60):
        again = replace(claim, event=replace(claim.event, fence=fence))
        rest = await children.after(again, (), Complete(again.ref), ())
        assert isinstance(rest, Release)
        assert rest.delay <= min(waited / 2 + 1.5 * REST, MAX_REST) + 1e-9
        waited += rest.delay
        longest = rest.delay
    assert longest == MAX_REST
