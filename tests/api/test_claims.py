"""The endpoints beside the seven: batches, claims by token and fence, dead letters, counts."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from tests.api.support import Desk

from durabus import EventQueue, new_event
from durabus.http.schema.events import LOG_ID_BITS


async def claimed(desk: Desk, **wanted: Any) -> list[dict[str, Any]]:
    answer = await desk.post("/claims", {"worker_id": "host:1", **wanted})
    assert answer.status_code == 200, answer.text
    claims: list[dict[str, Any]] = answer.json()["claims"]
    return claims


def proof(claim: dict[str, Any]) -> dict[str, Any]:
    return {name: claim[name] for name in ("id", "token", "fence")}


def counted_calls(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the calls that the server makes to the store from now on."""
    calls: list[str] = []
    inside = False

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        async def made(*args: Any, **options: Any) -> Any:
            nonlocal inside
            if inside:
                return await call(*args, **options)
            calls.append(name)
            inside = True
            try:
                return await call(*args, **options)
            finally:
                inside = False

        return made

    for name, _ in inspect.getmembers(type(desk.store), inspect.iscoroutinefunction):
        if not name.startswith("_"):
            monkeypatch.setattr(desk.store, name, counted(name, getattr(desk.store, name)))
    return calls


@pytest.mark.parametrize(
    ("verb", "proved", "expected"),
    [
        ("complete", True, ["settle_events"]),
        ("complete", False, ["settle_events"]),
        ("fail", True, ["settle_events"]),
        ("fail", False, ["settle_events"]),
        ("start", True, ["start_events", "renew_event_claims"]),
        ("start", False, ["get_event", "current_claims", "start_events", "renew_event_claims"]),
    ],
)
async def test_a_report_with_a_proof_reads_no_more_than_it_must(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, verb: str, proved: bool, expected: list[str]
) -> None:
    id_ = await desk.publish()
    got = await desk.claim()
    shown = {"token": got.headers["Durabus-Claim-Token"], "fence": int(got.headers["Durabus-Claim-Fence"])}
    report: dict[str, Any] = {"worker_id": "host:1", **({"claim": shown} if proved else {})}
    if verb == "fail":
        report["error_message"] = "printer on fire"
    calls = counted_calls(desk, monkeypatch)
    assert (await desk.post(f"/events/{id_}/{verb}", report)).status_code == 200
    assert calls == expected


@pytest.mark.parametrize("verb", ["complete", "start"])
async def test_a_proof_for_an_event_that_does_not_exist_is_not_found(desk: Desk, verb: str) -> None:
    report = {"worker_id": "host:1", "claim": {"token": "0" * 32, "fence": 1}}
    assert (await desk.post(f"/events/4711/{verb}", report)).status_code == 404


async def test_a_batch_is_published_in_one_step(desk: Desk) -> None:
    events = [{"title": f"job {n}", "tags": "work", "payload": n, "priority": n} for n in range(5)]
    answer = await desk.post("/events/batch", {"events": events})
    assert answer.status_code == 201
    stored = answer.json()["events"]
    assert [event["payload"] for event in stored] == list(range(5))
    assert [event["id"] for event in stored] == sorted(event["id"] for event in stored)
    bad = await desk.post("/events/batch", {"events": [{"title": "good"}, {"title": "bad", "payload": 2**70}]})
    assert bad.status_code == 400
    assert (await desk.store.counts()).pending == 5


async def test_an_event_is_stored_once_however_often_it_is_sent(desk: Desk) -> None:
    for key in ({"idempotency_key": "order-7"}, {"event_id": "0190a5d2-2f2c-7000-8000-000000000001"}):
        answers = [await desk.post("/events", {"title": "pay", "payload": n, **key}) for n in range(3)]
        assert [answer.status_code for answer in answers] == [201] * 3
        assert len({answer.text for answer in answers}) == 1
    assert (await desk.store.counts()).pending == 2


