"""The connection of one event loop to the server. Calls made while it waits for replies go out together later."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import BusyLoadingError, RedisError, ResponseError

from durabus.clock import monotonic
from durabus.errors import StoreClosedError, StoreError
from durabus.stores.redis.connection import (
    MISSING_FUNCTION,
    Connector,
    disconnect,
    is_final,
    is_passing,
    moved_to,
    refused,
    unanswered,
    unreachable,
)

AT_ONCE = 256
"""Maximum number of calls that are sent together."""
FIRST_PAUSE = 0.02
LONGEST_PAUSE = 0.5

LibraryLoader = Callable[[AbstractConnection], Awaitable[None]]


class PipelinedCall:
    """A command that waits for its reply. It may be sent twice: the store's calls are safe to repeat."""

    __slots__ = ("command", "deadline", "future", "patient", "sent")

    def __init__(self, command: bytes, deadline: float, *, patient: bool) -> None:
        self.command = command
        self.deadline = deadline
        self.patient = patient
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.sent = False

    def answer(self, value: Any) -> None:
        """Give the server's reply to the caller, if the caller still waits."""
        if not self.future.done():
            self.future.set_result(value)

    def fail(self, error: StoreError) -> None:
        """Give an error to the caller, if the caller still waits."""
        if not self.future.done():
            self.future.set_exception(error)


class PipelinedConnection:
    """One connection of one event loop. It connects when it is needed, and again after the connection is lost."""

    def __init__(self, connector: Connector, load: LibraryLoader) -> None:
        self._connector = connector
        self._load = load
        self._shown = connector.address.shown
        self._timeout = connector.address.timeout
        self._waiting: list[PipelinedCall] = []
        self._asked = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._connection: AbstractConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._pause = FIRST_PAUSE
        self._trouble: Exception | None = None
        """Why the waiting calls have no reply yet."""

    async def call(self, command: bytes, *, patient: bool = True) -> Any:
        """Send a command and wait for its reply, reconnecting as often as needed until the timeout.

        With ``patient=False``, the call fails at once if the server cannot be reached.
        """
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._serve(), name="durabus-redis")
        call = PipelinedCall(command, monotonic() + self._timeout, patient=patient)
        self._waiting.append(call)
        self._asked.set()
        self._idle.clear()
        return await call.future

    async def close(self) -> None:
        """Wait for the replies to all calls, then disconnect. Cancelling the wait disconnects at once."""
        try:
            await self._idle.wait()
        finally:
            self.hang_up()
        if self._task is not None:
            await asyncio.wait({self._task})

    def hang_up(self) -> None:
        """Stop now. The task that owns the connection closes it."""
        if self._task is not None:
            self._task.cancel()

    async def _serve(self) -> None:
        try:
            while True:
                self._give_up_late_ones()
                if not self._waiting:
                    self._idle.set()
                    self._asked.clear()
                    await self._asked.wait()
                batch, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
                await self._exchange(batch)
        finally:
            self._idle.set()
            connection, self._connection = self._connection, None
            for call in self._waiting:
                call.fail(StoreClosedError(f"the store on {self._shown} was closed, or its event loop ended"))
            self._waiting.clear()
            await disconnect(connection)

    async def _exchange(self, batch: list[PipelinedCall]) -> None:
        """Send a batch and deliver the replies. Calls without a reply go back to the front of the queue."""
        self._trouble = None
        try:
            async with asyncio.timeout(max(min(call.deadline for call in batch) - monotonic(), 0.0)):
                if self._connection is None:
                    self._connection = await self._connector.connect()
                await self._ask(self._connection, batch)
        except (RedisError, OSError) as error:
            self._trouble = error
            await self._drop_connection()
        finally:
            left = [call for call in batch if not call.future.done()]
            self._waiting[:0] = left
        if not left:
            self._pause = FIRST_PAUSE
        elif self._trouble is not None:
            self._judge(self._trouble)
            await asyncio.sleep(self._pause * random.uniform(0.5, 1.0))
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    async def _ask(self, connection: AbstractConnection, batch: list[PipelinedCall]) -> None:
        """Send all calls, then read all replies. Raises the error that ends the connection."""
        for call in batch:
            call.sent = True
        await connection.send_packed_command([call.command for call in batch], check_health=False)
        missing = False
        for call in batch:
            try:
                call.answer(await connection.read_response(disconnect_on_error=False))
            except (BusyLoadingError, ResponseError) as error:
                if MISSING_FUNCTION in str(error):
                    missing = True
                else:
                    self._take_refusal(call, error)
        if missing:
            await self._load(connection)
        if self._trouble is not None:
            # After a failover, or when the keys moved, only a new connection reaches the server that holds the keys.
            await self._drop_connection()

    def _take_refusal(self, call: PipelinedCall, error: Exception) -> None:
        place = moved_to(error)
        if place is not None:
            self._connector.follow(place)
        if place is not None or is_passing(error):
            self._trouble = error
        else:
            call.fail(refused(self._shown, error))

    def _judge(self, trouble: Exception) -> None:
        """Fail the calls that need not wait: impatient ones, and all of them if the trouble is final."""
        for call in self._waiting:
            if is_final(trouble):
                call.fail(refused(self._shown, trouble))
            elif not call.patient and not isinstance(trouble, BusyLoadingError) and moved_to(trouble) is None:
                call.fail(self._why(call, trouble))

    def _give_up_late_ones(self) -> None:
        now = monotonic()
        for call in self._waiting:
            if call.deadline <= now:
                call.fail(self._why(call, self._trouble))
        self._waiting = [call for call in self._waiting if not call.future.done()]

    def _why(self, call: PipelinedCall, trouble: Exception | None) -> StoreError:
        if trouble is not None and (is_passing(trouble) or isinstance(trouble, ResponseError)):
            return refused(self._shown, trouble)
        if call.sent:
            return unanswered(self._shown, self._timeout, trouble)
        return unreachable(self._shown, trouble)

    async def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        await disconnect(connection)
