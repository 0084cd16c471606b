"""The pictures of the report and of the Pipeline page in docs/screenshots: DURABUS_SCREENSHOTS=1 makes them."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, ViewportSize, expect

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from tests.api.support import Server
from tests.dashboard.busy_shop import DECLARED, open_shop

from durabus.pipeline.lake import Lake
from durabus.pipeline.planning import draw, sources_of_tables
from durabus.pipeline.report import report
from durabus.pipeline.run import Pipeline
from durabus.pipeline.session import QUICK, spark_session
from durabus.pipeline.store_session import StoreSession
from durabus.pipeline.verification import prove

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "screenshots"
SIZES = {
    "": ViewportSize(width=1280, height=1165),
    "-dark": ViewportSize(width=1280, height=1165),
    "-phone": ViewportSize(width=390, height=1165),
}

pytestmark = [
    pytest.mark.skipif(not os.environ.get("DURABUS_SCREENSHOTS"), reason="DURABUS_SCREENSHOTS=1 takes the pictures"),
    pytest.mark.timeout(3600),
]


async def test_the_pictures_show_five_hours_of_a_shop(browser: Browser, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    await open_shop(url)
    page = _tables_of(url, tmp_path / "lake")
    (tmp_path / "report.html").write_text(page, encoding="utf-8")
    with Server(url) as server:
        for suffix, size in SIZES.items():
            context = await browser.new_context(
                viewport=size, device_scale_factor=1.5, color_scheme="dark" if suffix == "-dark" else "light"
            )
            opened = await context.new_page()
            await opened.goto((tmp_path / "report.html").as_uri())
            await expect(opened.locator("#latency canvas")).to_be_visible()
            await _picture(opened, tmp_path, f"report{suffix}")
            await opened.goto(f"{server.url}/dashboard/pipeline")
            await expect(opened.locator(".lake")).to_be_visible()
            await _picture(opened, tmp_path, f"pipeline{suffix}")
            await context.close()
    (FOLDER / "tables.svg").write_text(draw(sources_of_tables(DECLARED)), encoding="utf-8")


def _tables_of(url: str, path: Path) -> str:
    """Run the pipeline and prove the lake. Returns the report."""
    spark = spark_session(master="local[2]", memory="1g", conf=QUICK)
    try:
        lake = Lake(spark, path)
        Pipeline(lake, url, DECLARED).run()
        with StoreSession(url) as session:
            prove(lake, session, wait=60.0)
        return report(lake, made_at=datetime.now(UTC))
    finally:
        spark.stop()


async def _picture(page: Page, folder: Path, name: str) -> None:
    # The pictures must not show where this machine keeps its files.
    await page.evaluate(
        "path => document.querySelectorAll('code').forEach(one => one.textContent = one.textContent.replace(path, ''))",
        f"{folder}/",
    )
    await page.screenshot(path=FOLDER / f"{name}.png")
