"""A recorded store records every call with its outcome."""

import asyncio
from collections.abc import Sequence

import pytest

from durabus import EventNotFound, StoreUnavailableError, new_event
from durabus.model.claim import ClaimRef, ClaimRequest
from durabus.model.event import Event, NewEvent
from durabus.model.settlement import Complete
from durabus.stores.memory.store import MemoryStore
from durabus.testing.history.history import Failed, Invoke, Line, Ok, Unknown
from durabus.testing.history.recorder import recorded_store


class Unreachable(MemoryStore):
    async def add_events(self, new: Sequence[NewEvent], *, connection: object | None = None) -> list[Event]:
        raise StoreUnavailableError("no reply")

    async def now(self) -> float:
        await asyncio.Event().wait()
        return 0.0


async def test_every_call_is_recorded_with_its_beginning_and_its_reply() -> None:
    lines: list[Line] = []
    clock = iter(range(100))
    store = recorded_store(MemoryStore(), "host.1", lines.append, lambda: float(next(clock)))
    (event,) = await store.add_events([new_event("order.placed", {}, bus="b", ordering_key="k")])
    (claim,) = await store.claim_next_events(ClaimRequest(bus="b", worker_id="w", token="t1", lease=5.0))
    await store.renew_event_claims([claim.ref, ClaimRef(event.id, "stale", 1)], lease=5.0)
    await store.settle_events([Complete(claim.ref)])
    invokes = [line for line in lines if isinstance(line, Invoke)]
    answers = [line for line in lines if isinstance(line, Ok)]
    assert [line.verb for line in invokes] == [
        "add_events",
        "claim_next_events",
        "renew_event_claims",
        "settle_events",
    ]
    assert [line.at for line in lines if isinstance(line, Invoke | Ok)] == [float(n) for n in range(8)]
    assert [line.call for line in invokes] == [line.call for line in answers]
    assert invokes[0].subjects[0].ordering_key == "k"
    assert (answers[1].claims[0].id, answers[1].claims[0].fence, answers[1].claims[0].token) == (event.id, 1, "t1")
    assert [subject.lost for subject in answers[2].subjects] == [False, True]
    assert answers[3].subjects[0].what == "COMPLETED"


async def test_a_refusal_changed_nothing() -> None:
    lines: list[Line] = []
    store = recorded_store(MemoryStore(), "host.1", lines.append, lambda: 0.0)
    with pytest.raises(EventNotFound):
        await store.requeue_dead_letters([7])
    assert isinstance(lines[-1], Failed)


async def test_after_an_error_or_a_cancellation_the_outcome_is_unknown() -> None:
    lines: list[Line] = []
    store = recorded_store(Unreachable(), "host.1", lines.append, lambda: 0.0)
    with pytest.raises(StoreUnavailableError):
        await store.add_events([new_event("order.placed", {})])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await store.now()
    assert [type(line) for line in lines] == [Invoke, Unknown, Invoke, Unknown]
