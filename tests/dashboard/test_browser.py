"""What a person does with the dashboard, done by a real Chromium."""

import re
from pathlib import Path

import pytest
from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]
from playwright.async_api import Browser, Page, expect
from tests.api.support import Server
from tests.dashboard.shop import Till, make_dead_letters, open_bus, publish
from tests.seeds.support import until

from durabus import EventStore
from durabus.http import TokenFile
from durabus.http.auth.access import Scope
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.settlement import Complete
from durabus.model.statuses import DEAD_LETTER

pytestmark = [pytest.mark.long, pytest.mark.processes]

SERIOUS = {"serious", "critical"}
RULES = {
    "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
}


async def kill_all(store: EventStore, store_url: str, bus: str, till: Till, ids: list[int]) -> None:
    """Let a worker with a broken till run until every event is a dead letter."""

    async def dead() -> bool:
        found = [await store.get_event(id_) for id_ in ids]
        return all(event is not None and event.status in DEAD_LETTER for event in found)

    async with open_bus(store_url, bus, till):
        await until(dead)


async def test_a_failed_event_is_found_understood_retried_and_seen_to_complete(
    page: Page, store: EventStore, store_url: str, bus: str
) -> None:
    till = Till()
    (id_,) = await publish(store, bus, 1)
    await kill_all(store, store_url, bus, till, [id_])

    await page.goto(f"/?bus={bus}")
    await page.get_by_role("link", name="1 dead letter to retry or purge").click()
    await page.get_by_role("link", name=f"newest, #{id_}").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text(f"#{id_}")
    await expect(page.locator("h1 .badge")).to_have_text("failed")
    await expect(page.locator(".timeline li")).to_have_count(2)
    traceback = page.locator("pre.traceback")
    await expect(traceback).to_contain_text("Traceback (most recent call last)")
    await expect(traceback).to_contain_text("in _open_drawer")
    await expect(traceback).to_contain_text("RuntimeError: drawer is stuck at order 1")

    await page.get_by_role("button", name="Retry").click()
    await expect(page.locator("h1 .badge")).to_have_text("pending")
    till.mended = True
    async with open_bus(store_url, bus, till):
        # The user presses nothing: the page updates by itself.
        await expect(page.locator("h1 .badge")).to_have_text("completed")
    await expect(page.locator(".timeline")).to_contain_text("requeued from the dead letters")


async def test_a_group_is_retried_after_a_confirmation_that_says_how_many(
    page: Page, store: EventStore, store_url: str, bus: str
) -> None:
    await publish(store, bus, 230)
    await publish(store, bus, 3, type_="payment.odd")
    await make_dead_letters(store, bus)

    await page.goto(f"/dashboard/dead-letters?bus={bus}")
    groups = page.locator(".groups li")
    await expect(groups).to_have_count(2)
    await expect(groups.nth(0)).to_contain_text("RuntimeError: drawer is stuck at order …")
    await groups.nth(0).get_by_role("link", name="Retry").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Retry 230 dead letters?")
    await page.get_by_role("button", name="Retry 230").click()
    await expect(page.locator("output")).to_have_text("230 retried, all done")
    counts = await store.counts(bus)
    assert (counts.pending, counts.failed) == (230, 3)

    till = Till()
    till.mended = True
    async with open_bus(store_url, bus, till):
        await page.get_by_role("link", name="Back to the dead letters").click()
        await expect(groups).to_have_count(1)
        await expect(groups.nth(0)).to_contain_text("payment.odd")

        async def done() -> bool:
            return (await store.counts(bus)).completed == 230

        await until(done)


async def test_one_is_purged_and_the_others_stay(page: Page, store: EventStore, bus: str) -> None:
    ids = await publish(store, bus, 3)
    await make_dead_letters(store, bus)
    await page.goto(f"/dashboard/events/{ids[1]}?bus={bus}")
    await page.get_by_role("link", name="Purge…").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Purge 1 dead letter?")
    await page.get_by_role("button", name="Purge 1").click()
    await expect(page.locator("output")).to_have_text("1 purged, all done")
    assert [await store.has_event(id_) for id_ in ids] == [True, False, True]


async def test_the_tail_follows_pauses_and_goes_on(page: Page, store: EventStore, bus: str) -> None:
    await page.goto(f"/dashboard/live?bus={bus}")
    await expect(page.locator("#tail-state")).to_have_text("following")
    rows = page.locator("#tail tbody tr")
    (first,) = await publish(store, bus, 1)
    await expect(rows).to_have_count(1)
    await expect(rows.nth(0)).to_contain_text(f"#{first}")

    await page.get_by_role("button", name="Pause").click()
    (second,) = await publish(store, bus, 1, type_="payment.<b>late</b>")
    await expect(page.locator("#tail-state")).to_have_text("paused, 1 waiting")
    await expect(rows).to_have_count(1)
    await page.get_by_role("button", name="Resume").click()
    await expect(rows).to_have_count(2)
    await expect(rows.nth(0)).to_contain_text("payment.<b>late</b>")
    await rows.nth(0).get_by_role("link", name=f"#{second}").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text(f"#{second}")


