"""What all parts of the Redis store share: opening and closing, one connection for each event loop, and calls."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from redis.asyncio.connection import AbstractConnection

from durabus.clock import Clock
from durabus.errors import StoreClosedError
from durabus.store.features import Features
from durabus.store.processes import RENEWED_EVERY
from durabus.stores.redis.connection import Connector, RedisAddress, arguments, ask
from durabus.stores.redis.hints import RedisHints
from durabus.stores.redis.layout import key_names
from durabus.stores.redis.pipelined_connection import PipelinedConnection
from durabus.stores.redis.schema import install, library, verify
from durabus.stores.wakeups import ENDS

_CLOSED = -1
_CALL_PARTS = 3
_AT_LEAST = 1.0
"""Seconds. A wait for hints may take this long, even with a shorter timeout, because it must ask the server first."""

_encode = msgspec.msgpack.Encoder().encode


class RedisCore:
    """Opening, closing, waiting, and calling functions."""

    def __init__(self, address: RedisAddress, clock: Clock | None = None) -> None:
        self._address = address
        self._clock = clock
        self._connector = Connector(address)
        self._keys = key_names(address.prefix)
        self._heads: dict[str, bytes] = {}
        self._gate = threading.Lock()
        self._connections: dict[asyncio.AbstractEventLoop, tuple[PipelinedConnection, RedisHints]] = {}
        self._process = 0
        self.features = Features(
            scheme="redis",
            survives_process_kill=True,
            survives_power_loss=False,
            shared_between_processes=True,
            caller_transactions=False,
            manual_clock=True,
            ordering_keys=True,
            claims_by_event_id=True,
            sees_ended_processes=True,
            presence_renewed_every=RENEWED_EVERY,
        )

    async def open(self) -> None:
        if self._process:
            self._check_open()
            return
        try:
            await install(self._connection(), self._address, self._keys)
        except BaseException:
            await self._hang_up()  # a connection that is still being made would block the next attempt
            raise
        self._process = os.getpid()

    async def _hang_up(self) -> None:
        with self._gate:
            connection, hints = self._connections.pop(asyncio.get_running_loop())
        connection.hang_up()
        await connection.close()
        await hints.close()

    async def close(self) -> None:
        with self._gate:
            if self._process not in (0, _CLOSED):
                self._check_open()
            self._process = _CLOSED
            connections, self._connections = self._connections, {}
        here = asyncio.get_running_loop()
        for loop, (connection, hints) in connections.items():
            if loop is here:
                try:
                    await hints.close()
                finally:
                    await connection.close()
            else:
                # A closed loop has closed its connections by itself, and the loop may close at any moment.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(hints.hang_up)
                    loop.call_soon_threadsafe(connection.hang_up)

    async def verify(self) -> None:
        self._check_open()
        await verify(self._connection(), self._address, self._keys)

    async def now(self) -> float:
        return float(await self._call("now"))

    async def wait_for_work(self, bus: str, *, timeout: float) -> bool:  # noqa: ASYNC109  (the contract's name)
        self._check_open()
        hints = self._of_this_loop()[1]
        try:
            async with asyncio.timeout(max(timeout, _AT_LEAST)):
                hint = await hints.listen(bus)
                try:
                    return await self._wait(bus, hint, timeout)
                finally:
                    hints.forget(bus, hint)
        except TimeoutError:
            return False

    async def wait_for_ends(self, node: str, *, timeout: float) -> bool:  # noqa: ASYNC109  (the contract's name)
        self._check_open()
        hints, name = self._of_this_loop()[1], ENDS + node
        try:
            async with asyncio.timeout(max(timeout, _AT_LEAST)):
                hint = await hints.listen(name)
                try:
                    await hint
                finally:
                    hints.forget(name, hint)
        except TimeoutError:
            return False
        return True

    async def tell_ends(self, nodes: Sequence[str]) -> None:
        await self._call("tell_ends", *(ENDS + node for node in nodes))

    async def _wait(self, bus: str, hint: asyncio.Future[None], seconds: float) -> bool:
        """Wait for ``hint`` or the next wake-up. The subscription came first, so no later hint is missed."""
        wakeup = await self._call("next_wakeup", bus)
        instant = float(wakeup) if wakeup else seconds
        await asyncio.wait({hint}, timeout=min(seconds, instant))
        return hint.done() or instant < seconds

    async def _call(self, verb: str, *asked: Any, blobs: Iterable[bytes] = ()) -> Any:
        """Run a function of the library on the server. The Lua file of ``verb`` describes ``asked`` and ``blobs``."""
        self._check_open()
        head = self._heads.get(verb)
        if head is None:
            head = self._heads[verb] = self._head(verb)
        now = b"" if self._clock is None else repr(self._clock.now()).encode()
        given = [now, _encode(asked), *blobs]
        count = _CALL_PARTS + len(self._keys) + len(given)
        return await self._connection().call(b"*%d\r\n%b%b" % (count, head, arguments(given)))

    def _head(self, verb: str) -> bytes:
        parts = ["FCALL", f"{library()[0]}_{verb}", str(len(self._keys)), *self._keys]
        return arguments([part.encode() for part in parts])

    def _connection(self) -> PipelinedConnection:
        return self._of_this_loop()[0]

    def _of_this_loop(self) -> tuple[PipelinedConnection, RedisHints]:
        loop = asyncio.get_running_loop()
        found = self._connections.get(loop)
        if found is None:
            with self._gate:
                for gone in [one for one in self._connections if one.is_closed()]:
                    del self._connections[gone]
                found = PipelinedConnection(self._connector, _load_library), RedisHints(self._connector, self._keys[-1])
                self._connections[loop] = found
        return found

    def _check_open(self) -> None:
        process = os.getpid()
        if self._process == process:
            return
        shown = self._address.shown
        if self._process == 0:
            raise StoreClosedError(f"the store on {shown} is not open yet: await open() first, or use open_store()")
        if self._process == _CLOSED:
            raise StoreClosedError(f"the store on {shown} is closed: open a new one")
        raise StoreClosedError(
            f"the store on {shown} was opened in process {self._process} and is used in its child {process}: "
            "open a store in each process, after the fork"
        )


async def _load_library(connection: AbstractConnection) -> None:
    """Load our functions: on a new server, after FUNCTION FLUSH, or on a cluster node that lacks them."""
    await ask(connection, "FUNCTION", "LOAD", "REPLACE", library()[1])
