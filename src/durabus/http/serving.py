"""The stand-alone server: one process, one port, until a signal asks it to stop."""

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
    """A listening socket; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(f"cannot listen on {host} port {port}: {error}") from error
    # Connections inherit it. asyncio would set it, but not on a socket that was made without naming TCP; without it
    # the second part of an answer waits up to 40 ms for the client to confirm the first.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


async def serve(app: HttpApi, listening: socket.socket, *, stop_within: int, ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT: nothing new is taken, what runs may finish; a second signal quits at once."""
    await app.api.begin()
    gc.freeze()  # what is there now stays to the end: the collector need not look at it again and again
    await _server(app, stop_within, ready, takes_signals=True).serve(sockets=[listening])


@asynccontextmanager
async def served(app: HttpApi, host: str = "127.0.0.1", port: int = 0, *, stop_within: int = 5) -> AsyncIterator[str]:
    """Serve beside your own code, and yield the URL. On leaving, nothing new is taken and what runs may finish.

    Signals stay with your program.
    """
    await app.api.begin()  # here an error is told as it is; uvicorn would exit
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
        """Ours, because long polls and tails must be told before uvicorn waits for them to end.

        Signals belong to the main thread: a server in another one is stopped by who started it.
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
        """Tell when requests are taken."""
        await super().startup(sockets)
        if self.started:
            self._ready()
