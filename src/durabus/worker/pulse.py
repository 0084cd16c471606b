"""The thread in which all heartbeats of a process beat: one, however many buses it has."""

from __future__ import annotations

import asyncio
import os
import threading


class _Pulse:
    """Starts with the first heartbeat, and is there for as long as the process."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="durabus-heartbeat", daemon=True).start()
            return self._loop

    def begin_anew(self) -> None:
        """A forked process has no thread but the one that forked; another may have been at the lock just then."""
        self._starting, self._loop = threading.Lock(), None


_here = _Pulse()
os.register_at_fork(after_in_child=_here.begin_anew)


def pulse() -> asyncio.AbstractEventLoop:
    """The event loop of that thread. Nothing may block it: all leases of this process hang on it."""
    return _here.loop()
