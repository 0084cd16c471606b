"""A user's program, as mypy and pyright see it: `make check` reads its types, `test_user_program.py` runs it.

`assert_type` pins the types that users get. The comments of `mistakes` mark what both must report: once one of them
no longer reports it, the comment itself is an error.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, assert_type

from durabus import (
    BatchContext,
    BatchFailed,
    Context,
    DLQInspector,
    Event,
    EventBus,
    EventFailed,
    EventQueue,
    EventStatus,
    EventStore,
    Handle,
    HandlerResult,
    RetryPolicy,
    SyncEventBus,
    TransientError,
    UnrecoverableError,
    open_store,
)


@dataclass
class OrderPlaced:
    event_type: ClassVar[str] = "order.placed"
    item: str
    amount: int


async def charge(order: OrderPlaced, ctx: Context) -> str:
    assert_type(ctx.fence, int)
    assert_type(ctx.attempt, int)
    assert_type(ctx.event, Event)
    if order.amount > 1000:
        raise UnrecoverableError("over the limit")
    if ctx.attempt == 1:
        raise TransientError("the bank is closed", retry_after=0.01)
    return f"{order.item}: {order.amount}"


def audit(event: Event) -> None:
    assert_type(event.id, int)
    assert_type(event.status, EventStatus)
    assert_type(event.payload, Any)


async def weigh(events: list[Event], ctx: BatchContext) -> None:
    assert_type(ctx.events, tuple[Event, ...])
    assert_type(ctx.fence_of(events[0]), int)
    failed: dict[Event, Exception] = {event: ValueError("too heavy") for event in events if event.payload > 10}
    if failed:
        raise BatchFailed(failed)


async def price(event: Event) -> int:
    return len(str(event.payload))


async def serve() -> list[str]:
    bus = EventBus("memory://", retry=RetryPolicy(max_retries=2, base_delay=0.01))
    assert_type(bus.subscribe(OrderPlaced, charge, id="charge"), str)
    bus.on("order.*", id="audit", timeout=5.0)(audit)
    assert_type(bus.subscribe("parcel.*", weigh, batch=10, within=0.01), str)
    bus.on("price.quote")(price)
    bus.every("0 3 * * *", tz="Europe/Oslo")(audit)
    async with bus as started:
        assert_type(started, EventBus)
        assert_type(await bus.publish(OrderPlaced(item="lamp", amount=40)), str)
        await bus.emit("parcel.packed", 3)
        assert_type(await bus.request("price.quote", "lamp", timeout=5.0), Any)
        handle = bus.emit(OrderPlaced(item="piano", amount=9000), tags=["large"], priority=1)
        assert_type(handle, Handle)
        assert_type(await handle.stored(), Event)
        assert_type(await handle.results(), tuple[HandlerResult, ...])
        try:
            await handle.result()
        except EventFailed as failed:
            return list(assert_type(failed.errors, tuple[str, ...]))
    return []


async def by_hand() -> int:
    store = await open_store("memory://")
    assert_type(store, EventStore)
    queue = EventQueue(store)
    assert_type(await queue.publish("order.placed", {"item": "lamp"}, delay=0.0), Event)
    event = assert_type(await queue.poll(), Event | None)
    if event is not None:
        await queue.finalize(event.id, success=False)
    letters = await DLQInspector(store).list(limit=10)
    assert_type(letters.events, list[Event])
    await store.close()
    return letters.total


def without_a_loop() -> str:
    with SyncEventBus("memory://") as bus:
        return assert_type(bus.publish("order.placed", {"item": "lamp"}), str)


async def mistakes(bus: EventBus, queue: EventQueue, ctx: Context) -> None:
    """Never runs: mypy and pyright must report each line."""
    await bus.publish("order.placed", {}, priorty=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await bus.publish("order.placed", {}, tags=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    EventBus("memory://", concurency=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await bus.request("price.quote")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    bus.subscribe("parcel.*", weigh, batch="10")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    RetryPolicy(5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await queue.finalize("7")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ctx.fence = 1  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
