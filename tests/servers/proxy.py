"""A way to the server that breaks on command."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

GREETINGS = (b"+OK", b"-ERR Unknown subcommand", b"INFO ", b"PONG")
"""Replies of Redis and NATS to the greeting of a client, which is no request yet."""


class Proxy:
    """Passes everything on, until the test lets it swallow replies, cut connections, or stand still."""

    def __init__(self, url: str) -> None:
        self._url = url
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._serving: set[asyncio.Task[None] | None] = set()
        self.swallow_answers = 0
        """The number of connections to cut, each after its next request was passed on and before the reply."""
        self.still = False
        """Whether the proxy passes nothing on, without closing a connection."""
        self.connections = 0

    @property
    def url(self) -> str:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return self._url.replace(f"{self._target[0]}:{self._target[1]}", f"{host}:{port}")

    @contextlib.asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator["Proxy"]:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        try:
            yield self
        finally:
            self._server.close()
            self.cut()
            await asyncio.gather(*(task for task in self._serving if task is not None))

    def cut(self) -> None:
        """Cut every connection now."""
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._serving.add(task)
        try:
            await self._pass_on(reader, writer)
        finally:
            self._serving.discard(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:  # the server is down: close the connection of its client
            writer.close()
            return
        self._writers += [writer, far_writer]
        with contextlib.suppress(OSError):
            await asyncio.gather(self._requests(reader, far_writer), self._answers(far_reader, writer, far_writer))
        writer.close()
        far_writer.close()

    async def _requests(self, reader: asyncio.StreamReader, far: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            while self.still:  # noqa: ASYNC110  (a test ends it)
                await asyncio.sleep(0.01)
            far.write(data)
            await far.drain()
        far.close()

    async def _answers(
        self, far: asyncio.StreamReader, writer: asyncio.StreamWriter, far_writer: asyncio.StreamWriter
    ) -> None:
        while data := await far.read(65536):
            if self.swallow_answers and not data.startswith(GREETINGS):
                self.swallow_answers -= 1
                break
            writer.write(data)
            await writer.drain()
        writer.close()
        far_writer.close()
