"""What the tests of the public faces share: handlers that remember or wait, and ways to read back what happened."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

from durabus import Event, EventStatus, EventStore, LogEntry, RetryPolicy

QUICK = RetryPolicy(max_retries=3, base_delay=0.01, jitter=0.0)
ONCE = RetryPolicy(max_retries=0)


class Recorder:
    """A handler that keeps its events, fails as often as the test says, and lets the test wait for its calls."""

    def __init__(self, *, failures: int = 0, error: Exception | None = None) -> None:
        self.events: list[Event] = []
        self._failures = failures
        self._error = error or ValueError("not today")
        self._called = asyncio.Condition()

    async def __call__(self, event: Event) -> None:
        self.events.append(event)
        async with self._called:
            self._called.notify_all()
        if len(self.events) <= self._failures:
            raise self._error

    @property
    def calls(self) -> int:
        return len(self.events)

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]

    async def called(self, times: int = 1) -> None:
        """Wait until the handler was called ``times`` times."""
        async with self._called:
            await self._called.wait_for(lambda: self.calls >= times)


class Gate:
    """A handler that stops inside until the test opens it."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.calls = 0

    async def __call__(self, event: Event) -> None:
        self.calls += 1
        self.entered.set()
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the condition holds. The deadline of the test ends the wait."""
    while not await condition():  # noqa: ASYNC110  (a store has no event to wait for)
        await asyncio.sleep(0.005)


async def until_status(store: EventStore, ref: int | str, *statuses: EventStatus) -> Event:
    """Wait until the event stands in one of ``statuses``."""

    async def reached() -> bool:
        return (await stored(store, ref)).status in statuses

    await until(reached)
    return await stored(store, ref)


async def stored(store: EventStore, ref: int | str) -> Event:
    """Return the event as the store holds it. It must exist."""
    event = await store.get_event(ref)
    assert event is not None
    return event


async def status_of(store: EventStore, ref: int | str) -> EventStatus:
    return (await stored(store, ref)).status


async def ending_of(store: EventStore, ref: int | str) -> LogEntry:
    """Return the newest entry of the event's log."""
    return (await store.read_event_log(ref))[-1]


async def delays_of(store: EventStore, ref: int | str) -> list[float]:
    """Return the seconds between the attempts of an event, as the log has them."""
    entries = await store.read_event_log(ref)
    return [round(e.next_retry_ts - e.at_ts, 3) for e in entries if e.next_retry_ts is not None]


def rows(url: str, query: str, *values: Any) -> list[Any]:
    """Return what an administrator sees with SQL in the file behind ``url``."""
    path = url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query, values).fetchall()
