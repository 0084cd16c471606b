"""Tokens that are limited to tags or buses: their holders see, and hold up, nothing of each other."""

from collections.abc import Sequence
from typing import Any

import httpx2
import msgspec
import pytest
from tests.api.support import Desk, bearer

from durabus import Event, new_event
from durabus.http import TokenFile
from durabus.http.auth.access import Scope
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.log_entry import LogPage
from durabus.model.settlement import Release
from durabus.model.wait import new_wait, waiting
from durabus.store.events import EventRef

TENANTS = ("ann", "bob", "cat")


class Tenant:
    """A token of every scope, limited to one tag."""

    def __init__(self, desk: Desk, tokens: TokenFile, name: str) -> None:
        self.name = name
        self._desk = desk
        _, token = tokens.create(name, list(Scope), tags=[name, f"{name}-mail"])
        self._headers = bearer(token)

    async def get(self, url: str) -> httpx2.Response:
        return await self._desk.get(url, headers=self._headers)

    async def post(self, url: str, body: Any = None) -> httpx2.Response:
        return await self._desk.post(url, body, headers=self._headers)


async def everything(tenant: Tenant) -> str:
    """Return all that a tenant can read anywhere."""
    pages = [
        "/events?limit=1000",
        "/dead-letters?limit=100",
        "/stats",
        *(f"/events?status={status}" for status in ("PENDING", "PROCESSING", "COMPLETED", "FAILED")),
        *(f"/events/{id_}?include_logs=true" for id_ in range(1, 20)),
        *(f"/events/{id_}/log" for id_ in range(1, 20)),
    ]
    return "\n".join([(await tenant.get(page)).text for page in pages])


async def test_three_tenants_see_nothing_of_each_other(guarded: Desk, tokens: TokenFile) -> None:
    tenants = [Tenant(guarded, tokens, name) for name in TENANTS]
    ids: dict[str, list[int]] = {}
    for number, tenant in enumerate(tenants, start=1):
        events = [
            {"title": f"{tenant.name}-{n}", "tags": tenant.name, "payload": {"of": tenant.name}, "max_retries": 1}
            for n in range(number + 2)
        ]
        answer = await tenant.post("/events/batch", {"events": events})
        assert answer.status_code == 201
        ids[tenant.name] = [event["id"] for event in answer.json()["events"]]
    for tenant in tenants:
        mine = ids[tenant.name]
        work = await tenant.post("/claims", {"worker_id": f"{tenant.name}:1", "limit": 100})
        claims = work.json()["claims"]
        assert [claim["id"] for claim in claims] == mine
        await tenant.post(f"/events/{mine[0]}/complete", {"worker_id": f"{tenant.name}:1"})
        await tenant.post(f"/events/{mine[1]}/fail", {"worker_id": f"{tenant.name}:1", "error_message": "no"})
    for tenant in tenants:
        mine = ids[tenant.name]
        text = await everything(tenant)
        assert f"{tenant.name}-0" in text
        for stranger in set(TENANTS) - {tenant.name}:
            assert stranger not in text
        stats = (await tenant.get("/stats")).json()
        assert (stats["processing"], stats["completed"], stats["failed"]) == (len(mine) - 2, 1, 1)
        page = (await tenant.get("/events?limit=1")).json()
        assert page["total"] == len(mine)
        assert (await tenant.get("/dead-letters")).json()["total"] == 1


