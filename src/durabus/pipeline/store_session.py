"""A store for code that does not await: the pipeline's driver and Spark's Python workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_all
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

from durabus.errors import ConfigurationError, StoreClosedError
from durabus.loop_thread import LoopThread
from durabus.queue.locks import LockManager
from durabus.store.connect import make_store
from durabus.store.contract import EventStore

T = TypeVar("T")


class StoreSession:
    """A store that opens at the first call and stays open until ``close``.

    Its event loop runs in a thread of its own, because the thread of a notebook has a running event loop.
    """

    def __init__(self, url: str) -> None:
        self.url = absolute_url(url)
        self._opened: tuple[LoopThread, EventStore] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def ask(self, question: Callable[[EventStore], Coroutine[Any, Any, T]]) -> T:
        """Open the store if needed, run a call on it, and return its result."""
        thread, store = self._ready()
        return thread.submit(question(store)).result()

    @contextmanager
    def hold(self, key: str, *, wait: float) -> Iterator[Future[None]]:
        """Hold a lock of the store until the block ends. Yields a future that fails if the lock is lost meanwhile.

        Raises ``LockHeld`` if another process holds it for longer than ``wait`` seconds.
        """
        taken: Future[asyncio.Event] = Future()
        thread, store = self._ready()
        keeping = thread.submit(_keep(store, key, None if wait == inf else wait, taken))
        ended = taken.result()
        try:
            yield keeping
        finally:
            thread.submit(_set(ended)).result()
            wait_for_all([keeping])

    def close(self) -> None:
        """Close the store and end the thread. It may be called twice."""
        if self._opened is None:
            return
        thread, store = self._opened
        self._opened = None
        try:
            thread.submit(store.close()).result()
        finally:
            thread.end()

    def _ready(self) -> tuple[LoopThread, EventStore]:
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _open(self) -> tuple[LoopThread, EventStore]:
        store = make_store(self.url)
        if not store.features.shared_between_processes:
            raise ConfigurationError(
                f"{store.features.scheme}:// lives inside one process and Spark's workers are others: "
                "use a store that they can see, as sqlite:///bus.db"
            )
        thread = LoopThread("durabus-pipeline", StoreClosedError, ended="this store session is closed")
        thread.start()
        try:
            thread.submit(store.open()).result()
        except BaseException:
            thread.end()
            raise
        return thread, store


async def _keep(store: EventStore, key: str, wait: float | None, taken: Future[asyncio.Event]) -> None:
    """Hold a lock until the event is set that ``taken`` returns."""
    ended = asyncio.Event()
    try:
        async with LockManager(store).hold(key, wait=wait):
            taken.set_result(ended)
            await ended.wait()
    except BaseException as error:
        if not taken.done():
            taken.set_exception(error)
        raise


async def _set(event: asyncio.Event) -> None:
    event.set()


def absolute_url(url: str) -> str:
    """Return the URL of the same store for Spark's workers, which run in the folder in which Java was started."""
    relative = url.startswith("sqlite:///") and not url.startswith("sqlite:////")
    return f"sqlite:///{quote(str(Path.cwd()))}/{url.removeprefix('sqlite:///')}" if relative else url


def shown_url(url: str) -> str:
    """Return a store's URL for people to see: without its password, and without what follows the path."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")
    user = host[0].partition(":")[0]
    netloc = f"{user}:***@{host[2]}" if ":" in host[0] else parts.netloc
    return urlunsplit((parts.scheme, netloc, parts.path, "", "")) if netloc else f"{parts.scheme}://{parts.path}"
