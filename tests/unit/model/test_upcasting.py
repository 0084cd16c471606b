"""Upcasters: older payloads arrive in the newest version, wherever they are read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from durabus import (
    ConfigurationError,
    Event,
    EventBus,
    EventLogProjectionBuilder,
    EventStatus,
    PayloadDecodeError,
    upcast,
)
from durabus.errors import InvalidEventError
from durabus.model.log_entry import LogEntry
from durabus.stores.memory.store import MemoryStore


@pytest.fixture(autouse=True)
def chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 1 has a name, version 2 a first and a last name, version 3 also a country."""
    monkeypatch.setattr("durabus.model.upcasting._UPCASTERS", {})

    @upcast("customer.joined", 1, 2)
    def split(payload: dict[str, Any]) -> dict[str, Any]:
        first, last = payload["name"].split(" ")
        return {"first": first, "last": last}

    upcast("customer.joined", 2, 3)(with_country)


def with_country(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "country": "unknown"}


@dataclass
class Customer:
    first: str
    last: str
    country: str


ADA = {"first": "Ada", "last": "L", "country": "unknown"}
VERSIONS: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
    ({"name": "Ada L"}, None),
    ({"name": "Ada L"}, {"schema_version": 1, "source": "web"}),
    ({"first": "Ada", "last": "L"}, {"schema_version": 2}),
    (ADA, {"schema_version": 3}),
]


async def test_handlers_and_projections_get_the_newest_version() -> None:
    store = MemoryStore()
    got: list[Any] = []
    seen: list[Any] = []
    async with EventBus(store=store) as bus:

        @bus.on("customer.joined")
        async def plain(event: Event) -> None:
            got.append(event.payload)

        @bus.on("customer.joined")
        async def typed(customer: Customer) -> None:
            got.append(vars(customer))

        for payload, metadata in VERSIONS:
            await bus.publish("customer.joined", payload, metadata=metadata)
        first = (await store.get_events([1]))[0]
        assert first is not None
        assert first.payload_json == '{"name":"Ada L"}'

        def keep(entries: Sequence[LogEntry]) -> None:
            seen.extend(entry.payload for entry in entries)

        await EventLogProjectionBuilder(store, name="customers", apply=keep).run_once()
    assert got == [ADA] * 8
    assert seen == [ADA] * 4


async def test_an_upcaster_that_fails_makes_a_dead_letter_that_says_so() -> None:
    store = MemoryStore()
    async with EventBus(store=store) as bus:

        @bus.on("customer.joined")
        async def typed(customer: Customer) -> None:
            raise AssertionError(customer)

        ended = await store.get_event(await bus.publish("customer.joined", {"nickname": "ada"}))
        assert ended is not None
        assert ended.status is EventStatus.COMPLETED_WITH_ERRORS
        assert "the upcaster from version 1 to 2 failed: KeyError: 'name'" in "".join(ended.errors)
        with pytest.raises(PayloadDecodeError):
            _ = ended.payload


def test_versions_and_types_are_checked() -> None:
    for versions in ((0, 1), (2, 2), (3, 1)):
        with pytest.raises(ConfigurationError, match="versions begin at 1"):
            upcast("customer.joined", *versions)
    with pytest.raises(InvalidEventError):
        upcast("customer.*", 1, 2)
    with pytest.raises(ConfigurationError, match="is registered twice"):
        upcast("customer.joined", 2, 3)(dict)
    upcast("customer.joined", 2, 3)(with_country)  # its module was loaded again
