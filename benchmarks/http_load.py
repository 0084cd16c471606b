"""A client that costs little, so that the server is what is measured: connections that send bytes and read replies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, Self

import msgspec


class Connection:
    """One kept-alive connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> Self:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**24))

    async def send(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Send a request. Returns the status and the body."""
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self._writer.write(head.encode() + b"\r\n" + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        status = int(answer[9:12])
        _, _, rest = answer.lower().partition(b"content-length: ")
        length = int(rest.partition(b"\r\n")[0]) if rest else 0
        return status, await self._reader.readexactly(length) if length else b""

    async def json(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request that must succeed. Returns the decoded reply."""
        status, answer = await self.send(method, path, b"" if body is None else msgspec.json.encode(body))
        if status not in (200, 201):
            raise RuntimeError(f"{method} {path}: {status} {answer[:200]!r}")
        return msgspec.json.decode(answer)

    def close(self) -> None:
        self._writer.close()


async def spread(port: int, connections: int, each: Callable[[Connection], Awaitable[None]]) -> float:
    """Return the seconds until ``each`` is done on every connection."""
    opened = [await Connection.open(port) for _ in range(connections)]
    started = perf_counter()
    async with asyncio.TaskGroup() as group:
        for connection in opened:
            group.create_task(_run(each, connection))
    seconds = perf_counter() - started
    for connection in opened:
        connection.close()
    return seconds


async def _run(each: Callable[[Connection], Awaitable[None]], connection: Connection) -> None:
    await each(connection)
