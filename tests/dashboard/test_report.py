"""The report in a real Chromium, opened as a file: hover, filter, range, keyboard, and no request to anywhere."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from tests.dashboard.reports import MINUTES, activity, made, quiet

# The first test with a browser on a machine may have to install it.
pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

CHARTS = ("throughput", "depth", "latency", "failures", "reasons", "workers")


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


async def test_what_is_wrong_with_the_lake_stands_at_the_top_and_in_its_section(opened: Page) -> None:
    assert await opened.locator(".notice").all_inner_texts() == [
        "Trimmed before it was archived: 1,200 log entries, 1 gap of unknown size.",
        "The newest proof does not hold: entries are missing in the lake, or differ.",
        "Broken expectations: 2 of 3.",
        "Failed steps: spent.",
    ]
    for fact, value in {
        "Result": "not complete",
        "Proven complete": "250,000 of 500,000 log entries",
        "What differs": "entries 250,000 to 499,999: it was changed",
        "Missing in the lake": "3",
        "Signature": "a1" * 32,
    }.items():
        row = opened.locator("#proof tr", has=opened.locator(f"th:text-is('{fact}')"))
        await expect(row.locator("td")).to_have_text(value)
    for section, rows in {
        "gaps": [
            ["2026-01-02 03:04:00", "forced trim", "450000", "500000", "50,000", "1,200"],
            ["2026-01-02 03:04:00", "trimmed before this lake began", "the beginning", "120", "unknown", "unknown"],
        ],
        "parents": [
            ["order.placed", "1,260,000", "", "", "", ""],
            ["↳ mail / mail.requested", "630,000", "50.0 %", "612,000", "360", "480 ms"],
        ],
        "expectations": [
            ["total is positive", "silver.order_placed", "fail", "1,234,567", "17", "broken", "Show"],
            ["customer is known", "silver.order_placed", "warn", "1,234,567", "1", "broken", "Show"],
            ["order is unique", "silver.order_placed", "quarantine", "1,234,567", "0", "met", ""],
        ],
    }.items():
        found = opened.locator(f"#{section} tbody tr")
        assert [await one.locator("td").all_inner_texts() for one in await found.all()] == rows, section
    await opened.locator("#expectations summary").first.click()
    await expect(opened.locator("#expectations details code").first).to_contain_text('"name":"<b>Ada</b>"')
    failed = opened.locator("#steps tr", has_text="spent v2")
    await expect(failed.locator(".badge.bad")).to_have_text("failed")
    await expect(failed.locator("code")).to_contain_text("[DIVIDE_BY_ZERO]")


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
    await expect(page.locator(".notice").first).to_have_text(
        "The charts are not made yet: the lake has no table gold.activity. durabus pipeline run makes it."
    )
    await expect(page.locator("#activity")).to_be_hidden()
    await expect(page.locator("#slos")).to_contain_text("1,234,567")
    await context.close()


RIGHT_ENDS = """name => {
  const { u } = drawn.get(name), [axis] = u.axes, text = document.createElement("canvas").getContext("2d");
  text.font = "12px system-ui, sans-serif";
  return Math.max(...axis._values.map((label, n) => label === null ? -1 : u.over.offsetLeft
    + u.valToPos(axis._splits[n], "x") + text.measureText(label.split("\\n")[0]).width / 2 - u.width));
}"""
"""By how many pixels the labels of time leave the canvas on the right; negative if they do not."""
LABELS = "name => drawn.get(name).u.axes[0]._values.filter(label => label !== null)"


@pytest.mark.parametrize(
    ("period", "seconds"), [("second", 1), ("10 seconds", 10), ("minute", 60), ("6 hours", 21_600), ("day", 86_400)]
)
async def test_no_label_of_time_repeats_at_any_zoom(
    browser: Browser, tmp_path: Path, period: str, seconds: int
) -> None:
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    page = await context.new_page()
    await page.goto(made(tmp_path, activity(period=period, seconds=seconds)).as_uri())
    for width in (MINUTES, 60, 10, 3, 2):
        await page.evaluate("width => setRange(40, 40 + width - 1)", min(width, MINUTES - 40))
        labels, below = list[tuple[str, str]](), ""
        for label in await page.evaluate(LABELS, "throughput"):
            text, _, new = label.partition("\n")
            below = new or below  # it holds until the next one
            labels.append((below, text))
        assert labels
        assert len(set(labels)) == len(labels)
    await context.close()


async def test_the_axis_of_a_short_log_shows_seconds(browser: Browser, tmp_path: Path) -> None:
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    page = await context.new_page()
    await page.goto(made(tmp_path, activity(period="second", seconds=1)).as_uri())
    await expect(page.locator("#range")).to_have_text("2026-01-02 00:00:00 to 00:03:00 UTC, by the second")
    await page.locator("#ranges").get_by_role("button", name="1 min").click()
    await expect(page.locator("#range")).to_have_text("2026-01-02 00:02:00 to 00:03:00 UTC, by the second")
    assert (await page.evaluate(LABELS, "throughput"))[:2] == ["00:02:00\n01-02", "00:02:10"]
    await page.goto(made(tmp_path, activity(period="5 minutes", seconds=300)).as_uri())
    await expect(page.locator("#range")).to_have_text("2026-01-02 00:00 to 15:00 UTC, in steps of 5 minutes")
    await context.close()


async def test_an_empty_chart_says_why_and_what_fills_it(browser: Browser, tmp_path: Path) -> None:
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(made(tmp_path, quiet(30)).as_uri())
    await expect(page.locator("#throughput canvas")).to_be_visible()
    for name, sentence in {
        "depth": "No event of this range and filter was waiting or in progress at the end of any period. Events that "
        "workers cannot finish in time appear here.",
        "latency": "No event of this range and filter has completed. The times of completed events appear here.",
        "failures": "No attempt of this range and filter has failed or was repeated. Failed attempts, retries and dead "
        "letters appear here.",
        "reasons": "No attempt of this range and filter has failed. The errors of failed attempts appear here.",
        "workers": "No worker has ended an attempt in this range. The time that a worker held a claim appears here "
        "once the attempt has ended.",
    }.items():
        card = page.locator(f"#{name}")
        await expect(card.locator(".nothing")).to_have_text(sentence)
        await expect(card.locator("canvas")).to_have_count(0)
        await expect(card.locator(".legend")).to_be_hidden()
        await expect(card.locator("details")).to_be_hidden()
    await context.close()


async def test_a_single_period_is_shown_as_figures(browser: Browser, tmp_path: Path) -> None:
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(made(tmp_path, quiet(1)).as_uri())
    figures = page.locator("#throughput .figures")
    assert await figures.locator("dt").all_inner_texts() == ["published", "completed", "dead letters"]
    assert await figures.locator("dd:last-of-type, dd:nth-of-type(even)").all_inner_texts() == ["5/s", "5/s", "0/s"]
    await expect(page.locator("#throughput canvas")).to_have_count(0)
    # A range of one period of a longer log is a single period too, and the keyboard leads out of it.
    await page.goto(made(tmp_path, activity()).as_uri())
    await page.evaluate("setRange(7, 7)")
    await expect(page.locator("#latency .figures")).to_contain_text("500 ms")
    await page.locator("#latency .plot").focus()
    await page.keyboard.press("ArrowLeft")
    await expect(page.locator("#latency .readout")).to_contain_text("2026-01-02 00:07 UTC: p99 2.5 s, p95 500 ms")
    await page.keyboard.press("-")
    await expect(page.locator("#range")).to_have_text("2026-01-02 00:06 to 00:09 UTC, by the minute")
    await expect(page.locator("#latency canvas")).to_be_visible()
    await context.close()


async def test_buttons_that_would_change_nothing_are_disabled(opened: Page) -> None:
    ranges = opened.locator("#ranges")
    for name in ("Earlier", "Later", "Zoom out"):
        await expect(ranges.get_by_role("button", name=name)).to_be_disabled()
    await ranges.get_by_role("button", name="1 h").click()
    await expect(ranges.get_by_role("button", name="Earlier")).to_be_enabled()
    await expect(ranges.get_by_role("button", name="Later")).to_be_disabled()


async def test_a_phone_shows_the_rows_of_a_table_as_cards(browser: Browser, tmp_path: Path) -> None:
    context = await browser.new_context(viewport={"width": 390, "height": 800})
    page = await context.new_page()
    await page.goto(made(tmp_path, activity()).as_uri())
    await page.evaluate("document.querySelectorAll('td details').forEach(one => { one.open = true; })")
    for name in (
        *("types", "errors", "parents", "handlers", "worker-rows"),
        *("slos", "proof", "gaps", "expectations", "steps", "stale"),
    ):
        wide = await page.locator(f"#{name} .scroll").evaluate("one => one.scrollWidth > one.clientWidth")
        assert not wide, name
    # The whole last label of time is on the canvas, also if it is a mark at the right end.
    for shown in (activity(), activity(period="second", seconds=1)):
        await page.goto(made(tmp_path, shown).as_uri())
        await page.evaluate("setRange(0, 60)")
        labels = await page.evaluate(LABELS, "throughput")
        assert labels[-1].endswith("01:00")
        assert await page.evaluate(RIGHT_ENDS, "throughput") <= 0
    await context.close()
