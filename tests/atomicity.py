"""Steps in the life of events, for tests that keep the log from being written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from durabus import EventQuery, EventStore, new_event
from durabus.errors import LeaseLost
from durabus.model.claim import Claim, ClaimRequest
from durabus.model.event import Event
from durabus.model.settlement import Complete, Fail, Release, Settlement

LEASE = 30.0


class Stage(NamedTuple):
    """Events, each of them before another step."""

    waiting: Event
    claims: list[Claim]
    dead: Event
    lease: float = LEASE


async def set_the_stage(store: EventStore) -> Stage:
    """Store one event that waits, some that are claimed, and one dead letter."""
    (dead,) = await store.add_events([new_event("dead", bus="other")])
    (claim,) = await _claim(store, "other", 1)
    await _settle(store, Fail(claim.ref, "no", None))
    await store.add_events([new_event("busy", {"n": n}) for n in range(2)])
    claims = await _claim(store, "default", 2)
    (waiting,) = await store.add_events([new_event("waiting")])
    return Stage(waiting, claims, dead)


async def _claim(store: EventStore, bus: str, limit: int) -> list[Claim]:
    return await store.claim_next_events(
        ClaimRequest(bus=bus, worker_id="me:1", token=f"token-of-{bus}-{limit}", limit=limit, lease=LEASE)
    )


async def _settle(store: EventStore, *settlements: Settlement) -> None:
    for outcome in (await store.settle_events(settlements)).outcomes:
        if isinstance(outcome, LeaseLost):
            raise outcome


async def _publish(store: EventStore, stage: Stage) -> None:
    await store.add_events([new_event("new")])


async def _claim_the_next(store: EventStore, stage: Stage) -> None:
    await _claim(store, "default", 1)


async def _start(store: EventStore, stage: Stage) -> None:
    await store.start_events([stage.claims[0].ref])


async def _complete(store: EventStore, stage: Stage) -> None:
    await _settle(store, *(Complete(claim.ref) for claim in stage.claims))


async def _complete_with_errors(store: EventStore, stage: Stage) -> None:
    await _settle(store, Complete(stage.claims[0].ref, errors=("no",)))


async def _fail(store: EventStore, stage: Stage) -> None:
    await _settle(store, Fail(stage.claims[0].ref, "no", 5.0))


async def _release(store: EventStore, stage: Stage) -> None:
    await _settle(store, Release(stage.claims[0].ref, 5.0))


async def _expire(store: EventStore, stage: Stage) -> None:
    await store.expire_events()


async def _requeue(store: EventStore, stage: Stage) -> None:
    await store.requeue_dead_letters([stage.dead.id])


async def _reset(store: EventStore, stage: Stage) -> None:
    await store.reset_event(stage.claims[0].event.id, reason="stuck")


async def _cancel(store: EventStore, stage: Stage) -> None:
    await store.cancel_event(stage.claims[0].event.id, reason="not wanted")


STEPS: dict[str, Callable[[EventStore, Stage], Awaitable[None]]] = {
    "PUBLISHED": _publish,
    "PICKED": _claim_the_next,
    "STARTED": _start,
    "COMPLETED": _complete,
    "COMPLETED_WITH_ERRORS": _complete_with_errors,
    "FAILED": _fail,
    "RELEASED": _release,
    "ABANDONED": _expire,
    "REQUEUED": _requeue,
    "RESET": _reset,
    "CANCELLED": _cancel,
}
"""The step that writes each kind of entry."""


async def picture_of(store: EventStore) -> tuple[Any, ...]:
    """Return everything that a step may change."""
    page = await store.find(EventQuery())
    trails = [[entry.action for entry in await store.read_event_log(event.id)] for event in page.events]
    return page.events, await store.counts(), trails