async def test_the_overview_shows_what_happens_without_a_reload(page: Page, store: EventStore, bus: str) -> None:
    await page.goto(f"/?bus={bus}")
    waiting = page.locator(".tile", has_text="Waiting").locator("dd").first
    await expect(waiting).to_have_text("0")
    await publish(store, bus, 7)
    await expect(waiting).to_have_text("7")
    await page.get_by_role("button", name="Pause").click()
    claimed = await store.claim_next_events(ClaimRequest(bus=bus, worker_id="host:1", token=new_token(), limit=7))
    await store.settle_events([Complete(claim.ref) for claim in claimed])
    await page.get_by_role("button", name="Resume").click()
    await expect(waiting).to_have_text("0")
    published = page.locator(".tile", has_text="Published").locator(".sub")
    await expect(published).to_have_text("7 in 5m")


async def test_a_worker_is_released_and_loses_its_event(page: Page, store: EventStore, bus: str) -> None:
    (id_,) = await publish(store, bus, 1)
    (claim,) = await store.claim_next_events(ClaimRequest(bus=bus, worker_id="stuck:1", token=new_token(), lease=600))
    await page.goto(f"/dashboard/workers?bus={bus}")
    page.on("dialog", lambda dialog: dialog.accept())
    await expect(page.get_by_role("row", name="stuck:1")).to_contain_text("live")
    await page.get_by_role("button", name="Release the events of stuck:1").click()
    await expect(page.get_by_role("status").filter(has_text="Released")).to_have_text("Released 1 event of stuck:1.")
    event = await store.get_event(id_)
    assert event is not None
    assert event.status == "PENDING"
    assert (await store.settle_events([Complete(claim.ref)])).outcomes[0].__class__.__name__ == "LeaseLost"


async def test_a_person_logs_in_with_a_token_and_out_again(browser: Browser, store_url: str, tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "tokens.json")
    _, token = tokens.create("me", [Scope.READ])
    with Server(store_url, "--tokens", str(tokens.path)) as guarded:
        context = await browser.new_context(base_url=guarded.url)
        page = await context.new_page()
        await page.goto("/dashboard/events?status=FAILED")
        await page.get_by_label("Token").fill("durabus_0_wrong")
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("alert")).to_have_text("This token is unknown, expired or revoked.")
        await page.get_by_label("Token").fill(token)
        await page.get_by_role("button", name="Log in").click()
        await expect(page).to_have_url(f"{guarded.url}/dashboard/events?status=FAILED")
        (cookie,) = await context.cookies()
        assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == ("durabus_token", True, "Strict")
        await page.get_by_role("button", name="Log out").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
        await page.goto("/")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
        await context.close()


async def test_everything_can_be_reached_with_the_keyboard(page: Page, store: EventStore, bus: str) -> None:
    ids = await publish(store, bus, 3)
    await page.goto(f"/dashboard/events?bus={bus}")
    await page.keyboard.press("/")
    await expect(page.get_by_label("Type", exact=True)).to_be_focused()
    await page.keyboard.type("payment.*")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(re.compile(r"type=payment"))
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_contain_text(f"#{ids[1]}")
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to content")).to_be_focused()


PATHS = [
    "/",
    "/dashboard/events",
    "/dashboard/events/{id}",
    "/dashboard/dead-letters",
    "/dashboard/dead-letters/confirm?operation=purge",
    "/dashboard/handlers",
    "/dashboard/workers",
    "/dashboard/schedules",
    "/dashboard/live",
    "/dashboard/events/999999999",
]


@pytest.mark.parametrize("path", PATHS)
async def test_no_page_has_a_serious_barrier(
    browser: Browser, server: Server, store: EventStore, bus: str, path: str
) -> None:
    ids = await publish(store, bus, 2, tags=["till"])
    await make_dead_letters(store, bus)
    await publish(store, bus, 1)
    await store.claim_next_events(ClaimRequest(bus=bus, worker_id="host:1", token=new_token()))
    address = f"{path.format(id=ids[0])}{'&' if '?' in path else '?'}bus={bus}"
    for scheme in ("light", "dark"):
        context = await browser.new_context(base_url=server.url, color_scheme="light" if scheme == "light" else "dark")
        page = await context.new_page()
        await page.goto(address)
        found = await Axe().run(page, options=RULES)
        await context.close()
        serious = [one for one in found.response["violations"] if one["impact"] in SERIOUS]
        assert serious == [], (scheme, [(one["id"], [node["html"] for node in one["nodes"]]) for one in serious])


async def test_a_phone_shows_every_page_without_scrolling_sideways(
    browser: Browser, server: Server, store: EventStore, bus: str
) -> None:
    ids = await publish(store, bus, 2, tags=["till", "a-rather-long-tag-that-somebody-thought-of"])
    await make_dead_letters(store, bus)
    context = await browser.new_context(base_url=server.url, viewport={"width": 360, "height": 740})
    page = await context.new_page()
    for path in PATHS:
        await page.goto(f"{path.format(id=ids[0])}{'&' if '?' in path else '?'}bus={bus}")
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360, path
        links = await page.locator("nav a").evaluate_all("all => all.map(one => one.getBoundingClientRect().right)")
        assert max(links) <= 360, path
    await context.close()
