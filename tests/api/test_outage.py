"""What every route returns while the store cannot be used."""

import asyncio
from typing import Any

import pytest
from tests.api.support import Desk

from durabus import EventStore
from durabus.errors import StoreUnavailableError
from durabus.http import Settings, create_app
from durabus.model.log_entry import LogPage

CLAIM = {"id": 1, "token": "0" * 32, "fence": 1}
BODIES: dict[str, Any] = {
    "/events": {"title": "a"},
    "/events/batch": {"events": [{"title": "a"}]},
    "/events/1/complete": {"worker_id": "w:1"},
    "/events/1/fail": {"worker_id": "w:1"},
    "/events/1/start": {"worker_id": "w:1"},
    "/events/1/reset": None,
    "/claims": {"worker_id": "w:1", "wait": 1},
    "/claims/settle": {"settlements": [{"outcome": "complete", **CLAIM}]},
    "/claims/renew": {"claims": [CLAIM]},
    "/claims/start": {"claims": [CLAIM]},
    "/dead-letters/requeue": {"ids": [1]},
    "/dead-letters/purge": {"older_than_days": 1},
    "/schedules/{name}": {"type": "a.b", "every": 5},
}
PARAMETERS = {
    "/events/subscribe": {"tags": "a", "worker_id": "w:1"},
    "/events/1/reset": {"reason": "a"},
    "/events/1/cancel": {"reason": "a"},
    "/events/tail": {"after": ""},
}
PAGES = ["/", "/dashboard/events", "/dashboard/events/1", "/dashboard/dead-letters", "/dashboard/workers"]


def routes() -> list[tuple[str, str]]:
    paths = create_app("memory://").openapi()["paths"]
    found = [(method.upper(), path.replace("{id}", "1")) for path, methods in paths.items() for method in methods]
    return [one for one in found if one[1] not in {"/livez", "/events/tail"}]


@pytest.fixture
async def away(desk: Desk) -> Desk:
    """An app with a store that is gone."""
    assert (await desk.get("/readyz")).status_code == 200
    await desk.store.close()
    return desk


async def test_every_route_returns_unavailable_with_a_time_to_retry(away: Desk) -> None:
    for method, path in routes():
        answer = await away.http.request(method, path, json=BODIES.get(path), params=PARAMETERS.get(path))
        assert answer.status_code == 503, (method, path, answer.text)
        assert answer.headers["retry-after"] == "1"
        assert answer.headers["content-type"] == "application/problem+json"
        assert "api.db" not in answer.text
    assert (await away.get("/livez")).status_code == 200


@pytest.mark.parametrize("path", PAGES)
async def test_every_page_says_that_the_store_is_unavailable(away: Desk, path: str) -> None:
    answer = await away.get(path)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.headers["content-type"].startswith("text/html")
    assert "the store cannot be used now" in answer.text


@pytest.mark.parametrize("path", ["/events/tail?after=", "/dashboard/tail"])
async def test_a_tail_that_has_begun_ends_so_that_its_reader_can_come_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    async def gone(**_options: Any) -> LogPage:
        raise StoreUnavailableError("the disk is full")

    monkeypatch.setattr(desk.store, "read_log", gone)
    answer = await desk.get(path)
    assert (answer.status_code, answer.text) == (200, ": durabus\n\n")


async def test_orphans_are_looked_for_again_after_any_failure(
    store: EventStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    again, failures = asyncio.Event(), [RuntimeError("a bug"), StoreUnavailableError("away")]

    async def expire_events(**_options: Any) -> int:
        if failures:
            raise failures.pop()
        again.set()
        return 0

    monkeypatch.setattr(store, "expire_events", expire_events)
    app = create_app(store, settings=Settings(scan_every=0.001))
    await app.api.begin()
    async with asyncio.timeout(10):
        await again.wait()
    await app.close()
    assert caplog.text.count("the maintenance of the store fails for") == 2
    assert any(record.exc_info and isinstance(record.exc_info[1], RuntimeError) for record in caplog.records)
