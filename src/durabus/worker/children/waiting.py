"""Handlers that wait for the end of other events: they yield their slots meanwhile, and may not wait for ever."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from durabus.errors import ConfigurationError
from durabus.model.claim import event_lock_key
from durabus.model.statuses import EventMode
from durabus.store.contract import EventStore
from durabus.worker.claimed_event import ClaimedEvent, EventLock
from durabus.worker.slots import SLOT
from durabus.worker.threads import CALL


def event_lock(store: EventStore, mode: EventMode, bus: str) -> EventLock | None:
    """The lock that an event of the bus holds while it runs; None in parallel mode."""
    key = event_lock_key(mode, bus)
    return None if key is None else (store, key)


def handled_here() -> ClaimedEvent | None:
    """The event whose handler calls this; None outside of handlers."""
    slot = SLOT.get()
    return None if slot is None or slot.claimed is None or slot.claimed.task is None else slot.claimed


def refuse_endless_wait(lock: EventLock | None) -> None:
    """Raise if a handler would wait for an event that needs a lock which the handler's own event holds."""
    claimed = handled_here()
    if claimed is not None and lock is not None and lock in claimed.locks:
        raise ConfigurationError(
            f"a handler of {claimed.claim.event.type!r} waits for the end of another event, but in this mode one event "
            f"runs at a time ({lock[1]}), and {lock[0].features.scheme}:// cannot claim a child by its name: use emit "
            "there and do not await the handle, or mode='parallel'"
        )


@contextlib.contextmanager
def waiting_for(event_id: str) -> Iterator[None]:
    """Yield the handler's slot, and its thread if it has one, while the block waits for the end of an event.

    So events that wait for each other cannot use up all slots. Outside of handlers this does nothing.
    """
    slot, claimed = SLOT.get(), handled_here()
    if slot is None or claimed is None:
        yield
        return
    if claimed.claim.event.event_id == event_id:
        raise ConfigurationError(f"the handler of event {event_id} waits for the end of this very event")
    slots, thread_call = slot.slots, CALL.get()
    with contextlib.nullcontext() if thread_call is None else thread_call.waiting():
        _call(slots.loop, slots.yield_slot, claimed)
        try:
            yield
        finally:
            _call(slots.loop, slots.resume, claimed)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[ClaimedEvent], None], claimed: ClaimedEvent) -> None:
    """Call the function on the loop of the slots: a handler may wait for an event of a bus on another loop."""
    if loop is asyncio.get_running_loop():
        function(claimed)
        return
    with contextlib.suppress(RuntimeError):  # that loop is closed, and its slots are gone
        loop.call_soon_threadsafe(function, claimed)
