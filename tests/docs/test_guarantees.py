"""Every row of every guarantees table names the tests that prove it, and each of them is there."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from durabus import ConfigurationError, EventBus, new_event, open_store
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.settlement import Complete
from durabus.store.connect import make_store
from durabus.store.guarantees import LABELS, NOT_TESTED, URLS, all_guarantees, page


def proofs() -> Iterator[tuple[str, str]]:
    for name, promised in all_guarantees().items():
        for field in LABELS:
            for test in promised.shown_by[field]:
                if not test.startswith(NOT_TESTED):
                    yield f"{name}: {field}", test


def named(test: str) -> Any:
    """Return the test function. Raises AttributeError, ModuleNotFoundError or AssertionError if there is none."""
    file, *names = test.partition("[")[0].split("::")
    found: Any = import_module("tests." + file.removesuffix(".py").replace("/", "."))
    for name in names:
        found = getattr(found, name)
    assert names[-1].startswith("test_")
    assert callable(found), f"{test} is left out there"
    return found


@pytest.mark.parametrize("name", URLS)
def test_every_row_is_shown_by_something(name: str) -> None:
    assert {field: bool(shown) for field, shown in all_guarantees()[name].shown_by.items()} == dict.fromkeys(
        LABELS, True
    )


def test_every_test_that_is_named_exists() -> None:
    for row, test in proofs():
        function = named(test)
        _, bracket, example = test.partition("[")
        if bracket:
            examples = [value for mark in function.pytestmark for value in mark.args[1:2]]
            assert example.removesuffix("]") in str(examples), f"{row}: {test} has no such example"


async def test_the_memory_store_keeps_as_many_completed_events_as_configured() -> None:
    store = await open_store("memory://?max_history=10")
    await store.add_events([new_event("a.b") for _ in range(50)])
    claims = await store.claim_next_events(ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=50))
    await store.settle_events([Complete(claim.ref) for claim in claims])
    assert 10 <= (await store.counts()).completed <= 12
    assert await store.get_event(claims[-1].event.id) is not None
    await store.close()


@pytest.mark.parametrize("name", ["nats", "kafka"])
def test_a_lease_that_a_store_cannot_judge_is_refused(name: str) -> None:
    store = make_store(URLS[name])
    with pytest.raises(ConfigurationError, match=f"{name}:// needs more than {store.features.minimum_lease:g} s"):
        EventBus(store, lease=store.features.minimum_lease)


def test_the_summary_promises_nothing_that_a_stores_own_table_excludes() -> None:
    rows = {row.split(" | ")[0].strip("| "): row for row in page().splitlines() if row.startswith("| ")}
    for promised in all_guarantees().values():
        if "kill -9 of the server" in promised.lost:
            killed = rows[promised.title].split(" | ")[1]
            assert killed != "yes", f"{promised.title}: {promised.lost}"
            assert "server" in killed
