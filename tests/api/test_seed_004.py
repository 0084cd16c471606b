"""Every request and response of design document 004, replayed: same fields, same order, same values, same instants.

Only ids are the store's own. The clock of the tests goes through the instants of the document.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tests.api.conftest import store_url
from tests.api.support import Desk, same

from durabus import EventStore, ManualClock, open_store

EMAIL = """{
  "title": "Send Email Notification",
  "description": "Send welcome email to new user",
  "tags": "email,priority-high,notification",
  "payload": {
    "user_id": 12345,
    "email": "user@example.com",
    "template": "welcome",
    "variables": {
      "name": "Alice",
      "signup_date": "2025-12-24"
    }
  }
}"""
PAYLOAD = msgspec.json.encode(msgspec.json.decode(EMAIL)["payload"]).decode()
WORKER = "worker-02:8742"
JSON = {"Content-Type": "application/json"}


ORDERED = pytest.mark.parametrize("store", ["memory", "sqlite"], indirect=True)
"""Newest first is by id, and ids have no order between shards."""


@pytest.fixture(params=["memory", "sqlite", "sharded"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[EventStore]:
    opened = await open_store(store_url(request.param, tmp_path), clock=clock)
    yield opened
    await opened.close()


async def publish_email(desk: Desk) -> int:
    answer = await desk.http.post("/events", content=EMAIL, headers=JSON)
    assert answer.status_code == 201
    id_: int = answer.json()["id"]
    return id_


async def test_1_create_job(desk: Desk) -> None:
    answer = await desk.http.post("/events", content=EMAIL, headers=JSON)
    assert answer.status_code == 201
    assert answer.headers["content-type"] == "application/json"
    same(
        answer.text,
        """{
  "id": 1001,
  "title": "Send Email Notification",
  "description": "Send welcome email to new user",
  "tags": "email,priority-high,notification",
  "status": "PENDING",
  "payload": {
    "user_id": 12345,
    "email": "user@example.com",
    "template": "welcome",
    "variables": {
      "name": "Alice",
      "signup_date": "2025-12-24"
    }
  },
  "retry_count": 0,
  "max_retries": 3,
  "next_retry_at": null,
  "created_at": "2025-12-24T10:30:00Z",
  "updated_at": "2025-12-24T10:30:00Z"
}""",
    )


async def test_2_poll_for_jobs_event_found(desk: Desk) -> None:
    await publish_email(desk)
    desk.clock.advance(45)
    answer = await desk.get(f"/events/subscribe?tags=email,notification&worker_id={WORKER}")
    assert answer.status_code == 200
    same(
        answer.text,
        """{
  "id": 1001,
  "title": "Send Email Notification",
  "tags": "email,priority-high,notification",
  "status": "PROCESSING",
  "payload": {
    "user_id": 12345,
    "email": "user@example.com",
    "template": "welcome",
    "variables": {
      "name": "Alice",
      "signup_date": "2025-12-24"
    }
  },
  "retry_count": 0,
  "max_retries": 3,
  "created_at": "2025-12-24T10:30:00Z"
}""",
    )


async def test_2_poll_for_jobs_no_matching_events(desk: Desk) -> None:
    await publish_email(desk)
    answer = await desk.get(f"/events/subscribe?tags=payment&worker_id={WORKER}")
    assert (answer.status_code, answer.content) == (204, b"")


@pytest.mark.parametrize("query", ["tags=email", "", f"tags=&worker_id={WORKER}"])
async def test_2_worker_id_is_required_and_tags_are_not_empty(desk: Desk, query: str) -> None:
    assert (await desk.get(f"/events/subscribe?{query}")).status_code == 400


async def test_2_without_tags_every_event_matches_also_one_without_tags(desk: Desk) -> None:
    ids = [await desk.publish(tags="email"), await desk.publish(tags="")]
    claimed = [(await desk.get(f"/events/subscribe?worker_id={WORKER}")).json()["id"] for _ in ids]
    assert sorted(claimed) == sorted(ids), "the order of two shards is left open"
    assert (await desk.get(f"/events/subscribe?worker_id={WORKER}")).status_code == 204


async def test_3_mark_success(desk: Desk) -> None:
    id_ = await publish_email(desk)
    desk.clock.advance(45)
    await desk.claim("email", WORKER)
    desk.clock.advance(30)
    report = {"worker_id": WORKER, "execution_time_ms": 1250, "status_code": 200}
    answer = await desk.post(f"/events/{id_}/complete", report)
    assert answer.status_code == 200
    same(
        answer.text,
        """{
  "event_id": 1001,
  "worker_id": "worker-02:8742",
  "action": "COMPLETED",
  "status_code": 200,
  "execution_time_ms": 1250,
  "created_at": "2025-12-24T10:31:15Z"
}""",
    )
    event = (await desk.get(f"/events/{id_}?include_logs=true")).json()
    assert (event["status"], event["updated_at"]) == ("COMPLETED", "2025-12-24T10:31:15Z")
    assert [entry["action"] for entry in event["logs"]] == ["PICKED", "COMPLETED"]


FAILURE = {
    "worker_id": WORKER,
    "execution_time_ms": 5000,
    "status_code": 500,
    "error_message": "Connection timeout: mail server unreachable. Will retry.",
}


async def test_4_report_failure_retry_scheduled(desk: Desk) -> None:
    id_ = await publish_email(desk)
    desk.clock.advance(70)
    await desk.claim("email", WORKER)
    desk.clock.advance(5)
    answer = await desk.post(f"/events/{id_}/fail", FAILURE)
    assert answer.status_code == 200
    same(
        answer.text,
        """{
  "event_id": 1001,
  "worker_id": "worker-02:8742",
  "action": "FAILED",
  "status_code": 500,
  "error_message": "Connection timeout: mail server unreachable. Will retry.",
  "execution_time_ms": 5000,
  "retry_scheduled": true,
  "next_retry_at": "2025-12-24T10:36:15Z",
  "created_at": "2025-12-24T10:31:15Z"
}""",
    )
    event = (await desk.get(f"/events/{id_}?include_logs=true")).json()
    assert (event["status"], event["retry_count"], event["next_retry_at"]) == ("PENDING", 1, "2025-12-24T10:36:15Z")
    assert [entry["action"] for entry in event["logs"]] == ["PICKED", "FAILED"]
    desk.clock.advance(299)
    assert (await desk.get(f"/events/subscribe?tags=email&worker_id={WORKER}")).status_code == 204
    desk.clock.advance(1)
    assert (await desk.claim("email", WORKER)).json()["retry_count"] == 1


async def test_4_report_failure_max_retries_exceeded(desk: Desk) -> None:
    id_ = await publish_email(desk)
    codes = []
    for _attempt in range(3):
        await desk.claim("email", WORKER)
        answer = await desk.post(f"/events/{id_}/fail", FAILURE)
        codes.append(answer.status_code)
        desk.clock.advance(300)
    assert codes == [200, 200, 400]
    same(
        answer.text,
        """{
  "error": "Max retries exceeded",
  "retry_count": 3,
  "max_retries": 3
}""",
    )
    event = (await desk.get(f"/events/{id_}")).json()
    assert (event["status"], event["retry_count"], event["next_retry_at"]) == ("FAILED", 3, None)
    assert (await desk.get(f"/events/subscribe?tags=email&worker_id={WORKER}")).status_code == 204


async def test_5_get_event_details(desk: Desk) -> None:
    id_ = await publish_email(desk)
    desk.clock.advance(45)
    await desk.claim("email", WORKER)
    desk.clock.advance(30)
    report = {"worker_id": WORKER, "execution_time_ms": 1250, "status_code": 200}
    await desk.post(f"/events/{id_}/complete", report)
    answer = await desk.get(f"/events/{id_}?include_logs=true")
    assert answer.status_code == 200
    same(
        answer.text,
        """{
  "id": 1001,
  "title": "Send Email Notification",
  "description": "Send welcome email to new user",
  "tags": "email,priority-high,notification",
  "status": "COMPLETED",
  "payload": { ... },
  "retry_count": 0,
  "max_retries": 3,
  "next_retry_at": null,
  "created_at": "2025-12-24T10:30:00Z",
  "updated_at": "2025-12-24T10:31:15Z",
  "logs": [
    {
      "id": 5001,
      "worker_id": "worker-02:8742",
      "action": "PICKED",
      "created_at": "2025-12-24T10:30:45Z"
    },
    {
      "id": 5002,
      "worker_id": "worker-02:8742",
      "action": "COMPLETED",
      "status_code": 200,
      "execution_time_ms": 1250,
      "created_at": "2025-12-24T10:31:15Z"
    }
  ]
}""".replace("{ ... }", PAYLOAD),
    )


async def test_5_logs_are_left_out_by_default(desk: Desk) -> None:
    id_ = await publish_email(desk)
    assert "logs" not in (await desk.get(f"/events/{id_}")).json()
    assert "logs" not in (await desk.get(f"/events/{id_}?include_logs=false")).json()


@ORDERED
async def test_6_list_events(store: EventStore, clock: ManualClock) -> None:
    async with Desk(store, clock) as desk:
        await list_events(desk)


async def list_events(desk: Desk) -> None:
    payment = {"title": "Process Payment", "tags": "payment,priority-high", "payload": {"amount": 40}}
    paid = (await desk.post("/events", payment)).json()["id"]
    desk.clock.advance(300)
    mailed = await publish_email(desk)
    desk.clock.advance(45)
    await desk.claim("email", WORKER)
    await desk.claim("payment", "worker-04:9101")
    desk.clock.advance(15)
    await desk.post(f"/events/{paid}/fail", {"worker_id": "worker-04:9101", "error_message": "card declined"})
    desk.clock.advance(15)
    await desk.post(f"/events/{mailed}/complete", {"worker_id": WORKER})
    answer = await desk.get("/events?limit=10")
    assert answer.status_code == 200
    same(
        answer.text,
        """{
  "events": [
    {
      "id": 1001,
      "title": "Send Email Notification",
      "status": "COMPLETED",
      "tags": "email,priority-high,notification",
      "retry_count": 0,
      "created_at": "2025-12-24T10:30:00Z",
      "updated_at": "2025-12-24T10:31:15Z"
    },
    {
      "id": 1002,
      "title": "Process Payment",
      "status": "PENDING",
      "tags": "payment,priority-high",
      "retry_count": 1,
      "next_retry_at": "2025-12-24T10:36:00Z",
      "created_at": "2025-12-24T10:25:00Z",
      "updated_at": "2025-12-24T10:31:00Z"
    }
  ],
  "total": 2,
  "limit": 10,
  "offset": 0
}""",
    )
    pending = (await desk.get("/events?status=PENDING&limit=10")).json()
    assert ([event["id"] for event in pending["events"]], pending["total"]) == ([paid], 1)


@ORDERED
async def test_6_filters_and_defaults(desk: Desk) -> None:
    ids = [await desk.publish(tags=tags) for tags in ("a", "b", "a,b", "c")]
    page = (await desk.get("/events")).json()
    assert (page["limit"], page["offset"], page["total"]) == (20, 0, 4)
    assert [event["id"] for event in page["events"]] == ids[::-1]
    page = (await desk.get("/events?tags=a,b&limit=2&offset=1")).json()
    assert ([event["id"] for event in page["events"]], page["total"]) == ([ids[1], ids[0]], 3)
    page = (await desk.get("/events?status=COMPLETED")).json()
    assert (page["events"], page["total"]) == ([], 0)
    assert (await desk.get("/events?status=DONE")).status_code == 400


async def test_event_log_lifecycle_with_one_retry(desk: Desk) -> None:
    id_ = await publish_email(desk)
    desk.clock.advance(45)
    await desk.claim("email", "worker-01:7234")
    desk.clock.advance(1)
    await desk.post(f"/events/{id_}/start", {"worker_id": "worker-01:7234"})
    desk.clock.advance(8)
    await desk.post(
        f"/events/{id_}/fail",
        {
            "worker_id": "worker-01:7234",
            "execution_time_ms": 8000,
            "status_code": 503,
            "error_message": "Service unavailable, will retry",
        },
    )
    desk.clock.advance(316)
    await desk.claim("email", WORKER)
    desk.clock.advance(15)
    await desk.post(f"/events/{id_}/complete", {"worker_id": WORKER, "execution_time_ms": 1250, "status_code": 200})
    answer = await desk.get(f"/events/{id_}/log")
    same(
        answer.text,
        """[
  {
    "id": 5001,
    "event_id": 1001,
    "worker_id": "worker-01:7234",
    "action": "PICKED",
    "created_at": "2025-12-24T10:30:45Z"
  },
  {
    "id": 5002,
    "event_id": 1001,
    "worker_id": "worker-01:7234",
    "action": "STARTED",
    "created_at": "2025-12-24T10:30:46Z"
  },
  {
    "id": 5003,
    "event_id": 1001,
    "worker_id": "worker-01:7234",
    "action": "FAILED",
    "status_code": 503,
    "error_message": "Service unavailable, will retry",
    "execution_time_ms": 8000,
    "created_at": "2025-12-24T10:30:54Z"
  },
  {
    "id": 5004,
    "event_id": 1001,
    "worker_id": "worker-02:8742",
    "action": "PICKED",
    "created_at": "2025-12-24T10:36:10Z"
  },
  {
    "id": 5005,
    "event_id": 1001,
    "worker_id": "worker-02:8742",
    "action": "COMPLETED",
    "status_code": 200,
    "execution_time_ms": 1250,
    "created_at": "2025-12-24T10:36:25Z"
  }
]""",
    )
    numbers = [entry["id"] for entry in answer.json()]
    assert sorted(set(numbers)) == numbers


async def test_process_a_publishes_process_b_consumes(desk: Desk) -> None:
    answer = await desk.post(
        "/events",
        {
            "title": "Batch Report Generation",
            "tags": "reporting,batch",
            "payload": {"report_type": "sales", "month": "2025-12"},
        },
    )
    assert (answer.status_code, answer.json()["description"]) == (201, None)
    id_ = answer.json()["id"]
    job = (await desk.get("/events/subscribe?tags=reporting&worker_id=worker-03:9100")).json()
    assert (job["id"], job["status"]) == (id_, "PROCESSING")
    other = await desk.get("/events/subscribe?tags=payment&worker_id=worker-04:9101")
    assert (other.status_code, other.content) == (204, b"")
    desk.clock.advance(15)
    report = {"worker_id": "worker-03:9100", "execution_time_ms": 15000, "status_code": 200}
    assert (await desk.post(f"/events/{id_}/complete", report)).status_code == 200
    assert (await desk.get(f"/events/{id_}")).json()["status"] == "COMPLETED"


@pytest.mark.parametrize("action", ["complete", "fail"])
async def test_reports_are_idempotent_by_event_worker_and_action(desk: Desk, action: str) -> None:
    id_ = await publish_email(desk)
    await desk.claim("email", WORKER)
    report = FAILURE if action == "fail" else {"worker_id": WORKER, "status_code": 200, "execution_time_ms": 7}
    first = await desk.post(f"/events/{id_}/{action}", report)
    desk.clock.advance(3)
    again = await desk.post(f"/events/{id_}/{action}", report)
    assert (again.status_code, again.text) == (200, first.text)
    assert await desk.trail(id_) == ["PICKED", "FAILED" if action == "fail" else "COMPLETED"]


async def test_a_repeat_of_the_last_failure_returns_400_again(desk: Desk) -> None:
    id_ = await desk.publish(max_retries=1)
    await desk.claim()
    answers = [await desk.post(f"/events/{id_}/fail", {"worker_id": "host:1"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [400, 400]
    assert (
        answers[0].json() == answers[1].json() == {"error": "Max retries exceeded", "retry_count": 1, "max_retries": 1}
    )
    assert await desk.trail(id_) == ["PICKED", "FAILED"]


async def test_a_silent_worker_loses_its_event_after_30_seconds(desk: Desk) -> None:
    id_ = await publish_email(desk)
    await desk.claim("email", WORKER)
    desk.clock.advance(29.9)
    assert (await desk.get("/events/subscribe?tags=email&worker_id=b:2")).status_code == 204
    desk.clock.advance(0.1)
    job = (await desk.claim("email", "b:2")).json()
    assert (job["id"], job["retry_count"]) == (id_, 1)
    lost = await desk.post(f"/events/{id_}/complete", {"worker_id": WORKER})
    assert lost.status_code == 409
    assert await desk.trail(id_) == ["PICKED", "ABANDONED", "PICKED"]


async def test_a_sign_of_life_in_the_log_keeps_the_event(desk: Desk) -> None:
    id_ = await publish_email(desk)
    await desk.claim("email", WORKER)
    for _ in range(3):
        desk.clock.advance(29)
        started = await desk.post(f"/events/{id_}/start", {"worker_id": WORKER})
        assert started.status_code == 200
        assert (await desk.get("/events/subscribe?tags=email&worker_id=b:2")).status_code == 204
    assert await desk.trail(id_) == ["PICKED", "STARTED"]


async def test_7_an_administrator_resets_an_orphan(desk: Desk) -> None:
    id_ = await publish_email(desk)
    await desk.claim("email", WORKER)
    answer = await desk.post(f"/events/{id_}/reset?reason=worker_timeout")
    assert answer.status_code == 200
    assert (answer.json()["id"], answer.json()["status"], answer.json()["retry_count"]) == (id_, "PENDING", 0)
    assert (await desk.post(f"/events/{id_}/complete", {"worker_id": WORKER})).status_code == 409
    entry = (await desk.get(f"/events/{id_}/log")).json()[-1]
    assert (entry["action"], entry["worker_id"], entry["error_message"]) == ("RESET", WORKER, "worker_timeout")
    again = await desk.post(f"/events/{id_}/reset?reason=worker_timeout")
    assert (again.status_code, again.json()["status"]) == (200, "PENDING")
    assert (await desk.post(f"/events/{id_}/reset")).status_code == 400
    assert (await desk.post("/events/999/reset?reason=worker_timeout")).status_code == 404


@pytest.mark.parametrize(("size", "code"), [(1_048_576, 201), (1_048_577, 413), (3_000_000, 413)])
async def test_a_payload_has_at_most_one_megabyte(desk: Desk, size: int, code: int) -> None:
    answer = await desk.post("/events", {"title": "large", "payload": "x" * (size - 2)})
    assert answer.status_code == code
    assert (await desk.get("/events")).json()["total"] == (1 if code == 201 else 0)
