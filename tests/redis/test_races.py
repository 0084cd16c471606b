"""Real processes on one server: racing, frozen past their lease, and a server that crashes under them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.processes import test_races as races
from tests.processes.chaos import Chaos, Plan
from tests.servers.presence import installed

from durabus.backends.redis.store import RedisStore
from durabus.servers.redis import RedisServer

pytestmark = pytest.mark.processes

CRASHES_TOO = Plan(events=4_000, workers=4, concurrency=20, lease=2.0, freeze_at=(3,), crash_at=(2, 5), within=140)


@pytest.fixture
async def store(url: str) -> AsyncIterator[RedisStore]:
    opened = RedisStore.from_url(url)
    await opened.open()
    yield opened
    await opened.close()


async def test_claims_racing_from_four_processes_never_overlap(url: str, store: RedisStore, tmp_path: Path) -> None:
    await races.test_claims_racing_from_processes_never_overlap(url, store, tmp_path)


async def test_a_worker_frozen_past_its_lease_cannot_write(url: str, store: RedisStore, tmp_path: Path) -> None:
    await races.test_a_worker_frozen_past_its_lease_cannot_write(url, store, tmp_path)


@pytest.mark.timeout(180)
async def test_a_fleet_outlives_its_server(tmp_path: Path) -> None:
    """The server is killed twice under load; `make chaos STORE=redis` is the long run of it."""
    with installed(RedisServer(tmp_path / "server")) as server:
        chaos = Chaos(server.url, tmp_path / "ledger", CRASHES_TOO, lambda: server.restart(immediate=True))
        outcome = await chaos.run()
    found = outcome.verdict
    assert found.published == outcome.completed == outcome.handled == CRASHES_TOO.events
    assert set(found.terminals.values()) == {1}
    assert (found.stale_writes_accepted, found.fences_not_rising, outcome.crashes) == (0, 0, 2)
