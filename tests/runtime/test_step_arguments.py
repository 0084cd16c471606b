"""Steps of one name with several arguments: each finds its own value, and one that failed keeps its number."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from tests.runtime.conftest import MakeBus

from durabus import Context, Event, EventStatus, TransientError

PATIENT = {"max_retries": 5, "base_delay": 0.01}
MEMORY = pytest.mark.parametrize("url", ["memory"], indirect=True)
"""For what does not depend on the store."""
SOON = 20.0


class Declined(Exception):
    """The bank said no."""


class Colour(Enum):
    RED = (1, 0)
    BLUE = (0, 1)


@dataclass
class Money:
    amount: Decimal


class Client:
    """An argument without a value of its own."""


async def test_a_declined_card_does_not_get_the_receipt_of_the_next_one(make_bus: MakeBus) -> None:
    bus, charged, seen = make_bus(retry=PATIENT), list[str](), list[dict[str, str]]()

    async def charge(card: str) -> str:
        if card == "A":
            raise Declined(card)
        charged.append(card)
        return f"receipt of {card}"

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        receipts = {}
        for card in "ABC":
            try:
                receipts[card] = await ctx.step("charge", charge, card)
            except Declined:
                receipts[card] = "declined"
        seen.append(receipts)
        if event.attempts == 1:
            raise TransientError("no stock")

    await bus.start()
    ended = await asyncio.wait_for(bus.emit("order.placed").completed(), SOON)
    assert (ended.status, ended.attempts) == (EventStatus.COMPLETED, 2)
    assert charged == ["B", "C"]
    assert seen == [{"A": "declined", "B": "receipt of B", "C": "receipt of C"}] * 2


PAIRS: dict[str, tuple[Any, Any]] = {
    "decimal": (Decimal("1.10"), Decimal("2.20")),
    "uuid": (UUID(int=1), UUID(int=2)),
    "datetime": (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)),
    "date": (date(2026, 1, 1), date(2026, 1, 2)),
    "timedelta": (timedelta(1), timedelta(2)),
    "bytes": (b"1", b"2"),
    "enum": (Colour.RED, Colour.BLUE),
    "set": ({"a", "b"}, {"a", "c"}),
    "nested": ({"to": [Money(Decimal(1)), Client()]}, {"to": [Money(Decimal(2)), Client()]}),
    "keys": ({1: "a"}, {2: "a"}),
}


@pytest.mark.parametrize("pair", PAIRS)
@MEMORY
async def test_arguments_that_are_not_json_are_told_apart_by_their_values(make_bus: MakeBus, pair: str) -> None:
    bus, charged, receipts = make_bus(retry=PATIENT), list[Any](), list[list[str]]()
    first, second = PAIRS[pair]

    def charge(amount: Any) -> str:
        charged.append(amount)
        return f"receipt {len(charged)}"

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        amounts = (first, second) if event.attempts == 1 else (second, first)
        receipts.append([await ctx.step("charge", charge, amount) for amount in amounts])
        if event.attempts == 1:
            raise TransientError("no stock")

    await asyncio.wait_for(bus.publish("order.placed"), SOON)
    assert charged == [first, second]
    assert receipts == [["receipt 1", "receipt 2"], ["receipt 2", "receipt 1"]]


@MEMORY
async def test_equal_sets_are_equal_arguments_in_any_order(make_bus: MakeBus, caplog: pytest.LogCaptureFixture) -> None:
    bus, values = make_bus(retry=PATIENT), list[int]()
    many = [f"item {n}" for n in range(20)]

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> None:
        names = many if event.attempts == 1 else many[::-1]
        values.append(await ctx.step("count", len, set(names)))
        if event.attempts == 1:
            raise TransientError("no stock")

    await asyncio.wait_for(bus.publish("order.placed"), SOON)
    assert values == [20, 20]
    assert "other arguments" not in caplog.text
