"""The pages of the dashboard on a store with a million logged events."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import msgspec

from benchmarks.bench import Bench, percentile, sqlite_url
from benchmarks.http_load import Connection
from benchmarks.processes import ROOT
from benchmarks.results import Row, Target
from durabus import new_event, open_store
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import DEFAULT_BUS
from durabus.model.settlement import Complete, Fail

BATCH = 5_000
DEAD, WAITING, HELD = 2_000, 500, 50
TYPES = 8
PAGES = {
    "overview": "/",
    "events": "/dashboard/events",
    "events of a type": "/dashboard/events?type=order.kind3",
    "events, far down": "/dashboard/events?before=1000",
    "one event": "/dashboard/events/{dead}",
    "dead letters": "/dashboard/dead-letters",
    "handlers": "/dashboard/handlers",
    "workers": "/dashboard/workers",
}


def run(bench: Bench) -> list[Row]:
    """Return one row for each page."""
    logged, rounds = bench.size(1_000_000, 10_000), bench.size(40, 5)
    with bench.fresh_folder() as folder:
        url = sqlite_url(folder / "bus.db")
        bench.say(f"logging {logged:,} events")
        dead = asyncio.run(_fill(url, logged))
        bench.say("opening pages")
        with _server(url) as port:
            first, found = asyncio.run(_open_pages(port, dead, rounds))
    return [
        Row(
            name=f"{name}, {logged:,} logged",
            unit="ms",
            samples=samples,
            figure=percentile(samples, 0.95),
            target=Target("value", "≤", 100),
            note=f"p95 of {rounds}; the very first request took {first[name]:.0f} ms.",
        )
        for name, samples in found.items()
    ]


async def _open_pages(port: int, dead: int, rounds: int) -> tuple[dict[str, float], dict[str, list[float]]]:
    connection = await Connection.open(port)
    first: dict[str, float] = {}
    found: dict[str, list[float]] = {name: [] for name in PAGES}
    for turn in range(rounds + 1):
        for name, path in PAGES.items():
            started = perf_counter()
            status, _ = await connection.send("GET", path.format(dead=dead))
            milliseconds = (perf_counter() - started) * 1000
            assert status == 200, path
            if turn:
                found[name].append(milliseconds)
            else:
                first[name] = milliseconds
    connection.close()
    return first, found


async def _fill(url: str, count: int) -> int:
    """Store completed events, then some dead, waiting and held ones. Returns the id of a dead one."""
    store = await open_store(url)
    for begin in range(0, count, BATCH):
        events = [
            new_event(f"order.kind{n % TYPES}", {"order_id": n}, tags=["work"]) for n in range(begin, begin + BATCH)
        ]
        await store.add_events(events)
        claims = await store.claim_next_events(_request(BATCH))
        await store.settle_events([Complete(claim.ref, (), (), 12.0) for claim in claims])
    await store.add_events([new_event("order.broken", {"order_id": n}) for n in range(DEAD)])
    claims = await store.claim_next_events(_request(DEAD))
    await store.settle_events([Fail(claim.ref, f"KeyError: {claim.event.id % 7}", None) for claim in claims])
    await store.add_events([new_event("order.placed", {"order_id": n}) for n in range(WAITING + HELD)])
    await store.claim_next_events(_request(HELD))
    await store.close()
    return claims[0].event.id


def _request(limit: int) -> ClaimRequest:
    return ClaimRequest(bus=DEFAULT_BUS, worker_id="bench:1", token=new_token(), limit=limit, lease=3600.0)


@contextmanager
def _server(url: str) -> Iterator[int]:
    command = [sys.executable, "-m", "durabus.cli.main", "serve", "--port", "0", "--json", "--store", url]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield int(msgspec.json.decode(process.stdout.readline())["url"].rpartition(":")[2])
        finally:
            process.terminate()
            process.wait(30)
