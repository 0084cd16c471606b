"""A question to the store from code that does not await."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from durabus.store.connect import open_store
from durabus.store.contract import EventStore

T = TypeVar("T")


def ask_store(url: str, question: Callable[[EventStore], Awaitable[T]]) -> T:
    """Open the store, ask, close it. In a thread of its own, because a notebook's thread has a running event loop."""

    async def ask() -> T:
        store = await open_store(url)
        try:
            return await question(store)
        finally:
            await store.close()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, ask()).result()
