"""Who gets in, and what they see there."""

import asyncio
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from tests.api.support import ELSEWHERE, HERE, Desk

from durabus import ConfigurationError, EventStore, ManualClock, open_store
from durabus.model.log_entry import LogPage
from durabus.server import TokenFile, create_app
from durabus.server.access import Scope

EXEMPT = {"/livez", "/readyz"}


@pytest.fixture
def tokens(tmp_path: Path, clock: ManualClock) -> TokenFile:
    file = TokenFile(tmp_path / "tokens.json", clock=clock)
    file.create("first", [Scope.READ])
    return file


@pytest.fixture
async def guarded(store: EventStore, clock: ManualClock, tokens: TokenFile) -> AsyncIterator[Desk]:
    async with Desk(store, clock, tokens=tokens, client=ELSEWHERE, host="bus.example.com") as made:
        yield made


@cache
def routes() -> list[tuple[str, str]]:
    paths = create_app("memory://").openapi()["paths"]
    found = [(method.upper(), path.replace("{id}", "1")) for path, methods in paths.items() for method in methods]
    return [*found, ("GET", "/openapi.json"), ("GET", "/nothing/here"), ("OPTIONS", "/events"), ("PUT", "/events")]


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer nonsense", "Basic YTpi", "bearer durabus_0_0"])
async def test_no_route_answers_without_a_token(guarded: Desk, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    known = routes()
    assert len(known) > 20
    for method, path in known:
        answer = await guarded.http.request(method, path, headers=headers)
        if path in EXEMPT:
            assert answer.status_code == 200
            continue
        assert answer.status_code == 401, (method, path)
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert answer.headers["content-type"] == "application/problem+json"


async def test_exemptions_are_exact(guarded: Desk) -> None:
    for path in ("/livez/", "//livez", "/livez/..", "/LIVEZ", "/livez/x", "/x/livez", "/livez;a", "/livez%2f"):
        assert (await guarded.http.request("GET", path)).status_code == 401, path


async def test_a_token_is_asked_for_on_this_machine_too_once_there_are_tokens(
    store: EventStore, clock: ManualClock, tokens: TokenFile
) -> None:
    async with Desk(store, clock, tokens=tokens) as desk:
        assert (await desk.get("/events")).status_code == 401


SCOPE_OF = {
    "publish": [("POST", "/events"), ("POST", "/events/batch")],
    "claim": [
        ("GET", "/events/subscribe?tags=a&worker_id=b"),
        ("POST", "/events/1/complete"),
        ("POST", "/events/1/fail"),
        ("POST", "/events/1/start"),
        ("POST", "/claims"),
        ("POST", "/claims/settle"),
        ("POST", "/claims/renew"),
        ("POST", "/claims/start"),
    ],
    "read": [
        ("GET", "/events"),
        ("GET", "/events/1"),
        ("GET", "/events/1/log"),
        ("GET", "/dead-letters"),
        ("GET", "/stats"),
        ("GET", "/metrics"),
    ],
    "admin": [("POST", "/events/1/reset?reason=a"), ("POST", "/dead-letters/requeue"), ("POST", "/dead-letters/purge")],
}


@pytest.mark.parametrize("scope", list(Scope))
async def test_a_scope_opens_its_routes_and_no_other(guarded: Desk, tokens: TokenFile, scope: Scope) -> None:
    _, token = tokens.create("one scope", [scope])
    for needed, addresses in SCOPE_OF.items():
        for method, path in addresses:
            answer = await guarded.http.request(method, path, headers=bearer(token), json={})
            allowed = scope in {needed, Scope.ADMIN}
            assert (answer.status_code != 403) == allowed, (scope, method, path, answer.text)


def test_every_route_is_in_the_table_of_scopes() -> None:
    listed = {(method, path.partition("?")[0]) for found in SCOPE_OF.values() for method, path in found}
    paths = create_app("memory://").openapi()["paths"]
    known = {(method.upper(), path.replace("{id}", "1")) for path, methods in paths.items() for method in methods}
    assert known - listed == {("GET", "/livez"), ("GET", "/readyz"), ("GET", "/events/tail")}


async def test_a_token_ends(guarded: Desk, tokens: TokenFile) -> None:
    made, token = tokens.create("short", [Scope.READ], expires_after=60)
    forever, lasting = tokens.create("long", [Scope.READ])
    assert (await guarded.get("/events", headers=bearer(token))).status_code == 200
    guarded.clock.advance(59)
    assert (await guarded.get("/events", headers=bearer(token))).status_code == 200
    guarded.clock.advance(1)
    assert (await guarded.get("/events", headers=bearer(token))).status_code == 401
    assert (await guarded.get("/events", headers=bearer(lasting))).status_code == 200
    assert tokens.revoke(forever.id) is not None
    assert (await guarded.get("/events", headers=bearer(lasting))).status_code == 401
    assert tokens.revoke("nobody") is None
    assert made.id != forever.id


async def test_another_process_revokes(guarded: Desk, tokens: TokenFile, clock: ManualClock) -> None:
    made, token = tokens.create("x", [Scope.READ])
    assert (await guarded.get("/events", headers=bearer(token))).status_code == 200
    TokenFile(tokens.path, clock=clock).revoke(made.id)
    assert (await guarded.get("/events", headers=bearer(token))).status_code == 401


@pytest.mark.parametrize("path", ["/events/tail", "/dashboard/tail"])
async def test_a_tail_ends_with_its_token(
    guarded: Desk, tokens: TokenFile, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    made, token = tokens.create("x", [Scope.READ])
    read_log, begun = guarded.store.read_log, asyncio.Event()

    async def read_and_tell(**options: Any) -> LogPage:
        begun.set()
        return await read_log(**options)

    monkeypatch.setattr(guarded.store, "read_log", read_and_tell)
    async with asyncio.TaskGroup() as group:
        tail = group.create_task(guarded.get(path, headers=bearer(token)))
        await begun.wait()
        tokens.revoke(made.id)
    assert (tail.result().status_code, tail.result().text) == (200, ": durabus\n\n")


def test_only_a_hash_is_kept_and_only_the_owner_reads_it(tokens: TokenFile) -> None:
    made, token = tokens.create("x", [Scope.READ])
    secret = token.split("_", 2)[2]
    assert len(secret) == 43  # 256 bits in base64
    contents = tokens.path.read_text()
    assert secret not in contents
    assert made.sha256 in contents
    assert tokens.path.stat().st_mode & 0o777 == 0o600
    assert len({tokens.create("x", [Scope.READ])[1] for _ in range(50)}) == 50
    assert len(tokens.tokens()) == 52


@pytest.mark.parametrize("damage", ["", "{", '{"tokens": [{}]}', "[]"])
async def test_a_damaged_tokens_file_lets_nobody_in(guarded: Desk, tokens: TokenFile, damage: str) -> None:
    _, token = tokens.create("x", [Scope.ADMIN])
    assert (await guarded.get("/events", headers=bearer(token))).status_code == 200
    tokens.path.write_text(damage)
    assert (await guarded.get("/events", headers=bearer(token))).status_code == 503
    tokens.path.unlink()
    assert (await guarded.get("/events", headers=bearer(token))).status_code == 503
    assert (await guarded.get("/livez")).status_code == 200
    with pytest.raises(ConfigurationError, match="tokens create"):
        create_app("memory://", tokens=tokens)


# --- without tokens -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("client", "host", "headers", "code"),
    [
        (HERE, "127.0.0.1", {}, 200),
        (HERE, "localhost", {}, 200),
        (("::1", 1), "[::1]", {}, 200),
        (("::ffff:127.0.0.1", 1), "127.0.0.1", {}, 200),
        (ELSEWHERE, "127.0.0.1", {}, 401),
        (("::ffff:203.0.113.7", 1), "127.0.0.1", {}, 401),
        (HERE, "127.0.0.1", {"X-Forwarded-For": "203.0.113.7"}, 401),
        (HERE, "127.0.0.1", {"Forwarded": "for=203.0.113.7"}, 401),
        (HERE, "127.0.0.1", {"Host": "rebound.example.com"}, 403),
        (HERE, "127.0.0.1", {"Origin": "https://evil.example.com"}, 403),
        (HERE, "127.0.0.1", {"Origin": "http://127.0.0.1"}, 200),
        (HERE, "127.0.0.1", {"Sec-Fetch-Site": "cross-site"}, 403),
        (HERE, "127.0.0.1", {"Sec-Fetch-Site": "same-site"}, 403),
        (HERE, "127.0.0.1", {"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
async def test_without_tokens_only_this_machine_is_served(
    clock: ManualClock, client: tuple[str, int], host: str, headers: dict[str, str], code: int
) -> None:
    async with Desk(await open_store("memory://"), clock, client=client, host=host) as desk:
        assert (await desk.get("/events", headers=headers)).status_code == code


async def test_a_server_that_was_reached_from_elsewhere_serves_nobody_without_tokens(
    store: EventStore, clock: ManualClock
) -> None:
    """Its own address is not a loopback one, whoever the client says it is."""
    async with Desk(store, clock, host="192.0.2.1") as desk:
        assert (await desk.get("/events")).status_code == 401


# --- three tenants --------------------------------------------------------------------------------------------------

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
    """All that a tenant can read anywhere."""
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
    assert (await bob.post("/dead-letters/requeue", {"ids": [theirs]})).status_code == 404
    assert (await bob.post("/dead-letters/purge", {"older_than_days": 0})).status_code == 403
    assert (await bob.get("/metrics")).status_code == 403
    assert (await bob.get("/events?tags=ann")).status_code == 403
    assert (await bob.get("/events/subscribe?tags=ann&worker_id=b:1")).status_code == 403
    assert (await bob.post("/claims", {"worker_id": "b:1", "tags": "bob,ann"})).status_code == 403
    assert (await bob.post("/claims", {"worker_id": "b:1", "token": claim["token"]})).status_code == 409
    event = (await ann.get(f"/events/{theirs}?include_logs=true")).json()
    assert (event["status"], [entry["action"] for entry in event["logs"]]) == ("PROCESSING", ["PICKED"])


@pytest.mark.parametrize("tags", ["", "ann", "bob,ann", "other"])
async def test_a_tenant_publishes_only_among_its_own(guarded: Desk, tokens: TokenFile, tags: str) -> None:
    bob = Tenant(guarded, tokens, "bob")
    assert (await bob.post("/events", {"title": "x", "tags": tags})).status_code == 403
    assert (await bob.post("/events/batch", {"events": [{"title": "x", "tags": tags}]})).status_code == 403
    assert (await guarded.store.counts()).pending == 0
    assert (await bob.post("/events", {"title": "x", "tags": "bob,bob-mail"})).status_code == 201


@pytest.mark.parametrize("known", ["idempotency_key", "event_id"])
async def test_a_known_key_does_not_show_the_event_of_another(guarded: Desk, tokens: TokenFile, known: str) -> None:
    ann, bob = Tenant(guarded, tokens, "ann"), Tenant(guarded, tokens, "bob")
    key = {known: "0190a5d2-2f2c-7000-8000-000000000000"}
    assert (await ann.post("/events", {"title": "secret", "tags": "ann", **key})).status_code == 201
    answer = await bob.post("/events", {"title": "mine", "tags": "bob", **key})
    assert answer.status_code == 409
    assert "secret" not in answer.text


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


async def test_no_secret_is_logged_or_answered(
    guarded: Desk, tokens: TokenFile, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, token = tokens.create("x", [Scope.ADMIN])
    caplog.set_level("DEBUG")

    async def broken(*_arguments: Any, **_options: Any) -> None:
        raise RuntimeError("the database of user:password@host is gone")

    monkeypatch.setattr(guarded.store, "counts", broken)
    answer = await guarded.get("/stats", headers=bearer(token))
    assert answer.status_code == 500
    assert "password" not in answer.text
    assert token not in caplog.text
    refused = await guarded.get("/events", headers=bearer(f"{token}x"))
    assert refused.status_code == 401
    assert token not in refused.text
    assert token not in caplog.text
    assert msgspec.json.decode(answer.content)["title"] == "Internal Server Error"
