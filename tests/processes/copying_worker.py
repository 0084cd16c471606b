"""Publishes and completes events until it is killed, and reads the files of its own store ten times a second.

Arguments: the database file, the ledger, and the suffixes of the files that it reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from itertools import compress
from pathlib import Path

from durabus import EventStore, new_event, open_store
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.settlement import Complete, Settled

COPY_EVERY = 0.1


def die_with_parent() -> None:
    os.read(0, 1)
    os._exit(1)


def read(file: str, suffixes: list[str]) -> None:
    """Open, read and close a file, as a copy or a checksum does."""
    for suffix in suffixes:
        with contextlib.suppress(FileNotFoundError):
            Path(f"{file}{suffix}").read_bytes()


class Worker:
    """Records in the ledger what the store has acknowledged, and nothing else."""

    def __init__(self, store: EventStore, ledger: str) -> None:
        self._store = store
        self._ledger = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def _note(self, what: str, ids: list[str]) -> None:
        os.write(self._ledger, "".join(f"{what} {id_}\n" for id_ in ids).encode())

    async def publish(self) -> None:
        while True:
            events = await self._store.add_events([new_event("order.placed"), new_event("order.paid")])
            self._note("published", [event.event_id for event in events])

    async def work(self) -> None:
        while True:
            request = ClaimRequest(bus="default", worker_id=str(os.getpid()), token=new_token(), limit=20, lease=1.0)
            claims = await self._store.claim_next_events(request)
            outcomes = (await self._store.settle_events([Complete(claim.ref) for claim in claims])).outcomes
            settled = [isinstance(outcome, Settled) for outcome in outcomes]  # the others took longer than the lease
            self._note("completed", [claim.event.event_id for claim in compress(claims, settled)])
            await self._store.counts()


async def main(file: str, ledger: str, *suffixes: str) -> None:
    threading.Thread(target=die_with_parent, daemon=True).start()
    worker = Worker(await open_store(f"sqlite:///{file}"), ledger)
    tasks = [asyncio.create_task(worker.publish()), asyncio.create_task(worker.work())]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not any(task.done() for task in tasks):
        await asyncio.to_thread(read, file, list(suffixes))
        await asyncio.sleep(COPY_EVERY)
    await asyncio.gather(*tasks)


asyncio.run(main(*sys.argv[1:]))
