"""Events that no node has a handler for, such as those of a misspelt type."""

import asyncio
import logging

import pytest
from tests.runtime.conftest import MakeBus
from tests.seeds.support import until as comes_true

from durabus import ConfigurationError, DLQInspector, Event, EventBus, EventFailed, EventStatus, EventStore
from durabus.model.claim import Claim
from durabus.model.settlement import Release
from durabus.model.statuses import OnUnhandled
from durabus.worker.missing_handlers import Unhandled
from durabus.worker.telemetry import Metrics


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "has no handler" in record.getMessage()]


async def has_ended_a_claim(store: EventStore, id_: int) -> bool:
    return any(entry.action == "RELEASED" for entry in await store.read_event_log(id_))


async def test_an_unhandled_event_completes_and_the_log_says_so_with_one_warning_for_each_type(
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


async def test_an_unhandled_event_may_become_a_dead_letter_that_a_later_handler_gets(
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


async def test_an_unhandled_event_may_stay_in_the_queue_until_a_handler_is_there(
    make_bus: MakeBus, store: EventStore
) -> None:
    bus, seen = make_bus(unhandled="keep"), asyncio.Queue[int]()
    bus.subscribe("order.placed", lambda event: None)
    await bus.start()
    kept = await bus.emit("order.plcaed", 7).stored()
    await bus.publish("order.placed")  # claimed after the first, which delays no other event
    await comes_true(lambda: has_ended_a_claim(store, kept.id))
    event = await store.get_event(kept.id)
    assert event is not None
    assert (event.status, event.attempts) == (EventStatus.PENDING, 0)
    trail = await store.read_event_log(kept.id)
    assert [(entry.action, entry.reason) for entry in trail[1:3]] == [("PICKED", None), ("RELEASED", "no handler")]

    async def handle(event: Event) -> None:
        seen.put_nowait(event.payload)

    bus.subscribe("order.plcaed", handle)
    assert await asyncio.wait_for(seen.get(), 10) == 7


@pytest.mark.parametrize("mode", ["parallel", "bus-serial"])
async def test_an_event_that_is_kept_waits_in_place_and_a_handler_that_any_node_subscribes_gets_it_at_once(
    make_bus: MakeBus, store: EventStore, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr("durabus.worker.missing_handlers._rest", lambda event: 0.05 if event.fence == 1 else 3600.0)
    monkeypatch.setattr("durabus.worker.registry.LOOK", 0.1)
    here, there = make_bus(unhandled="keep", mode=mode), make_bus(unhandled="keep", mode=mode)
    seen = asyncio.Queue[int]()
    here.subscribe("order.placed", lambda event: None)
    await here.start()
    kept = await here.emit("order.plcaed", 7).stored()

    async def actions() -> list[str]:
        return [str(entry.action) for entry in await store.read_event_log(kept.id)]

    async def is_claimed_again() -> bool:
        return (await actions())[1:] == ["PICKED", "RELEASED", "PICKED"]

    await comes_true(is_claimed_again)
    await here.publish("order.placed")  # it delays no other event, even in a serial mode
    assert await is_claimed_again()
    assert here.metrics.snapshot().unhandled == {"order.plcaed": 1}

    async def handle(event: Event) -> None:
        seen.put_nowait(event.payload)

    await there.start()
    there.subscribe("order.plcaed", handle)
    assert await asyncio.wait_for(seen.get(), 2) == 7


def test_an_event_that_is_kept_rests_as_long_as_it_has_waited_and_at_most_an_hour() -> None:
    unhandled, waited = Unhandled(OnUnhandled.KEEP, Metrics()), 0.0
    for fence in range(1, 40):
        event = Event(
            id=1, event_id="e", bus="default", type="a.b", payload_json="null", created_ts=0, updated_ts=0, due_ts=0,
            attempts=1, fence=fence,
        )  # fmt: skip
        settlement = unhandled.settlement(Claim(event, "token"))
        assert isinstance(settlement, Release)
        assert settlement.delay == min(max(waited + 1, 1), 3600)
        waited += settlement.delay


@pytest.mark.parametrize("unhandled", ["complete", "keep", "dead_letter"])
async def test_an_event_with_a_handler_on_another_node_is_not_unhandled(
    make_bus: MakeBus, store: EventStore, unhandled: str
) -> None:
    here, there, seen = make_bus(unhandled=unhandled), make_bus(unhandled=unhandled), []

    async def handle(event: Event) -> None:
        seen.append(event.type)

    here.subscribe("order.placed", lambda event: None)
    there.subscribe("mail.wanted", handle)
    await there.start()
    await here.start()
    await here.publish("mail.wanted")
    assert seen == ["mail.wanted"]
    assert here.metrics.snapshot().unhandled == there.metrics.snapshot().unhandled == {}


def test_an_unknown_value_of_unhandled_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"unhandled='drop': must be one of \['complete', 'keep', 'dead_letter'\]"
    ):
        EventBus("memory://", unhandled="drop")