async def test_many_are_claimed_at_once_in_order_of_priority(desk: Desk) -> None:
    for n, priority in enumerate([0, 5, 0, 9]):
        await desk.publish(f"job {n}", priority=priority)
    claims = await claimed(desk, limit=3, tags="work", lease=60)
    assert [claim["event"]["priority"] for claim in claims] == [9, 5, 0]
    assert len({claim["token"] for claim in claims}) == 1
    event = claims[0]["event"]
    assert (event["status"], event["worker_id"], event["attempts"]) == ("PROCESSING", "host:1", 1)
    assert event["expires_ts"] - event["picked_ts"] == 60
    assert len(await claimed(desk, limit=3)) == 1
    assert await claimed(desk, limit=3) == []


async def test_a_claim_with_a_token_of_ones_own_can_be_repeated(desk: Desk) -> None:
    await desk.publish()
    await desk.publish()
    first = await claimed(desk, token="ab" * 16)
    assert await claimed(desk, token="ab" * 16) == first
    assert (await desk.store.counts()).processing == 1


async def test_claims_end_each_in_its_own_way_and_bring_the_next(desk: Desk) -> None:
    ids = [await desk.publish() for _ in range(6)]
    one, two, three, four = await claimed(desk, limit=4)
    answer = await desk.post(
        "/claims/settle",
        {
            "settlements": [
                {"outcome": "complete", **proof(one), "execution_time_ms": 12.5, "status_code": 200},
                {"outcome": "fail", **proof(two), "error_message": "later", "delay": 10},
                {"outcome": "fail", **proof(three), "error_message": "never", "delay": None},
                {"outcome": "release", **proof(four), "reason": "busy"},
                {"outcome": "complete", **proof(one), "fence": 99},
            ],
            "then_claim": {"worker_id": "host:1", "limit": 2},
        },
    )
    assert answer.status_code == 200
    now = await desk.store.now()
    outcomes = answer.json()["outcomes"]
    assert outcomes[:4] == [
        {"id": ids[0], "status": "COMPLETED"},
        {"id": ids[1], "status": "PENDING", "next_retry_ts": now + 10},
        {"id": ids[2], "status": "FAILED"},
        {"id": ids[3], "status": "PENDING"},
    ]
    assert "lost" in outcomes[4]
    assert [claim["id"] for claim in answer.json()["claims"]] == [ids[3], ids[4]]
    given_back = (await desk.get(f"/events/{ids[3]}/log")).json()[1]
    assert (given_back["action"], given_back["reason"], "error_message" in given_back) == ("RELEASED", "busy", False)
    repeat = await desk.post("/claims/settle", {"settlements": [{"outcome": "complete", **proof(one)}]})
    assert repeat.json() == {"outcomes": [outcomes[0]], "claims": []}


async def test_a_failure_without_a_delay_waits_five_minutes(desk: Desk) -> None:
    await desk.publish()
    (claim,) = await claimed(desk)
    settlement = {"outcome": "fail", **proof(claim), "error_message": "no"}
    (outcome,) = (await desk.post("/claims/settle", {"settlements": [settlement]})).json()["outcomes"]
    assert outcome["next_retry_ts"] == await desk.store.now() + 300


async def test_claims_are_started_and_renewed(desk: Desk) -> None:
    await desk.publish()
    (claim,) = await claimed(desk)
    stale = {**proof(claim), "token": "0" * 32}
    desk.clock.advance(20)
    answer = (await desk.post("/claims/start", {"claims": [proof(claim), stale]})).json()["claims"]
    assert answer[0] == {"id": claim["id"], "expires_ts": await desk.store.now() + 30}
    assert "lost" in answer[1]
    desk.clock.advance(20)
    answer = (await desk.post("/claims/renew", {"claims": [proof(claim)], "lease": 100})).json()["claims"]
    assert answer == [{"id": claim["id"], "expires_ts": await desk.store.now() + 100}]
    assert await desk.trail(claim["id"]) == ["PICKED", "STARTED"]


