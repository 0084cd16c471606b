"""A few connections of one event loop. Taking one and giving it back cost nothing: no checks, no reset statements."""

from __future__ import annotations

import asyncio
from collections import deque

from durabus.backends.postgresql.address import Address
from durabus.backends.postgresql.connection import Connection, connect, let_go
from durabus.errors import StoreClosedError


class Pool:
    """Used on one event loop only."""

    def __init__(self, address: Address, size: int) -> None:
        self._address = address
        self._size = size
        self._idle: list[Connection] = []
        self._open = 0
        self._closed = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._retiring: set[asyncio.Task[None]] = set()
        self._users = 0
        self._unused = asyncio.Event()
        self._unused.set()

    async def take(self) -> Connection:
        """An idle connection, a new one, or the next that somebody gives back."""
        if self._closed:
            raise StoreClosedError(f"the store on {self._address.shown} is closed: open a new one")
        self._users += 1
        self._unused.clear()
        try:
            while True:
                while self._idle:
                    connection = self._idle.pop()
                    if not connection.is_closed():
                        return connection
                    self._open -= 1
                if self._open < self._size:
                    return await self._connect()
                await self._wait()
        except BaseException:
            self._left()
            raise

    def give_back(self, connection: Connection, *, usable: bool = True) -> None:
        """After use. One that is not usable any more is dropped; the next user gets a new one."""
        if usable and not connection.is_closed():
            self._idle.append(connection)
        else:
            self._retire(connection)
        self._wake()
        self._left()

    def drop_idle(self) -> None:
        """The server closed one connection under us: the idle ones are probably gone too."""
        while self._idle:
            self._retire(self._idle.pop())

    async def wait_until_unused(self) -> None:
        """Wait for those who use a connection or wait for one."""
        await self._unused.wait()

    async def close(self) -> None:
        """Wait until nobody uses a connection, then let all go. Nobody gets one after that."""
        await self._unused.wait()
        self._closed = True
        self.drop_idle()
        if self._retiring:
            await asyncio.wait(self._retiring)

    def abandon(self) -> None:
        """The event loop is gone, so nothing can be waited for: drop the sockets."""
        for connection in self._idle:
            try:
                connection.terminate()
            except RuntimeError:  # the loop is closed: the socket goes with the garbage
                continue
        self._idle.clear()

    def _retire(self, connection: Connection) -> None:
        """Close in the background: after a cancelled call asyncpg still has to tell the server to stop."""
        self._open -= 1
        task = asyncio.get_running_loop().create_task(let_go(connection))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _connect(self) -> Connection:
        self._open += 1
        try:
            return await connect(self._address)
        except BaseException:
            self._open -= 1
            self._wake()
            raise

    async def _wait(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._wake()  # the turn came, and goes to the next one
            raise

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _left(self) -> None:
        self._users -= 1
        if self._users == 0:
            self._unused.set()
