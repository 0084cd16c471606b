"""The stand-alone server: one process that serves one port until a signal asks it to stop."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn

from durabus.errors import ConfigurationError
from durabus.http.app import HttpApi
from durabus.http.connections import protocol
from durabus.http.middleware import MAX_HEADER_BYTES

BACKLOG = 2_048


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Port 0 takes a free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(f"cannot listen on {host} port {port}: {error}") from error
    # Connections inherit this option. asyncio does not set it on a socket that was created without naming TCP.
    # Without it the second part of a response waits up to 40 ms until the client confirms the first.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


async def serve(app: HttpApi, listening: socket.socket, *, stop_within: int, ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT. Then accept no new requests and let running ones finish.

    A second signal ends the process at once.
    """
    await app.api.begin()
    gc.freeze()  # these objects live as long as the process, so the collector need not examine them again
    await _server(app, stop_within, ready, takes_signals=True).serve(sockets=[listening])


@asynccontextmanager
async def served(app: HttpApi, host: str = "127.0.0.1", port: int = 0, *, stop_within: int = 5) -> AsyncIterator[str]:
    """Serve beside your own code, and yield the URL. At the end accept no new requests; running ones may finish.

    Your program keeps handling its signals itself.
    """
    await app.api.begin()  # raises an error here; uvicorn would exit instead
    listening, ready = listen(host, port), asyncio.Event()
    server = _server(app, stop_within, ready.set, takes_signals=False)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    begun = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait({serving, begun}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        shown, number = listening.getsockname()[:2]
        yield f"http://[{shown}]:{number}" if ":" in shown else f"http://{shown}:{number}"
    finally:
        begun.cancel()
        app.stop()
        server.should_exit = True
        try:
            await serving
        finally:
            listening.close()


def _server(app: HttpApi, stop_within: int, ready: Callable[[], None], *, takes_signals: bool) -> _Server:
    connection = protocol(app.api.settings.header_timeout)
    config = uvicorn.Config(
        app,
        http=connection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_graceful_shutdown=stop_within,
    )
    return _Server(config, app, ready, takes_signals=takes_signals)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, app: HttpApi, ready: Callable[[], None], *, takes_signals: bool) -> None:
        super().__init__(config)
        self._api = app
        self._ready = ready
        self._takes_signals = takes_signals and threading.current_thread() is threading.main_thread()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals in place of uvicorn: long polls and tails must end before uvicorn waits for them.

        Only the main thread gets signals. The program that started a server in another thread stops it.
        """
        if not self._takes_signals:
            yield
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._asked_to_stop, number)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _asked_to_stop(self, number: signal.Signals) -> None:
        if self.should_exit:
            os._exit(128 + number)
        self._api.stop()
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Report when the server accepts requests."""
        await super().startup(sockets)
        if self.started:
            self._ready()
