"""An event that crashes its workers ends after its last attempt, also if a server took it back."""

from durabus import EventManager, EventQueue, EventStore, ManualClock, RetryPolicy, open_store
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import Event
from durabus.model.statuses import EventStatus

ATTEMPTS = 2
LEASE = 60.0


async def crash(store: EventStore, clock: ManualClock, times: int) -> int:
    """Lose the event's worker several times. A process that does not know the handlers' limit takes the event back."""
    for _ in range(times):
        (claim,) = await store.claim_next_events(
            ClaimRequest(bus="default", worker_id="host:1", token=new_token(), lease=LEASE, max_attempts=ATTEMPTS)
        )
        clock.advance(LEASE + 1)
        assert await store.expire_events() == 1
    return claim.event.id


async def processed(clock: ManualClock, crashes: int) -> tuple[Event, list[Event]]:
    """Return the event after one step of a manager, and the events that its handler got."""
    store = await open_store("memory://", clock=clock)
    queue, ran = EventQueue(store), list[Event]()

    async def handle(event: Event) -> None:
        ran.append(event)

    manager = EventManager(queue, retry=RetryPolicy(max_retries=ATTEMPTS - 1))
    manager.register("poison", "drink", handle)
    await queue.publish("poison", {})
    id_ = await crash(store, clock, crashes)
    await manager.process_next()
    event = await store.get_event(id_)
    assert event is not None
    await store.close()
    return event, ran


async def test_an_event_that_lost_its_last_attempt_does_not_run_again() -> None:
    event, ran = await processed(ManualClock(1_000_000.0), ATTEMPTS)
    assert (event.status, ran) == (EventStatus.FAILED, [])
    assert event.errors[-1] == "no attempt is left: the last of 2 ended with the lease or the process of its worker"


async def test_an_event_with_an_attempt_left_runs_after_a_crash() -> None:
    event, ran = await processed(ManualClock(1_000_000.0), ATTEMPTS - 1)
    assert (event.status, len(ran)) == (EventStatus.COMPLETED, 1)
