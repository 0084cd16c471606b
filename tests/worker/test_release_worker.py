"""Releasing a worker takes no event from another worker."""

from durabus.model.claim import Claim, ClaimRequest, new_token
from durabus.model.event import new_event
from durabus.model.query import EventPage, EventQuery
from durabus.model.settlement import Complete, Release, Settled
from durabus.stores.memory.store import MemoryStore
from durabus.views.workers import release_worker


async def claim(store: MemoryStore, worker: str, limit: int = 1) -> list[Claim]:
    return await store.claim_next_events(ClaimRequest(bus="default", worker_id=worker, token=new_token(), limit=limit))


class Restless(MemoryStore):
    """Gives the first event to another worker right after a caller has listed its holder."""

    taken: Claim | None = None

    async def find(self, query: EventQuery) -> EventPage:
        page = await super().find(query)
        if self.taken is None:
            (ref,) = await self.current_claims([1])
            assert ref is not None
            await self.settle_events([Release(ref)])
            (self.taken,) = await claim(self, "web-2:43")
        return page


async def test_an_event_that_another_worker_claimed_in_the_meantime_is_left_alone() -> None:
    store = Restless()
    await store.add_events([new_event("order.placed") for _ in range(2)])
    await claim(store, "web-1:42", limit=2)
    assert await release_worker(store, "default", "web-1:42", reason="it hangs") == 1
    assert store.taken is not None
    (outcome,) = (await store.settle_events([Complete(store.taken.ref)])).outcomes
    assert isinstance(outcome, Settled)
