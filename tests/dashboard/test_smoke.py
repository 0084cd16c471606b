"""Every page of the dashboard in a real Chromium: it shows its heading, and nothing on it fails."""

from pathlib import Path

import pytest
from litestar.enums import HttpMethod
from playwright.async_api import Browser, Page, expect
from tests.api.support import Server
from tests.dashboard.shop import make_dead_letters, publish

from durabus import Context, Event, EventBus, EventStore
from durabus.http import TokenFile
from durabus.http.app import ROUTES
from durabus.http.auth.access import Scope
from durabus.http.dashboard.browser import LOGIN
from durabus.http.dashboard.rendering import HTML

# The first test with a browser on a machine may have to install it.
pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

PAGES_OF_ROUTES = {
    "/": ("/", "Overview"),
    "/dashboard/events": ("/dashboard/events", "Events"),
    "/dashboard/events/{id:int}": ("/dashboard/events/{id}", "#{id}"),
    "/dashboard/events/{id:int}/cancel": ("/dashboard/events/{id}/cancel", "Cancel event #{id}"),
    "/dashboard/dead-letters": ("/dashboard/dead-letters", "Dead letters"),
    "/dashboard/dead-letters/confirm": ("/dashboard/dead-letters/confirm?operation=purge", "Purge 3 dead letters?"),
    "/dashboard/handlers": ("/dashboard/handlers", "Handlers"),
    "/dashboard/workers": ("/dashboard/workers", "Workers"),
    "/dashboard/schedules": ("/dashboard/schedules", "Schedules"),
    "/dashboard/live": ("/dashboard/live", "Live"),
    "/dashboard/pipeline": ("/dashboard/pipeline", "Pipeline"),
}
"""The address and the heading of every page but the login, which only a server with tokens shows."""


def test_every_page_of_the_dashboard_has_its_row() -> None:
    pages = {
        path
        for route in ROUTES
        if route.media_type == HTML and HttpMethod.GET in route.http_methods
        for path in route.paths
    }
    assert pages == PAGES_OF_ROUTES.keys() | {LOGIN}


async def test_every_page_opens_without_a_complaint(page: Page, store: EventStore, bus: str) -> None:
    await publish(store, bus, 3)
    await make_dead_letters(store, bus)
    (id_, *_) = await publish(store, bus, 2)
    failed: list[str] = []
    page.on("response", lambda answer: failed.append(f"{answer.status} {answer.url}") if not answer.ok else None)
    for address, heading in PAGES_OF_ROUTES.values():
        await page.goto(f"{address.format(id=id_)}{'&' if '?' in address else '?'}bus={bus}")
        await expect(page.get_by_role("heading", level=1)).to_contain_text(heading.format(id=id_))
    links = await page.locator("nav a").evaluate_all("links => links.map(link => new URL(link.href).pathname)")
    assert set(links) <= PAGES_OF_ROUTES.keys(), "the navigation leads to a page that this test did not open"
    assert failed == []


async def test_the_login_leads_to_the_page_that_was_asked_for_and_errors_have_a_page(
    browser: Browser, store_url: str, tmp_path: Path
) -> None:
    tokens = TokenFile(tmp_path / "tokens.json")
    _, token = tokens.create("me", [Scope.READ])
    with Server(store_url, "--tokens", str(tokens.path)) as guarded:
        context = await browser.new_context(base_url=guarded.url)
        page = await context.new_page()
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        await page.goto("/dashboard/handlers")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
        await page.get_by_label("Token").fill(token)
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("heading", level=1)).to_contain_text("Handlers")
        assert complaints == []
        await page.goto("/dashboard/events/999999999")
        await expect(page.get_by_role("heading", level=1)).to_contain_text("404")
        assert all("404" in one for one in complaints), complaints
        await context.close()


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
