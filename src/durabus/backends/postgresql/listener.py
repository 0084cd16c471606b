"""LISTEN: one connection in the store's own thread that hears which buses have something new.

A connection can die without a word (a firewall forgets it, a host is unplugged). So it is asked for a sign of life
every few seconds; if none comes it is replaced, and whoever sleeps is woken, because hints may have been missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import asyncpg

from durabus.backends.postgresql.address import Address
from durabus.backends.postgresql.connection import Connection, connect, let_go
from durabus.errors import DurabusError

logger = logging.getLogger("durabus.postgresql")

SIGN_OF_LIFE_EVERY = 5.0
SIGN_OF_LIFE_WITHIN = 5.0
CLOSE_WITHIN = 10.0
"""Seconds that closing waits for a connection that is just being made."""
PAUSES = (0.05, 0.2, 1.0, 2.0, 5.0)
"""Seconds before each new try to connect; the last one again and again."""


class Listener:
    """Used in the store's own thread only."""

    def __init__(self, address: Address, heard: Callable[[str | None], None]) -> None:
        self._address = address
        self._heard = heard
        self._ready = asyncio.Event()
        self._lost = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.connections = 0
        """How often a connection was made: more than once means that it healed."""
        self.backend: int | None = None
        """The server's number for the present connection."""

    @property
    def is_ready(self) -> bool:
        """Whether everything notified now is heard. May be asked from any thread."""
        return self._ready.is_set()

    async def ready(self) -> None:
        """Start if need be, and wait until everything notified from now on is heard."""
        if self._task is None and not self._closing.is_set():
            self._task = asyncio.get_running_loop().create_task(self._serve(), name="durabus-listen")
        if not self._closing.is_set():
            await self._ready.wait()

    async def close(self) -> None:
        """Stop listening. A connection that is just being made is finished first: cancelled, it leaves a socket."""
        self._closing.set()
        self._lost.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=CLOSE_WITHIN)
            self._task.cancel()
            await asyncio.wait({self._task})
        self._ready.set()  # nobody shall wait for what will not come

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
        """Until the connection is lost; returns, or raises what went wrong."""
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
                self._heard(None)  # what was notified meanwhile was not heard
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
