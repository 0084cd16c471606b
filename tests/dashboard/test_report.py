"""The report in a real Chromium, opened as a file: hover, filter, range, keyboard, and no request to anywhere."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from playwright.async_api import Browser, Page, expect

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from durabus.pipeline.report import ReportData, _slo_table
from durabus.pipeline.report_data import Activity, PercentileLines, ReportSeries
from durabus.pipeline.report_html import html_page
from durabus.pipeline.schema import HISTOGRAMS

# The first test with a browser on a machine may have to install it.
pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

MADE_AT = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
FIRST = 1_767_312_000
"""2026-01-02 00:00 UTC"""
MINUTES = 180
CHARTS = ("throughput", "depth", "latency", "failures", "reasons", "workers")
PAIRS = (("shop", "order.placed"), ("shop", "payment.taken"), ("mail", "mail.requested"))


def series(facet: str, bus: str, type_: str | None, name: str | None, /, **counters: int) -> ReportSeries:
    """Make a series with the same values in every minute."""
    return ReportSeries(
        facet=facet,
        bus=bus,
        type=type_,
        name=name,
        at=list(range(MINUTES)),
        counters={counter: [value] * MINUTES for counter, value in counters.items()},
        spans={span: [12.0, 480.0, 2_400.0] for span in HISTOGRAMS},
        last_at="2026-01-02 02:59:00",
        example=f"{name}: 17",
        example_event_id="0190",
    )


def percentiles(bus: str | None, type_: str | None, p95: float) -> PercentileLines:
    values: tuple[float | None, ...] = (p95 / 40, p95, p95 * 5)
    return PercentileLines(
        bus=bus,
        type=type_,
        at=list(range(MINUTES)),
        spans={span: [[value] * MINUTES for value in values] for span in HISTOGRAMS},
        whole={span: list(values) for span in HISTOGRAMS},
    )


def activity() -> Activity:
    """Return three hours of a busy shop: 7-digit sums, one type that fails."""
    same = {"waiting_change": 10, "working_change": 1, "handler_us": 5_000_000}
    counts = {"published": 7_000, "completed": 6_990, "claimed": 7_100}
    types = [
        series(
            "type",
            bus,
            type_,
            None,
            **{name: value * (n + 1) for name, value in counts.items()},
            dead=n,
            retried=100 * n,
            failed=100 * n,
            **same,
        )
        for n, (bus, type_) in enumerate(PAIRS)
    ]
    others = [
        series("handler", "shop", "order.placed", "orders.fulfil", completed=6_990, failed=10, handler_us=5_000_000),
        series("error", "mail", "mail.requested", "SMTPError: <n> mailbox <text> is full", failed=200, dead=2),
        series("error", "shop", "payment.taken", "</script><b>TimeoutError</b>", failed=100, dead=1),
        series("worker", "shop", None, "web-1:100", claimed=7_000, busy_us=30_000_000),
        series("parent", "mail", "mail.requested", "order.placed", published=3_500, completed=3_400, dead=2),
    ]
    known = [percentiles(None, None, 500.0), percentiles("shop", None, 300.0), percentiles("mail", None, 900.0)]
    known += [percentiles(None, type_, 700.0) for _, type_ in PAIRS] + [percentiles(*pair, 700.0) for pair in PAIRS]
    return Activity(
        period="minute",
        seconds=60,
        first=FIRST,
        count=MINUTES,
        series=types + others,
        percentiles=known,
        left_out={"error": 7},
    )


SLO = {"slo": "in time", "bus": None, "type": "order.*", "objective": 0.99, "within_ms": 2_000.0, "seconds": 3_600,
       "good": 1_234_567, "bad": 12, "bad_share": 0.00001, "burn_rate": 0.001, "budget_left": 0.999}  # fmt: skip


def made(folder: Path, shown: Activity | None) -> Path:
    """Write the page as ``durabus pipeline report`` does."""
    sections = dict.fromkeys(("proof", "gaps", "expectations", "steps", "stale"), "")
    page = html_page(
        msgspec.json.encode(ReportData(activity=shown, slos=[SLO])),
        lake="/lakes/shop & sons",
        made_at=MADE_AT,
        with_charts=shown is not None,
        notices=[] if shown else ["The charts are not made yet."],
        sections={**sections, "slos": _slo_table([SLO])},
    )
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


@pytest.fixture
async def opened(browser: Browser, tmp_path: Path) -> AsyncIterator[Page]:
    """The report. The test fails if the page asks for anything but itself, or if a script fails."""
    path = made(tmp_path, activity())
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    page = await context.new_page()
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    await page.goto(path.as_uri())
    yield page
    await context.close()
    assert asked == [path.as_uri()]
    assert complaints == []


async def test_every_chart_is_drawn_and_has_a_table(opened: Page) -> None:
    for name in CHARTS:
        card = opened.locator(f"#{name}")
        await expect(card.locator("canvas")).to_be_visible()
        await card.locator("summary").click()
        await expect(card.locator(".fallback tbody tr")).to_have_count(MINUTES)
    await expect(opened.locator("#throughput .fallback tbody tr").first).to_contain_text("2026-01-02 02:59")
    await expect(opened.locator("#latency .legend")).to_contain_text("SLO in time: 2 s")


async def test_hovering_reads_the_values_of_all_lines(opened: Page) -> None:
    box = await opened.locator("#throughput .u-over").bounding_box()
    assert box is not None
    await opened.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    tip = opened.locator("#throughput .tip")
    await expect(tip).to_be_visible()
    await expect(tip).to_contain_text(re.compile(r"2026-01-02 01:(29|30) UTC"))
    await expect(tip).to_contain_text("700/s")
    await expect(opened.locator("#latency .tip")).to_contain_text("500 ms")


async def test_the_filters_change_charts_tables_and_numbers(opened: Page) -> None:
    published = opened.locator(".tile", has_text="Published").locator("dd").first
    p95 = opened.locator(".tile", has_text="p95").locator("dd").first
    await expect(published).to_have_text("7,560,000")
    await expect(p95).to_have_text("500 ms")
    await opened.get_by_label("Bus").select_option("mail")
    await expect(published).to_have_text("3,780,000")
    await expect(p95).to_have_text("900 ms")
    await expect(opened.locator("#types tbody tr")).to_have_count(1)
    await expect(opened.locator("#errors tbody")).not_to_contain_text("TimeoutError")
    assert await opened.locator("#type option").all_inner_texts() == ["all types", "mail.requested"]
    await expect(opened.locator("#latency .legend")).to_contain_text("SLO in time")
    await opened.get_by_label("Type").select_option("mail.requested")
    await expect(opened.locator("#latency .legend")).not_to_contain_text("SLO in time")


async def test_a_range_is_chosen_by_dragging_buttons_and_keys(opened: Page) -> None:
    published = opened.locator(".tile", has_text="Published").locator("dd").first
    shown = opened.locator("#range")
    await expect(shown).to_have_text("2026-01-02 00:00 to 03:00 UTC, by the minute")
    box = await opened.locator("#depth .u-over").bounding_box()
    assert box is not None
    await opened.mouse.move(box["x"] + box["width"] / 4, box["y"] + 50)
    await opened.mouse.down()
    await opened.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50, steps=4)
    await opened.mouse.up()
    await expect(shown).to_have_text(re.compile(r"2026-01-02 00:4\d to 01:3\d UTC"))
    await expect(published).not_to_have_text("7,560,000")
    await opened.locator("#ranges").get_by_role("button", name="1 h").click()
    await expect(shown).to_have_text("2026-01-02 02:00 to 03:00 UTC, by the minute")
    await expect(published).to_have_text("2,520,000")
    await opened.locator("#throughput .plot").focus()
    await opened.keyboard.press("Home")
    await expect(opened.locator("#throughput .readout")).to_have_text(
        "2026-01-02 02:00 UTC: published 700/s, completed 699/s, dead letters 0.05/s"
    )
    await opened.keyboard.press("0")
    await expect(shown).to_have_text("2026-01-02 00:00 to 03:00 UTC, by the minute")


async def test_a_line_is_hidden_and_the_log_scale_is_switched(opened: Page) -> None:
    dead = opened.locator("#throughput .legend button", has_text="dead letters")
    await dead.click()
    await expect(dead).to_have_attribute("aria-pressed", "false")
    await expect(dead).to_be_focused()
    picture = "document.querySelector('#latency canvas').toDataURL()"
    before = await opened.evaluate(picture)
    await opened.get_by_label("log scale").uncheck()
    await opened.wait_for_function(f"before => {picture} !== before", arg=before)


async def test_texts_of_events_are_shown_as_text(opened: Page) -> None:
    await expect(opened.locator("#errors tbody")).to_contain_text("</script><b>TimeoutError</b>")
    await expect(opened.locator("header code")).to_have_text("/lakes/shop & sons")
    await expect(opened.locator("#errors .rows > p")).to_have_text("7 more are not shown; gold.activity has them.")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_phone_needs_no_sideways_scrolling(browser: Browser, tmp_path: Path, scheme: str) -> None:
    path = made(tmp_path, activity())
    phone = await browser.new_context(
        viewport={"width": 390, "height": 800}, color_scheme="dark" if scheme == "dark" else "light"
    )
    page = await phone.new_page()
    await page.goto(path.as_uri())
    await expect(page.locator("#workers canvas")).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollWidth") <= 390
    await phone.close()


async def test_a_lake_without_activity_says_what_is_missing(browser: Browser, tmp_path: Path) -> None:
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(made(tmp_path, None).as_uri())
    await expect(page.locator(".notice")).to_have_text("The charts are not made yet.")
    await expect(page.locator("#activity")).to_be_hidden()
    await expect(page.locator("#slos")).to_contain_text("1,234,567")
    await context.close()
