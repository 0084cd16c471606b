"""``wait_for_work``: looks for events to claim, then waits for a notification or for the next due time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from durabus.clock import monotonic
from durabus.model.claim import ClaimRequest
from durabus.stores.postgresql.address import PostgreSQLAddress
from durabus.stores.postgresql.service import Service
from durabus.stores.postgresql.wakeup import Listener, Notifier, Send
from durabus.stores.sql.rows import Row
from durabus.stores.wakeups import BusNews, WaitingWorkers

NextWakeup = Callable[[str], Awaitable[Row]]


class PostgreSQLHints:
    """Sends and receives wake-ups. With ``listen=off`` they stay within this store object."""

    def __init__(self, address: PostgreSQLAddress, service: Service, send: Send, next_wakeup: NextWakeup) -> None:
        self._address = address
        self._service = service
        self._send = send
        self._next_wakeup = next_wakeup
        self._waiting = WaitingWorkers()
        self._news = BusNews()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._notifier = Notifier(send)
        self._notifier_there: Notifier | None = None
        self._listener: Listener | None = None

    @property
    def listener(self) -> Listener | None:
        """The listener; None until the first wait."""
        return self._listener

    def begin(self) -> None:
        """Remember the event loop that called ``open``."""
        self._loop = asyncio.get_running_loop()

    def tell(self, buses: set[str]) -> None:
        """Wake the workers that wait for these buses, in this and other processes."""
        for bus in buses:
            self._wake(bus)
        if not self._address.listen:
            return
        if asyncio.get_running_loop() is self._loop:
            self._notifier.tell(buses)
        else:
            self._service.submit(lambda _pool: self._tell_there(buses))

    def claim_began(self) -> int:
        """See ``BusNews.mark``."""
        return self._news.mark()

    def claimed(self, request: ClaimRequest, began: int, *, anything: bool) -> None:
        """See ``BusNews.claimed``."""
        self._news.claimed(request.bus, began, anything=anything)

    def wake_all(self) -> None:
        """Wake every worker, because the store closes."""
        self._wake(None)

    async def close(self) -> None:
        """Send the remaining notifications. Runs on the event loop of ``open``."""
        await self._notifier.close()

    async def wait(self, bus: str, seconds: float) -> bool:
        """Wait at most ``seconds``, and return whether the bus may have events to claim."""
        until = monotonic() + seconds
        future = self._waiting.add(bus)
        try:
            if self._address.listen:
                await self._listen(seconds)
            ready, due_in = await self._next_wakeup(bus)
            if ready and self._news.has(bus):
                return True
            left = max(until - monotonic(), 0.0)
            due = due_in is not None and due_in < left
            done, _ = await asyncio.wait({future}, timeout=max(due_in, 0.0) if due else left)
            return due or bool(done)
        finally:
            self._waiting.remove(bus, future)

    def _wake(self, bus: str | None) -> None:
        self._news.add(bus)
        self._waiting.wake(bus)

    async def _listen(self, seconds: float) -> None:
        """Wait until the listener is ready. If that takes too long, workers poll."""
        listener = self._listener
        if listener is None:
            listener = self._listener = await asyncio.wrap_future(self._service.submit(self._make_listener))
        if listener.is_ready:
            return
        ready = self._service.submit(lambda _pool: listener.ready())
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await asyncio.wrap_future(ready)
        except TimeoutError:
            ready.cancel()

    async def _tell_there(self, buses: set[str]) -> None:
        """Notify from the store's own thread, because the caller's event loop may end before."""
        if self._notifier_there is None:
            self._notifier_there = Notifier(self._send)
            self._service.at_the_end(self._notifier_there.close)
        self._notifier_there.tell(buses)

    async def _make_listener(self, _pool: object) -> Listener:
        if self._listener is None:
            self._listener = Listener(self._address, self._wake)
            self._news.add(None)  # the listener missed earlier notifications
            self._service.at_the_end(self._listener.close)
        return self._listener
