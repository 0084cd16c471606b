"""``durabus.store.processes.Processes``: a process shows its presence by an advisory lock, which ends with its session.

The connection that listens (``wakeup.Listener``) holds the lock. If it is lost, a connection of the heartbeat takes the
lock, and the listener connects again. Both take a moment, so a process counts as ended only if its lock stays free for
a while. After a restart of the server, or a change to another one, all locks are gone at once: then this process waits
until the others have had time to connect again. A process that is frozen or cut off keeps its session, and so its lock,
until the server gives up the connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from durabus.clock import Clock, monotonic
from durabus.store.processes import EndedProcesses
from durabus.stores.postgresql.address import PostgreSQLAddress
from durabus.stores.postgresql.connection import DRIVER_ERRORS, PostgreSQLSession
from durabus.stores.postgresql.core import PostgreSQLCore
from durabus.stores.postgresql.settlements import expire
from durabus.stores.postgresql.wakeup import PAUSES, Listener
from durabus.stores.sql.rows import Row

logger = logging.getLogger("durabus.postgresql")

LOOK_EVERY = 0.2
LOOK_ALONE_EVERY = 0.5
"""Seconds between two looks while no other process is known."""
FREE_FOR = 0.4
"""Seconds for which the lock of a process must be free."""
CONNECTED_AGAIN = PAUSES[-1] + 2.0
"""Seconds in which a process that lives has connected to a server that is back."""
LOOK_AT = 1_000


class PostgreSQLProcesses(PostgreSQLCore):
    """Implements ``store.processes.Processes`` on PostgreSQL."""

    def __init__(self, address: PostgreSQLAddress, clock: Clock | None = None) -> None:
        super().__init__(address, clock)
        self._noted: dict[str, int] = {}
        """The number of the listener's connection on which each process of this store object was noted."""
        self._free_since: dict[str, float] = {}

    async def show_presence(self, incarnation: str) -> bool:
        self._check_open()
        listener = await self._hints.listening()
        if listener is None:
            return False
        if incarnation not in listener.shown:
            await self._on_listener(listener.show(incarnation))
        if self._noted.get(incarnation) != listener.connections:
            await self._ask("show_presence", incarnation)
            self._noted[incarnation] = listener.connections
        return incarnation in listener.shown

    async def withdraw_presence(self, incarnation: str) -> None:
        await self._ask("withdraw_presence", incarnation)
        self._noted.pop(incarnation, None)
        listener = self._hints.listener
        if listener is not None:
            await self._on_listener(listener.withdraw(incarnation))

    async def ended_processes(self) -> EndedProcesses:
        rows = await self._ask("look_at_processes", LOOK_AT)
        listener = self._hints.listener
        if listener is None or not listener.is_ready:
            self._free_since.clear()
            return EndedProcesses([], LOOK_EVERY)
        now = monotonic()
        free = {row[0] for row in rows if _may_have_ended(row, listener, now)}
        self._free_since = {name: self._free_since.get(name, now) for name in free}
        ended = [name for name, since in self._free_since.items() if now - since >= FREE_FOR]
        alone = all(row[0] in self._noted for row in rows)
        return EndedProcesses(ended, LOOK_ALONE_EVERY if alone else LOOK_EVERY)

    async def _on_listener(self, work: Coroutine[Any, Any, None]) -> None:
        """Run in the thread of the listener. If its connection breaks meanwhile, the next one does the work."""
        try:
            await asyncio.wrap_future(self._service.submit(lambda _pool: work))
        except (*DRIVER_ERRORS, TimeoutError) as error:
            logger.debug("the listener's connection is lost: %s", error)

    async def end_process(self, incarnation: str, *, max_attempts: int | None = None, limit: int = 1000) -> int:
        return await self._write(lambda session: _end(session, incarnation, max_attempts, limit))


def _may_have_ended(row: Row, listener: Listener, now: float) -> bool:
    """Return whether a free lock can mean that the process has ended, and not only that the server was away."""
    _, is_free, shown_for, server_began = row
    connected = now - listener.ready_since
    after_restart = shown_for < server_began or server_began > CONNECTED_AGAIN
    after_reconnect = listener.connections == 1 or shown_for < connected or connected > CONNECTED_AGAIN
    return bool(is_free and after_restart and after_reconnect)


async def _end(session: PostgreSQLSession, incarnation: str, max_attempts: int | None, limit: int) -> int:
    if not await session.value("try_lock_of_process", incarnation):
        return 0
    now = await session.now()
    await session.all("end_handler_claims_of_process", incarnation, now)
    rows = await session.all("events_of_process", incarnation, max(limit, 0))
    taken = await expire(session, rows, max_attempts, incarnation)
    await session.all("end_locks_of_process", incarnation, now)
    await session.all("forget_process", incarnation)
    return taken
