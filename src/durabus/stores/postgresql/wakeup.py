"""Wakes workers of other processes that wait for events of a bus: LISTEN and NOTIFY.

The connection that listens also holds the locks that show that processes live (``processes``). While it is lost, a
connection of the heartbeat holds them.

``PostgreSQLHints.wait`` is ``wait_for_work``: it looks for events to claim, then waits for a notification or for the
next due time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import weakref
from collections.abc import Awaitable, Callable, Iterable

import asyncpg

from durabus.clock import monotonic
from durabus.errors import DurabusError
from durabus.model.claim import ClaimRequest
from durabus.stores.postgresql.address import PostgreSQLAddress
from durabus.stores.postgresql.connection import Connection, Pool, connect, let_go
from durabus.stores.postgresql.service import ServiceThread
from durabus.stores.sql.rows import Row
from durabus.stores.wakeups import ENDS, BusNews, WaitingWorkers

logger = logging.getLogger("durabus.postgresql")

SIGN_OF_LIFE_EVERY = 5.0
SIGN_OF_LIFE_WITHIN = 5.0
CLOSE_WITHIN = 10.0
"""Maximum seconds that closing waits for a connection attempt."""
LOCK = "SELECT pg_advisory_lock_shared(hashtextextended($1, 4))"
UNLOCK = "SELECT pg_advisory_unlock_shared(hashtextextended($1, 4))"
"""The lock of a process, by its incarnation. It is shared, because the server may not have noticed yet that the
connection before this one is gone."""
HELD_WITHIN = 1.0
"""Maximum seconds that the listener waits for another connection to hold the locks before it connects again."""
PAUSES = (0.0, 0.05, 0.2, 1.0, 2.0, 5.0)
"""Seconds before each new attempt to connect. The last one repeats."""


class Listener:
    """One connection that listens for the buses with new events. Only the store's own thread uses it.

    A connection can die silently (a firewall forgets it, a host is unplugged). So the listener tests it every few
    seconds. It replaces a dead one and wakes every worker, because it may have missed notifications.

    A new connection may take long, as with a server that has none left. ``pool`` has connections of this thread that
    may have outlived the lost one: so one of them holds the locks of the processes at once.
    """

    def __init__(self, address: PostgreSQLAddress, heard: Callable[[str | None], None], pool: Pool) -> None:
        self._address = address
        self._pool = pool
        self._heard = heard
        self._ready = asyncio.Event()
        self._lost = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.connections = 0
        """Number of connections so far. More than one means that the listener has recovered."""
        self.backend: int | None = None
        """The process id of the server for the current connection."""
        self.ready_since = 0.0
        """When the current connection was ready, by the local clock."""
        self._connection: Connection | None = None
        self._in_use = asyncio.Lock()
        self._processes: set[str] = set()
        self.shown: set[str] = set()
        """The incarnations whose locks the current connection holds."""
        self._deputy: Connection | None = None
        """The connection of the pool that holds locks since the listener lost its own."""
        self._shown_by_deputy: set[str] = set()

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

    async def show(self, incarnation: str) -> None:
        """Hold the lock of a process from now on, on this connection and on those that follow it."""
        self._processes.add(incarnation)
        async with self._in_use:
            if self._connection is not None and incarnation not in self.shown:
                await self._lock(self._connection, incarnation)

    async def withdraw(self, incarnation: str) -> None:
        """Hold the lock of a process no longer."""
        self._processes.discard(incarnation)
        async with self._in_use:
            if self._connection is not None and incarnation in self.shown:
                self.shown.discard(incarnation)
                await self._connection.execute(UNLOCK, incarnation, timeout=SIGN_OF_LIFE_WITHIN)
            if incarnation in self._shown_by_deputy:
                self._dismiss_deputy()

    def let_go_in_child(self) -> None:
        """Give up the inherited sockets in a forked child: they would keep the sessions of a killed parent alive."""
        for connection in (self._connection, self._deputy):
            if connection is None or connection.is_closed():
                continue
            socket = connection._transport.get_extra_info("socket")  # noqa: SLF001  (asyncpg has no public name)
            nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            # The number stays in use: what the child inherited closes it some day, and must not close another file.
            os.dup2(nothing, socket.fileno(), inheritable=False)
            os.close(nothing)

    async def _lock(self, connection: Connection, incarnation: str) -> None:
        await connection.execute(LOCK, incarnation, timeout=SIGN_OF_LIFE_WITHIN)
        self.shown.add(incarnation)

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
            await self._hold_on_deputy()
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
            async with self._in_use:
                self._connection = connection
                _LISTENERS.add(self)
                for incarnation in list(self._processes):
                    await self._lock(connection, incarnation)
            self.ready_since = monotonic()
            self._ready.set()
            await self._stay(connection)
        finally:
            self._connection, self.shown = None, set()
            await let_go(connection)

    async def _hold_on_deputy(self) -> None:
        """Hold the locks of the processes on a connection of the pool, which goes on with its other calls."""
        if self._deputy is not None and self._deputy.is_closed():
            self._deputy, self._shown_by_deputy = None, set()
        if self._closing.is_set() or self._processes <= self._shown_by_deputy:
            return
        try:
            async with asyncio.timeout(HELD_WITHIN), self._in_use:
                await self._pool.run(self._lock_on_deputy)
        except (DurabusError, TimeoutError) as error:
            logger.debug("no other connection shows that this process lives: %s", str(error) or type(error).__name__)

    async def _lock_on_deputy(self, connection: Connection) -> None:
        if connection is not self._deputy:
            self._dismiss_deputy()
            self._deputy = connection
        for incarnation in self._processes - self._shown_by_deputy:
            await connection.execute(LOCK, incarnation, timeout=HELD_WITHIN)
            self._shown_by_deputy.add(incarnation)

    def _dismiss_deputy(self) -> None:
        """Free the locks of the deputy: its session ends, because a call may use it now."""
        deputy, self._deputy, self._shown_by_deputy = self._deputy, None, set()
        if deputy is not None:
            self._pool.replace(deputy)

    async def _stay(self, connection: Connection) -> None:
        while not self._lost.is_set():
            try:
                async with asyncio.timeout(SIGN_OF_LIFE_EVERY):
                    await self._lost.wait()
            except TimeoutError:
                async with self._in_use:
                    await connection.execute("SELECT 1", timeout=SIGN_OF_LIFE_WITHIN)

    def _terminated(self, _connection: object) -> None:
        self._lost.set()

    def _notified(self, _connection: object, _backend: int, _channel: str, payload: object) -> None:
        self._heard(str(payload))


_LISTENERS: weakref.WeakSet[Listener] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for listener in list(_LISTENERS):
        listener.let_go_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)

LISTENING_WITHIN = 5.0
UNHEARD = 0.5
"""Seconds that a wait for the ends of events takes at most on a store that does not listen: its caller then looks."""
PAUSE = 0.005
"""Seconds between two notifications: a constant stream of publishes must not double the load."""

SendNotifications = Callable[[list[str]], Awaitable[None]]


class Notifier:
    """Notifies other processes of buses with new events, after the commit. Only one event loop may use it.

    It sends the first notification at once, and the next one after a pause for all buses of that time.
    NOTIFY inside a transaction takes a lock of the whole database until its commit is on the disk, so that concurrent
    publishers no longer share one write: with eight of them, three times slower as measured here. So only a publish in
    a caller's transaction notifies there, because only the caller knows when it commits. A lost notification costs a
    worker one poll interval.
    """

    def __init__(self, send: SendNotifications) -> None:
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


NextWakeup = Callable[[str], Awaitable[Row]]


class PostgreSQLHints:
    """Sends and receives wake-ups. With ``listen=off`` they stay within this store object."""

    def __init__(
        self, address: PostgreSQLAddress, service: ServiceThread, send: SendNotifications, next_wakeup: NextWakeup
    ) -> None:
        self._address = address
        self._service = service
        self._send = send
        self._next_wakeup = next_wakeup
        self._waiting = WaitingWorkers()
        self._news = BusNews()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._notifier = Notifier(send)
        self._notifier_there: Notifier | None = None
        self._listener: Listener | None = None

    @property
    def listener(self) -> Listener | None:
        """The listener; None until the first wait."""
        return self._listener

    async def listening(self) -> Listener | None:
        """Return the listener once it is ready; None if this store does not listen, or cannot at present."""
        if not self._address.listen:
            return None
        await self._listen(LISTENING_WITHIN)
        listener = self._listener
        return listener if listener is not None and listener.is_ready else None

    def begin(self) -> None:
        """Remember the event loop that called ``open``."""
        self._loop = asyncio.get_running_loop()

    def tell(self, buses: set[str]) -> None:
        """Wake the workers that wait for these buses, in this and other processes."""
        for bus in buses:
            self._wake(bus)
        if not buses or not self._address.listen:
            return
        if asyncio.get_running_loop() is self._loop:
            self._notifier.tell(buses)
        else:
            self._service.submit(lambda _pool: self._tell_there(buses))

    def claim_began(self) -> int:
        """See ``BusNews.mark``."""
        return self._news.mark()

    def claimed(self, request: ClaimRequest, began: int, *, anything: bool) -> None:
        """See ``BusNews.claimed``."""
        self._news.claimed(request.bus, began, anything=anything)

    def wake_all(self) -> None:
        """Wake every worker, because the store closes."""
        self._wake(None)

    async def close(self) -> None:
        """Send the remaining notifications. Runs on the event loop of ``open``."""
        await self._notifier.close()

    async def wait(self, bus: str, seconds: float) -> bool:
        """Wait at most ``seconds``, and return whether the bus may have events to claim."""
        until = monotonic() + seconds
        future = self._waiting.add(bus)
        try:
            if self._address.listen:
                await self._listen(seconds)
            ready, due_in = await self._next_wakeup(bus)
            if ready and self._news.has(bus):
                return True
            left = max(until - monotonic(), 0.0)
            due = due_in is not None and due_in < left
            done, _ = await asyncio.wait({future}, timeout=max(due_in, 0.0) if due else left)
            return due or bool(done)
        finally:
            self._waiting.remove(bus, future)

    async def wait_for_ends(self, node: str, seconds: float) -> bool:
        """Wait at most ``seconds``, and return whether an event that the node waits for may have ended."""
        until, name = monotonic() + seconds, ENDS + node
        future = self._waiting.add(name)
        try:
            if self._address.listen:
                await self._listen(seconds)
            else:
                until = min(until, monotonic() + UNHEARD)
            await asyncio.wait({future}, timeout=max(until - monotonic(), 0.0))
            return future.done()
        finally:
            self._waiting.remove(name, future)

    def _wake(self, bus: str | None) -> None:
        self._news.add(bus)
        self._waiting.wake(bus)

    async def _listen(self, seconds: float) -> None:
        """Wait until the listener is ready. If that takes too long, workers poll."""
        listener = self._listener
        if listener is None:
            listener = self._listener = await asyncio.wrap_future(self._service.submit(self._make_listener))
        if listener.is_ready:
            return
        ready = self._service.submit(lambda _pool: listener.ready())
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await asyncio.wrap_future(ready)
        except TimeoutError:
            ready.cancel()

    async def _tell_there(self, buses: set[str]) -> None:
        """Notify from the store's own thread, because the caller's event loop may end before."""
        if self._notifier_there is None:
            self._notifier_there = Notifier(self._send)
            self._service.at_the_end(self._notifier_there.close)
        self._notifier_there.tell(buses)

    async def _make_listener(self, pool: Pool) -> Listener:
        if self._listener is None:
            self._listener = Listener(self._address, self._wake, pool)
            self._news.add(None)  # the listener missed earlier notifications
            self._service.at_the_end(self._listener.close)
        return self._listener
