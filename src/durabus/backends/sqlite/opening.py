"""One attempt to open the file, in a thread of its own, for everybody who asks while it lasts."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future

from durabus.backends.sqlite.open_file import OpenFile
from durabus.errors import StoreClosedError


class Opening:
    """Whoever is cancelled leaves. When the last one has left, the attempt ends and nothing of it stays behind."""

    def __init__(self, attempt: Callable[[threading.Event], OpenFile]) -> None:
        self._attempt = attempt
        self._process = os.getpid()
        self._gate = threading.Lock()
        self._wanted = 1
        self._given_up = threading.Event()
        self._done: Future[OpenFile] = Future()
        self._done.set_running_or_notify_cancel()
        self._thread = threading.Thread(target=self._run, name="durabus-opening", daemon=True)
        self._thread.start()

    def join(self) -> bool:
        """Take part as well; False if the attempt has failed, was given up, or is that of this process's parent."""
        if self._process != os.getpid():
            return False
        with self._gate:
            if self._given_up.is_set() or (self._done.done() and self._done.exception()):
                return False
            self._wanted += 1
            return True

    async def wait(self) -> OpenFile:
        """What was opened. For whoever began the attempt, and those who joined."""
        try:
            return await asyncio.wrap_future(self._done)
        except asyncio.CancelledError:
            self._leave()
            raise

    def close(self) -> None:
        """Give up, or close what was opened. Blocks; safe to call twice, and by several at once."""
        if self._process != os.getpid():
            return
        with self._gate:
            self._given_up.set()
        self._thread.join()
        if self._done.exception() is None:
            self._done.result().close()

    def _leave(self) -> None:
        with self._gate:
            self._wanted -= 1
            if self._wanted:
                return
            self._given_up.set()
        threading.Thread(target=self.close, name="durabus-closing", daemon=True).start()

    def _run(self) -> None:
        try:
            file = self._attempt(self._given_up)
        except BaseException as error:  # noqa: BLE001  (for those who wait)
            self._done.set_exception(error)
            return
        with self._gate:
            if not self._given_up.is_set():
                self._done.set_result(file)
                return
        file.close()
        self._done.set_exception(StoreClosedError("the store was closed while it was being opened: open a new one"))
