"""What must not grow: the time of a claim with the backlog, the memory of a worker with what it has done."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from time import perf_counter

from benchmarks.bench import Bench, same_gc, sqlite_url
from benchmarks.draining import fill
from benchmarks.processes import Child
from benchmarks.results import Row, Target
from durabus import open_store
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import DEFAULT_BUS
from durabus.model.settlement import Release
from durabus.store.contract import EventStore

SMALL = 1_000
ALLOWED_GROWTH = 1.1


def run(bench: Bench) -> Iterator[Row]:
    yield from _claim_rows(bench)
    yield _footprint_row(bench)


def _claim_rows(bench: Bench) -> list[Row]:
    large = bench.size(1_000_000, 20_000)
    with bench.fresh_folder() as folder:
        bench.say(f"publishing {large:,} events")
        urls = [sqlite_url(folder / name) for name in ("large.db", "small.db")]
        fill(urls[0], large)
        fill(urls[1], SMALL)
        return claim_rows(bench, "claim", urls, large)


def claim_rows(bench: Bench, name: str, urls: list[str], large: int) -> list[Row]:
    """Compare a claim from the store with ``large`` pending events with one from the store with few."""
    bench.say("claiming from both")
    with same_gc():
        figures = asyncio.run(_claim_from_both(urls, bench.size(200, 20)))
    return [
        Row(
            name=f"{name} of {limit}, {large:,} pending",
            unit="ms",
            samples=figures[limit][0],
            peer=f"{SMALL:,} pending",
            peer_samples=figures[limit][1],
            target=Target("ratio", "≤", 1.5),
            note="claim_next_events, commit to disk included; p50; the claimed events go back outside the clock.",
        )
        for limit in figures
    ]


async def _claim_from_both(urls: list[str], rounds: int) -> dict[int, tuple[list[float], list[float]]]:
    """Claim in turn on the large and on the small store. Returns the times by limit."""
    stores = [await open_store(url) for url in urls]
    figures: dict[int, tuple[list[float], list[float]]] = {1: ([], []), 100: ([], [])}
    for limit, samples in figures.items():
        for turn in range(rounds + 5):
            for store, found in zip(stores, samples, strict=True):
                milliseconds = await _claim(store, limit)
                if turn >= 5:  # before that the caches are cold
                    found.append(milliseconds)
    for store in stores:
        await store.close()
    return figures


async def claim_milliseconds(url: str, rounds: int) -> list[float]:
    """Return the milliseconds of claims of one event, without the first, cold ones."""
    store = await open_store(url)
    samples = [await _claim(store, 1) for _ in range(rounds + 5)][5:]
    await store.close()
    return samples


async def _claim(store: EventStore, limit: int) -> float:
    request = ClaimRequest(bus=DEFAULT_BUS, worker_id="bench", token=new_token(), limit=limit)
    started = perf_counter()
    claims = await store.claim_next_events(request)
    milliseconds = (perf_counter() - started) * 1000
    assert len(claims) == limit
    await store.settle_events([Release(claim.ref) for claim in claims])
    return milliseconds


def _footprint_row(bench: Bench) -> Row:
    total = bench.size(200_000, 8_000)
    with bench.fresh_folder() as folder:
        bench.say(f"publishing {total:,} events")
        url = sqlite_url(folder / "bus.db")
        fill(url, total)
        bench.say(f"draining {total:,} events")
        with Child("footprint", url, str(total)) as child:
            child.wait_until_ready()
            child.go()
            quarters: list[float] = child.found()
    shown = ", ".join(f"{mib:.1f}" for mib in quarters)
    return Row(
        name=f"memory of a worker after {total:,} events",
        unit="MiB",
        samples=quarters,
        figure=quarters[-1],
        peer="after a quarter of them",
        peer_figure=quarters[0],
        target=Target("ratio", "≤", ALLOWED_GROWTH),
        note=f"Resident memory of the process at 25, 50, 75 and 100 %: {shown} MiB.",
    )
