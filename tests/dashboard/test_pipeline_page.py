"""The Pipeline page: what a lake told the store about itself, without Spark."""

from datetime import UTC, datetime

import msgspec
import pytest
from playwright.async_api import Browser, Page, expect
from tests.api.support import Server
from tests.dashboard.shop import publish

from durabus import EventStore
from durabus.http.dashboard.words import disk_size
from durabus.model.claim import new_token
from durabus.model.lake_summary import (
    LAKE,
    ExpectationSummary,
    LakeSummary,
    ProofSummary,
    RunSummary,
    StepSummary,
    TableSummary,
)
from durabus.store.log import ARCHIVE
from durabus.views.lakes import lakes_of

# The first test with a browser on a machine may have to install it.
pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

PATH = "/dashboard/pipeline"
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def summary(lake_id: str, archived: int) -> LakeSummary:
    """Make the summary of a lake whose newest projection failed, and which lacks 17 rows."""
    step = StepSummary(name="silver.events", finished_at=AT, seconds=1.5, rows=10, seen=archived)
    return LakeSummary(
        lake_id=lake_id,
        path="/lakes/shop",
        saved_at=AT,
        archived=archived,
        quarantined=0,
        gaps=1,
        trimmed_unread="1,234,567 log entries",
        tables=[
            TableSummary(name="gold.spent_v1", rows=7),
            TableSummary(name="silver.events", rows=1_234_567, size=7_654_321_000),
            TableSummary(name="bronze.event_log"),
        ],
        steps=[
            step,
            msgspec.structs.replace(step, name="spent v1", seen=archived - 3, error="no such column: total"),
        ],
        runs=[RunSummary(run_id="r", part="all", finished_at=AT, seconds=4.2, rows=10, errors=["spent: no column"])],
        expectations=[
            ExpectationSummary(
                name="<b>total</b>", table_name="silver.events", action="fail", rows=1_234_567, broken=17, checked_at=AT
            )
        ],
        proof=ProofSummary(
            number=3, made_at=AT, holds=False, entries=1_234_567, differing=2, missing=1, trimmed=0, hash="ab" * 32
        ),
    )


@pytest.mark.parametrize(
    ("size", "text"), [(None, "\N{EN DASH}"), (7_300, "7 kB"), (1_254_000, "1.25 MB"), (7_654_321_000, "7,654 MB")]
)
def test_the_size_of_a_table_has_a_fitting_unit(size: int | None, text: str) -> None:
    assert disk_size(size) == text


async def save(store: EventStore, name: str, text: str | None) -> None:
    lock = await store.claim_lock(name, worker_id="test", token=new_token(), lease=30.0)
    assert lock is not None
    await store.save_position(name, text, lock=lock)
    await store.release_lock(lock)


async def follow(store: EventStore, lake_id: str, *, told: bool) -> None:
    """Make the store know a lake at the present end of its log."""
    await save(store, f"{ARCHIVE}{lake_id}", await store.log_head())
    if told:
        await save(store, f"{LAKE}{lake_id}", msgspec.json.encode(summary(lake_id, archived=100)).decode())


async def forget(store: EventStore, lake_id: str) -> None:
    await save(store, f"{ARCHIVE}{lake_id}", None)
    await save(store, f"{LAKE}{lake_id}", None)


async def test_a_store_without_a_lake_says_how_to_start_a_pipeline(page: Page, store: EventStore) -> None:
    await page.goto(PATH)
    await expect(page.locator("#pipeline")).to_contain_text("No pipeline follows this store yet")
    await expect(page.locator("#pipeline")).to_contain_text("appear here after its first run")
    await expect(page.locator("#pipeline code")).to_have_text("durabus pipeline run --follow --lake lake")


async def test_a_lake_before_the_end_of_its_first_run_says_so(page: Page, store: EventStore, bus: str) -> None:
    await follow(store, bus, told=False)
    try:
        await page.goto(PATH)
        await expect(page.locator(".lake", has_text=bus)).to_contain_text("no run has ended yet")
    finally:
        await forget(store, bus)


async def test_the_page_shows_lag_tables_runs_proof_and_expectations(
    browser: Browser, server: Server, page: Page, store: EventStore, bus: str
) -> None:
    await publish(store, bus, 1)
    await follow(store, bus, told=True)
    await publish(store, bus, 5)  # five entries that the lake does not have
    try:
        await page.goto(PATH)
        lake = page.locator(".lake", has_text=bus)
        tiles = lake.locator(".tile")
        for title, value in {
            "Behind the store": "5",
            "Archived": "100",
            "Last run": "failed",
            "Proof": "broken",
            "Expectations": "1 broken",
            "Trimmed unread": "1 gap",
        }.items():
            await expect(tiles.filter(has_text=title).locator("dd").first).to_have_text(value)
        rows = lake.get_by_role("region", name="Tables").locator("tbody tr")
        assert [await rows.nth(number).locator("td").first.inner_text() for number in range(3)] == [
            "bronze.event_log",
            "silver.events",
            "gold.spent_v1",
        ]
        await expect(rows.nth(0).locator("td").nth(1)).to_have_text("\N{EN DASH}")
        await expect(rows.nth(1).locator("td").nth(1)).to_have_text("1,234,567")
        await expect(rows.nth(1).locator("td").nth(2)).to_have_text("7,654 MB")
        await expect(rows.nth(1).locator("td").nth(3)).to_have_text("5")
        await expect(rows.nth(2).locator("td").nth(3)).to_have_text("8")
        await expect(rows.nth(2)).to_contain_text("no such column: total")
        expectation = lake.get_by_role("region", name="Expectations").locator("tbody tr")
        await expect(expectation.locator("td").first).to_have_text("<b>total</b>")
        await expect(expectation).to_contain_text("17")
        await expect(lake.get_by_role("region", name="Proof")).to_contain_text("1,234,565 of 1,234,567 log entries")
        phone = await browser.new_context(base_url=server.url, viewport={"width": 390, "height": 800})
        small = await phone.new_page()
        await small.goto(PATH)
        assert await small.evaluate("document.documentElement.scrollWidth") <= 390
        await phone.close()
        await page.goto(f"/?bus={bus}")
        notices = page.locator(".notices a", has_text="Pipeline:")
        await expect(notices.first).to_have_attribute("href", f"{PATH}?bus={bus}")
        await expect(page.locator(".notices")).to_contain_text("17 of 1,234,567 rows of silver.events break")
    finally:
        await forget(store, bus)


async def test_the_lag_of_a_table_counts_what_is_not_archived_and_what_its_step_has_not_seen(
    store: EventStore, bus: str
) -> None:
    await follow(store, bus, told=True)
    await publish(store, bus, 2)
    try:
        (lake,) = [one for one in await lakes_of(store) if one.lake_id == bus]
        assert {table.name: None if step is None else lake.lag(step) for table, step in lake.tables} == {
            "bronze.event_log": None,
            "silver.events": 2,
            "gold.spent_v1": 5,
        }
        assert lake.problems[0] == "spent v1 failed: no such column: total"
    finally:
        await forget(store, bus)
