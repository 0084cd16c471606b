"""Every table of a random workload, computed once more from the store's file without durabus and without Spark."""

import asyncio
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.pipeline.history import History
from tests.pipeline.random_history import RandomHistory
from tests.pipeline.recomputed.files import Files, copy_of
from tests.pipeline.recomputed.lake import CHECKS, check_lake

from durabus.pipeline.expectations import Expectation, OnBreak
from durabus.pipeline.gaps import trim_unread
from durabus.pipeline.lake import Lake
from durabus.pipeline.projections import hourly_counters, journeys, latest_state
from durabus.pipeline.run import Pipeline
from durabus.pipeline.slos import Slo
from durabus.pipeline.store_session import StoreSession
from durabus.pipeline.tables import Declaration, EventTable
from durabus.pipeline.verification import prove, trim

TYPED = "silver.order_placed"
DECLARED: list[Declaration] = [
    hourly_counters(),
    latest_state("order"),
    journeys("order"),
    EventTable("*.*"),
    Slo(name="well", objective=0.9),
    Slo(name="orders in time", objective=0.5, within=60.0, type="order.*", days=2),
    Expectation(name="has a customer", table=TYPED, rule="customer.name IS NOT NULL"),
    Expectation(name="total is positive", table=TYPED, rule="total > 0", action=OnBreak.QUARANTINE),
    Expectation(name="was claimed", table="silver.events", rule="claims > 0"),
]
RULES = {
    "has a customer": pl.col("customer").struct.field("name").is_not_null(),
    "total is positive": pl.col("total") > 0,
    "was claimed": pl.col("claims") > 0,
}
STEPS = 60


class Shop(RandomHistory):
    """A random history whose events have payloads, tags and metadata. A few payloads do not fit those before."""

    async def publish(self) -> None:
        chance = self.random
        parent = chance.choice([None, *self.event_ids[-5:]])
        payload: dict[str, Any] = {"order": chance.randrange(9), "total": chance.choice([0, 5, 7.25])}
        if chance.random() < 0.5:
            payload["customer"] = {"name": chance.choice(["ada", None]), "points": [1, chance.randrange(5)]}
        if chance.random() < 0.1:
            payload["total"] = "free"
        event = await self.history.publish(
            chance.choice(["order.placed", "mail.sent", "mail.read"]),
            payload,
            parent_id=parent,
            tags=chance.choice([[], ["eu", "b2b"]]),
            metadata=chance.choice([{}, {"source": "web"}]),
        )
        self.event_ids.append(event.event_id)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
async def test_every_table_is_what_the_file_of_the_store_says(
    lake: Lake, session: StoreSession, history: History, tmp_path: Path, seed: int
) -> None:
    """The workload grows in four runs. The log is trimmed twice, once before the lake has read it."""
    shop, database = Shop(history, seed), tmp_path / "bus.db"
    copies: list[Path] = []
    await history.publish("order.placed", {"order": 0, "total": 1.5, "customer": {"name": "ada", "points": [1]}})
    for turn in range(4):
        await shop.run(STEPS)
        if turn == 2:
            copies.append(copy_of(database, "unread.db"))
            with StoreSession(session.url) as now:  # an older session may not know how far the clock has moved
                trim_unread(lake, now, older_than=0.0)
            await shop.run(STEPS)
        await asyncio.to_thread(Pipeline(lake, session.url, DECLARED).run)
        if turn == 0:
            copies.append(copy_of(database, "archived.db"))
            prove(lake, session)
            await trim(history.store)
    prove(lake, session)
    checked = check_lake(Files([*copies, database], Path(lake.path), rules=RULES))
    projections = {"gold.latest_order_v1", "gold.journeys_order_v1"}
    assert set(checked) == {*CHECKS, *projections, TYPED, "silver.mail_sent", "silver.mail_read"}
