"""Every error has a code that stays, a type made of it, and a row in the docs."""

import re
from pathlib import Path
from typing import Any

import pytest
from tests.api.support import Desk, bearer

from durabus import EventStore, ManualClock, RetryPolicy, open_store
from durabus.client import Client
from durabus.errors import ApiError
from durabus.http import TokenFile
from durabus.http.auth.access import Scope
from durabus.http.problems import STATUS, Code, code_of

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference" / "http.md"
ROW = re.compile(r"^\| `(\w+)` \| (\d{3}) \| [A-Z].*\. \|$", re.MULTILINE)
JSON = {"Content-Type": "application/json"}
PROOF = {"token": "0" * 32, "fence": 1}


def test_the_docs_list_every_code_with_its_status() -> None:
    listed = {code: int(status) for code, status in ROW.findall(DOCS.read_text())}
    assert listed == {code.value: status for code, status in STATUS.items()}
    assert set(STATUS) == set(Code)


def test_a_status_without_a_code_of_its_own_has_the_usual_one() -> None:
    assert (code_of(400), code_of(404), code_of(418)) == (
        Code.INVALID_REQUEST, Code.ADDRESS_NOT_FOUND, Code.INVALID_REQUEST,
    )  # fmt: skip
    assert (code_of(500), code_of(502)) == (Code.INTERNAL_ERROR, Code.INTERNAL_ERROR)


REFUSED: dict[str, tuple[str, str, Any]] = {
    "invalid_request": ("POST", "/events", {"titel": "a"}),
    "invalid_payload": ("POST", "/events", b'{"title": "a", "payload": 18446744073709551616}'),
    "payload_too_large": ("POST", "/events", {"title": "a", "payload": "x" * 1_048_576}),
    "body_too_large": ("POST", "/events", b" " * 1_200_000),
    "event_not_found": ("GET", "/events/4711", None),
    "address_not_found": ("GET", "/nothing/here", None),
    "method_not_allowed": ("PUT", "/events", None),
    "lease_lost": ("POST", "/events/1/complete", {"worker_id": "w:1", "claim": PROOF}),
    "not_a_dead_letter": ("POST", "/dead-letters/requeue", {"ids": [1]}),
    "headers_too_large": ("GET", "/events?tags=" + "a" * 20_000, None),
}


@pytest.mark.parametrize("code", REFUSED)
async def test_what_is_refused_has_its_code(desk: Desk, code: str) -> None:
    await desk.publish()
    method, path, body = REFUSED[code]
    sent: dict[str, Any] = {"content": body, "headers": JSON} if isinstance(body, bytes) else {"json": body}
    answer = await desk.http.request(method, path, **({} if body is None else sent))
    problem = answer.json()
    assert (problem["code"], problem["type"]) == (code, f"urn:durabus:error:{code}")
    assert answer.status_code == problem["status"] == STATUS[Code(code)]


async def test_what_a_token_is_not_for_has_its_code(guarded: Desk, tokens: TokenFile) -> None:
    _, limited = tokens.create("limited", [Scope.PUBLISH], tags=["email"])

    async def code(path: str, body: Any = None, token: str = limited) -> str:
        method = "GET" if body is None else "POST"
        headers = bearer(token) if token else {}
        found: str = (await guarded.http.request(method, path, json=body, headers=headers)).json()["code"]
        return found

    parent = {"title": "a", "tags": "email", "parent_id": "0190a5d2-2f2c-7000-8000-000000000000"}
    assert await code("/events", token="") == "token_missing"
    assert await code("/events", token="durabus_1_x") == "token_invalid"
    assert await code("/events") == "scope_missing"
    assert await code("/events", {"title": "a", "tags": "sms"}) == "not_allowed"
    assert await code("/events", parent) == "unknown_parent"


async def test_the_client_raises_the_code(store: EventStore, clock: ManualClock) -> None:
    async with Desk(store, clock) as desk:
        client = Client("http://127.0.0.1", transport=desk.http._transport)
        with pytest.raises(ApiError) as raised:
            await client.get(4711)
        assert (raised.value.status, raised.value.code) == (404, "event_not_found")


async def test_max_retries_is_the_number_of_attempts_over_http(desk: Desk) -> None:
    id_ = await desk.publish(max_retries=2)
    stored = await desk.store.get_event(id_)
    assert stored is not None
    assert stored.max_attempts == 2
    assert RetryPolicy(max_retries=2).max_attempts == 3
    for code in (200, 400):
        await desk.claim()
        assert (await desk.post(f"/events/{id_}/fail", {"worker_id": "host:1"})).status_code == code
        desk.clock.advance(301)
    fields = desk.app.openapi()["components"]["schemas"]["NewEventDocument"]["properties"]["max_retries"]
    assert "max_attempts" in str(fields)


async def test_a_store_that_cannot_do_it_has_its_code(clock: ManualClock) -> None:
    async with Desk(await open_store("sharded://memory://|memory://"), clock) as desk:
        answer = await desk.post("/events", {"title": "a", "idempotency_key": "k"})
        assert (answer.status_code, answer.json()["code"]) == (501, "unsupported_by_store")
