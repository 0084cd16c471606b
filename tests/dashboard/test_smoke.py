"""Every page of the dashboard in a real Chromium: it shows its heading, and nothing on it fails."""

import pytest
from playwright.async_api import Browser, Page, expect
from tests.api.support import Server
from tests.dashboard.shop import make_dead_letters, publish

from durabus import Context, Event, EventBus, EventStore

# The first test with a browser on a machine may have to install it.
pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

PAGES = {
    "/": "Overview",
    "/dashboard/events": "Events",
    "/dashboard/events/{id}": "#{id}",
    "/dashboard/dead-letters": "Dead letters",
    "/dashboard/handlers": "Handlers",
    "/dashboard/workers": "Workers",
    "/dashboard/live": "Live",
    "/dashboard/pipeline": "Pipeline",
}


async def test_every_page_opens_without_a_complaint(page: Page, store: EventStore, bus: str) -> None:
    await publish(store, bus, 3)
    await make_dead_letters(store, bus)
    (id_, *_) = await publish(store, bus, 2)
    failed: list[str] = []
    page.on("response", lambda answer: failed.append(f"{answer.status} {answer.url}") if not answer.ok else None)
    for path, heading in PAGES.items():
        await page.goto(f"{path.format(id=id_)}?bus={bus}")
        await expect(page.get_by_role("heading", level=1)).to_contain_text(heading.format(id=id_))
    links = await page.locator("nav a").evaluate_all("links => links.map(link => new URL(link.href).pathname)")
    assert set(links) <= set(PAGES), "the navigation leads to a page that nobody opened here"
    assert failed == []


async def test_the_steps_of_a_handler_are_shown_below_it(
    browser: Browser, server: Server, page: Page, store: EventStore, bus: str
) -> None:
    shop = EventBus(store, name=bus, retry={"max_retries": 0})

    @shop.on("order.placed", id="fulfil")
    async def fulfil(event: Event, ctx: Context) -> str:
        await ctx.step("reserve stock", lambda: {"shelf": "B7", "units": 2})
        await ctx.step("charge", lambda: {"receipt": "r" * 300})
        await ctx.sleep(0.01)
        await ctx.step("book", lambda: None)
        return "shipped"

    async with shop:
        event = await shop.emit("order.placed", {"id": 7})
    path = f"/dashboard/events/{event.id}?bus={bus}"
    await page.goto(path)
    steps = page.get_by_role("list", name="Steps of fulfil").get_by_role("listitem")
    assert [text.split("\n")[0] for text in await steps.all_inner_texts()] == [
        "reserve stock",
        "charge",
        "sleep",
        "book",
    ]
    await expect(steps.nth(2)).to_contain_text("woke")
    await steps.first.locator("summary").click()
    await expect(steps.first.locator("pre")).to_contain_text('"shelf": "B7"')
    phone = await browser.new_context(base_url=server.url, viewport={"width": 360, "height": 740})
    small = await phone.new_page()
    await small.goto(path)
    assert await small.evaluate("document.documentElement.scrollWidth") <= 360
    await phone.close()
