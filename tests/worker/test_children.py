"""How a parent waits in the queue for its children, and what many children cost it."""

import time
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace
from tests.worker.support import make_event

from durabus import Event, new_event
from durabus.model.claim import Claim, ClaimRequest, new_token
from durabus.model.event import NewEvent
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Release
from durabus.stores.memory.store import MemoryStore
from durabus.worker.children.children import AT_THE_LATEST, MAX_REST, REST, Children
from durabus.worker.children.emissions import EmittingCall
from durabus.worker.claimed_event import ClaimedEvent
from durabus.worker.progress import EventProgress


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


class Emitted:
    """A child that was emitted and is not stored."""

    is_stored = False
    done = False
    store = None
    room = None
    event_id = "a"

    def __init__(self, new: NewEvent) -> None:
        self.new = new

    def accept(self) -> None:
        raise AssertionError("nothing is stored here")

    def drop(self) -> None:
        pass

    async def stored(self) -> Event:
        raise AssertionError("nothing is stored here")

    async def ended(self) -> None:
        raise AssertionError("nothing ends here")


def cheapest(run: Callable[[], object]) -> float:
    """Return the smallest CPU time of three runs."""
    spent = []
    for _ in range(3):
        begun = time.process_time()
        run()
        spent.append(time.process_time() - begun)
    return min(spent)


async def test_twenty_times_as_many_children_cost_about_twenty_times_as_much() -> None:
    store = MemoryStore()
    claim = await parent_of_one(store)
    few, many = ([Emitted(new_event("child")) for _ in range(count)] for count in (800, 16_000))

    def hold_and_await(children: list[Emitted]) -> None:
        run = EmittingCall("a", make_event(), None)
        for child in children:
            run.hold(child)
        for child in children:
            run.let_go(child)

    def hold_and_settle(children: list[Emitted]) -> None:
        run = EmittingCall("a", make_event(), None)
        for child in children:
            run.hold(child)
        progress = EventProgress(claim.ref, parent=ClaimedEvent(claim, 0.0))
        progress.owe("a", list(run.held or ()))
        progress.finished(Complete(claim.ref))
        progress.finished(Fail(claim.ref, "no", 1.0))

    for what in (hold_and_await, hold_and_settle):
        assert cheapest(partial(what, many)) < 100 * cheapest(partial(what, few)), what.__name__
