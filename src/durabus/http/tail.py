"""The log as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec

from durabus.clock import monotonic
from durabus.errors import StoreError
from durabus.http.api import Api, logger
from durabus.http.auth.access import Principal
from durabus.http.schema.claims import log_line
from durabus.model.log_entry import LogEntry

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
        try:
            page = await api.store.read_log(after=position, limit=PAGE)
            lines = await _seen(api, principal, [entry for entry in page.entries if entry.bus == bus], known)
        except StoreError as error:
            # The answer has begun, so there is no other code to send: who comes again goes on after the last entry.
            logger.warning("a tail ends, its reader may come again: %s", error)
            return
        position = page.next
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


async def _seen(api: Api, principal: Principal, entries: list[LogEntry], known: dict[int, bool]) -> list[LogEntry]:
    """Only some entries carry tags; for the others the stored events are asked. One that is gone is not shown."""
    if not principal.tags:
        return entries  # the bus was asked for, and is theirs
    if len(known) > KEPT_TAGS:
        known.clear()
    known |= await api.seen_by(principal, (entry.id for entry in entries if entry.id not in known))
    return [entry for entry in entries if known[entry.id]]


def _frame(entry: LogEntry) -> bytes:
    data = msgspec.json.encode(log_line(entry))
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (entry.position.encode(), entry.action.value.encode(), data)
