"""A real server, a real browser, and for each test a bus of its own."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from playwright.async_api import Browser, Page, async_playwright, expect
from tests.api.support import Server
from tests.dashboard.chromium import chromium

from durabus import EventStore, open_store

# Waiting ends as soon as the page is as expected; a loaded machine needs its time.
expect.set_options(timeout=20_000)


@pytest.fixture(scope="session")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("dashboard")
    return f"sqlite:///{folder}/bus.db"


@pytest.fixture(scope="session")
def server(store_url: str) -> Iterator[Server]:
    chromium()
    with Server(store_url) as running:
        yield running


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    path = chromium()
    async with async_playwright() as playwright:
        # Tests may run as root, where Chromium has no sandbox; they open no page but ours.
        launched = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        await launched.close()


@pytest.fixture
def bus() -> str:
    return f"bus-{uuid4().hex[:8]}"


@pytest.fixture
async def store(server: Server, store_url: str) -> AsyncIterator[EventStore]:
    opened = await open_store(store_url)
    yield opened
    await opened.close()


@pytest.fixture
async def page(browser: Browser, server: Server) -> AsyncIterator[Page]:
    """A page that fails its test after a script error, or if the content policy had to block something."""
    context = await browser.new_context(base_url=server.url)
    opened = await context.new_page()
    complaints: list[str] = []
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    yield opened
    await context.close()
    assert complaints == []
