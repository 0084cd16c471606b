"""Starts, kills and stops worker processes, and judges what they left in the store's log."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

import msgspec

from durabus import Action, EventStore, LogEntry, StoreUnavailableError

WORKER = Path(__file__).with_name("fleet_worker.py")
SHOWN = 5
SETTLING = {Action.STARTED, Action.COMPLETED, Action.COMPLETED_WITH_ERRORS, Action.FAILED, Action.RELEASED}


class Fleet:
    """Worker processes on one store. Leaving the context kills whatever is left."""

    def __init__(self, url: str, ledger: Path, *, handler_seconds: float, lease: float, concurrency: int) -> None:
        self._place = [url, str(ledger)]
        self._settings = [str(lease), str(concurrency)]
        self._handler_seconds = handler_seconds
        self.ledger = ledger
        self.workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for worker in list(self.workers):
            self.kill(worker)

    def start(self, *, handler_seconds: float | None = None) -> subprocess.Popen[bytes]:
        seconds = self._handler_seconds if handler_seconds is None else handler_seconds
        command = [sys.executable, str(WORKER), *self._place, str(seconds), *self._settings]
        # Its stdin closes with this process, whatever ends it, and that ends the worker.
        worker = subprocess.Popen(command, stdin=subprocess.PIPE)
        self.workers.append(worker)
        return worker

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        worker.kill()
        worker.communicate()
        self.workers.remove(worker)

    async def stop(self) -> None:
        """Ask all to finish, and check that they did so cleanly."""
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        codes = [await asyncio.to_thread(worker.wait, 30) for worker in self.workers]
        assert codes == [0] * len(codes)
        for worker in list(self.workers):
            self.kill(worker)

    def lines(self, what: str) -> list[tuple[int, int, int]]:
        """Return (event id, fence, pid) of every line of one kind; for "refused": (count so far, 0, pid)."""
        text = self.ledger.read_text() if self.ledger.exists() else ""
        found = (line.split() for line in text.splitlines() if line.startswith(what))
        return [(int(id_), int(fence), int(pid)) for _, id_, fence, pid in found]

    def refused(self) -> Counter[int]:
        """Return how many claims the store refused to each worker, by pid."""
        counts: Counter[int] = Counter()
        for count, _, pid in self.lines("refused"):
            counts[pid] = max(counts[pid], count)
        return counts


async def entries(store: EventStore) -> AsyncIterator[LogEntry]:
    position = ""
    while True:
        page = await store.read_log(after=position, limit=5000)
        for entry in page.entries:
            yield entry
        if page.next == position:
            return
        position = page.next


class Verdict(msgspec.Struct):
    """What the log says happened."""

    published: int = 0
    terminals: Counter[int] = msgspec.field(default_factory=Counter)
    takeovers: int = 0
    retries: int = 0
    stale_writes_accepted: int = 0
    fences_not_rising: int = 0
    offenders: list[str] = []
    """The log entries of the first events that break the rules."""


async def judge(store: EventStore) -> Verdict:
    """Fold the log: a settling entry must carry the fence of the newest grant, and every grant a larger one."""
    verdict = Verdict()
    fence: dict[int, int] = {}
    held: set[int] = set()
    offenders: list[int] = []
    async for entry in entries(store):
        match entry.action:
            case Action.PUBLISHED:
                verdict.published += 1
            case Action.PICKED:
                if entry.fence <= fence.get(entry.id, 0) or entry.id in held:
                    verdict.fences_not_rising += 1
                    offenders.append(entry.id)
                fence[entry.id] = entry.fence
                held.add(entry.id)
            case Action.ABANDONED:
                verdict.takeovers += 1
                held.discard(entry.id)
        if entry.action in SETTLING:
            if entry.fence != fence.get(entry.id) or entry.id not in held:
                verdict.stale_writes_accepted += 1
                offenders.append(entry.id)
            if entry.action is not Action.STARTED:
                held.discard(entry.id)
            verdict.retries += entry.action is Action.FAILED and entry.next_retry_ts is not None
            verdict.terminals[entry.id] += entry.payload_json is not None
    for id_ in offenders[:SHOWN]:
        trail = await store.read_event_log(id_)
        verdict.offenders += [f"event {id_}:"] + [
            f"  {entry.position} {entry.at_ts:.6f} {entry.action} fence {entry.fence} {entry.worker_id}"
            for entry in trail
        ]
    return verdict


async def drained(store: EventStore) -> bool:
    """Return whether nothing waits or runs; False if the store is unavailable."""
    try:
        counts = await store.counts()
    except StoreUnavailableError:
        return False
    return counts.pending + counts.processing == 0
