"""Which handlers run side by side, and when an event is done."""

import asyncio
from collections.abc import Callable

import pytest
from tests.runtime.conftest import MakeBus
from tests.worker.support import until

from durabus import ConfigurationError, Event, EventStatus, ResultStatus, UnrecoverableError

Handler = Callable[[Event], object]


class Overlap:
    """Counts handlers that run at once. A handler does not return before `expected` handlers have begun."""

    def __init__(self, *, expected: int) -> None:
        self.now = self.most = self.entered = 0
        self._expected, self._met = expected, asyncio.Event()

    async def handler(self, event: Event) -> None:
        self.now += 1
        self.entered += 1
        self.most = max(self.most, self.now)
        if self.most >= self._expected:
            self._met.set()
        await self._met.wait()
        for _ in range(5):  # for one too many to come in
            await asyncio.sleep(0)
        self.now -= 1


def answering(value: object, *, after: asyncio.Event | None = None) -> Handler:
    async def handler(event: Event) -> object:
        if after is not None:
            await after.wait()
        return value

    return handler


@pytest.mark.parametrize(
    ("mode", "side_by_side"), [("parallel", True), ("bus-serial", False), ("global-serial", False)]
)
async def test_events_overlap_in_parallel_mode_alone(make_bus: MakeBus, mode: str, *, side_by_side: bool) -> None:
    """Two nodes serve one bus."""
    inside, buses = Overlap(expected=2 if side_by_side else 1), [make_bus(mode=mode), make_bus(mode=mode)]
    for bus in buses:
        bus.subscribe("job", inside.handler, id="h")
        await bus.start()
    ends = await asyncio.gather(*(buses[n % 2].emit("job", n) for n in range(20)))
    assert {event.status for event in ends} == {EventStatus.COMPLETED}
    assert inside.entered == 20
    assert (inside.most > 1) is side_by_side


@pytest.mark.parametrize(("mode", "most"), [("bus-serial", 2), ("global-serial", 1)])
async def test_the_global_mode_is_one_for_all_buses(make_bus: MakeBus, mode: str, most: int) -> None:
    inside, buses = Overlap(expected=most), [make_bus(name=name, mode=mode) for name in ("one", "two")]
    for bus in buses:
        bus.subscribe("job", inside.handler, id="h")
        await bus.start()
    await asyncio.gather(*(bus.emit("job") for bus in buses for _ in range(10)))
    assert (inside.entered, inside.most) == (20, most)


@pytest.mark.parametrize(("handler_mode", "most"), [("serial", 1), ("parallel", 3)])
async def test_handlers_of_one_event_overlap_in_parallel_mode_alone(
    make_bus: MakeBus, handler_mode: str, most: int
) -> None:
    inside, bus = Overlap(expected=most), make_bus(handler_mode=handler_mode)
    for n in range(3):
        bus.subscribe("job", inside.handler, id=f"h{n}")
    await bus.start()
    assert (await bus.emit("job")).status is EventStatus.COMPLETED
    assert (inside.entered, inside.most) == (3, most)


@pytest.mark.parametrize("handler_mode", ["serial", "parallel"])
async def test_only_handlers_that_failed_run_again(make_bus: MakeBus, handler_mode: str) -> None:
    calls: list[str] = []
    bus = make_bus(handler_mode=handler_mode, retry={"max_retries": 3, "base_delay": 0.0})

    async def good(event: Event) -> None:
        calls.append("good")

    async def bad(event: Event) -> None:
        calls.append("bad")
        if calls.count("bad") < 3:
            raise ValueError("no")

    bus.subscribe("job", bad)
    bus.subscribe("job", good)
    await bus.start()
    ended = await bus.emit("job")
    assert (ended.status, ended.attempts) == (EventStatus.COMPLETED, 3)
    assert (calls.count("good"), calls.count("bad")) == (1, 3)


@pytest.mark.parametrize("value", [0, False, "", [], "yes"])
async def test_the_first_value_completes_the_event_also_a_falsy_one(make_bus: MakeBus, value: object) -> None:
    bus, late = make_bus(completion="first"), asyncio.Event()
    bus.subscribe("job", answering(None), id="silent")
    bus.subscribe("job", answering(value), id="winner")
    bus.subscribe("job", answering("late", after=late), id="loser")
    await bus.start()
    handle = bus.emit("job")
    assert await handle.result() == value
    results = {result.handler_id: result for result in await handle.results()}
    assert results["loser"].status is ResultStatus.CANCELLED
    assert results["loser"].attempts == 0
    assert "before it started" in (results["loser"].error or "")


