"""``ctx.wait_for`` in a handler of a node that does not coordinate the event. Each test drives the order by hand."""

import asyncio
from collections import Counter

import pytest
from tests.runtime.conftest import MakeBus
from tests.runtime.test_two_nodes import taking_offers_only

from durabus import Context, Event, EventStatus, EventStore, TransientError
from durabus.model.statuses import ResultStatus

WITHIN = 30.0


async def gave_its_claim_back(store: EventStore, event: Event, handler_id: str) -> None:
    """Wait until the handler waits for an event, and the event itself is still claimed."""
    while True:
        found = {one.handler_id: one for one in (await store.read_results([event.id]))[0]}
        result = found.get(handler_id)
        if result is not None and result.status is ResultStatus.PENDING and result.expires_ts is None:
            return
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("failures", [0, 1])
async def test_an_event_that_comes_between_the_call_and_the_release_ends_the_wait(
    make_bus: MakeBus, store: EventStore, failures: int
) -> None:
    """After a failure of the other handler, the store knows the wait, and an event meets it while its own event runs.

    Otherwise, the store learns of the wait when the event it waits for is stored already.
    """
    calls: Counter[str] = Counter()
    seen: list[Event | None] = []
    first, second = (
        make_bus(handler_mode="parallel", retry={"max_retries": 5, "base_delay": 0.01, "jitter": 0}) for _ in range(2)
    )

    async def coordinated(event: Event) -> None:
        while calls["waits"] < event.attempts:  # noqa: ASYNC110  (a call of another node)
            await asyncio.sleep(0.01)
        await gave_its_claim_back(store, event, "waits")
        if event.attempts <= failures:
            raise TransientError("once more")
        await first.emit("payment.settled", {"order_id": 7}, parent_id=None).stored()

    async def waits(event: Event, ctx: Context) -> None:
        calls["waits"] += 1
        seen.append(await ctx.wait_for("payment.settled", where={"order_id": 7}))

    first.subscribe("order.placed", coordinated, id="coordinated")
    second.subscribe("order.placed", waits, id="waits")
    await first.start()
    async with taking_offers_only(second), asyncio.timeout(WITHIN):
        ended = await first.emit("order.placed").completed()
    assert (ended.status, ended.attempts) == (EventStatus.COMPLETED, failures + 1)
    assert [one.payload for one in seen if one is not None] == [{"order_id": 7}]
    assert calls["waits"] == failures + 2
