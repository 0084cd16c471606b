"""Processes are killed around a child and a wait, and one process cancels what another one runs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.places import SHARED, fresh_url
from tests.seeds.support import until as comes_true

from durabus import (
    Action,
    EventBus,
    EventQuery,
    EventStatus,
    EventStore,
    ResultStatus,
    new_event,
    open_store,
)

pytestmark = [pytest.mark.processes, pytest.mark.timeout(90)]

WORKER = Path(__file__).with_name("order_worker.py")
SHORT, LONG = 1.5, 6.0
LATE = 0.5
"""Seconds that the renewal itself may take on a busy machine."""


class OrderRun:
    """One worker process. Its stdin closes with this process, whatever ends it, and that ends the worker."""

    def __init__(self, url: str, ledger: Path, lease: float = SHORT) -> None:
        self._command = [sys.executable, str(WORKER), url, str(ledger), str(lease)]

    def __enter__(self) -> None:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE)

    def __exit__(self, *exc_info: object) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return fresh_url(kind, request, tmp_path)


@pytest.fixture
async def store(url: str) -> AsyncIterator[EventStore]:
    opened = await open_store(url)
    yield opened
    await opened.close()


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    made = tmp_path / "ledger"
    made.touch()
    return made


def written(ledger: Path, what: str = "") -> list[str]:
    return [line for line in ledger.read_text(encoding="utf-8").splitlines() if line.startswith(what)]


async def has_ended(store: EventStore, id_: int) -> None:
    async def is_completed() -> bool:
        event = await store.get_event(id_)
        return event is not None and event.status is EventStatus.COMPLETED

    await comes_true(is_completed)


async def wrote(ledger: Path, what: str, count: int = 1) -> None:
    async def found() -> bool:
        return len(written(ledger, what)) >= count

    await comes_true(found)


@pytest.mark.parametrize("kind", SHARED)
async def test_the_next_process_finds_the_charge_and_the_wait_of_the_killed_one(
    url: str, store: EventStore, ledger: Path
) -> None:
    """The charge is made once, and each later attempt of the waiting order gets the same payment.

    One process serves both orders: to start a process takes longer than all that it does here.
    """
    orders = [new_event(type_, bus="shop") for type_ in ("order.charged", "order.paid")]
    charged, paid = await store.add_events(orders)

    async def waits() -> bool:
        return any(one.status is ResultStatus.WAITING for one in await store.list_results(paid.id))

    with OrderRun(url, ledger):
        await wrote(ledger, "charged")
        await comes_true(waits)
        assert (await store.find(EventQuery(type="mail"))).events == []  # the order has not succeeded
    payments = [new_event("payment", {"order": number}, bus="shop") for number in (8, 7, 7)]
    _, payment, _ = await store.add_events(payments)
    with OrderRun(url, ledger):
        await has_ended(store, charged.id)
        await wrote(ledger, "mail")
        await wrote(ledger, "paid")
    with OrderRun(url, ledger):
        await has_ended(store, paid.id)
    (charge,) = (await store.find(EventQuery(type="charge"))).events
    receipt = f"charged receipt of {charge.event_id}"
    assert [line for line in written(ledger) if not line.startswith("paid")] == ["charge", receipt, receipt, "mail"]
    assert written(ledger, "paid") == [f"paid {payment.event_id}"] * 2
    assert len((await store.find(EventQuery(type="mail"))).events) == 1


@pytest.mark.parametrize("kind", SHARED)
async def test_a_process_cancels_an_order_and_its_child_that_another_process_runs(
    url: str, store: EventStore, ledger: Path
) -> None:
    """Their handlers end with the next renewal of their claims, and what they return then does not count."""
    (order,) = await store.add_events([new_event("order.packed", bus="shop")])
    with OrderRun(url, ledger, LONG):
        await wrote(ledger, "begun", 2)
        async with EventBus(url, name="shop", serve=False) as bus:
            at = time.clock_gettime(time.CLOCK_MONOTONIC)
            cancelled = await bus.cancel(order.event_id, "changed their mind", children=True)
        await wrote(ledger, "stopped", 2)
    assert [event.status for event in cancelled] == [EventStatus.CANCELLED] * 2
    assert cancelled[1].parent_id == order.event_id
    stops = {line.split()[1]: float(line.split()[2]) - at for line in written(ledger, "stopped")}
    assert stops.keys() == {event.event_id for event in cancelled}
    assert max(stops.values()) < LONG / 3 + LATE, stops
    for event in cancelled:
        trail = await store.read_event_log(event.id)
        assert [entry.action for entry in trail] == [Action.PUBLISHED, Action.PICKED, Action.CANCELLED]
        stored = await store.get_event(event.id)
        assert stored is not None
        assert stored.status is EventStatus.CANCELLED