async def test_a_tenant_cannot_touch_what_it_does_not_see(guarded: Desk, tokens: TokenFile) -> None:
    ann, bob = Tenant(guarded, tokens, "ann"), Tenant(guarded, tokens, "bob")
    theirs = (await ann.post("/events", {"title": "secret", "tags": "ann", "idempotency_key": "k"})).json()["id"]
    claim = (await ann.post("/claims", {"worker_id": "ann:1"})).json()["claims"][0]
    proof = {"token": claim["token"], "fence": claim["fence"]}
    for action in ("complete", "fail", "start"):
        for body in ({"worker_id": "ann:1"}, {"worker_id": "ann:1", "claim": proof}):
            assert (await bob.post(f"/events/{theirs}/{action}", body)).status_code == 404
    settlement = {"outcome": "complete", "id": theirs, **proof}
    assert (await bob.post("/claims/settle", {"settlements": [settlement]})).status_code == 404
    renewal = {"claims": [{"id": theirs, **proof}]}
    assert (await bob.post("/claims/renew", renewal)).status_code == 404
    assert (await bob.post("/claims/start", renewal)).status_code == 404
    assert (await bob.post(f"/events/{theirs}/reset?reason=mine")).status_code == 404
    assert (await bob.post(f"/events/{theirs}/cancel?reason=mine")).status_code == 404
    assert (await bob.post("/dead-letters/requeue", {"ids": [theirs]})).status_code == 404
    assert (await bob.post("/dead-letters/purge", {"older_than_days": 0})).status_code == 403
    assert (await bob.get("/metrics")).status_code == 403
    assert (await bob.get("/events?tags=ann")).status_code == 403
    assert (await bob.get("/events/subscribe?tags=ann&worker_id=b:1")).status_code == 403
    assert (await bob.post("/claims", {"worker_id": "b:1", "tags": "bob,ann"})).status_code == 403
    assert (await bob.post("/claims", {"worker_id": "b:1", "token": claim["token"]})).json() == {"claims": []}
    event = (await ann.get(f"/events/{theirs}?include_logs=true")).json()
    assert (event["status"], [entry["action"] for entry in event["logs"]]) == ("PROCESSING", ["PICKED"])


SECRET = "of bob alone"


async def waits_met(desk: Desk, by: Sequence[str]) -> int:
    """Publish an event of ann's that waits once for each of these tenants. Returns its number."""
    (waiter,) = await desk.store.add_events([new_event("order", tags=["ann"])])
    (claim,) = await desk.store.claim_next_events(
        ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=1, lease=60.0)
    )
    waits = [
        waiting(f"order > wait_for#{n}", new_wait("default", f"paid.{name}", None, None)) for n, name in enumerate(by)
    ]
    await desk.store.settle_events([Release(claim.ref, 1000.0, tuple(waits))])
    await desk.store.add_events(
        [
            new_event(f"paid.{name}", {"note": SECRET if name == "bob" else name}, metadata={"by": name}, tags=[name])
            for name in by
        ]
    )
    return waiter.id


async def test_a_wait_shows_no_event_that_the_token_may_not_see(guarded: Desk, tokens: TokenFile) -> None:
    ann = Tenant(guarded, tokens, "ann")
    _, everything_ = tokens.create("all", list(Scope))
    id_ = await waits_met(guarded, ["bob", "ann"])
    path = f"/events/{id_}?include_logs=true&include_results=true"
    answers = [await ann.get(path), await ann.get(f"/dashboard/events/{id_}")]
    (handler,) = answers[0].json()["handlers"]
    theirs, mine = handler["steps"]
    assert theirs == {"name": "wait_for#0", "attempts": 1, "hidden": True}
    assert (mine["value"]["payload"], mine["value"]["metadata"]) == ({"note": "ann"}, {"by": "ann"})
    assert "an event came that you may not see" in answers[1].text
    answers.append(await ann.post("/claims", {"worker_id": "ann:1", "limit": 10}))
    (claim, *_) = answers[2].json()["claims"]
    assert [result["value_json"] is None for result in claim["results"]] == [True, False]
    for answer in answers:
        assert answer.status_code == 200
        assert SECRET not in answer.text
        assert "paid.bob" not in answer.text
    whole = await guarded.get(path, headers=bearer(everything_))
    assert whole.json()["handlers"][0]["steps"][0]["value"]["payload"] == {"note": SECRET}


async def test_the_answer_to_an_ended_event_shows_no_foreign_event_either(guarded: Desk, tokens: TokenFile) -> None:
    """The results then come from the log."""
    ann = Tenant(guarded, tokens, "ann")
    id_ = await waits_met(guarded, ["bob"])
    (claim,) = (await ann.post("/claims", {"worker_id": "ann:1"})).json()["claims"]
    await ann.post(f"/events/{id_}/complete", {"worker_id": "ann:1"})
    assert claim["id"] == id_
    await guarded.store.cleanup_results()
    answer = await ann.get(f"/events/{id_}?include_logs=true&include_results=true")
    assert answer.json()["handlers"][0]["steps"] == [{"name": "wait_for#0", "attempts": 1, "hidden": True}]
    assert SECRET not in answer.text


async def never(*_arguments: Any, **_options: Any) -> Any:
    raise AssertionError("one by one")


