"""A server that crashes under real processes. What they do on one that stays up is in tests/processes."""

from pathlib import Path

import pytest
from tests.processes.chaos import Chaos, Plan
from tests.servers.presence import installed

from durabus.servers.redis import RedisServer

pytestmark = pytest.mark.processes

CRASHES_TOO = Plan(events=2_000, workers=4, concurrency=20, lease=2.0, freeze_at=(3,), crash_at=(2, 5), within=140)


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
