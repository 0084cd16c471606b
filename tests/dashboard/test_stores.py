"""The dashboard on every store that has a server: the same pages, the same counts."""

import re
from uuid import uuid4

import httpx2
import pytest
from tests.dashboard.shop import make_dead_letters, publish

from durabus import open_store
from durabus.http import create_app
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.settlement import Complete

pytestmark = pytest.mark.long

STORES = {"postgresql": "postgresql_database", "redis": "redis_url", "nats": "nats_url", "kafka": "kafka_url"}
BUS = "default"


def figures(page: str) -> dict[str, str]:
    """Return the tiles of the overview."""
    tiles = re.findall(r"<dt>([^<]+)</dt><dd[^>]*>(?:<a[^>]*>)?([^<]+)", page)
    return dict(tiles)


@pytest.mark.parametrize("kind", STORES)
async def test_every_store_shows_the_same(request: pytest.FixtureRequest, kind: str) -> None:
    url: str = request.getfixturevalue(STORES[kind])
    if kind != "postgresql":
        url += f"{'&' if '?' in url else '?'}prefix=d{uuid4().hex[:8]}"
    store = await open_store(url)
    app = create_app(store)
    transport = httpx2.ASGITransport(app=app, client=("127.0.0.1", 1))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        await publish(store, BUS, 3)
        await make_dead_letters(store, BUS)
        await publish(store, BUS, 2)
        claims = await store.claim_next_events(ClaimRequest(bus=BUS, worker_id="host:2", token=new_token(), limit=2))
        await store.settle_events([Complete(claims[0].ref)])
        await publish(store, BUS, 1)
        page = ""
        while figures(page).get("Dead letters") != "3" or "6 in 5m" not in page:
            answer = await client.get("/")
            assert answer.status_code == 200
            page = answer.text
        assert (figures(page)["Waiting"], figures(page)["In flight"]) == ("1", "1")
        groups = (await client.get("/dashboard/dead-letters")).text
        assert "drawer is stuck at order …" in groups
        for path in ("/dashboard/events?status=PROCESSING", "/dashboard/workers"):
            assert "host:2" in (await client.get(path)).text, path
        event = (await client.get(f"/dashboard/events/{claims[1].event.id}")).text
        assert "running" in event
        assert (await client.get("/dashboard/handlers")).status_code == 200
        step = await client.post(
            "/dashboard/dead-letters/step",
            data={"operation": "retry"},
            headers={"Origin": "http://127.0.0.1", "Accept": "application/json"},
        )
        assert step.json() == {"done": 3, "before": None}
        released = await client.post(
            "/dashboard/workers/release", data={"worker_id": "host:2"}, headers={"Origin": "http://127.0.0.1"}
        )
        assert released.status_code == 303
        assert (await store.counts(BUS)).pending == 5
    await app.close()
    await store.close()
