"""32 clients, 4 server processes, one store: every event is handed out once, and a killed server loses none."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from tests.api.support import Server

from durabus import Action, EventStore, open_store

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(300)]

CLIENTS = 32
SERVERS = 4
EVENTS = 400
PUBLISHERS = 8


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('races')}/race.db"


@pytest.fixture(scope="module")
async def servers(url: str) -> AsyncIterator[list[Server]]:
    """The servers of both tests. Each test has a bus of its own; the second one kills some servers."""
    started = await asyncio.gather(*(asyncio.to_thread(Server, url, "--lease", "5") for _ in range(SERVERS)))
    yield started
    for server in started:
        await asyncio.to_thread(server.__exit__)


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    """A client with one connection for each thread. The threads share it because it is slow to make."""
    async with httpx2.AsyncClient(timeout=60, limits=httpx2.Limits(max_connections=CLIENTS)) as made:
        yield made


async def picks(store: EventStore, bus: str) -> Counter[int]:
    """Return how often each event was handed out, by the store's own log."""
    found: Counter[int] = Counter()
    position = ""
    while True:
        page = await store.read_log(after=position)
        if not page.entries:
            return found
        found.update(entry.id for entry in page.entries if entry.action is Action.PICKED and entry.bus == bus)
        position = page.next


async def test_each_event_is_handed_out_once(url: str, servers: list[Server], http: httpx2.AsyncClient) -> None:
    given: list[int] = []

    async def work(number: int) -> None:
        """Claim through one server and report to another. All threads use the same worker name."""
        taking, telling = servers[number % SERVERS], servers[(number + 1) % SERVERS]
        worker = f"host:{number % 3}"
        while True:
            params = {"tags": "work,other", "worker_id": worker, "bus": "once"}
            job = await http.get(f"{taking.url}/events/subscribe", params=params)
            if job.status_code == 204:
                return
            given.append(job.json()["id"])
            done = await http.post(f"{telling.url}/events/{given[-1]}/complete", json={"worker_id": worker})
            assert done.status_code == 200, done.text

    events = [{"title": f"job {n}", "tags": "work" if n % 2 else "other", "bus": "once"} for n in range(EVENTS)]
    answer = await http.post(f"{servers[0].url}/events/batch", json={"events": events})
    ids = [event["id"] for event in answer.json()["events"]]
    await asyncio.gather(*(work(number) for number in range(CLIENTS)))
    assert sorted(given) == ids
    store = await open_store(url)
    assert await picks(store, "once") == dict.fromkeys(ids, 1)
    assert (await store.counts("once")).completed == EVENTS
    await store.close()


class Load:
    """Publishers and workers that use any server that runs. The first two servers are killed during the run."""

    def __init__(self, servers: list[Server], http: httpx2.AsyncClient) -> None:
        self.servers = servers
        self.http = http
        self.accepted: list[int] = []
        self.completed: list[int] = []

    def alive(self, number: int) -> str:
        running = [server for server in self.servers if server.process.poll() is None]
        return running[number % len(running)].url

    async def publish(self, number: int) -> None:
        for n in range(EVENTS // PUBLISHERS):
            key = f"{number}-{n}"
            body = {"title": key, "tags": "work", "idempotency_key": key, "max_retries": 9}
            while (answer := await self.send(number, "/events", body)) is None:
                pass  # a key makes it safe to send again
            self.accepted.append(answer.json()["id"])
            if len(self.accepted) in (EVENTS // 4, EVENTS // 2):
                self.servers[len(self.accepted) * 4 // EVENTS - 1].kill()

    async def work(self, number: int) -> None:
        name = f"host:{number}"
        while True:
            wanted = {"worker_id": name, "tags": "work", "wait": 1}
            answer = await self.send(number, "/claims", wanted)
            for claim in answer.json()["claims"] if answer is not None else []:
                report = {"worker_id": name, "claim": {"token": claim["token"], "fence": claim["fence"]}}
                done = await self.send(number, f"/events/{claim['id']}/complete", report)
                if done is not None and done.status_code == 200:
                    self.completed.append(claim["id"])

    async def send(self, number: int, path: str, body: dict[str, Any]) -> httpx2.Response | None:
        """Return the reply; None if the request or the reply was lost with its server."""
        try:
            return await self.http.post(self.alive(number) + path, json=body)
        except httpx2.TransportError:
            return None


async def test_a_server_killed_under_load_loses_nothing(
    url: str, servers: list[Server], http: httpx2.AsyncClient
) -> None:
    """Every acknowledged event is there. Another worker runs what was in flight after its lease has ended."""
    load, store = Load(servers, http), await open_store(url)
    workers = [asyncio.create_task(load.work(number)) for number in range(CLIENTS - PUBLISHERS)]
    await asyncio.gather(*(load.publish(number) for number in range(PUBLISHERS)))
    while (await store.counts("default")).completed < EVENTS:
        await store.wait_for_work("default", timeout=0.2)
    for task in workers:
        task.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    counts = await store.counts("default")
    assert [server.process.poll() for server in servers] == [-9, -9, None, None]
    assert len(set(load.accepted)) == EVENTS
    assert (counts.completed, counts.pending, counts.processing, counts.failed) == (EVENTS, 0, 0, 0)
    assert set(load.completed) <= set(load.accepted)
    assert len(set(load.completed)) == len(load.completed)
    await store.close()
    assert [server.stop() for server in servers[2:]] == [0, 0]