async def test_token_and_fence_prove_a_claim_to_the_documented_endpoints(desk: Desk) -> None:
    id_ = await desk.publish()
    answer = await desk.claim()
    shown = {"token": answer.headers["Durabus-Claim-Token"], "fence": int(answer.headers["Durabus-Claim-Fence"])}
    wrong = {"worker_id": "host:1", "claim": {**shown, "token": "0" * 32}}
    for action in ("start", "fail", "complete"):
        assert (await desk.post(f"/events/{id_}/{action}", wrong)).status_code == 409
    right = {"worker_id": "host:1", "claim": shown}
    assert (await desk.post(f"/events/{id_}/start", right)).status_code == 200
    first = await desk.post(f"/events/{id_}/complete", right)
    assert first.status_code == 200
    assert (await desk.post(f"/events/{id_}/complete", right)).text == first.text
    assert await desk.trail(id_) == ["PICKED", "STARTED", "COMPLETED"]


async def test_a_reused_worker_id_with_an_old_proof_cannot_end_the_new_claim(desk: Desk) -> None:
    id_ = await desk.publish()
    old = await desk.claim()
    desk.clock.advance(30)
    await desk.claim()
    shown = {"token": old.headers["Durabus-Claim-Token"], "fence": int(old.headers["Durabus-Claim-Fence"])}
    assert (await desk.post(f"/events/{id_}/complete", {"worker_id": "host:1", "claim": shown})).status_code == 409
    assert (await desk.get(f"/events/{id_}")).json()["status"] == "PROCESSING"


@pytest.mark.parametrize("proved", [True, False], ids=["with its proof", "by its name"])
async def test_a_job_longer_than_its_lease_counts_while_no_other_worker_has_it(desk: Desk, proved: bool) -> None:
    id_ = await desk.publish(max_retries=2)
    got = await desk.claim()
    desk.clock.advance(45)
    assert await desk.store.expire_events() == 1
    shown = {"token": got.headers["Durabus-Claim-Token"], "fence": int(got.headers["Durabus-Claim-Fence"])}
    report = {"worker_id": "host:1", **({"claim": shown} if proved else {})}
    assert (await desk.post(f"/events/{id_}/start", report)).status_code == 409
    other = await desk.post(f"/events/{id_}/complete", {"worker_id": "host:2"})
    assert other.status_code == 409
    first = await desk.post(f"/events/{id_}/complete", {**report, "execution_time_ms": 45_000})
    assert (first.status_code, first.json()["worker_id"]) == (200, "host:1")
    assert (await desk.post(f"/events/{id_}/complete", report)).text == first.text
    event = (await desk.get(f"/events/{id_}")).json()
    assert (event["status"], event["retry_count"]) == ("COMPLETED", 0)
    assert await desk.trail(id_) == ["PICKED", "ABANDONED", "COMPLETED"]


@pytest.mark.parametrize("proved", [True, False], ids=["with its proof", "by its name"])
async def test_a_late_failure_takes_the_place_of_the_lost_lease(desk: Desk, proved: bool) -> None:
    id_ = await desk.publish()
    got = await desk.claim()
    desk.clock.advance(45)
    assert await desk.store.expire_events() == 1
    shown = {"token": got.headers["Durabus-Claim-Token"], "fence": int(got.headers["Durabus-Claim-Fence"])}
    report = {"worker_id": "host:1", "error_message": "printer on fire", **({"claim": shown} if proved else {})}
    answer = await desk.post(f"/events/{id_}/fail", report)
    assert (answer.status_code, answer.json()["retry_scheduled"]) == (200, True)
    event = await desk.store.get_event(id_)
    assert event is not None
    assert (event.errors, event.attempts) == (("printer on fire",), 1)


