"""Small rounds of the crash lab on every kind of store; `make chaos STORE=…` is the long run of it."""

from pathlib import Path

import msgspec
import pytest
from tests.lab.__main__ import KINDS, one_round, small
from tests.servers.presence import installed

from durabus.testing.servers.server import make_server

SEED = 4711
VERBS = (
    "steps remembered",
    "asleep",
    "waits met",
    "waits given up",
    "verdicts of batches",
    "handlers run for another worker",
    "cancelled",
)


@pytest.mark.processes
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "kind", ["sqlite", "postgresql", "redis", "nats", pytest.param("kafka", marks=pytest.mark.long)]
)
async def test_no_fault_of_processes_servers_or_connections_breaks_a_promise(kind: str, tmp_path: Path) -> None:
    if kind != "sqlite":
        installed(make_server(kind))
    planned = small(KINDS[kind].rounds[0], 16)
    plan = msgspec.structs.replace(
        planned,
        freezes=1,
        full_disks=min(planned.full_disks, 1),
        cuts=0 if kind == "nats" else planned.cuts,  # nats-py leaves the stream of a connection that was cut unclosed
        lease=max(planned.lease, 2.0),
        failpoints=False,
        within=200,
    )
    report = await one_round(kind, plan, tmp_path, SEED)
    print(f"\n{report.counts}")  # noqa: T201  (shown with -s)
    assert report.wrong == []
    assert report.counts["kills"] >= 16
    assert report.counts["takeovers"] > 0
    assert report.counts["server kills"] == plan.server_kills
    for verb in VERBS:
        assert report.counts[verb] > 0, verb
