"""Draining an SQLite file with a no-op handler, against the raw claim + complete loop, by one and by two processes."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep

from benchmarks import raw
from benchmarks.bench import Bench, copy_database, sqlite_url
from benchmarks.processes import Child
from benchmarks.results import Row, Target
from durabus import EventQueue, new_event, open_store
from durabus.stores.sqlite.connection import connect_reader

LOOK_EVERY = 0.005
NOTE = (
    "EventBus(concurrency=200) and a no-op async handler on a full queue: claim, dispatch, settle, a log entry for "
    "the claim and one for the end. The raw loop completes 100 and claims the next 100 in one transaction; it logs the "
    "end only, not the claim, and calls no handler. From the signal to begin until the queue is empty, seen within "
    f"{LOOK_EVERY * 1000:g} ms; a fresh process each run, imports not counted."
)


def run(bench: Bench) -> list[Row]:
    count = bench.size(20_000, 3_000)
    with bench.fresh_folder() as folder:
        bench.say("filling the file to drain")
        filled = folder / "filled.db"
        fill(sqlite_url(filled), count)
        sides = _Sides(bench, filled, count)
        names = ("drain, 1 process", "raw drain, 1 process", "drain, 2 processes", "raw drain, 2 processes")
        figures = bench.alternate(
            dict(zip(names, (sides.durabus, sides.raw, sides.durabus_two, sides.raw_two), strict=True)),
            dict.fromkeys(names, count),
            warm_up=False,  # every run is a process of its own
        )
    return [
        Row(
            name=f"drain, {text}",
            unit="/s",
            samples=figures[ours],
            peer=f"raw claim + complete, {text}",
            peer_samples=figures[theirs],
            target=Target("ratio", "≥", 0.40),
            note=note,
        )
        for text, ours, theirs, note in (
            ("1 process", names[0], names[1], NOTE),
            ("2 processes", names[2], names[3], "As with 1 process; the raw ones take turns by flock on a side file."),
        )
    ]


def fill(url: str, count: int, batch: int = 10_000) -> None:
    """Publish ``count`` events and close the store."""

    async def publish() -> None:
        store = await open_store(url)
        queue = EventQueue(store)
        for first in range(0, count, batch):
            size = min(batch, count - first)
            await queue.publish_batch([new_event(raw.EVENT_TYPE, raw.PAYLOAD) for _ in range(size)])
        await store.close()

    asyncio.run(publish())


class _Sides:
    """Runs each side on its own copy of the filled file, in processes of its own."""

    def __init__(self, bench: Bench, filled: Path, total: int) -> None:
        self._bench = bench
        self._filled = filled
        self._total = total

    def durabus(self, _count: int) -> float:
        return self._drain("drain", 1)

    def durabus_two(self, _count: int) -> float:
        return self._drain("drain", 2)

    def raw(self, _count: int) -> float:
        return self._drain("drain-raw", 1, "alone")

    def raw_two(self, _count: int) -> float:
        return self._drain("drain-raw", 2, "shared")

    def _drain(self, kind: str, processes: int, *arguments: str) -> float:
        with self._bench.fresh_folder() as folder, ExitStack() as stack:
            path = folder / "bus.db"
            copy_database(self._filled, path)
            place = sqlite_url(path) if kind == "drain" else str(path)
            children = [stack.enter_context(Child(kind, place, *arguments)) for _ in range(processes)]
            for child in children:
                child.wait_until_ready()
            started = monotonic()
            for child in children:
                child.go()
            seconds = _until_empty(path, started, children)
            handled = sum(child.stop() if kind == "drain" else child.found() for child in children)
            assert handled == self._total, f"{kind}: {handled} handled of {self._total}"
            return self._total / seconds


def _until_empty(path: Path, started: float, children: list[Child]) -> float:
    reader = connect_reader(path)
    try:
        while reader.execute("SELECT EXISTS (SELECT 1 FROM events)").fetchone()[0]:
            if all(child.has_ended() for child in children):
                raise RuntimeError("the draining processes ended before the queue was empty: see their errors")
            sleep(LOOK_EVERY)
        return monotonic() - started
    finally:
        reader.close()
