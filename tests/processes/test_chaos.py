"""Real processes on one store, killed every second and frozen past their lease, while the server crashes too."""

from pathlib import Path

import pytest
from tests.processes.chaos import Chaos, Plan
from tests.servers.presence import installed

from durabus.servers.postgresql import PostgreSQLServer

pytestmark = pytest.mark.processes

KILLS_AND_FREEZES = Plan(events=20_000, workers=8, concurrency=10, lease=2.0, freeze_at=(3, 9, 15, 21), within=200)
CRASHES_TOO = Plan(events=5_000, workers=4, concurrency=20, lease=2.0, freeze_at=(1,), crash_at=(5, 8), within=140)


@pytest.mark.timeout(180)
async def test_eight_processes_with_a_kill_every_second_end_every_event_once(tmp_path: Path) -> None:
    """20,000 events, kill -9 every second for 25 s, some frozen past their lease: one terminal each, no stale write."""
    outcome = await Chaos(f"sqlite:///{tmp_path}/race.db", tmp_path / "ledger", KILLS_AND_FREEZES).run()
    print(f"\n{outcome}")  # noqa: T201  (shown with -s)
    outcome.check()


@pytest.mark.timeout(180)
async def test_a_fleet_outlives_its_server(tmp_path: Path) -> None:
    """The same on PostgreSQL, which crashes twice: `make chaos STORE=postgresql` is the long run of it."""
    with installed(PostgreSQLServer(tmp_path / "postgresql")) as server:
        chaos = Chaos(server.url, tmp_path / "ledger", CRASHES_TOO, lambda: server.restart(immediate=True))
        outcome = await chaos.run()
    print(f"\n{outcome}")  # noqa: T201  (shown with -s)
    outcome.check()
