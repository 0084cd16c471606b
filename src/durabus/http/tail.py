"""Sends the log as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import msgspec
from litestar.response import Stream

from durabus.clock import monotonic
from durabus.errors import StoreError
from durabus.http.api import Api, api_of, listens, logger, principal_of, still_allowed
from durabus.http.asgi import AnyRequest
from durabus.http.auth.access import Principal
from durabus.http.schema.claims import log_line
from durabus.model.log_entry import LogEntry
from durabus.store.log import START
from durabus.views.events import follow_log

LOOK_EVERY = 0.25
SIGN_OF_LIFE = 15.0
KEPT_TAGS = 10_000
"""Maximum number of events for which a tail remembers whether its reader may see them."""


async def tail_response(request: AnyRequest, bus: str, begin: str | None) -> Stream:
    """Stream the entries of one bus after ``begin``; None: from now on. Refuses an invalid position at once."""
    api, principal = api_of(request), principal_of(request)
    position = await api.store.log_head() if begin is None else begin
    if begin not in (None, START):
        await api.store.read_log(after=position, limit=1)  # refuses an invalid position before the stream begins
    listens(request)
    return Stream(tail(api, principal, bus, position, still_allowed(request)), media_type="text/event-stream")


async def tail(
    api: Api, principal: Principal, bus: str, position: str, allowed: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """Yield the entries of one bus after ``position``, until the reader leaves, loses access or the server stops."""
    known: dict[int, bool] = {}
    last_sent = monotonic()
    yield b": durabus\n\n"
    try:
        async with aclosing(follow_log(api.store, position, every=LOOK_EVERY, stopping=api.stopping)) as pages:
            async for entries in pages:
                lines = await _seen(api, principal, [entry for entry in entries if entry.bus == bus], known)
                if not allowed():
                    return
                if lines:
                    yield b"".join(map(_frame, lines))
                    last_sent = monotonic()
                elif monotonic() - last_sent >= SIGN_OF_LIFE:
                    yield b": still here\n\n"
                    last_sent = monotonic()
    except StoreError as error:
        # The response has begun, so it is too late for an error code. The reader reconnects after its last entry.
        logger.warning("a tail ends because of the store, its reader may reconnect: %s", error)


async def _seen(api: Api, principal: Principal, entries: list[LogEntry], known: dict[int, bool]) -> list[LogEntry]:
    """The entries that the principal may see. Entries without tags need their stored event; deleted ones are hidden."""
    if not principal.tags:
        return entries  # the caller has checked the bus
    if len(known) > KEPT_TAGS:
        known.clear()
    known |= await api.seen_by(principal, (entry.id for entry in entries if entry.id not in known))
    return [entry for entry in entries if known[entry.id]]


def _frame(entry: LogEntry) -> bytes:
    data = msgspec.json.encode(log_line(entry))
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (entry.position.encode(), entry.action.value.encode(), data)
