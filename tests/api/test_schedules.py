"""Over HTTP: schedules, by the rules of tokens that hold for events too."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.api.support import Desk, bearer

from durabus import EventStore, open_store
from durabus.client import Client, SyncClient
from durabus.client.schedules import ClientSchedules, SyncClientSchedules
from durabus.errors import ApiError
from durabus.http import create_app
from durabus.http.auth.access import Scope
from durabus.http.auth.tokens import TokenFile
from durabus.http.serving import served
from durabus.schedules.schedule import state_bus
from durabus.schedules.scheduler import Scheduler

NIGHTLY = {"type": "report.due", "cron": "0 3 * * *", "tz": "Europe/Oslo", "payload": {"a": 1}, "reason": "new"}


async def put(desk: Desk, name: str, body: dict[str, Any], **options: Any) -> Any:
    return await desk.http.put(f"/schedules/{name}", json=body, **options)


async def test_a_schedule_is_put_shown_changed_and_deleted(desk: Desk) -> None:
    answer = await put(desk, "nightly", NIGHTLY)
    assert answer.status_code == 200, answer.text
    made = answer.json()
    assert (made["name"], made["bus"], made["type"], made["cron"]) == ("nightly", "default", "report.due", "0 3 * * *")
    assert (made["number"], made["action"], made["actor"], made["reason"]) == (1, "put", "loopback", "new")
    assert made["next_run_at"] == "2025-12-25T02:00:00Z"
    assert (await put(desk, "nightly", NIGHTLY)).json() == made
    shown = (await desk.get("/schedules/nightly")).json()
    assert shown["next_runs"][:2] == ["2025-12-25T02:00:00Z", "2025-12-26T02:00:00Z"]
    paused = (await desk.post("/schedules/nightly/pause?reason=holidays")).json()
    assert (paused["paused"], paused["next_run_at"], paused["reason"]) == (True, None, "holidays")
    assert not (await desk.post("/schedules/nightly/resume")).json()["paused"]
    asked = (await desk.post("/schedules/nightly/run")).json()["event_id"]
    assert [one["name"] for one in (await desk.get("/schedules")).json()["schedules"]] == ["nightly"]
    trail = (await desk.get("/schedules/nightly/history")).json()["schedules"]
    assert [one["action"] for one in trail] == ["run", "resume", "pause", "put"]
    assert (await desk.http.delete("/schedules/nightly")).json() == {"deleted": True}
    assert (await desk.http.delete("/schedules/nightly")).json() == {"deleted": False}
    assert (await desk.get("/schedules")).json() == {"schedules": []}
    assert len(asked) == 36


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"type": "a.b"}, "either cron"),
        ({"type": "a.b", "cron": "* * * * *", "every": 5}, "either cron"),
        ({"type": "a.b", "cron": "61 * * * *"}, "'61' at character 1"),
        ({"type": "a.b", "cron": "* * * * *", "tz": "Mars"}, "is no time zone"),
        ({"type": "a.b", "every": 0}, "0.1"),
        ({"type": "a.*", "every": 1}, "type"),
        ({"type": "a.b", "every": 5, "overlap": "join"}, "overlap"),
        ({"type": "a.b", "every": 5, "more": 1}, "more"),
    ],
)
async def test_a_wrong_schedule_is_refused(desk: Desk, body: dict[str, Any], why: str) -> None:
    answer = await put(desk, "s", body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert why in answer.json()["detail"]


async def test_an_unknown_schedule_is_not_found(desk: Desk) -> None:
    for method, path in (("GET", ""), ("GET", "/history"), ("POST", "/pause"), ("POST", "/resume"), ("POST", "/run")):
        answer = await desk.http.request(method, f"/schedules/nobody{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "schedule_not_found"), path


async def test_a_change_needs_the_scope_admin(guarded: Desk, tokens: TokenFile) -> None:
    reader = bearer(tokens.create("reader", [Scope.READ, Scope.PUBLISH, Scope.CLAIM])[1])
    admin = bearer(tokens.create("admin", [Scope.ADMIN])[1])
    assert (await put(guarded, "s", NIGHTLY, headers=reader)).status_code == 403
    assert (await put(guarded, "s", NIGHTLY, headers=admin)).json()["actor"] == "admin"
    for method, path in (("DELETE", ""), ("POST", "/pause"), ("POST", "/resume"), ("POST", "/run")):
        answer = await guarded.http.request(method, f"/schedules/s{path}", headers=reader)
        assert (answer.status_code, answer.json()["code"]) == (403, "scope_missing"), path
    assert (await guarded.get("/schedules/s", headers=reader)).status_code == 200


async def test_tenants_neither_see_nor_take_the_schedules_of_others(
    guarded: Desk, tokens: TokenFile, store: EventStore
) -> None:
    ann = bearer(tokens.create("ann", [Scope.ADMIN], tags=["ann"])[1])
    bob = bearer(tokens.create("bob", [Scope.ADMIN], tags=["bob"])[1])
    body = {"type": "a.b", "every": 60}
    assert (await put(guarded, "s", body, headers=ann)).status_code == 403
    assert (await put(guarded, "s", {**body, "tags": "bob"}, headers=ann)).status_code == 403
    of_ann = await put(guarded, "s", {**body, "tags": "ann", "overlap": "queue"}, headers=ann)
    of_bob = await put(guarded, "s", {**body, "tags": "bob"}, headers=bob)
    assert (of_ann.json()["name"], of_ann.json()["number"], of_bob.json()["number"]) == ("s", 1, 1)
    await put(guarded, "only-ann", {**body, "tags": "ann"}, headers=ann)
    assert [one["name"] for one in (await guarded.get("/schedules", headers=bob)).json()["schedules"]] == ["s"]
    assert (await guarded.get("/schedules/only-ann", headers=bob)).status_code == 404
    assert (await guarded.get("/schedules/only-ann/history", headers=bob)).status_code == 404
    assert (await guarded.http.delete("/schedules/only-ann", headers=bob)).json() == {"deleted": False}
    guarded.clock.advance(60)
    scheduler = Scheduler(store, "default")
    scheduler.start()
    scheduler.nudge()
    claims: list[Any] = []
    while not claims:
        await asyncio.sleep(0.02)
        claims = (await guarded.post("/claims", {"worker_id": "h:1"}, headers=ann)).json()["claims"]
    await scheduler.stop(1.0)
    metadata = claims[0]["event"]["metadata"]
    assert (metadata["schedule"], metadata["ordering_key"]) == ("s", "s:schedule")


async def test_no_sender_names_the_bus_of_the_states(desk: Desk) -> None:
    await put(desk, "s", NIGHTLY)
    for path in (f"/events?bus={state_bus('default')}", f"/stats?bus={state_bus('default')}"):
        assert (await desk.get(path)).status_code == 400
    claim = await desk.post("/claims", {"worker_id": "h:1", "bus": state_bus("default")})
    assert claim.status_code == 400


@pytest.fixture
async def url() -> AsyncIterator[str]:
    store = await open_store("memory://")
    async with served(create_app(store)) as at:
        yield at
    await store.close()


async def test_the_client_has_the_same_verbs(url: str) -> None:
    async with Client(url) as client:
        schedules = client.schedules
        made = await schedules.put("s x", 60, "a.b", {"n": 1}, tags=["t"], overlap="parallel", reason="try")
        assert (made["name"], made["every"], made["tags"], made["reason"]) == ("s x", 60, "t", "try")
        assert len((await schedules.get("s x"))["next_runs"]) == 5
        assert (await schedules.pause("s x", reason="no"))["paused"]
        assert not (await schedules.resume("s x"))["paused"]
        assert len(await schedules.run_now("s x")) == 36
        assert [one["name"] for one in await schedules.list()] == ["s x"]
        assert [one["action"] for one in await schedules.history("s x", 2)] == ["run", "resume"]
        assert await schedules.delete("s x", bus="default")
        assert not await schedules.delete("s x")
        with pytest.raises(ApiError) as refused:
            await schedules.get("s x")
        assert refused.value.status == 404


def use(url: str) -> None:
    with SyncClient(url) as client:
        schedules = client.schedules
        assert schedules.put("s", "0 9 * * *", "a.b", tz="Europe/Oslo")["tz"] == "Europe/Oslo"
        assert schedules.get("s")["next_runs"]
        assert schedules.pause("s")["paused"]
        assert not schedules.resume("s")["paused"]
        assert schedules.run_now("s")
        assert len(list(schedules.list())) == 1
        assert len(list(schedules.history("s"))) == 4
        assert schedules.delete("s")


async def test_the_blocking_client_has_the_same_verbs(url: str) -> None:
    await asyncio.to_thread(use, url)
    verbs, same = ({name for name in vars(kind) if name[0] != "_"} for kind in (ClientSchedules, SyncClientSchedules))
    assert verbs == same