async def test_the_first_value_stops_parallel_handlers(make_bus: MakeBus) -> None:
    bus, never, stopped = make_bus(completion="first", handler_mode="parallel"), asyncio.Event(), []

    async def loser(event: Event) -> None:
        try:
            await never.wait()
        except asyncio.CancelledError:
            stopped.append(event.id)
            raise

    bus.subscribe("job", loser, id="loser")
    bus.subscribe("job", answering("yes"), id="winner")
    await bus.start()
    handle = bus.emit("job")
    assert await handle.result() == "yes"
    results = {result.handler_id: result.status for result in await handle.results()}
    assert results == {"winner": ResultStatus.SUCCEEDED, "loser": ResultStatus.ABORTED}
    assert len(stopped) == 1
    assert (await handle).status is EventStatus.COMPLETED


async def test_a_value_makes_good_for_handlers_that_failed(make_bus: MakeBus) -> None:
    bus = make_bus(completion="first")

    async def fails(event: Event) -> None:
        raise UnrecoverableError("no")

    bus.subscribe("job", fails, id="fails")
    bus.subscribe("job", answering("yes"), id="winner")
    await bus.start()
    handle = bus.emit("job")
    assert await handle.result() == "yes"
    failed = next(result for result in await handle.results() if result.handler_id == "fails")
    assert (failed.status, failed.error) == (ResultStatus.ABORTED, "UnrecoverableError: no")


@pytest.mark.parametrize("completion", ["all", "first"])
@pytest.mark.parametrize("handler_mode", ["serial", "parallel"])
async def test_an_unrecoverable_error_ends_the_event_after_one_call_of_each_handler(
    make_bus: MakeBus, handler_mode: str, completion: str
) -> None:
    bus, calls = make_bus(handler_mode=handler_mode, completion=completion, retry={"max_retries": 3}), []

    async def charge(event: Event) -> None:
        raise UnrecoverableError("no such card")

    async def mail(event: Event) -> None:
        calls.append("mail")
        raise ValueError("try later")

    bus.subscribe("job", charge, id="charge")
    bus.subscribe("job", mail, id="mail")
    bus.subscribe("job", lambda event: calls.append("audit"), id="audit")
    await bus.start()
    handle = bus.emit("job")
    ended = await handle
    assert sorted(calls) == ["audit", "mail"]
    assert (ended.status, ended.errors) == (
        EventStatus.COMPLETED_WITH_ERRORS,
        ("UnrecoverableError: no such card",),
    )
    results = {result.handler_id: (result.status, result.error) for result in await handle.results()}
    assert results["mail"] == (ResultStatus.TRANSIENT, "ValueError: try later")
    assert results["audit"] == (ResultStatus.SUCCEEDED, None)


async def test_without_a_value_all_handlers_count(make_bus: MakeBus) -> None:
    bus = make_bus(completion="first")

    async def fails(event: Event) -> None:
        raise ValueError("no")

    bus.subscribe("job", answering(None), id="silent")
    bus.subscribe("job", fails, id="fails")
    await bus.start()
    ended = await bus.emit("job")
    assert (ended.status, ended.errors) == (EventStatus.FAILED, ("ValueError: no",))


async def test_a_stopped_node_gives_back_what_ran_side_by_side(make_bus: MakeBus) -> None:
    bus, entered, never = make_bus(handler_mode="parallel"), [], asyncio.Event()

    async def stuck(event: Event) -> None:
        entered.append(event.id)
        await never.wait()

    bus.subscribe("job", stuck, id="a")
    bus.subscribe("job", stuck, id="b")
    await bus.start()
    handle = bus.emit("job")
    await until(lambda: len(entered) == 2)
    await bus._worker.stop(0.01)  # type: ignore[union-attr]
    event = await bus.store.get_event(handle.event_id)
    assert event is not None
    assert (event.status, event.attempts) == (EventStatus.PENDING, 0)


@pytest.mark.parametrize("option", ["mode", "handler_mode", "completion"])
async def test_an_unknown_word_is_refused_with_those_that_are_known(make_bus: MakeBus, option: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{option}='sometimes': must be one of"):
        make_bus(**{option: "sometimes"})
