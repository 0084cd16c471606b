"""The same verbs for scripts without an event loop."""

import threading

import pytest
from tests.seeds.support import ONCE, QUICK

from durabus import (
    ConfigurationError,
    Event,
    EventBusShutdownError,
    EventFailed,
    EventStatus,
    InvalidPayloadError,
    RetryPolicy,
    SyncEventBus,
)


def test_publish_returns_when_dispatch_is_over(store_url: str) -> None:
    seen: list[object] = []
    with SyncEventBus(store_url) as bus:
        bus.subscribe("user.*", lambda event: seen.append(event.payload))
        bus.publish("user.created", {"id": 1}, metadata={"source": "web"})
        assert seen == [{"id": 1}]


def test_emit_returns_a_handle_that_can_be_waited_for(store_url: str) -> None:
    def handler(event: Event) -> int:
        number: int = event.payload["n"]
        return number + 1

    with SyncEventBus(store_url) as bus:
        bus.subscribe("add", handler, id="adder")
        handle = bus.emit("add", {"n": 1})
        assert handle.stored().event_id == handle.event_id
        assert handle.completed().status is EventStatus.COMPLETED
        assert handle.result() == 2
        assert [result.handler_id for result in handle.results()] == ["adder"]


def test_async_handlers_run_too(store_url: str) -> None:
    seen: list[str] = []

    async def handler(event: Event) -> None:
        seen.append(event.type)

    with SyncEventBus(store_url) as bus:
        bus.on("user.*")(handler)
        bus.publish("user.created")
    assert seen == ["user.created"]


def test_handlers_do_not_run_in_the_caller_s_thread(store_url: str) -> None:
    threads: list[int] = []
    with SyncEventBus(store_url) as bus:
        bus.subscribe(lambda event: threads.append(threading.get_ident()))
        bus.publish("user.created")
    assert threads != [threading.get_ident()]
    assert len(threads) == 1


def test_errors_reach_the_caller(store_url: str) -> None:
    def fail(event: Event) -> None:
        raise ValueError("not today")

    with SyncEventBus(store_url, retry=ONCE) as bus:
        bus.subscribe("user.*", fail)
        with pytest.raises(InvalidPayloadError):
            bus.publish("user.created", object())
        with pytest.raises(EventFailed, match="not today"):
            bus.emit("user.created").result()


def test_failures_are_retried(store_url: str) -> None:
    calls: list[int] = []

    def handler(event: Event) -> None:
        calls.append(event.attempts)
        if event.attempts < 3:
            raise ValueError("not today")

    with SyncEventBus(store_url, retry=QUICK) as bus:
        bus.subscribe("user.*", handler)
        bus.publish("user.created")
        assert bus.bus.metrics.snapshot().retries == {"user.created": 2}
    assert calls == [1, 2, 3]


def test_unsubscribe_and_wait_until_idle(store_url: str) -> None:
    seen: list[str] = []
    with SyncEventBus(store_url) as bus:
        subscription = bus.subscribe("user.*", lambda event: seen.append(event.type))
        bus.emit("user.created")
        assert bus.wait_until_idle(20)
        assert bus.unsubscribe(subscription)
        assert not bus.unsubscribe(subscription)
    assert seen == ["user.created"]


def test_publishing_from_many_threads(store_url: str) -> None:
    seen: list[int] = []
    with SyncEventBus(store_url) as bus:
        bus.subscribe("user.*", lambda event: seen.append(event.payload["n"]))
        threads = [threading.Thread(target=bus.publish, args=("user.created", {"n": n})) for n in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(seen) == list(range(10))


def test_a_handler_may_publish(store_url: str) -> None:
    seen: list[str] = []
    with SyncEventBus(store_url) as bus:

        def first(event: Event) -> None:
            bus.publish("second")
            seen.append("first")

        bus.subscribe("first", first)
        bus.subscribe("second", lambda event: seen.append("second"))
        bus.publish("first")
    assert seen == ["second", "first"]


def test_nothing_is_taken_after_shutdown_and_shutdown_may_be_repeated(store_url: str) -> None:
    bus = SyncEventBus(store_url)
    bus.start()
    bus.shutdown()
    bus.shutdown()
    with pytest.raises(EventBusShutdownError):
        bus.publish("user.created")
    with pytest.raises(EventBusShutdownError):
        bus.subscribe("user.*", print)


def test_options_that_cannot_work_are_refused_and_leave_no_thread_behind() -> None:
    before = set(threading.enumerate())
    with pytest.raises(ConfigurationError):
        SyncEventBus("memory://", lease=0, retry=RetryPolicy())
    assert set(threading.enumerate()) <= before
