"""Claiming with patience: a long poll that ends when there is work, when nobody listens, or when the server stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from durabus.clock import monotonic
from durabus.model.claim import Claim, ClaimRequest
from durabus.model.settlement import Release
from durabus.server.api import Api

LOOK_EVERY = 1.0
"""A hint may be lost: look at least so often."""
FIRST_PAUSE = 0.01


async def claim(api: Api, request: ClaimRequest, *, wait: float, receive: Callable[[], Awaitable[Any]]) -> list[Claim]:
    """Claim, waiting up to ``wait`` seconds for work. Nothing is claimed for a client that went away."""
    claims = await api.store.claim_next_events(request)
    if claims or wait <= 0 or api.stopping.is_set():
        return claims
    gone = asyncio.create_task(_gone(receive))
    stopping = asyncio.create_task(api.stopping.wait())
    try:
        claims = await _wait(api, request, monotonic() + wait, {gone, stopping})
        if claims and gone.done():
            await api.store.settle_events([Release(claim.ref) for claim in claims])
            return []
        return claims
    finally:
        for task in (gone, stopping):
            task.cancel()
        await asyncio.gather(gone, stopping, return_exceptions=True)


async def _wait(api: Api, request: ClaimRequest, deadline: float, ends: set[asyncio.Task[Any]]) -> list[Claim]:
    pause = FIRST_PAUSE
    while (left := deadline - monotonic()) > 0:
        heard = asyncio.create_task(api.store.wait_for_work(request.bus, timeout=min(left, LOOK_EVERY)))
        await asyncio.wait({heard, *ends}, return_when=asyncio.FIRST_COMPLETED)
        if any(end.done() for end in ends):
            heard.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await heard
            return []
        claims = await api.store.claim_next_events(request)
        if claims:
            return claims
        # There is work on the bus, but none of these tags: hints come at once and for nothing.
        pause = min(2 * pause, LOOK_EVERY) if await heard else FIRST_PAUSE
        await asyncio.wait(
            ends, timeout=min(pause, max(deadline - monotonic(), 0)), return_when=asyncio.FIRST_COMPLETED
        )
    return []


async def _gone(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