async def test_another_worker_cannot_report(desk: Desk) -> None:
    id_ = await desk.publish()
    await desk.claim()
    for action in ("start", "fail", "complete"):
        answer = await desk.post(f"/events/{id_}/{action}", {"worker_id": "host:2"})
        assert answer.status_code == 409
        assert "host:2" in answer.json()["error"]
        assert (await desk.post(f"/events/999/{action}", {"worker_id": "host:2"})).status_code == 404
    assert await desk.trail(id_) == ["PICKED"]


async def test_a_reported_failure_stays_reported_when_another_worker_has_the_event(desk: Desk) -> None:
    id_ = await desk.publish()
    await desk.claim()
    first = await desk.post(f"/events/{id_}/fail", {"worker_id": "host:1", "error_message": "a"})
    desk.clock.advance(300)
    await desk.claim(worker_id="host:2")
    again = await desk.post(f"/events/{id_}/fail", {"worker_id": "host:1", "error_message": "a"})
    assert (again.status_code, again.text) == (200, first.text)
    assert (await desk.get(f"/events/{id_}")).json()["status"] == "PROCESSING"


async def test_a_second_failure_of_the_same_worker_is_a_new_one(desk: Desk) -> None:
    id_ = await desk.publish()
    for count in (1, 2):
        await desk.claim()
        await desk.post(f"/events/{id_}/fail", {"worker_id": "host:1", "error_message": "a"})
        assert (await desk.get(f"/events/{id_}")).json()["retry_count"] == count
        desk.clock.advance(300)
    assert await desk.trail(id_) == ["PICKED", "FAILED"] * 2


async def test_events_of_python_programs_are_served_by_the_same_rules(desk: Desk) -> None:
    event = await EventQueue(desk.store).publish("order.placed", {"n": 1}, {"source": "shop"}, tags=["work"])
    for code in (200, 200, 400):
        job = (await desk.claim()).json()
        assert (job["title"], job["max_retries"]) == ("order.placed", 3)
        assert (await desk.post(f"/events/{event.id}/fail", {"worker_id": "host:1"})).status_code == code
        desk.clock.advance(300)
    assert (await desk.get(f"/events/{event.id}")).json()["status"] == "FAILED"


async def test_a_title_that_cannot_be_a_type_is_kept_all_the_same(desk: Desk) -> None:
    for title in ("5* review", "line\nline", "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{ROCKET}"):
        id_ = await desk.publish(title)
        assert (await desk.get(f"/events/{id_}")).json()["title"] == title
        stored = await desk.store.get_event(id_)
        assert stored is not None
        assert stored.metadata == {"title": title}
        assert stored.type.isprintable()


async def test_type_and_metadata_travel_to_python_handlers(desk: Desk) -> None:
    id_ = await desk.publish("Order 7", type="order.placed", metadata={"source": "web"}, description="seven")
    stored = await desk.store.get_event(id_)
    assert stored is not None
    assert stored.type == "order.placed"
    assert stored.metadata == {"source": "web", "title": "Order 7", "description": "seven"}


async def test_dead_letters_are_listed_brought_back_and_purged(desk: Desk) -> None:
    ids = [await desk.publish(max_retries=1) for _ in range(3)]
    for claim in await claimed(desk, limit=3):
        await desk.post(f"/events/{claim['id']}/fail", {"worker_id": "host:1", "error_message": "broken"})
    page = (await desk.get("/dead-letters?limit=2")).json()
    assert ([event["id"] for event in page["events"]], page["total"]) == ([ids[2], ids[1]], 3)
    assert page["events"][0]["errors"] == ["broken"]
    back = (await desk.post("/dead-letters/requeue", {"ids": [ids[0]]})).json()["events"][0]
    assert (back["status"], back["retry_count"], back["generation"]) == ("PENDING", 0, 1)
    (claim,) = await claimed(desk)
    await desk.post(f"/events/{claim['id']}/complete", {"worker_id": "host:1"})
    again = await desk.post("/dead-letters/requeue", {"ids": [ids[0]]})
    assert (again.status_code, again.json()["code"]) == (409, "not_a_dead_letter")
    assert "COMPLETED" in again.json()["detail"]
    alive = await desk.publish()
    refused = await desk.post("/dead-letters/requeue", {"ids": [ids[1], alive]})
    assert refused.status_code == 409
    assert (await desk.get("/dead-letters")).json()["total"] == 2
    desk.clock.advance(86_400)
    assert (await desk.post("/dead-letters/purge", {"older_than_days": 2})).json() == {"purged": 0}
    assert (await desk.post("/dead-letters/purge", {"older_than_days": 1})).json() == {"purged": 2}


