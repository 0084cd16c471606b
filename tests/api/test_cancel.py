"""Over HTTP: events that are cancelled, that are due at a given time, or that expire."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.api.support import Desk

from durabus.http.auth.access import Scope
from durabus.http.auth.tokens import TokenFile

WORKER = "host:1"


async def published(desk: Desk, **fields: Any) -> int:
    answer = await desk.post("/events", {"title": "job", **fields})
    assert answer.status_code == 201, answer.text
    id_: int = answer.json()["id"]
    return id_


async def claimed(desk: Desk, **fields: Any) -> list[dict[str, Any]]:
    answer = await desk.post("/claims", {"worker_id": WORKER, **fields})
    assert answer.status_code == 200, answer.text
    claims: list[dict[str, Any]] = answer.json()["claims"]
    return claims


async def test_an_administrator_cancels_an_event_that_runs(desk: Desk) -> None:
    id_ = await published(desk)
    (claim,) = await claimed(desk)
    answer = await desk.post(f"/events/{id_}/cancel?reason=withdrawn")
    assert answer.status_code == 200
    (event,) = answer.json()["events"]
    assert (event["id"], event["status"], event["fence"]) == (id_, "CANCELLED", claim["fence"] + 1)
    late = await desk.post(f"/events/{id_}/complete", {"worker_id": WORKER})
    assert (late.status_code, late.json()["code"]) == (409, "lease_lost")
    entry = (await desk.get(f"/events/{id_}/log")).json()[-1]
    assert (entry["action"], entry["worker_id"], entry["reason"]) == ("CANCELLED", WORKER, "withdrawn")
    assert (await desk.get("/stats")).json()["cancelled"] == 1
    assert [one["id"] for one in (await desk.get("/events?status=CANCELLED")).json()["events"]] == [id_]


async def test_the_log_of_an_event_that_waited_says_why_it_was_cancelled(desk: Desk) -> None:
    id_ = await published(desk, delay=3600)
    assert (await desk.post(f"/events/{id_}/cancel?reason=withdrawn")).status_code == 200
    (entry,) = (await desk.get(f"/events/{id_}/log")).json()
    assert (entry["action"], entry["worker_id"], entry["reason"]) == ("CANCELLED", "", "withdrawn")


async def test_a_cancellation_may_be_repeated_and_needs_a_live_event_and_a_reason(desk: Desk) -> None:
    id_ = await published(desk)
    first = await desk.post(f"/events/{id_}/cancel?reason=withdrawn")
    assert (await desk.post(f"/events/{id_}/cancel?reason=again")).json() == first.json()
    done = await published(desk)
    await claimed(desk)
    await desk.post(f"/events/{done}/complete", {"worker_id": WORKER})
    ended = await desk.post(f"/events/{done}/cancel?reason=late")
    assert (ended.status_code, ended.json()["code"]) == (409, "event_ended")
    assert "has ended COMPLETED" in ended.json()["detail"]
    assert (await desk.post(f"/events/{id_}/cancel")).status_code == 400
    assert (await desk.post(f"/events/{id_}/cancel?reason=")).status_code == 400
    unknown = await desk.post("/events/999/cancel?reason=none")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "event_not_found")


async def test_descendants_are_cancelled_if_asked_and_if_the_sender_sees_them(guarded: Desk, tokens: TokenFile) -> None:
    _, everything = tokens.create("root", [Scope.ADMIN, Scope.PUBLISH, Scope.READ])
    _, of_ann = tokens.create("ann", [Scope.ADMIN, Scope.PUBLISH, Scope.READ], tags=["ann"])
    root, ann = {"Authorization": f"Bearer {everything}"}, {"Authorization": f"Bearer {of_ann}"}
    parent = (await guarded.post("/events/batch", {"events": [{"title": "a", "tags": "ann"}]}, headers=ann)).json()
    parent_id = parent["events"][0]["event_id"]
    children = [{"title": tag, "tags": tag, "parent_id": parent_id} for tag in ("ann", "bob")]
    made = (await guarded.post("/events/batch", {"events": children}, headers=root)).json()["events"]
    path = f"/events/{parent['events'][0]['id']}/cancel?reason=withdrawn&children=true"
    answer = await guarded.post(path, headers=ann)
    assert [event["id"] for event in answer.json()["events"]] == [parent["events"][0]["id"], made[0]["id"]]
    assert answer.json()["others_left"] is True
    assert (await guarded.get(f"/events/{made[1]['id']}", headers=root)).json()["status"] == "PENDING"
    assert (await guarded.post(f"/events/{made[1]['id']}/cancel?reason=withdrawn", headers=root)).status_code == 200
    assert "others_left" not in (await guarded.post(path, headers=ann)).json()


async def test_an_event_is_due_at_the_given_time(desk: Desk) -> None:
    due = datetime.now(UTC) + timedelta(hours=1)  # clock: the test gives a time of this machine
    id_ = await published(desk, at=due.isoformat())
    event = await desk.store.get_event(id_)
    assert event is not None
    assert abs(event.due_ts - event.created_ts - 3600) < 30


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"at": "2030-01-31T09:00:00"}, "timezone"),
        ({"at": "2030-01-31T09:00:00Z", "delay": 5}, "give only one of them"),
        ({"at": "tomorrow"}, "Invalid"),
        ({"expires": 0}, "expires"),
        ({"expires": -1}, "expires"),
        ({"expires": "2020-01-31T09:00:00Z"}, "this instant is past"),
        ({"expires": 5, "delay": 60}, "no worker could begin it"),
    ],
)
async def test_bad_times_are_refused(desk: Desk, fields: dict[str, Any], detail: str) -> None:
    answer = await desk.post("/events", {"title": "job", **fields})
    assert answer.status_code == 400
    assert detail in answer.json()["detail"]


@pytest.mark.parametrize("by", ["claim", "subscribe", "settle"])
async def test_no_worker_gets_an_expired_event(desk: Desk, by: str) -> None:
    held = await published(desk)
    (claim,) = await claimed(desk)
    late = [await published(desk, expires=10) for _ in range(3)]
    desk.clock.advance(11)
    good = await published(desk)
    match by:
        case "claim":
            found = [one["id"] for one in await claimed(desk, limit=2)]
            assert found in ([], [good])
            found += [one["id"] for one in await claimed(desk, limit=2)]
        case "subscribe":
            found = [(await desk.get(f"/events/subscribe?worker_id={WORKER}")).json()["id"]]
        case _:
            settlement = {"outcome": "complete", **{name: claim[name] for name in ("id", "token", "fence")}}
            body = {"settlements": [settlement], "then_claim": {"worker_id": WORKER, "limit": 1}}
            found = [one["id"] for one in (await desk.post("/claims/settle", body)).json()["claims"]]
    assert found == [good]
    assert {(await desk.get(f"/events/{id_}")).json()["status"] for id_ in late} == {"CANCELLED"}
    assert (await desk.get(f"/events/{held}")).json()["status"] == ("COMPLETED" if by == "settle" else "PROCESSING")
    entry = (await desk.get(f"/events/{late[0]}/log")).json()[-1]
    assert entry["reason"].startswith("expired 10 s after it was published")


async def test_a_worker_may_settle_an_event_as_cancelled(desk: Desk) -> None:
    id_ = await published(desk)
    (claim,) = await claimed(desk)
    proof = {name: claim[name] for name in ("id", "token", "fence")}
    body = {"settlements": [{"outcome": "cancel", **proof, "reason": "no longer wanted"}]}
    (outcome,) = (await desk.post("/claims/settle", body)).json()["outcomes"]
    assert outcome == {"id": id_, "status": "CANCELLED"}
