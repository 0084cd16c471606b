"""Starts, kills, freezes and stops worker processes, and judges what they left in the store's log."""

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

from durabus import Action, EventStore, LogEntry

WORKER = Path(__file__).with_name("fleet_worker.py")
SETTLING = {Action.STARTED, Action.COMPLETED, Action.COMPLETED_WITH_ERRORS, Action.FAILED, Action.RELEASED}


class Fleet:
    """Worker processes on one store. Leaving the context kills whatever is left."""

    def __init__(self, url: str, ledger: Path, *, handler_seconds: float, lease: float, concurrency: int) -> None:
        self._arguments = [url, str(ledger), str(handler_seconds), str(lease), str(concurrency)]
        self.ledger = ledger
        self.workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()

    def start(self) -> subprocess.Popen[bytes]:
        worker = subprocess.Popen([sys.executable, str(WORKER), *self._arguments])
        self.workers.append(worker)
        return worker

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        worker.kill()
        worker.wait()
        self.workers.remove(worker)

    def freeze(self, worker: subprocess.Popen[bytes], seconds: float) -> None:
        """Stop a worker as a long pause would, and let it go on later."""
        worker.send_signal(signal.SIGSTOP)
        asyncio.get_running_loop().call_later(seconds, self._thaw, worker)

    def _thaw(self, worker: subprocess.Popen[bytes]) -> None:
        if worker.poll() is None:
            worker.send_signal(signal.SIGCONT)

    async def stop(self) -> None:
        """Ask all to finish, and check that they did so cleanly."""
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        codes = [await asyncio.to_thread(worker.wait, 30) for worker in self.workers]
        assert codes == [0] * len(codes)
        self.workers.clear()

    def lines(self, what: str) -> list[tuple[int, int, int]]:
        """(event id, fence, pid) of every line of one kind; for "refused": (count, 0, pid)."""
        text = self.ledger.read_text() if self.ledger.exists() else ""
        found = (line.split() for line in text.splitlines())
        return [(int(id_), int(fence), int(pid)) for kind, id_, fence, pid in found if kind == what]


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


async def judge(store: EventStore) -> Verdict:
    """Fold the log: a settling entry must carry the fence of the newest grant, and every grant a larger one."""
    verdict = Verdict()
    fence: dict[int, int] = {}
    held: set[int] = set()
    async for entry in entries(store):
        match entry.action:
            case Action.PUBLISHED:
                verdict.published += 1
            case Action.PICKED:
                verdict.fences_not_rising += entry.fence <= fence.get(entry.id, 0) or entry.id in held
                fence[entry.id] = entry.fence
                held.add(entry.id)
            case Action.ABANDONED:
                verdict.takeovers += 1
                held.discard(entry.id)
        if entry.action in SETTLING:
            verdict.stale_writes_accepted += entry.fence != fence.get(entry.id) or entry.id not in held
            if entry.action is not Action.STARTED:
                held.discard(entry.id)
            verdict.retries += entry.action is Action.FAILED and entry.next_retry_ts is not None
            verdict.terminals[entry.id] += entry.payload_json is not None
    return verdict
