"""Every call that waits when a node closes gets an error, also if the caller of ``close`` is cancelled."""

import asyncio
import contextlib
import threading

import pytest
from tests.replicated_log.simulated_log import POLL, SimulatedLog, SimulatedTransport
from tests.replicated_log.simulated_store import FEATURES

from durabus.errors import StoreClosedError, StoreUnavailableError
from durabus.stores.replicated_log.options import Options
from durabus.stores.replicated_log.snapshot import Snapshotter
from durabus.stores.replicated_log.store import ReplicatedLogStore
from durabus.stores.replicated_log.transport import Position


class Halting(SimulatedTransport):
    """A transport of which one call does not end until the test sets ``go_on``."""

    def __init__(self, log: SimulatedLog, verb: str) -> None:
        super().__init__(log)
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.ended = False
        self.verb = verb
        self.halts = False

    async def head(self) -> Position:
        await self._halt("head")
        return await super().head()

    async def verify(self) -> None:
        await self._halt("verify")

    async def close(self) -> None:
        await self._halt("close")
        self.ended = True

    async def _halt(self, verb: str) -> None:
        if self.halts and verb == self.verb:
            self.begun.set()
            while not self.go_on.is_set():  # noqa: ASYNC110  (another thread sets it)
                await asyncio.sleep(POLL)


async def halted(verb: str, **options: float) -> tuple[ReplicatedLogStore, Halting]:
    transport = Halting(SimulatedLog(), verb)
    store = ReplicatedLogStore(transport, Options(**options), FEATURES)  # type: ignore[arg-type]
    await store.open()
    transport.halts = True
    return store, transport


async def test_a_read_ends_with_its_timeout_while_the_broker_is_silent() -> None:
    store, transport = await halted("head", timeout=0.3)
    async with asyncio.timeout(10):
        with pytest.raises(StoreUnavailableError, match=r"no answer from the broker within 0.3 s"):
            await store.counts()
    transport.go_on.set()
    assert (await store.counts()).pending == 0
    await store.close()


@pytest.mark.parametrize("verb", ["head", "verify"])
async def test_closing_ends_every_waiting_call(verb: str) -> None:
    store, transport = await halted(verb)
    waiting = asyncio.create_task(store.counts() if verb == "head" else store.verify())
    await asyncio.to_thread(transport.begun.wait)
    await store.close()
    async with asyncio.timeout(10):
        with pytest.raises(StoreClosedError):
            await waiting


async def test_closing_continues_after_its_caller_is_cancelled() -> None:
    store, transport = await halted("close")
    closing = asyncio.create_task(store.close())
    await asyncio.to_thread(transport.begun.wait)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not transport.ended
    transport.go_on.set()
    await store.close()
    assert transport.ended


async def test_close_ends_a_snapshotter_that_lost_its_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    """``asyncio.wait_for`` of Python 3.11, which drivers use, drops a cancellation that comes with the result."""
    monkeypatch.setattr("durabus.loop_thread.CANCEL_AGAIN", 0.05)
    begun = threading.Event()

    async def deaf(_self: Snapshotter) -> None:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    monkeypatch.setattr(Snapshotter, "run", deaf)
    store = ReplicatedLogStore(SimulatedTransport(SimulatedLog()), Options(), FEATURES)
    await store.open()
    assert await asyncio.to_thread(begun.wait, 10)
    async with asyncio.timeout(10):
        await store.close()
