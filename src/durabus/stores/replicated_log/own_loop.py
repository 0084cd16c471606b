"""The tasks of a node, in the thread of its event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from durabus.errors import StoreUnavailableError
from durabus.loop_thread import LoopThread

logger = logging.getLogger("durabus.replicated_log")

CLOSED = "this store is closed: open a new one"
NOT_OPEN = "this store is not open yet: open() comes first"


class OwnTasks:
    """The tasks in the thread of a node."""

    def __init__(self, own: LoopThread, failed: Callable[[StoreUnavailableError], None]) -> None:
        self._own = own
        self._failed = failed
        """Called when a task failed: the store cannot go on without it."""
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task in the loop."""
        task = self._own.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def cancel_all(self) -> None:
        """Cancel the tasks and wait for their end."""
        while self._tasks:  # a task that ends may have begun another
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a task of the store failed", exc_info=error)
            self._failed(StoreUnavailableError(f"the store's own work failed: {type(error).__name__}: {error}"))
