"""The page of schedules: what a bus publishes at set times, and the buttons that change it."""

from collections.abc import AsyncIterator

import pytest
from tests.api.support import Desk

from durabus import EventStore, ManualClock, open_store
from durabus.schedules.schedules import Schedules

ORIGIN = {"Origin": "http://127.0.0.1"}


@pytest.fixture
async def store() -> AsyncIterator[EventStore]:
    opened = await open_store("memory://", clock=ManualClock())
    yield opened
    await opened.close()


@pytest.fixture
async def desk(store: EventStore) -> AsyncIterator[Desk]:
    async with Desk(store, ManualClock()) as made:
        yield made


async def change(desk: Desk, verb: str, name: str = "nightly & co") -> int:
    data = {"verb": verb, "name": name, "bus": "default"}
    answer = await desk.http.post("/dashboard/schedules/change", data=data, headers=ORIGIN)
    return answer.status_code


async def test_the_page_shows_the_schedules_of_the_bus(desk: Desk, store: EventStore) -> None:
    assert "No schedules." in (await desk.get("/dashboard/schedules")).text
    schedules = Schedules(store, "default")
    await schedules.put("nightly & co", "0 3 * * *", "report.due", tz="Europe/Oslo", actor="ada")
    await schedules.put("beat", 30.0, "ping")
    await Schedules(store, "other").put("elsewhere", 30.0, "ping")
    page = (await desk.get("/dashboard/schedules")).text
    assert page.count("<tr>") == 3
    for text in ("nightly &amp; co", "0 3 * * *", "Europe/Oslo", "report.due", "put by ada", "every 30 s", "in 30 s"):
        assert text in page, text
    assert "elsewhere" not in page


async def test_its_buttons_change_a_schedule(desk: Desk, store: EventStore) -> None:
    schedules = Schedules(store, "default")
    await schedules.put("nightly & co", "0 3 * * *", "report.due")
    assert await change(desk, "pause") == 303
    page = (await desk.get("/dashboard/schedules?done=pause+nightly")).text
    assert "paused" in page
    assert "Done: pause nightly." in page
    assert await change(desk, "resume") == 303
    assert await change(desk, "run") == 303
    assert await change(desk, "delete") == 303
    assert await change(desk, "delete") == 404
    assert await change(desk, "explode") == 400
    trail = [(one.action.value, one.actor) for one in await schedules.history("nightly & co")]
    assert trail[:4] == [(verb, "loopback") for verb in ("delete", "run", "resume", "pause")]
