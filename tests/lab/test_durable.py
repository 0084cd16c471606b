"""Short forms of the durable rounds of the crash lab; `make chaos ARGS=--pair` and `ARGS=--saga` are the long ones."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.lab.__main__ import EVENTS_OF_PAIRS, server_of
from tests.lab.saga import PairRound, SagaPlan, SagaRound
from tests.servers.presence import installed

from durabus.testing.servers.server import make_server

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]
SEED = 4711


@pytest.mark.parametrize("strict", [False, True], ids=["soon", "strict"])
@pytest.mark.parametrize(
    "kind", ["sqlite", "postgresql", "redis", "nats", pytest.param("kafka", marks=pytest.mark.long)]
)
async def test_a_kill_between_two_handlers_repeats_only_successes_of_the_last_moment(
    kind: str, tmp_path: Path, *, strict: bool
) -> None:
    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path}/lab.db"
        if kind != "sqlite":
            installed(make_server(kind))
            url = stack.enter_context(server_of(kind, tmp_path / "server")).url
        report = await PairRound(url, tmp_path, seed=SEED).run(EVENTS_OF_PAIRS, strict=strict)
    print(f"\n{report.counts}")  # noqa: T201  (shown with -s)
    assert report.wrong == []
    again = report.counts["first handlers that ran again"]
    young = report.counts["successes that died before the store could know them"]
    assert again == 0 if strict else again <= young < EVENTS_OF_PAIRS


@pytest.mark.parametrize(
    "kind", ["sqlite", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("postgresql", "redis"))]
)
async def test_every_charge_of_a_saga_is_made_once_although_workers_are_killed(kind: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path}/lab.db"
        if kind != "sqlite":
            installed(make_server(kind))
            url = stack.enter_context(server_of(kind, tmp_path / "server")).url
        plan = SagaPlan(orders=60, kills=3, kill_every=0.25, step_seconds=0.1, concurrency=4, within=200)
        report = await SagaRound(url, tmp_path, seed=SEED).run(plan)
    print(f"\n{report.counts}")  # noqa: T201  (shown with -s)
    assert report.wrong == []
    assert report.counts["kills"] == 3
    assert report.counts["steps remembered"] > 0
