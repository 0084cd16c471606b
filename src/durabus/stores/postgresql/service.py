"""The store's own thread. It listens for notifications and runs calls from other event loops than that of ``open``.

A connection belongs to one event loop. A worker's heartbeat runs in its own thread with a short-lived event loop; its
calls run here, where a busy event loop cannot delay them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from durabus.errors import StoreClosedError
from durabus.loop_thread import LoopThread
from durabus.stores.postgresql.address import PostgreSQLAddress
from durabus.stores.postgresql.connection import Pool

T = TypeVar("T")

POOL = 2


class ServiceThread:
    """A thread with its own event loop and pool. Its first use starts it."""

    def __init__(self, address: PostgreSQLAddress) -> None:
        self._address = address
        self._closed = f"the store on {address.shown} is closed: open a new one"
        self._thread = LoopThread(f"durabus-postgresql:{address.schema}", StoreClosedError, ended=self._closed)
        self._gate = threading.Lock()
        self._pool: Pool | None = None
        self._stopped = False
        self._farewells: list[Callable[[], Awaitable[None]]] = []

    def submit(self, make: Callable[[Pool], Coroutine[Any, Any, T]]) -> Future[T]:
        """Run a coroutine in the thread. Any other thread may call this."""
        pool = self._start()

        async def run() -> T:
            task = asyncio.current_task()
            if task is not None:
                task.add_done_callback(_take_notice)
            return await make(pool)

        return self._thread.submit(run())

    def at_the_end(self, farewell: Callable[[], Awaitable[None]]) -> None:
        """Add a function that the thread awaits before it ends."""
        self._farewells.append(farewell)

    def stop(self) -> None:
        """Finish the accepted calls and end the thread. Blocks; safe to call twice."""
        with self._gate:
            pool, self._stopped = None if self._stopped else self._pool, True
        try:
            if pool is not None:
                self._thread.submit(self._finish(pool)).result()
        finally:
            self._thread.end()

    def _start(self) -> Pool:
        with self._gate:
            if self._stopped:
                raise StoreClosedError(self._closed)
            if self._pool is None:
                self._thread.start()
                self._pool = Pool(self._address, POOL)
            return self._pool

    async def _finish(self, pool: Pool) -> None:
        await pool.wait_until_unused()
        for farewell in self._farewells:
            await farewell()
        await pool.close()
        await asyncio.sleep(0)  # sockets close in the next cycle of the event loop


def _take_notice(task: asyncio.Task[Any]) -> None:
    """Read the exception: asyncio warns of an unread one, and a cancelled caller does not read it."""
    if not task.cancelled():
        task.exception()
