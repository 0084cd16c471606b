"""Mistakes of users, and the damage that a bus must prevent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from durabus import (
    ConfigurationError,
    Event,
    EventBus,
    EventBusShutdownError,
    EventQueue,
    EventStatus,
    InvalidEventError,
    LeaseLost,
    RetryPolicy,
    open_store,
)
from durabus.model.claim import ClaimRef
from durabus.model.settlement import Complete
from durabus.stores.memory.store import MemoryStore

QUICK = RetryPolicy(max_retries=1, base_delay=0.01, max_delay=0.01)


class Stop(BaseException):
    """An error that means to end the program."""


async def test_emit_from_a_thread_without_a_loop_is_refused_and_harms_no_other_event() -> None:
    async with EventBus("memory://") as bus:

        def plain(event: Event) -> None:
            bus.emit("child.made")

        bus.subscribe("parent.made", plain, retry={"max_retries": 0})
        await bus.publish("parent.made")
        async with asyncio.timeout(20):
            await bus.publish("other.made")


@pytest.mark.parametrize("mode", ["parallel", "bus-serial", "global-serial"])
@pytest.mark.parametrize("handler_mode", ["serial", "parallel"])
@pytest.mark.parametrize(
    "error", [Stop("now"), GeneratorExit("now"), SystemExit("now")], ids=lambda e: type(e).__name__
)
async def test_an_error_that_means_to_end_the_program_is_a_failed_attempt_with_its_own_text(
    error: BaseException, mode: str, handler_mode: str
) -> None:
    async with EventBus("memory://", mode=mode, handler_mode=handler_mode, retry=QUICK) as bus:

        async def in_loop(event: Event) -> None:
            await asyncio.sleep(0)
            raise error

        def in_thread(event: Event) -> None:
            raise error

        bus.subscribe("job", in_loop, id="in_loop")
        bus.subscribe("job", in_thread, id="in_thread")
        bus.subscribe("next", lambda event: None)
        job = bus.emit("job")
        async with asyncio.timeout(10):  # a lease is 30 s: the bus does not wait for it
            await bus.publish("next")
            ended = await job
    assert ended.status is EventStatus.FAILED
    text = f"{type(error).__name__}: now"
    assert ended.errors == (f"in_loop: {text}; in_thread: {text}",) * 2


@pytest.mark.parametrize("handler_mode", ["serial", "parallel"])
async def test_a_handler_that_cancels_its_own_task_has_failed(handler_mode: str) -> None:
    calls: list[int] = []
    async with EventBus("memory://", mode="bus-serial", handler_mode=handler_mode, retry={"max_retries": 1}) as bus:

        async def cancels_itself(event: Event) -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

        async def counts(event: Event) -> None:
            calls.append(event.attempts)

        bus.subscribe("job", counts)
        bus.subscribe("job", cancels_itself)
        job = bus.emit("job")
        async with asyncio.timeout(10):
            ended = await job
    assert ended.status is EventStatus.FAILED
    assert [error.partition(" raised at ")[0] for error in ended.errors] == ["CancelledError: (no text)"] * 2
    assert calls == [1]


async def test_a_child_fails_if_its_handler_exits_and_the_parent_goes_on() -> None:
    async with EventBus("memory://", mode="bus-serial", retry={"max_retries": 0}) as bus:

        async def leave(event: Event) -> None:
            raise SystemExit(3)

        async def parent(event: Event) -> str:
            return str((await bus.emit("child")).last_error)

        bus.subscribe("child", leave)
        bus.subscribe("parent", parent)
        async with asyncio.timeout(10):
            assert "SystemExit: 3" in await bus.emit("parent").result()


async def test_a_number_that_no_store_can_hold_is_refused_before_it_is_sent() -> None:
    async with EventBus("memory://") as bus:
        with pytest.raises(InvalidEventError, match="max_attempts"):
            await bus.publish("user.created", max_attempts=2**70)


async def test_a_shutdown_during_the_start_leaves_nothing_running(tmp_path: Path) -> None:
    bus = EventBus(f"sqlite:///{tmp_path}/bus.db")
    start = asyncio.create_task(bus.start())
    await asyncio.sleep(0)
    await bus.shutdown()
    with pytest.raises(EventBusShutdownError):
        await start
    assert bus.in_flight == 0


async def test_a_caller_that_gives_up_waiting_does_not_stop_the_shutdown() -> None:
    bus = EventBus("memory://", shutdown_timeout=0.5)
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def stubborn(_event: Event) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    bus.subscribe("user.created", stubborn)
    await bus.start()
    handle = bus.emit("user.created")
    await begun.wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await bus.shutdown()
    await bus.shutdown()
    assert cancelled.is_set()
    with pytest.raises(EventBusShutdownError):
        await handle.completed()


async def test_a_settlement_without_a_token_is_refused(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/bus.db")
    queue = EventQueue(store)
    event = await queue.publish("user.created")
    await queue.poll()
    forged = Complete(ClaimRef(event.id, None, 1))  # type: ignore[arg-type]
    (outcome,) = (await store.settle_events([forged])).outcomes
    assert isinstance(outcome, LeaseLost)
    found = await store.get_event(event.id)
    assert found is not None
    assert found.status is EventStatus.PROCESSING
    await store.close()


async def test_a_handler_with_a_yield_is_refused() -> None:
    async with EventBus("memory://") as bus:

        async def lazy(event: Event) -> object:
            yield event

        with pytest.raises(ConfigurationError, match="yield"):
            bus.subscribe("user.created", lazy)


async def test_a_plain_handler_that_exits_has_failed_and_nothing_else() -> None:
    async with EventBus("memory://") as bus:

        def leave(_event: Event) -> None:
            raise SystemExit(3)

        bus.subscribe("user.created", leave, retry={"max_retries": 0})
        handle = bus.emit("user.created")
        assert (await handle).status is EventStatus.FAILED


async def test_a_bus_that_only_publishes_keeps_no_handles() -> None:
    async with EventBus("memory://") as bus:
        for _ in range(10):
            await bus.publish("user.created")
        assert await bus.wait_until_idle(0)


class SlowTrimmer(MemoryStore):
    """Finds what there is to trim, and then waits for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.looked, self.go_on = asyncio.Event(), asyncio.Event()

    async def cleanup_excess_events(self, bus: str, *, keep: int, limit: int = 10_000, node: str | None = None) -> int:
        gone = await super().cleanup_excess_events(bus, keep=keep, limit=limit, node=node)
        self.looked.set()
        await self.go_on.wait()
        return gone


async def test_what_ends_while_the_history_is_trimmed_is_trimmed_too() -> None:
    store = SlowTrimmer()
    async with EventBus(store, max_history_size=0) as bus:
        bus.subscribe("job", lambda event: None)
        await bus.publish("job")
        await store.looked.wait()
        await bus.publish("job")
        assert (await store.counts("default")).completed == 1
        store.go_on.set()
        async with asyncio.timeout(5):
            while (await store.counts("default")).completed:  # noqa: ASYNC110  (a store has no event to wait for)
                await asyncio.sleep(0.005)
