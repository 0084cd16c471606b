"""The HTTP API over loopback against bare endpoints of the same framework on the same store."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import msgspec

from benchmarks.bench import Bench, sqlite_url
from benchmarks.http_load import Connection, spread
from benchmarks.processes import ROOT
from benchmarks.results import Row, Target
from durabus import new_event, open_store

CONNECTIONS = 32
BATCH = 1_000
EVENT = {"title": "order.placed", "tags": "work", "payload": {"order_id": 7, "item": "lamp", "amount": 40}}
BODY = msgspec.json.encode(EVENT)
SUBSCRIBE = "/events/subscribe?tags=work&worker_id=bench:1"
CLAIMED_AT_ONCE = 100


def run(bench: Bench) -> list[Row]:
    count, batched = bench.size(4_800, 640), bench.size(50_000, 10_000)
    ours, bare = (
        Side(bench, ["-m", "durabus.cli.main", "serve", "--port", "0", "--json", "--store"]),
        Side(bench, ["-m", "benchmarks.http_bare"]),
    )
    posts = bench.alternate(
        {"POST /events": ours.publish, "bare publish": bare.publish},
        {"POST /events": count, "bare publish": count},
    )
    cycles = bench.alternate(
        {"subscribe + complete": ours.cycle, "bare claim + settle": bare.bare_cycle},
        {"subscribe + complete": count, "bare claim + settle": count},
    )
    batches = bench.alternate(
        {
            "POST /events/batch": ours.batches,
            "bare batch": bare.batches,
            "POST /claims + /claims/settle": ours.settle,
        },
        {"POST /events/batch": batched, "bare batch": batched, "POST /claims + /claims/settle": batched},
    )
    return [
        Row(
            name=f"POST /events, {CONNECTIONS} connections",
            unit="/s",
            samples=posts["POST /events"],
            peer="bare endpoint",
            peer_samples=posts["bare publish"],
            target=Target("ratio", "≥", 0.60),
            note="The bare endpoint decodes, stores and returns the id: no limits, no access check, no metrics.",
        ),
        Row(
            name=f"subscribe + complete, {CONNECTIONS} connections",
            unit="/s",
            samples=cycles["subscribe + complete"],
            peer="bare endpoints",
            peer_samples=cycles["bare claim + settle"],
            target=Target("ratio", "≥", 0.60),
            note="Two requests a cycle. Ours names the worker and returns the log entry; the bare one sends the token.",
        ),
        Row(
            name=f"POST /events/batch, {BATCH:,} a batch",
            unit="/s",
            samples=batches["POST /events/batch"],
            peer="bare endpoint",
            peer_samples=batches["bare batch"],
            target=Target("value", "≥", 15_000),
            note="Events, over one connection; the reply holds all of them, that of the bare endpoint their ids.",
        ),
        Row(
            name=f"POST /claims/settle with then_claim, {CLAIMED_AT_ONCE} at once",
            unit="/s",
            samples=batches["POST /claims + /claims/settle"],
            target=Target("value", "≥", 15_000),
            note="Events claimed and completed, over four connections.",
        ),
    ]


class Side:
    """A server in another process, on a store of its own for each run."""

    def __init__(self, bench: Bench, command: list[str]) -> None:
        self._bench = bench
        self._command = command

    def publish(self, count: int) -> float:
        each = max(count // CONNECTIONS, 1)

        async def send(connection: Connection) -> None:
            for _ in range(each):
                status, _ = await connection.send("POST", "/events", BODY)
                assert status == 201

        return each * CONNECTIONS / self._measure(lambda port: spread(port, CONNECTIONS, send))

    def cycle(self, count: int) -> float:
        each = max(count // CONNECTIONS, 1)

        async def work(connection: Connection) -> None:
            for _ in range(each):
                job = await connection.json("GET", SUBSCRIBE)
                await connection.json("POST", f"/events/{job['id']}/complete", {"worker_id": "bench:1"})

        return (
            each * CONNECTIONS / self._measure(lambda port: spread(port, CONNECTIONS, work), stored=each * CONNECTIONS)
        )

    def bare_cycle(self, count: int) -> float:
        each = max(count // CONNECTIONS, 1)

        async def work(connection: Connection) -> None:
            for _ in range(each):
                job = await connection.json("GET", SUBSCRIBE)
                assert (await connection.json("POST", "/complete", job)) == {"status": "Settled"}

        return (
            each * CONNECTIONS / self._measure(lambda port: spread(port, CONNECTIONS, work), stored=each * CONNECTIONS)
        )

    def batches(self, count: int) -> float:
        body = msgspec.json.encode({"events": [EVENT] * BATCH})

        async def send(connection: Connection) -> None:
            for _ in range(count // BATCH):
                status, _ = await connection.send("POST", "/events/batch", body)
                assert status == 201

        return count / self._measure(lambda port: spread(port, 1, send))

    def settle(self, count: int) -> float:
        wanted = {"worker_id": "bench:1", "limit": CLAIMED_AT_ONCE, "tags": "work"}

        async def work(connection: Connection) -> None:
            claims = (await connection.json("POST", "/claims", wanted))["claims"]
            while claims:
                done = [
                    {"outcome": "complete", "id": one["id"], "token": one["token"], "fence": one["fence"]}
                    for one in claims
                ]
                body = {"settlements": done, "then_claim": wanted}
                claims = (await connection.json("POST", "/claims/settle", body))["claims"]

        return count / self._measure(lambda port: spread(port, 4, work), stored=count)

    def _measure(self, load: Callable[[int], Awaitable[float]], *, stored: int = 0) -> float:
        async def main(port: int) -> float:
            return await load(port)

        with self._bench.fresh_folder() as folder:
            url = sqlite_url(folder / "bus.db")
            if stored:
                asyncio.run(_fill(url, stored))
            with self._server(url) as port:
                return asyncio.run(main(port))

    @contextmanager
    def _server(self, url: str) -> Iterator[int]:
        command = [sys.executable, *self._command, url]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            try:
                yield int(msgspec.json.decode(process.stdout.readline())["url"].rpartition(":")[2])
            finally:
                process.terminate()
                process.wait(30)


async def _fill(url: str, count: int) -> None:
    store = await open_store(url)
    events = [new_event("order.placed", EVENT["payload"], tags=["work"]) for _ in range(count)]
    for first in range(0, count, 10_000):
        await store.add_events(events[first : first + 10_000])
    await store.close()
