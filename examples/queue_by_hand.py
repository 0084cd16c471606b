"""publish, poll, finalize: a queue that you work yourself."""

import asyncio

from durabus import EventQueue, LeaseLost, UnrecoverableError, open_store


async def main() -> None:
    store = await open_store("memory://")
    queue = EventQueue(store, abandoned_after=1.0)
    for number in (1, 2, 3, 4):
        await queue.publish("order.placed", {"order": number})

    first = await queue.poll()
    assert first is not None
    print(f"polled order {first.payload['order']}: {first.status}, attempt {first.attempts}")
    await queue.finalize(first.id)
    await queue.finalize(first.id)  # again: does nothing

    second = await queue.poll()
    assert second is not None
    await queue.finalize(second.id, success=False)

    third = await queue.poll()
    assert third is not None
    await queue.finalize(third.id, error_results=[UnrecoverableError("no such customer")])

    await queue.poll()  # the fourth, and then this worker "dies"
    other = EventQueue(store, abandoned_after=1.0)
    assert await other.poll() is None  # not yet: the claim is still good
    await asyncio.sleep(1.1)
    taken_over = await other.poll()
    assert taken_over is not None
    print(f"order {taken_over.payload['order']} was abandoned and is now on attempt {taken_over.attempts}")
    try:
        await queue.finalize(taken_over.id)
    except LeaseLost as error:
        print(f"too late: {error}")
    await other.finalize(taken_over.id)

    for event in (first, second, third, taken_over):
        now = await store.get_event(event.id)
        assert now is not None
        print(f"order {event.payload['order']}: {now.status}")
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
