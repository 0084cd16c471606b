"""Seed 003: subscriptions, glob patterns, the order of handlers."""

import asyncio
from contextvars import ContextVar
from functools import partial

import pytest
from tests.seeds.support import QUICK, Recorder, rows, status_of, until

from durabus import (
    ConfigurationError,
    DuplicateHandlerError,
    Event,
    EventBus,
    EventStatus,
    EventStore,
    InvalidEventError,
    RetryPolicy,
)

GLOBS = [
    ("user.created", "user.created", True),
    ("user.created", "user.updated", False),
    ("user.*", "user.created", True),
    ("user.*", "user.updated", True),
    ("user.*", "order.created", False),
    ("user.*", "user", False),
    ("user.*", "user.created.twice", False),
    ("*", "user.created", True),
    ("*", "anything", True),
    ("*", "order.123.shipped", True),
    ("order.*.shipped", "order.123.shipped", True),
    ("order.*.shipped", "order.shipped", False),
    ("*.created", "user.created", True),
    ("*.created", "user.updated", False),
    ("user.[ab]", "user.a", False),
    ("user.?x", "user.ax", False),
    ("User.created", "user.created", False),
]


@pytest.mark.parametrize(("pattern", "event_type", "matches"), GLOBS)
async def test_a_glob_pattern_chooses_the_events(
    store: EventStore, pattern: str, event_type: str, matches: bool
) -> None:
    handler = Recorder()
    async with EventBus(store) as bus:
        bus.subscribe(pattern, handler)
        await bus.publish(event_type)
    assert handler.calls == (1 if matches else 0)


async def test_subscribe_without_a_pattern_takes_all_events(store: EventStore) -> None:
    handler = Recorder()
    async with EventBus(store) as bus:
        bus.subscribe(handler)
        await bus.publish("user.created")
        await bus.publish("order.123.shipped")
    assert handler.types == ["user.created", "order.123.shipped"]


async def test_subscribe_returns_the_id_of_the_subscription(store: EventStore) -> None:
    async with EventBus(store) as bus:
        first, second = bus.subscribe("user.*", Recorder()), bus.subscribe("order.*", Recorder())
        chosen = bus.subscribe("mail.*", Recorder(), id="mailer")
    assert first != second
    assert chosen == "mailer"


async def send_mail(event: Event) -> None:
    return


async def test_the_same_code_has_the_same_subscription_id_on_every_node() -> None:
    ids = []
    for _ in range(2):
        async with EventBus("memory://") as bus:
            ids.append((bus.subscribe("user.*", send_mail), bus.subscribe("user.*", send_mail)))
    assert ids[0] == ids[1]
    assert ids[0][0] != ids[0][1]


async def test_an_id_that_is_taken_is_refused(store: EventStore) -> None:
    async with EventBus(store) as bus:
        bus.subscribe("user.*", Recorder(), id="mailer")
        with pytest.raises(DuplicateHandlerError, match="mailer"):
            bus.subscribe("order.*", Recorder(), id="mailer")


async def test_subscribe_takes_options(store: EventStore) -> None:
    handler = Recorder(failures=5)
    async with EventBus(store, retry=QUICK) as bus:
        bus.subscribe("user.*", handler, timeout=5.0, retry={"max_retries": 1})
        await bus.publish("user.created")
    assert handler.calls == 2


async def test_on_is_subscribe_as_a_decorator(store: EventStore) -> None:
    seen: list[str] = []
    async with EventBus(store) as bus:

        @bus.on("user.*", timeout=5.0)
        async def handler(event: Event) -> None:
            seen.append(event.type)

        await bus.publish("user.created")
    assert seen == ["user.created"]


@pytest.mark.parametrize(
    ("pattern", "handler", "options"),
    [
        ("user.*", None, {}),
        ("user.*", "not callable", {}),
        ("user.*", lambda: None, {}),
        ("user.*", lambda a, b, c: None, {}),
        ("user.*", print, {"timeout": 0}),
        ("user.*", print, {"timeout": -1}),
        ("user.*", print, {"retry": {"max_tries": 3}}),
        ("user.*", print, {"retry": {"max_retries": -1}}),
        ("user.*", print, {"retry": {"jitter": 2}}),
        ("user.*", print, {"retry": {"multiplier": 0.5}}),
    ],
)
async def test_a_subscription_that_cannot_work_is_refused(
    store: EventStore, pattern: str, handler: object, options: dict[str, object]
) -> None:
    async with EventBus(store) as bus:
        with pytest.raises(ConfigurationError):
            bus.subscribe(pattern, handler, **options)  # type: ignore[arg-type]
        assert (await store.list_handlers(bus.name)).handlers == []


@pytest.mark.parametrize("pattern", ["", "x" * 256, "user.\x00"])
async def test_a_pattern_outside_its_limits_is_refused(pattern: str) -> None:
    async with EventBus("memory://") as bus:
        with pytest.raises(InvalidEventError):
            bus.subscribe(pattern, Recorder())


