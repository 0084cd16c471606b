"""Claiming with patience: a long poll that ends with work, with its client, with its token, or with the server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from durabus.clock import monotonic
from durabus.model.claim import Claim, ClaimRequest
from durabus.model.settlement import Release
from durabus.server.api import Api
from durabus.server.problems import UNAUTHORISED, Problem

LOOK_EVERY = 1.0
"""A hint may be lost: look at least so often."""
FIRST_PAUSE = 0.01


async def claim(
    api: Api,
    request: ClaimRequest,
    *,
    wait: float,
    receive: Callable[[], Awaitable[Any]],
    allowed: Callable[[], bool],
    listens: Callable[..., None],
) -> list[Claim]:
    """Claim, waiting up to ``wait`` seconds for work. Nothing is claimed for a client that went away, or may not."""
    claims = await api.store.claim_next_events(request)
    if claims or wait <= 0 or api.stopping.is_set():
        return claims
    gone = asyncio.create_task(_gone(receive))
    stopping = asyncio.create_task(api.stopping.wait())
    listens(begin=True)
    try:
        claims = await _wait(api, request, monotonic() + wait, {gone, stopping}, allowed)
        if claims and gone.done():
            await api.store.settle_events([Release(claim.ref) for claim in claims])
            return []
        return claims
    finally:
        listens(begin=False)
        await _end(gone, stopping)


async def _wait(
    api: Api, request: ClaimRequest, deadline: float, ends: set[asyncio.Task[Any]], allowed: Callable[[], bool]
) -> list[Claim]:
    pause = FIRST_PAUSE
    while (left := deadline - monotonic()) > 0:
        heard = asyncio.create_task(api.store.wait_for_work(request.bus, timeout=min(left, LOOK_EVERY)))
        try:
            await asyncio.wait({heard, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if any(end.done() for end in ends):
                return []
            if not allowed():
                raise Problem(401, "this token ended while it waited for work: nothing was claimed", UNAUTHORISED)
            claims = await api.store.claim_next_events(request)
            if claims:
                return claims
            # There is work on the bus, but none of these tags: hints come at once and for nothing.
            pause = min(2 * pause, LOOK_EVERY) if await heard else FIRST_PAUSE
        finally:
            await _end(heard)
        await asyncio.wait(
            ends, timeout=min(pause, max(deadline - monotonic(), 0)), return_when=asyncio.FIRST_COMPLETED
        )
    return []


async def _end(*tasks: asyncio.Task[Any]) -> None:
    """Whatever they wait for, nobody needs it any more."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _gone(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
