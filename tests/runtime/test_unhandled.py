"""Events that no node has a handler for, such as those of a misspelt type."""

import asyncio
import logging

import pytest
from tests.runtime.conftest import MakeBus

from durabus import ConfigurationError, DLQInspector, Event, EventBus, EventFailed, EventStatus, EventStore


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "has no handler" in record.message]


async def test_it_completes_and_the_log_says_so_with_one_warning_for_each_type(
    make_bus: MakeBus, store: EventStore, caplog: pytest.LogCaptureFixture
) -> None:
    bus = make_bus()
    bus.subscribe("order.placed", lambda event: None)
    with caplog.at_level(logging.WARNING, "durabus.worker"):
        for kind in ("order.plcaed", "order.plcaed", "mail.wanted", "order.placed"):
            event_id = await bus.publish(kind)
            event = await store.get_event(event_id)
            assert event is not None
            assert event.status is EventStatus.COMPLETED
            end = (await store.read_event_log(event_id))[-1]
            assert (end.action, end.reason) == ("COMPLETED", None if kind == "order.placed" else "no handler")
    first, second = warned(caplog)
    assert "type 'order.plcaed' has no handler on any node of bus 'default': it completes without work" in first
    assert "'mail.wanted'" in second
    assert bus.metrics.snapshot().unhandled == {"order.plcaed": 2, "mail.wanted": 1}


async def test_it_may_be_a_dead_letter_which_is_handled_once_a_handler_is_there(
    make_bus: MakeBus, store: EventStore
) -> None:
    bus, seen = make_bus(unhandled="dead_letter"), asyncio.Queue[int]()
    bus.subscribe("order.placed", lambda event: None)
    await bus.start()
    sent = bus.emit("order.plcaed", 7)
    with pytest.raises(EventFailed, match=r"no handler for type 'order\.plcaed' on any node of bus 'default'"):
        await sent.result()
    (dead,) = (await DLQInspector(store).list()).events
    assert (dead.status, dead.attempts) == (EventStatus.FAILED, 1)
    assert bus.metrics.snapshot().unhandled == {"order.plcaed": 1}

    async def handle(event: Event) -> None:
        seen.put_nowait(event.payload)

    bus.subscribe("order.plcaed", handle)
    await DLQInspector(store).retry(dead.event_id)
    assert await asyncio.wait_for(seen.get(), 10) == 7


@pytest.mark.parametrize("unhandled", ["complete", "dead_letter"])
async def test_an_event_that_another_node_has_a_handler_for_is_not_one_of_them(
    make_bus: MakeBus, store: EventStore, unhandled: str
) -> None:
    here, there, seen = make_bus(unhandled=unhandled), make_bus(unhandled=unhandled), []

    async def handle(event: Event) -> None:
        seen.append(event.type)

    here.subscribe("order.placed", lambda event: None)
    there.subscribe("mail.wanted", handle)
    await there.start()
    await here.start()
    for _ in range(5):
        await here.publish("mail.wanted")
    assert seen == ["mail.wanted"] * 5
    assert here.metrics.snapshot().unhandled == there.metrics.snapshot().unhandled == {}


def test_another_word_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"unhandled='drop': must be one of \['complete', 'dead_letter'\]"):
        EventBus("memory://", unhandled="drop")
