"""Events that handlers emit: linked to their parent, which completes after them, and run at once if it waits."""

import asyncio

import pytest
from msgspec.structs import replace
from tests.runtime.conftest import MakeBus
from tests.seeds.support import until as comes_true
from tests.worker.support import until

from durabus import ConfigurationError, Context, Event, EventStatus, EventStore

MODES = ["parallel", "bus-serial", "global-serial"]
SERIAL = ["bus-serial", "global-serial"]


class Ledger:
    """The handlers that began and ended, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def open(self) -> list[str]:
        return [line[1:] for line in self.lines if line[0] == "+" and "-" + line[1:] not in self.lines]

    def begin(self, name: str) -> None:
        self.lines.append("+" + name)

    def end(self, name: str) -> None:
        self.lines.append("-" + name)


async def status(store: EventStore, event_id: str) -> EventStatus:
    event = await store.get_event(event_id)
    assert event is not None
    return event.status


@pytest.mark.parametrize("how", ["bus.emit", "ctx.emit", "bus.publish"])
async def test_what_a_handler_emits_is_a_child_of_its_event(make_bus: MakeBus, how: str) -> None:
    bus = make_bus()

    async def parent(event: Event, ctx: Context) -> None:
        match how:
            case "bus.emit":
                bus.emit("child")
            case "ctx.emit":
                ctx.emit("child")
            case _:
                await bus.publish("child")

    bus.subscribe("parent", parent)
    bus.subscribe("child", lambda event: None)
    await bus.start()
    ended = await bus.emit("parent")
    child = await bus.find("child")
    assert child is not None
    assert (child.parent_id, ended.parent_id) == (ended.event_id, None)


async def test_a_parent_given_by_hand_is_kept_and_none_is_none(make_bus: MakeBus) -> None:
    bus = make_bus()
    other = "0190a000-0000-7000-8000-000000000000"

    async def parent(event: Event) -> None:
        await bus.emit("given", parent_id=other).stored()
        await bus.emit("none", parent_id=None).stored()

    bus.subscribe("parent", parent)
    await bus.start()
    assert (await bus.emit("parent")).status is EventStatus.COMPLETED
    given, none = await bus.find("given"), await bus.find("none")
    assert given is not None
    assert none is not None
    assert (given.parent_id, none.parent_id) == (other, None)


@pytest.mark.parametrize("mode", MODES)
async def test_a_parent_completes_after_children_that_no_handler_awaits(make_bus: MakeBus, mode: str) -> None:
    """This holds at any depth, and the handler of the parent does not run again in the meantime."""
    bus, release, calls = make_bus(mode=mode), asyncio.Event(), []

    async def parent(event: Event) -> None:
        calls.append("parent")
        bus.emit("child")

    async def child(event: Event) -> None:
        calls.append("child")
        bus.emit("grandchild")

    async def grandchild(event: Event) -> None:
        calls.append("grandchild")
        await release.wait()

    for function in (parent, child, grandchild):
        bus.subscribe(function.__name__, function)
    await bus.start()
    handle = bus.emit("parent")
    await until(lambda: "grandchild" in calls)
    assert not handle.done
    assert await status(bus.store, handle.event_id) in (EventStatus.PENDING, EventStatus.PROCESSING)
    release.set()
    assert (await handle).status is EventStatus.COMPLETED
    assert calls == ["parent", "child", "grandchild"]
    assert (await bus.store.counts()).completed == 3


async def test_a_child_that_fails_does_not_fail_its_parent(make_bus: MakeBus) -> None:
    bus = make_bus()

    async def parent(event: Event) -> None:
        bus.emit("child")

    async def child(event: Event) -> None:
        raise ValueError("no")

    bus.subscribe("parent", parent)
    bus.subscribe("child", child)
    await bus.start()
    assert (await bus.emit("parent")).status is EventStatus.COMPLETED
    assert (await bus.store.counts()).failed == 1


async def test_children_of_an_attempt_that_failed_count_too(make_bus: MakeBus) -> None:
    bus, release = make_bus(retry={"max_retries": 3, "base_delay": 0.0}), asyncio.Event()

    async def parent(event: Event) -> None:
        if event.attempts == 1:
            await bus.emit("child").stored()
            raise ValueError("no")

    async def child(event: Event) -> None:
        await release.wait()

    bus.subscribe("parent", parent)
    bus.subscribe("child", child)
    await bus.start()
    handle = bus.emit("parent")

    async def rests() -> bool:
        trail = await bus.store.read_event_log(handle.event_id)
        return any(entry.action == "RELEASED" for entry in trail)

    await comes_true(rests)
    assert not handle.done
    release.set()
    assert (await handle).status is EventStatus.COMPLETED


async def test_a_parent_waits_for_children_that_another_node_has_the_handler_for(make_bus: MakeBus) -> None:
    one, two, release = make_bus(name="one"), make_bus(name="two"), asyncio.Event()
    sender = make_bus(name="two")

    async def parent(event: Event) -> None:
        sender.emit("child")

    async def child(event: Event) -> None:
        await release.wait()

    one.subscribe("parent", parent)
    two.subscribe("child", child)
    for bus in (one, two, sender):
        await bus.start()
    handle = one.emit("parent")
    await until(lambda: two.in_flight == 1)
    assert not handle.done
    release.set()
    assert (await handle).status is EventStatus.COMPLETED


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wait", ["publish", "await the handle"])
async def test_an_awaited_child_runs_at_once_before_all_that_is_queued(make_bus: MakeBus, mode: str, wait: str) -> None:
    bus, ledger = make_bus(mode=mode, concurrency=1), Ledger()

    async def parent(event: Event) -> None:
        ledger.begin("parent")
        for n in range(5):
            bus.emit("sibling", n, parent_id=None)
        if wait == "publish":
            await bus.publish("child")
        else:
            await bus.emit("child")
        ledger.end("parent")

    async def child(event: Event) -> None:
        ledger.begin("child")
        await asyncio.sleep(0)
        ledger.end("child")

    async def sibling(event: Event) -> None:
        ledger.begin(f"sibling {event.payload}")
        await asyncio.sleep(0)
        ledger.end(f"sibling {event.payload}")

    for function in (parent, child, sibling):
        bus.subscribe(function.__name__, function)
    await bus.start()
    assert (await bus.emit("parent")).status is EventStatus.COMPLETED
    assert await bus.wait_until_idle(20)
    if mode == "parallel":  # the parent yields its slot meanwhile, so siblings may run beside the child
        assert ledger.lines.index("+child") <= ledger.lines.index("+sibling 1")
    else:
        assert ledger.lines[:4] == ["+parent", "+child", "-child", "-parent"]
    siblings = [line for line in ledger.lines if line.startswith("+sibling")]
    assert siblings == [f"+sibling {n}" for n in range(5)]


@pytest.mark.parametrize("mode", SERIAL)
async def test_waits_may_be_nested_deeply_in_serial_modes(make_bus: MakeBus, mode: str) -> None:
    bus = make_bus(mode=mode)

    async def sum_up(event: Event) -> int:
        n: int = event.payload
        return n + await bus.emit("sum", n - 1).result() if n else 0

    bus.subscribe("sum", sum_up)
    await bus.start()
    assert await bus.emit("sum", 10).result() == 55


@pytest.mark.parametrize("mode", SERIAL)
async def test_children_that_are_awaited_together_run_one_at_a_time_in_serial_modes(
    make_bus: MakeBus, mode: str
) -> None:
    bus, ledger = make_bus(mode=mode), Ledger()

    async def parent(event: Event) -> None:
        await asyncio.gather(*(bus.emit("child", n) for n in range(4)))

    async def child(event: Event) -> None:
        ledger.begin(str(event.payload))
        assert len(ledger.open()) == 1
        await asyncio.sleep(0.001)
        ledger.end(str(event.payload))

    bus.subscribe("parent", parent)
    bus.subscribe("child", child)
    await bus.start()
    assert (await bus.emit("parent")).status is EventStatus.COMPLETED
    assert len(ledger.lines) == 8


async def test_a_child_on_another_bus_of_the_global_lock_runs_at_once(make_bus: MakeBus) -> None:
    one, two = make_bus(name="one", mode="global-serial"), make_bus(name="two", mode="global-serial")

    async def parent(event: Event) -> int:
        answer: int = await two.emit("child").result()
        return answer + 1

    async def child(event: Event) -> int:
        answer: int = await one.emit("grandchild").result()
        return answer + 1

    async def grandchild(event: Event) -> int:
        return 1

    one.subscribe("parent", parent)
    one.subscribe("grandchild", grandchild)
    two.subscribe("child", child)
    await one.start()
    await two.start()
    assert await one.emit("parent").result() == 3


async def test_a_way_back_to_the_own_serial_bus_through_a_parallel_one_does_not_stand_still(make_bus: MakeBus) -> None:
    serial, parallel = make_bus(name="serial", mode="bus-serial"), make_bus(name="parallel")

    async def parent(event: Event) -> int:
        answer: int = await parallel.emit("child").result()
        return answer + 1

    async def child(event: Event) -> int:
        answer: int = await serial.emit("grandchild").result()
        return answer + 1

    async def grandchild(event: Event) -> int:
        return 1

    serial.subscribe("parent", parent)
    serial.subscribe("grandchild", grandchild)
    parallel.subscribe("child", child)
    await serial.start()
    await parallel.start()
    assert await serial.emit("parent").result() == 3


@pytest.mark.parametrize("mode", SERIAL)
async def test_a_child_that_fails_and_is_tried_again_is_waited_for(make_bus: MakeBus, mode: str) -> None:
    bus = make_bus(mode=mode, retry={"max_retries": 3, "base_delay": 0.01})

    async def parent(event: Event) -> str:
        answer: str = await bus.emit("child").result()
        return answer

    async def child(event: Event) -> str:
        if event.attempts < 3:
            raise ValueError("no")
        return "at last"

    bus.subscribe("parent", parent)
    bus.subscribe("child", child)
    await bus.start()
    handle = bus.emit("parent")
    assert await handle.result() == "at last"
    assert (await handle).attempts == 1


async def test_a_child_does_not_outlive_the_lock_of_a_parent_that_gave_up(make_bus: MakeBus) -> None:
    bus, ledger, started = make_bus(mode="bus-serial"), Ledger(), asyncio.Event()

    async def parent(event: Event) -> None:
        ledger.begin("parent")
        try:
            await bus.emit("child")
        finally:
            ledger.end("parent")

    async def child(event: Event) -> None:
        ledger.begin(f"child {event.fence}")
        started.set()
        try:
            if event.fence == 1:
                await asyncio.Event().wait()
        finally:
            ledger.end(f"child {event.fence}")

    bus.subscribe("parent", parent, timeout=1.0)
    bus.subscribe("child", child)
    await bus.start()
    ended = await bus.emit("parent")
    assert ended.status is EventStatus.FAILED
    assert await bus.wait_until_idle(20)
    assert ledger.lines == ["+parent", "+child 1", "-child 1", "-parent", "+child 2", "-child 2"]


async def test_a_child_on_another_bus_does_not_keep_the_lock_of_a_parent_that_gave_up(make_bus: MakeBus) -> None:
    serial, parallel = make_bus(mode="bus-serial", name="serial"), make_bus(name="parallel")
    another = make_bus(mode="bus-serial", name="serial")
    ledger, gate, inside = Ledger(), asyncio.Event(), asyncio.Event()

    async def parent(event: Event) -> None:
        await parallel.emit("child")

    async def child(event: Event) -> None:
        await gate.wait()
        await serial.emit("grandchild", parent_id=None)

    async def next_one(event: Event) -> None:
        ledger.begin("next")
        inside.set()
        await asyncio.sleep(0.1)
        ledger.end("next")

    async def grandchild(event: Event) -> None:
        ledger.begin("grandchild")
        ledger.end("grandchild")

    serial.subscribe("parent", parent, timeout=0.05)
    serial.subscribe("grandchild", grandchild)
    parallel.subscribe("child", child)
    await parallel.start()
    await serial.start()
    assert (await serial.emit("parent")).status is EventStatus.FAILED
    another.subscribe("next", next_one)
    another.subscribe("grandchild", grandchild)
    await another.start()
    another.emit("next")
    await inside.wait()
    gate.set()
    assert await parallel.wait_until_idle(10)
    assert ledger.lines == ["+next", "-next", "+grandchild", "-grandchild"]


@pytest.mark.parametrize("mode", SERIAL)
async def test_an_awaited_child_runs_on_the_node_that_has_its_handler(make_bus: MakeBus, mode: str) -> None:
    """The parent holds the lock of the bus that the child is on, and there is no deadlock."""
    here, there = make_bus(mode=mode), make_bus(mode=mode)

    async def parent(event: Event) -> int:
        answer: int = await here.emit("child").result()
        return answer + 1

    async def child(event: Event) -> int:
        answer: int = await there.emit("grandchild").result()
        return answer + 1

    async def grandchild(event: Event) -> int:
        return 1

    here.subscribe("parent", parent)
    there.subscribe("child", child)
    here.subscribe("grandchild", grandchild)
    await there.start()
    await here.start()
    handle = here.emit("parent")
    assert await handle.result() == 3
    assert (await handle).attempts == 1


async def test_an_awaited_child_on_another_bus_of_another_node_runs_under_the_global_lock(make_bus: MakeBus) -> None:
    one, two = make_bus(name="one", mode="global-serial"), make_bus(name="two", mode="global-serial")
    sender = make_bus(name="two", mode="global-serial")

    async def parent(event: Event) -> int:
        answer: int = await sender.emit("child").result()
        return answer + 1

    async def child(event: Event) -> int:
        return 1

    one.subscribe("parent", parent)
    two.subscribe("child", child)
    for bus in (one, two, sender):
        await bus.start()
    assert await one.emit("parent").result() == 2


async def test_a_child_on_another_node_is_stopped_when_its_parent_stops_waiting(make_bus: MakeBus) -> None:
    here, there = make_bus(mode="bus-serial", lease=1.1), make_bus(mode="bus-serial", lease=1.1)
    ledger, limits = Ledger(), []

    async def parent(event: Event) -> None:
        async with asyncio.timeout(None) as patience:
            limits.append(patience)
            await here.emit("child")

    async def child(event: Event) -> None:
        ledger.begin("child")
        limits[0].reschedule(0)  # the parent gives up now
        try:
            await asyncio.Event().wait()
        finally:
            ledger.end("child")

    here.subscribe("parent", parent)
    there.subscribe("child", child, timeout=None)
    await there.start()
    await here.start()
    assert (await here.emit("parent")).status is EventStatus.FAILED
    assert ledger.lines[:2] == ["+child", "-child"]  # before the parent ended, and with it their lock


async def test_a_chain_of_events_of_their_own_does_not_keep_its_first_one_open(make_bus: MakeBus) -> None:
    bus, ticks = make_bus(), 0

    async def tick(event: Event) -> None:
        nonlocal ticks
        ticks += 1
        bus.emit("tick", parent_id=None, delay=0.01)

    bus.subscribe("tick", tick)
    await bus.start()
    assert (await bus.emit("tick")).status is EventStatus.COMPLETED
    await until(lambda: ticks >= 3)


async def test_a_child_behind_its_own_parent_is_refused(make_bus: MakeBus) -> None:
    bus = make_bus()

    async def parent(event: Event) -> None:
        with pytest.raises(ConfigurationError, match="parent_id=None"):
            bus.emit("child", ordering_key="a")
        await bus.emit("later", ordering_key="a", parent_id=None).stored()

    bus.subscribe("*", lambda event: None)
    bus.subscribe("parent", parent)
    await bus.start()
    assert (await bus.emit("parent", ordering_key="a")).status is EventStatus.COMPLETED
    assert await bus.wait_until_idle(20)


async def test_a_child_that_was_not_stored_is_not_forgotten(make_bus: MakeBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt of its parent fails, and is repeated. The store cannot store a child together with a success."""
    bus = make_bus(retry={"max_retries": 3, "base_delay": 0.0})
    monkeypatch.setattr(bus.store, "features", replace(bus.store.features, children=False))
    add_events, lost = bus.store.add_events, 0

    async def add(new: list[object], **options: object) -> object:
        nonlocal lost
        if getattr(new[0], "type", "") == "child" and not lost:
            lost += 1
            raise OSError("disk full")
        return await add_events(new, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(bus.store, "add_events", add)

    async def parent(event: Event) -> None:
        bus.emit("child")

    bus.subscribe("parent", parent)
    bus.subscribe("child", lambda event: None)
    await bus.start()
    ended = await bus.emit("parent")
    assert (ended.status, ended.attempts, lost) == (EventStatus.COMPLETED, 2, 1)
    assert "was not stored: OSError: disk full" in ended.errors[0]
    assert await bus.find("child") is not None
