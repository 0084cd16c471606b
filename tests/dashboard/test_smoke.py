"""Every page of the dashboard in a real Chromium: it shows its heading, and nothing on it fails."""

import pytest
from playwright.async_api import Page, expect
from tests.dashboard.shop import make_dead_letters, publish

from durabus import EventStore

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
