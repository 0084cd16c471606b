"""Timeouts and slow warnings of handlers and events, and the words for how a handler ended."""

import asyncio
import logging
from dataclasses import dataclass
from typing import ClassVar

import pytest
from tests.runtime.conftest import MakeBus

from durabus import Event, EventFailed, EventStatus, ResultStatus

NEVER = asyncio.Event


async def stuck(event: Event) -> None:
    await asyncio.Event().wait()


async def test_a_handler_that_overstays_does_not_keep_the_next_from_running(make_bus: MakeBus) -> None:
    bus, seen = make_bus(), []

    async def next_one(event: Event) -> None:
        seen.append(event.id)

    bus.subscribe("job", stuck, id="stuck", timeout=0.02)
    bus.subscribe("job", next_one, id="next")
    await bus.start()
    handle = bus.emit("job")
    assert (await handle).status is EventStatus.FAILED
    results = {result.handler_id: result.status for result in await handle.results()}
    assert results == {"stuck": ResultStatus.TIMED_OUT, "next": ResultStatus.SUCCEEDED}
    assert len(seen) == 1


@pytest.mark.parametrize("handler_mode", ["serial", "parallel"])
async def test_an_event_timeout_bounds_all_handlers_together(make_bus: MakeBus, handler_mode: str) -> None:
    bus = make_bus(event_timeout=0.5, handler_mode=handler_mode)

    async def quick(event: Event) -> str:
        return "done"

    bus.subscribe("job", quick, id="quick")
    bus.subscribe("job", stuck, id="stuck", timeout=None)
    bus.subscribe("job", quick, id="behind")
    await bus.start()
    handle = bus.emit("job")
    ended = await handle
    assert ended.status is EventStatus.FAILED
    assert "EventTimeout" in ended.errors[0]
    results = {result.handler_id: result for result in await handle.results()}
    assert results["quick"].status is ResultStatus.SUCCEEDED
    assert results["stuck"].status is ResultStatus.TIMED_OUT
    assert "while it ran" in (results["stuck"].error or "")
    if handler_mode == "serial":
        assert results["behind"].status is ResultStatus.PENDING
        assert "before it started" in (results["behind"].error or "")
    else:
        assert results["behind"].status is ResultStatus.SUCCEEDED


async def test_an_event_that_timed_out_is_tried_again_and_goes_on_where_it_was(make_bus: MakeBus) -> None:
    bus, calls = make_bus(event_timeout=0.5, retry={"max_retries": 2, "base_delay": 0.0}), []

    async def first(event: Event) -> None:
        calls.append("first")

    async def second(event: Event) -> None:
        calls.append("second")
        if calls.count("second") == 1:
            await asyncio.Event().wait()

    bus.subscribe("job", first)
    bus.subscribe("job", second)
    await bus.start()
    assert (await bus.emit("job")).status is EventStatus.COMPLETED
    assert calls == ["first", "second", "second"]


async def test_events_go_on_after_a_timeout_in_serial_mode(make_bus: MakeBus) -> None:
    bus = make_bus(mode="bus-serial", event_timeout=0.5)

    async def handler(event: Event) -> None:
        if event.payload == 0:
            await asyncio.Event().wait()

    bus.subscribe("job", handler, timeout=None)
    await bus.start()
    ends = await asyncio.gather(*(bus.emit("job", n) for n in range(3)))
    assert [event.status for event in ends] == [EventStatus.FAILED, EventStatus.COMPLETED, EventStatus.COMPLETED]


async def test_slow_handlers_and_events_are_warned_about_once_and_not_stopped(
    make_bus: MakeBus, caplog: pytest.LogCaptureFixture
) -> None:
    bus, warned = make_bus(event_slow_timeout=0.01, handler_slow_timeout=0.01), asyncio.Event()

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)
            if len(records) == 2:
                warned.set()

    records: list[logging.LogRecord] = []
    heard = Heard()
    logging.getLogger("durabus.slow").addHandler(heard)

    async def slow(event: Event) -> None:
        await warned.wait()

    bus.subscribe("job", slow, id="slow")
    await bus.start()
    try:
        assert (await bus.emit("job")).status is EventStatus.COMPLETED
        await bus.publish("quick")
    finally:
        logging.getLogger("durabus.slow").removeHandler(heard)
    assert sorted(str(vars(record)["subscription_id"]) for record in records) == ["None", "slow"]
    assert {vars(record)["event_type"] for record in records} == {"job"}


async def test_no_warning_comes_where_the_timeout_comes_first(make_bus: MakeBus) -> None:
    bus = make_bus(handler_slow_timeout=5.0)
    bus.subscribe("job", stuck, id="h", timeout=5.0)
    assert bus._dispatcher.handlers[0].slow_timeout is None


@dataclass
class Count:
    event_type: ClassVar[str] = "count"
    event_result_type: ClassVar[type] = int
    upto: int


@dataclass
class Total:
    sum: int


@dataclass
class AddUp:
    event_result_type: ClassVar[type] = Total
    numbers: list[int]


async def test_a_result_comes_back_as_its_type(make_bus: MakeBus) -> None:
    bus = make_bus()

    async def add_up(event: AddUp) -> Total:
        return Total(sum(event.numbers))

    bus.subscribe(AddUp, add_up)
    await bus.start()
    assert await bus.emit(AddUp([1, 2, 3])).result() == Total(6)


async def test_a_result_of_another_type_ends_the_event(make_bus: MakeBus) -> None:
    bus = make_bus(retry={"max_retries": 5})

    async def count(event: Count) -> str:
        return "many"

    bus.subscribe(Count, count, id="counter")
    await bus.start()
    handle = bus.emit(Count(3))
    with pytest.raises(EventFailed, match="ResultSchemaError: handler counter must return <class 'int'>"):
        await handle.result()
    assert (await handle).attempts == 1


async def test_no_value_is_of_every_type(make_bus: MakeBus) -> None:
    bus = make_bus()

    async def count(event: Count) -> None:
        return None

    bus.subscribe(Count, count)
    await bus.start()
    assert await bus.emit(Count(3)).result() is None