async def test_unsubscribe_removes_the_handler(store: EventStore) -> None:
    gone, other = Recorder(), Recorder()
    async with EventBus(store) as bus:
        subscription = bus.subscribe("user.*", gone)
        bus.subscribe("user.*", other)
        assert bus.unsubscribe(subscription)
        await bus.publish("user.created")
    assert (gone.calls, other.calls) == (0, 1)


async def test_unsubscribe_of_an_unknown_id_says_so(store: EventStore) -> None:
    async with EventBus(store) as bus:
        subscription = bus.subscribe("user.*", Recorder())
        assert bus.unsubscribe(subscription)
        assert not bus.unsubscribe(subscription)


async def test_the_metadata_of_subscriptions_is_stored_and_removed(store: EventStore) -> None:
    async def names() -> list[tuple[str, str]]:
        return [(info.handler_id, info.pattern) for info in (await store.list_handlers("default")).handlers]

    async def registered() -> bool:
        return await names() == [("mailer", "user.*")]

    async def removed() -> bool:
        return await names() == []

    async with EventBus(store) as bus:
        bus.subscribe("user.*", Recorder(), id="mailer")
        await until(registered)
        bus.unsubscribe("mailer")
        await until(removed)


async def test_subscriptions_are_seen_with_sql(sqlite_url: str) -> None:
    async with EventBus(sqlite_url) as bus:
        bus.subscribe("user.*", Recorder(), id="mailer")
    assert rows(sqlite_url, "select id, event_type from subscriptions") == [("mailer", "user.*")]


async def test_handlers_of_an_event_run_one_after_another_in_the_order_of_subscription(store: EventStore) -> None:
    steps: list[str] = []

    async def handle(name: str, event: Event) -> None:
        steps.append(f"{name} begins")
        await asyncio.sleep(0)
        steps.append(f"{name} ends")

    async with EventBus(store) as bus:
        for name in ("c", "a", "b"):
            bus.subscribe("user.*", partial(handle, name), id=name)
        await bus.publish("user.created")
    assert steps == [f"{name} {what}" for name in ("c", "a", "b") for what in ("begins", "ends")]


async def test_a_handler_that_fails_does_not_keep_the_next_from_running(store: EventStore) -> None:
    failing, next_one = Recorder(failures=1), Recorder()
    async with EventBus(store, retry=QUICK) as bus:
        bus.subscribe("user.*", failing)
        bus.subscribe("user.*", next_one)
        await bus.publish("user.created")
    assert (failing.calls, next_one.calls) == (2, 1)


async def test_an_event_is_completed_only_when_all_its_handlers_have_succeeded(store: EventStore) -> None:
    async with EventBus(store, retry=RetryPolicy(max_retries=0)) as bus:
        bus.subscribe("user.*", Recorder())
        bus.subscribe("user.*", Recorder(failures=1))
        event_id = await bus.publish("user.created")
        assert await status_of(store, event_id) is EventStatus.FAILED


async def test_events_are_handled_in_the_order_of_publishing_when_one_at_a_time(store: EventStore) -> None:
    handler = Recorder()
    async with EventBus(store, concurrency=1) as bus:
        for n in range(20):
            bus.emit("user.created", {"n": n})
        bus.subscribe("user.*", handler)
        assert await bus.wait_until_idle(timeout=20)
    assert [event.payload["n"] for event in handler.events] == list(range(20))


async def test_events_are_handled_side_by_side_up_to_the_concurrency(store: EventStore) -> None:
    inside, most, release = 0, 0, asyncio.Event()
    full = asyncio.Event()

    async def handler(event: Event) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        if inside == 3:
            full.set()
        await release.wait()
        inside -= 1

    async with EventBus(store, concurrency=3) as bus:
        bus.subscribe("user.*", handler)
        for _ in range(10):
            bus.emit("user.created")
        await full.wait()
        await asyncio.sleep(0.02)
        release.set()
        assert await bus.wait_until_idle(timeout=20)
    assert most == 3


request_id: ContextVar[str] = ContextVar("request_id", default="none")


async def test_a_context_variable_set_by_a_handler_does_not_leak_to_the_next_event(store: EventStore) -> None:
    seen: list[str] = []

    async def handler(event: Event) -> None:
        seen.append(request_id.get())
        request_id.set(event.payload["request_id"])

    async with EventBus(store, concurrency=1) as bus:
        bus.subscribe("user.*", handler)
        for n in range(5):
            bus.emit("user.created", {"request_id": f"request-{n}"})
        assert await bus.wait_until_idle(timeout=20)
    assert seen == ["none"] * 5


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"concurrency": -1},
        {"lease": 0},
        {"lease": -1},
        {"lease": "30"},
        {"poll_interval": 0},
        {"shutdown_timeout": -1},
        {"mode": "sometimes"},
    ],
    ids=str,
)
async def test_options_that_cannot_work_are_refused_when_the_bus_is_made(options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        EventBus(**options)  # type: ignore[arg-type]
