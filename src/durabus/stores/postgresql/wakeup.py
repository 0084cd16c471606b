"""Wakes workers that wait for events of a bus: the table of waiting workers, LISTEN and NOTIFY."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable

import asyncpg

from durabus.errors import DurabusError
from durabus.model.claim import ClaimRequest
from durabus.stores.postgresql.address import PostgreSQLAddress
from durabus.stores.postgresql.connection import Connection, connect, let_go

_REMEMBERED_BUSES = 10_000


class PostgreSQLWakeup:
    """The workers that wait, by bus. Several threads use it. A lost wake-up costs latency, nothing else."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._sleepers: dict[str, list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]] = {}
        self._tick = 0
        self._news: dict[str, int] = {}
        self._all_news = 0
        self._in_vain: dict[str, int] = {}

    def sleep(self, bus: str) -> asyncio.Future[None]:
        """Return a future that resolves when ``bus`` may have events to claim."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._gate:
            self._sleepers.setdefault(bus, []).append((loop, future))
        return future

    def leave(self, bus: str, future: asyncio.Future[None]) -> None:
        """Remove a worker that was woken or stopped waiting."""
        with self._gate:
            left = [one for one in self._sleepers.get(bus, ()) if one[1] is not future]
            if left:
                self._sleepers[bus] = left
            else:
                self._sleepers.pop(bus, None)

    def wake(self, bus: str | None) -> None:
        """Wake the workers of a bus; with None, of all buses."""
        with self._gate:
            self._tick += 1
            if bus is None:
                self._all_news = self._tick
                woken = [one for sleepers in self._sleepers.values() for one in sleepers]
                self._sleepers.clear()
            else:
                self._remember_few()
                self._news[bus] = self._tick
                woken = self._sleepers.pop(bus, [])
        for loop, future in woken:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, future)

    def listening(self) -> None:
        """The listener starts: it missed earlier notifications, so every bus may have new events."""
        with self._gate:
            self._tick += 1
            self._all_news = self._tick

    def began(self) -> int:
        """Return a mark before a claim. Later news counts as new for a worker whose claim got nothing."""
        return self._tick

    def claimed(self, request: ClaimRequest, began: int, *, anything: bool) -> None:
        """Remember whether a claim got events. Events that it could not get do not wake its worker again."""
        with self._gate:
            self._remember_few()
            if anything:
                self._in_vain.pop(request.bus, None)
            else:
                self._in_vain[request.bus] = began

    def is_news(self, bus: str) -> bool:
        """Return whether new events came since the last claim that got nothing (other tags, a held lock)."""
        with self._gate:
            since = self._in_vain.get(bus)
            return since is None or max(self._news.get(bus, 0), self._all_news) > since

    def _remember_few(self) -> None:
        """Limit the tables: bus names come and go, also those of buses that no worker here claims from."""
        if len(self._news) + len(self._in_vain) > _REMEMBERED_BUSES:
            self._news.clear()
            self._in_vain.clear()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


logger = logging.getLogger("durabus.postgresql")

SIGN_OF_LIFE_EVERY = 5.0
SIGN_OF_LIFE_WITHIN = 5.0
CLOSE_WITHIN = 10.0
"""Maximum seconds that closing waits for a connection attempt."""
PAUSES = (0.05, 0.2, 1.0, 2.0, 5.0)
"""Seconds before each new attempt to connect. The last one repeats."""


class Listener:
    """One connection that listens for the buses with new events. Only the store's own thread uses it.

    A connection can die silently (a firewall forgets it, a host is unplugged). So the listener tests it every few
    seconds. It replaces a dead one and wakes every worker, because it may have missed notifications.
    """

    def __init__(self, address: PostgreSQLAddress, heard: Callable[[str | None], None]) -> None:
        self._address = address
        self._heard = heard
        self._ready = asyncio.Event()
        self._lost = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.connections = 0
        """Number of connections so far. More than one means that the listener has recovered."""
        self.backend: int | None = None
        """The process id of the server for the current connection."""

    @property
    def is_ready(self) -> bool:
        """Whether the listener receives all notifications. Any thread may read it."""
        return self._ready.is_set()

    async def ready(self) -> None:
        """Start if needed, and wait until the listener receives all notifications."""
        if self._task is None and not self._closing.is_set():
            self._task = asyncio.get_running_loop().create_task(self._serve(), name="durabus-listen")
        if not self._closing.is_set():
            await self._ready.wait()

    async def close(self) -> None:
        """Stop listening. Waits for a connection attempt: a cancelled one would leave a socket open."""
        self._closing.set()
        self._lost.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=CLOSE_WITHIN)
            self._task.cancel()
            await asyncio.wait({self._task})
        self._ready.set()  # end every wait for the listener

    async def _serve(self) -> None:
        failures = 0
        while not self._closing.is_set():
            try:
                await self._listen()
                failures = 0
            except (DurabusError, OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                level = logging.WARNING if failures == 0 else logging.DEBUG
                logger.log(level, "not listening at present, workers poll: %s", error or type(error).__name__)
            self._ready.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PAUSES[min(failures, len(PAUSES) - 1)]):
                    await self._closing.wait()
            failures += 1

    async def _listen(self) -> None:
        """Listen until the connection is lost or the listener closes."""
        connection = await connect(self._address)
        try:
            if self._closing.is_set():
                return
            self._lost.clear()
            connection.add_termination_listener(self._terminated)
            await connection.add_listener(self._address.channel, self._notified)
            self.backend = connection.get_server_pid()
            self.connections += 1
            if self.connections > 1:
                self._heard(None)  # notifications may have been missed
            self._ready.set()
            await self._stay(connection)
        finally:
            await let_go(connection)

    async def _stay(self, connection: Connection) -> None:
        while not self._lost.is_set():
            try:
                async with asyncio.timeout(SIGN_OF_LIFE_EVERY):
                    await self._lost.wait()
            except TimeoutError:
                await connection.execute("SELECT 1", timeout=SIGN_OF_LIFE_WITHIN)

    def _terminated(self, _connection: object) -> None:
        self._lost.set()

    def _notified(self, _connection: object, _backend: int, _channel: str, payload: object) -> None:
        self._heard(str(payload))


PAUSE = 0.005
"""Seconds between two notifications: a constant stream of publishes must not double the load."""

Send = Callable[[list[str]], Awaitable[None]]


class Notifier:
    """Notifies other processes of buses with new events, after the commit. Only one event loop may use it.

    It sends the first notification at once, and the next one after a pause for all buses of that time.
    NOTIFY inside a transaction takes a lock of the whole database until its commit is on the disk, so that concurrent
    publishers no longer share one write: with eight of them, three times slower as measured here. So only a publish in
    a caller's transaction notifies there, because only the caller knows when it commits. A lost notification costs a
    worker one poll interval.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._buses: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def tell(self, buses: Iterable[str]) -> None:
        """Notify of these buses."""
        self._buses.update(buses)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="durabus-notify")

    async def close(self) -> None:
        """Send the remaining notifications."""
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        while self._buses:
            buses, self._buses = self._buses, set()
            try:
                await self._send(sorted(buses))
            except DurabusError as error:
                logger.debug("a notification was lost, workers will poll: %s", error)
                return
            await asyncio.sleep(PAUSE)