async def test_stats_and_metrics_show_the_counts(desk: Desk) -> None:
    await desk.publish()
    await desk.publish()
    await desk.claim()
    assert (await desk.get("/stats")).json() == {
        "bus": "default",
        "pending": 1,
        "processing": 1,
        "completed": 0,
        "completed_with_errors": 0,
        "failed": 0,
        "cancelled": 0,
    }
    answer = await desk.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert 'durabus_events{bus="default",status="pending"} 1.0' in answer.text
    assert 'durabus_http_requests_total{method="POST",route="/events",status="201"} 2.0' in answer.text
    await desk.get("/" + "x" * 100)
    assert "xxx" not in (await desk.get("/metrics")).text


async def test_lists_of_any_depth_go_by_id(desk: Desk) -> None:
    ids = [await desk.publish() for _ in range(5)]
    page = (await desk.get(f"/events?limit=2&before_id={ids[3]}")).json()
    assert [event["id"] for event in page["events"]] == [ids[2], ids[1]]
    assert page["total"] == 5
    tagged = (await desk.get(f"/events?limit=2&tags=work&before_id={ids[3]}")).json()
    assert (tagged["events"], tagged["total"]) == (page["events"], 5)


async def test_a_total_beyond_the_count_limit_is_marked_as_capped(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durabus.views.events.COUNT_UP_TO", 3)
    for _ in range(4):
        await desk.publish()
    page = (await desk.get("/events?tags=work&limit=2")).json()
    assert (page["total"], page["total_capped"]) == (3, True)
    assert "total_capped" not in (await desk.get("/events")).json()


async def test_a_payload_damaged_by_hand_is_shown_as_text(desk: Desk) -> None:
    new = new_event("x", None, tags=["work"])
    damaged = type(new)(event_id=new.event_id, bus="default", type="x", payload_json="{oops", tags=("work",))
    event = (await desk.store.add_events([damaged]))[0]
    assert (await desk.get(f"/events/{event.id}")).json()["payload"] == "{oops"
    assert (await claimed(desk))[0]["event"]["payload"] == "{oops"


async def test_log_numbers_are_unique_and_grow(desk: Desk) -> None:
    numbers = []
    for _ in range(2):
        id_ = await desk.publish()
        await desk.claim()
        numbers += [entry["id"] for entry in (await desk.get(f"/events/{id_}/log")).json()]
    assert numbers[0] < numbers[1]
    assert numbers[0] >> LOG_ID_BITS == 1


async def test_lists_are_read_a_few_at_a_time(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durabus.views.events.AT_ONCE", 3)
    ids = [await desk.publish() for _ in range(10)][::-1]
    for limit, offset in ((10, 0), (4, 0), (4, 2), (3, 3), (5, 8), (5, 20), (1, 9)):
        for query in ("", "&tags=work"):
            page = (await desk.get(f"/events?limit={limit}&offset={offset}{query}")).json()
            assert [event["id"] for event in page["events"]] == ids[offset : offset + limit]
            assert page["total"] == 10


async def test_counting_ends_after_a_second(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durabus.views.events.AT_ONCE", 2)
    monkeypatch.setattr("durabus.views.events.COUNT_WITHIN", -1.0)
    for _ in range(5):
        await desk.publish()
    page = (await desk.get("/events?tags=work&limit=5")).json()
    assert (len(page["events"]), page["total"], page["total_capped"]) == (5, 5, True)
