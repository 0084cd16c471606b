"""Waiting for the write lock without making callers wait for ever.

The thread that waits in the kernel cannot be called back. If the holder is frozen (a stopped process, a hung disk), a
second thread answers the callers with an error instead; their calls are then skipped when the lock comes at last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from durabus.backends.sqlite.flock import BUSY_TIMEOUT, WriteLock
from durabus.backends.sqlite.operation import Operation, deliver
from durabus.clock import monotonic

_LOOK_EVERY = 1.0


class Turn:
    """The writer's turn among the processes that share the file."""

    def __init__(self, lock: WriteLock, queued: Callable[[], list[Operation]]) -> None:
        self._lock = lock
        self._queued = queued
        self._gate = threading.Lock()
        self._waiting: list[Operation] | None = None
        self._since = 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def frozen(self) -> bool:
        """Whether the wait takes so long that callers are no longer made to wait."""
        with self._gate:
            return self._waiting is not None and monotonic() - self._since >= BUSY_TIMEOUT

    def wait(self, operations: list[Operation]) -> list[Operation]:
        """Take the lock for ``operations``; answers those whose callers still wait."""
        if not self._lock.try_acquire():
            self._watch()
            with self._gate:
                self._waiting, self._since = operations, monotonic()
            try:
                self._lock.acquire()
            finally:
                with self._gate:
                    operations, self._waiting = self._waiting, None
        return operations

    def end(self) -> None:
        """Give the lock to the next one."""
        self._lock.release()

    def close(self) -> None:
        """Stop watching the clock."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="durabus-turn", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        while not self._ended.wait(_LOOK_EVERY):
            with self._gate:
                if self._waiting is None or monotonic() - self._since < BUSY_TIMEOUT:
                    continue
                given_up = [*self._waiting, *self._queued()]
                self._waiting = []
            for operation in given_up:
                operation.error = self._lock.refusal()
            deliver(given_up)
