"""When a child of ``benchmarks.processes`` begins, and when it ends."""

from __future__ import annotations

import asyncio
import sys


async def ready() -> None:
    print("ready", flush=True)
    await next_line()


async def next_line() -> None:
    """Wait for ``go`` or ``stop``, or for the death of the parent."""
    await asyncio.to_thread(sys.stdin.readline)
