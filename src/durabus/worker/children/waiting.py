"""Handlers that wait for the end of other events: what they hold is lent meanwhile, and endless waits are refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from durabus.errors import ConfigurationError
from durabus.model.claim import event_lock_key
from durabus.model.statuses import EventMode
from durabus.store.contract import EventStore
from durabus.worker.slots import PLACE, ClaimedEvent, EventLock
from durabus.worker.threads import CALL


def event_lock(store: EventStore, mode: EventMode, bus: str) -> EventLock | None:
    """None in parallel mode."""
    key = event_lock_key(mode, bus)
    return None if key is None else (store, key)


def handled_here() -> ClaimedEvent | None:
    """The claim inside whose handler this is called; None outside of handlers."""
    place = PLACE.get()
    return None if place is None or place.running is None or place.running.task is None else place.running


def refuse_endless_wait(lock: EventLock | None) -> None:
    """Refuse to wait, inside a handler, for an event that needs a lock which this very handler's event runs under."""
    running = handled_here()
    if running is not None and lock is not None and lock in running.locks:
        raise ConfigurationError(
            f"a handler of {running.claim.event.type!r} waits for the end of another event, but in this mode one event "
            f"runs at a time ({lock[1]}), and {lock[0].features.scheme}:// cannot claim a child by its name: use emit "
            "there and do not await the handle, or mode='parallel'"
        )


@contextlib.contextmanager
def waiting_for(event_id: str) -> Iterator[None]:
    """While a handler waits inside for the end of an event, its slot, and its thread if it has one, are lent.

    So events that wait for each other cannot use up all places and stand still. Outside of handlers it does nothing.
    """
    place, running = PLACE.get(), handled_here()
    if place is None or running is None:
        yield
        return
    if running.claim.event.event_id == event_id:
        raise ConfigurationError(f"the handler of event {event_id} waits for the end of this very event")
    slots, thread_call = place.slots, CALL.get()
    with contextlib.nullcontext() if thread_call is None else thread_call.waiting():
        _call(slots.loop, slots.lend, running)
        try:
            yield
        finally:
            _call(slots.loop, slots.take_back, running)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[ClaimedEvent], None], running: ClaimedEvent) -> None:
    """Slots belong to their loop; a handler may wait for an event of a bus that lives on another one."""
    if loop is asyncio.get_running_loop():
        function(running)
        return
    with contextlib.suppress(RuntimeError):  # that loop is closed, and its slots are gone
        loop.call_soon_threadsafe(function, running)