async def test_what_a_tenant_settles_is_looked_up_some_at_a_time(
    guarded: Desk, tokens: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, bob = Tenant(guarded, tokens, "ann"), Tenant(guarded, tokens, "bob")
    await ann.post("/events/batch", {"events": [{"title": "x", "tags": "ann"}] * 20})
    (theirs,) = (await bob.post("/events/batch", {"events": [{"title": "x", "tags": "bob"}]})).json()["events"]
    claims = (await ann.post("/claims", {"worker_id": "a:1", "limit": 20})).json()["claims"]
    proofs = [{name: claim[name] for name in ("id", "token", "fence")} for claim in claims]
    get_events, asked = guarded.store.get_events, list[int]()

    async def note(refs: Sequence[EventRef]) -> list[Event | None]:
        asked.append(len(refs))
        return await get_events(refs)

    monkeypatch.setattr(guarded.store, "get_events", note)
    monkeypatch.setattr(guarded.store, "get_event", never)
    monkeypatch.setattr("durabus.http.api.LOOKED_UP_AT_ONCE", 8)
    assert (await ann.post("/claims/renew", {"claims": proofs})).status_code == 200
    assert asked == [8, 8, 4]
    refused = await ann.post("/claims/renew", {"claims": [*proofs, {**proofs[0], "id": theirs["id"]}]})
    assert (refused.status_code, str(theirs["id"]) in refused.json()["error"]) == (404, True)


@pytest.mark.parametrize(
    ("limit", "mode", "code"),
    [
        ({"tags": ["ann"]}, "bus-serial", 403),
        ({"tags": ["ann"]}, "global-serial", 403),
        ({"buses": ["default"]}, "bus-serial", 200),
        ({"buses": ["default"]}, "global-serial", 403),
        ({}, "global-serial", 200),
    ],
)
async def test_a_token_takes_no_lock_that_holds_up_what_it_does_not_see(
    guarded: Desk, tokens: TokenFile, limit: dict[str, Any], mode: str, code: int
) -> None:
    _, token = tokens.create("limited", [Scope.CLAIM], **limit)
    wanted = {"worker_id": "w:1", "mode": mode}
    assert (await guarded.post("/claims", wanted, headers=bearer(token))).status_code == code
    answer = await guarded.post("/claims/settle", {"settlements": [], "then_claim": wanted}, headers=bearer(token))
    assert answer.status_code == code


async def test_the_tail_of_a_tenant_looks_at_a_page_at_once(
    guarded: Desk, tokens: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, token = tokens.create("ann", [Scope.READ], tags=["ann"])
    events = await guarded.store.add_events([new_event("job", tags=[tag]) for tag in ("ann", "bob", "ann")])
    read_log = guarded.store.read_log

    async def read_and_revoke(**options: Any) -> LogPage:
        page = await read_log(**options)
        if not page.entries:
            tokens.revoke(made.id)
        return page

    monkeypatch.setattr(guarded.store, "read_log", read_and_revoke)
    monkeypatch.setattr(guarded.store, "get_event", never)
    answer = await guarded.get("/events/tail?after=", headers=bearer(token))
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert [msgspec.json.decode(line)["id"] for line in lines] == [events[0].id, events[2].id]


@pytest.mark.parametrize("tags", ["", "ann", "bob,ann", "other"])
async def test_a_tenant_publishes_only_among_its_own(guarded: Desk, tokens: TokenFile, tags: str) -> None:
    bob = Tenant(guarded, tokens, "bob")
    assert (await bob.post("/events", {"title": "x", "tags": tags})).status_code == 403
    assert (await bob.post("/events/batch", {"events": [{"title": "x", "tags": tags}]})).status_code == 403
    assert (await guarded.store.counts()).pending == 0
    assert (await bob.post("/events", {"title": "x", "tags": "bob,bob-mail"})).status_code == 201


async def test_a_token_for_one_bus_has_no_other(guarded: Desk, tokens: TokenFile) -> None:
    _, token = tokens.create("shop", [Scope.ADMIN], buses=["shop"])
    _, all_ = tokens.create("all", [Scope.ADMIN])
    headers = bearer(token)
    body = {"title": "x", "tags": "a"}
    elsewhere = (await guarded.post("/events", body, headers=bearer(all_))).json()["id"]
    assert (await guarded.post("/events", body, headers=headers)).status_code == 403
    assert (await guarded.post("/events", {**body, "bus": "shop"}, headers=headers)).status_code == 201
    assert (await guarded.get("/events", headers=headers)).status_code == 403
    assert (await guarded.get("/events?bus=shop", headers=headers)).json()["total"] == 1
    assert (await guarded.get(f"/events/{elsewhere}", headers=headers)).status_code == 404
