"""The tasks of one event loop that wait for work on a bus, and the server's hints that wake them."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError, ResponseError

from durabus.stores.redis.connection import Connector, command, disconnect, moved_to, refused, unreachable

ALL_BUSES = ""
"""The channel that wakes all buses, because the global lock became free."""
MOST_CHANNELS = 1000
"""Maximum number of subscriptions that are kept while no task waits for them."""

_FOLLOWED = 3


class RedisHints:
    """A connection that only listens. If it is lost, all waiting tasks wake up, because a hint may be lost with it."""

    def __init__(self, connector: Connector, channel: str) -> None:
        self._connector = connector
        self._channel = channel.encode()
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._heard: set[bytes] = set()
        """Channels whose subscription the server has confirmed."""
        self._confirmed = asyncio.Event()
        self._connecting = asyncio.Lock()
        self._connection: AbstractConnection | None = None
        self._task: asyncio.Task[None] | None = None

    async def listen(self, bus: str) -> asyncio.Future[None]:
        """Return a future that the next hint for ``bus`` completes. No hint after the return is missed.

        The caller must pass the future to ``forget``. Raises ``StoreError``.
        """
        wanted = [self._name(bus), self._name(ALL_BUSES)]
        async with self._connecting:
            if self._task is None or self._task.done():
                self._connection = await self._connect(wanted)
                self._task = asyncio.get_running_loop().create_task(self._serve(self._connection), name="durabus-hints")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(bus, set()).add(future)
        try:
            await self._subscribe(wanted)
        except BaseException:
            self.forget(bus, future)
            raise
        return future

    def forget(self, bus: str, future: asyncio.Future[None]) -> None:
        """Remove a future: its caller waits no longer."""
        future.cancel()
        waiting = self._waiting.get(bus, set())
        waiting.discard(future)
        if not waiting:
            self._waiting.pop(bus, None)

    def hang_up(self) -> None:
        """Stop now, and wake all waiting tasks."""
        if self._task is not None:
            self._task.cancel()
        self._wake(ALL_BUSES)

    async def close(self) -> None:
        """Stop, and wait until the connection is closed."""
        self.hang_up()
        if self._task is not None:
            await asyncio.wait({self._task})

    def _name(self, bus: str) -> bytes:
        return self._channel + bus.encode()

    async def _connect(self, wanted: list[bytes]) -> AbstractConnection:
        """Return a connection with a subscription to ``wanted``. On a cluster it is the node that has the channels."""
        shown = self._connector.address.shown
        for _ in range(_FOLLOWED):
            connection: AbstractConnection | None = None
            try:
                connection = await self._connector.connect()
                self._heard = set()
                await connection.send_packed_command([command("SSUBSCRIBE", *wanted)], check_health=False)
                for _name in wanted:
                    self._take(await connection.read_response(disconnect_on_error=False))
            except ResponseError as error:
                await disconnect(connection)
                place = moved_to(error)
                if place is None:
                    raise refused(shown, error) from error
                self._connector.follow(place)
            except (RedisError, OSError) as error:
                await disconnect(connection)
                raise unreachable(shown, error) from error
            except BaseException:
                await disconnect(connection)
                raise
            else:
                return connection
        raise unreachable(shown, None)

    async def _subscribe(self, wanted: list[bytes]) -> None:
        missing = [name for name in wanted if name not in self._heard]
        if missing and self._connection is not None:
            await self._connection.send_packed_command([command("SSUBSCRIBE", *missing)], check_health=False)
        while not self._heard.issuperset(wanted) and self._task is not None and not self._task.done():
            self._confirmed.clear()
            await self._confirmed.wait()

    async def _serve(self, connection: AbstractConnection) -> None:
        try:
            while True:
                self._take(await connection.read_response(disconnect_on_error=False))
                if len(self._heard) > MOST_CHANNELS + len(self._waiting):
                    idle = self._heard - {self._name(bus) for bus in (*self._waiting, ALL_BUSES)}
                    await connection.send_packed_command([command("SUNSUBSCRIBE", *idle)], check_health=False)
        except (RedisError, OSError):
            # the next wait connects again
            pass
        finally:
            self._heard = set()
            self._connection = None
            self._wake(ALL_BUSES)
            self._confirmed.set()
            await disconnect(connection)

    def _take(self, message: Any) -> None:
        kind, name = message[0], message[1]
        match kind:
            case b"ssubscribe":
                self._heard.add(name)
                self._confirmed.set()
            case b"sunsubscribe":
                self._heard.discard(name)
                self._confirmed.set()
            case _:
                self._wake(name[len(self._channel) :].decode())

    def _wake(self, bus: str) -> None:
        for woken in list(self._waiting) if bus == ALL_BUSES else [bus]:
            for future in self._waiting.get(woken, ()):
                if not future.done():
                    future.set_result(None)
