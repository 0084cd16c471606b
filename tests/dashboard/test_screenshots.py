"""The pictures in docs/screenshots, taken of the demo's shop after five minutes: DURABUS_SCREENSHOTS=1 makes them."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, ViewportSize, expect

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "screenshots"
SIZE = ViewportSize(width=1280, height=800)
OPEN_FOR = float(os.environ.get("DURABUS_SCREENSHOTS_AFTER", "300"))

pytestmark = [
    pytest.mark.skipif(not os.environ.get("DURABUS_SCREENSHOTS"), reason="DURABUS_SCREENSHOTS=1 takes the pictures"),
    pytest.mark.timeout(900),
]


@pytest.fixture
async def shop() -> AsyncIterator[str]:
    """The address of the demo's dashboard, once the shop has been open for a while."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "durabus.cli.main", "demo", "--stay", "--orders", "400"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    url, pid = "", 0
    async for line in process.stdout:
        url = next(iter(re.findall(r"dashboard: (\S+)/", line.decode())), url)
        pid = next(iter(int(found) for found in re.findall(r"workers with pid (\d+)", line.decode())), pid)
        if pid and b"dashboard" in line:
            break
    assert pid, "the demo ended"
    await asyncio.sleep(OPEN_FOR)  # a chart over time needs some
    yield url
    process.send_signal(signal.SIGTERM)
    await process.wait()


async def test_the_pictures_show_the_shop(browser: Browser, shop: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    for scheme in ("light", "dark"):
        context = await browser.new_context(
            base_url=shop, viewport=SIZE, device_scale_factor=1.5, color_scheme="dark" if scheme == "dark" else "light"
        )
        page = await context.new_page()
        suffix = "" if scheme == "light" else "-dark"
        await page.goto("/")
        await expect(page.locator(".tile", has_text="Published").locator("dd").first).not_to_have_text("0/s")
        await page.goto("/")
        await page.screenshot(path=FOLDER / f"overview{suffix}.png")
        await page.goto("/dashboard/dead-letters")
        await page.screenshot(path=FOLDER / f"dead-letters{suffix}.png")
        await page.goto("/dashboard/dead-letters?type=mail.requested")
        await page.locator("table a.row").nth(1).click()
        await expect(page.locator("pre.traceback")).to_be_visible()
        # The pictures must not show where this machine keeps the code.
        await page.locator("pre.traceback").evaluate(
            "(one, path) => one.textContent = one.textContent.replaceAll(path, '/app')", str(ROOT / "src")
        )
        box = await page.locator("section", has=page.locator("#handlers")).bounding_box()
        assert box is not None
        await page.screenshot(
            path=FOLDER / f"event{suffix}.png",
            clip={"x": 0, "y": 0, "width": 1280, "height": box["y"] + box["height"] + 24},
            full_page=True,
        )
        await context.close()
