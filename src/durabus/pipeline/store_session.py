"""A question to the store from code that does not await."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from durabus.errors import ConfigurationError
from durabus.store.connect import make_store
from durabus.store.contract import EventStore

T = TypeVar("T")


def ask_store(url: str, question: Callable[[EventStore], Awaitable[T]]) -> T:
    """Open the store, ask, close it. In a thread of its own, because a notebook's thread has a running event loop."""

    async def ask() -> T:
        store = shared_store(url)
        await store.open()
        try:
            return await question(store)
        finally:
            await store.close()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, ask()).result()


def shared_store(url: str) -> EventStore:
    """The store, not open yet. Refuses one that would be empty here, whatever the process that fills it has in it."""
    store = make_store(url)
    if not store.features.shared_between_processes:
        raise ConfigurationError(
            f"{store.features.scheme}:// lives inside one process and Spark's workers are others: "
            "use a store that they can see, as sqlite:///bus.db"
        )
    return store
