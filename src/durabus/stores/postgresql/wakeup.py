"""Wakes workers of other processes that wait for events of a bus: LISTEN and NOTIFY."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable

import asyncpg

from durabus.errors import DurabusError
from durabus.stores.postgresql.address import PostgreSQLAddress
from durabus.stores.postgresql.connection import Connection, connect, let_go

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
