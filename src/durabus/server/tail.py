"""The log as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec

from durabus.clock import monotonic
from durabus.model.log_entry import LogEntry
from durabus.server.access import Principal
from durabus.server.api import Api
from durabus.server.wire import log_line

PAGE = 500
LOOK_EVERY = 0.25
SIGN_OF_LIFE = 15.0
KEPT_TAGS = 10_000
"""Events whose tags are remembered, for senders that may not see all."""


async def tail(
    api: Api, principal: Principal, bus: str, position: str, allowed: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """Entries of one bus after ``position``, for as long as somebody listens and may, and the server runs."""
    known: dict[int, bool] = {}
    heard = monotonic()
    yield b": durabus\n\n"
    while not api.stopping.is_set() and allowed():
        page = await api.store.read_log(after=position, limit=PAGE)
        position = page.next
        lines = [entry for entry in page.entries if entry.bus == bus and await _seen(api, principal, entry, known)]
        if lines:
            yield b"".join(map(_frame, lines))
            heard = monotonic()
        elif monotonic() - heard >= SIGN_OF_LIFE:
            yield b": still here\n\n"
            heard = monotonic()
        if len(page.entries) < PAGE:
            await _pause(api)


async def _pause(api: Api) -> None:
    try:
        async with asyncio.timeout(LOOK_EVERY):
            await api.stopping.wait()
    except TimeoutError:
        return


async def _seen(api: Api, principal: Principal, entry: LogEntry, known: dict[int, bool]) -> bool:
    """Only some entries carry tags; for the others the stored event is asked. One that is gone is not shown."""
    if not principal.tags:
        return True  # the bus was asked for, and is theirs
    if entry.id not in known:
        event = await api.store.get_event(entry.id)
        if len(known) >= KEPT_TAGS:
            known.clear()
        known[entry.id] = event is not None and principal.sees(event)
    return known[entry.id]


def _frame(entry: LogEntry) -> bytes:
    data = msgspec.json.encode(log_line(entry))
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (entry.position.encode(), entry.action.value.encode(), data)
