"""Which tokens and clients the API admits."""

import asyncio
from functools import cache
from typing import Any

import msgspec
import pytest
from tests.api.support import ELSEWHERE, HERE, Desk, bearer

from durabus import ConfigurationError, EventStore, ManualClock, new_event, open_store
from durabus.http import TokenFile, create_app
from durabus.http.auth.access import Scope
from durabus.model.log_entry import LogPage

EXEMPT = {"/livez", "/readyz"}


def filled(path: str) -> str:
    return path.replace("{id}", "1").replace("{name}", "a")


@cache
def routes() -> list[tuple[str, str]]:
    paths = create_app("memory://").openapi()["paths"]
    found = [(method.upper(), filled(path)) for path, methods in paths.items() for method in methods]
    return [*found, ("GET", "/openapi.json"), ("GET", "/nothing/here"), ("OPTIONS", "/events"), ("PUT", "/events")]


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer nonsense", "Basic YTpi", "bearer durabus_0_0"])
async def test_no_route_serves_a_request_without_a_token(guarded: Desk, header: str | None) -> None:
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
        ("GET", "/schedules"),
        ("GET", "/schedules/a"),
        ("GET", "/schedules/a/history"),
    ],
    "admin": [
        ("POST", "/events/1/reset?reason=a"),
        ("POST", "/events/1/cancel?reason=a"),
        ("POST", "/dead-letters/requeue"),
        ("POST", "/dead-letters/purge"),
        ("PUT", "/schedules/a"),
        ("DELETE", "/schedules/a"),
        ("POST", "/schedules/a/pause"),
        ("POST", "/schedules/a/resume"),
        ("POST", "/schedules/a/run"),
    ],
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
    known = {(method.upper(), filled(path)) for path, methods in paths.items() for method in methods}
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


async def test_the_secret_of_a_token_counts_and_not_its_id(guarded: Desk, tokens: TokenFile) -> None:
    _, token = tokens.create("mine", [Scope.READ])
    start, _, secret = token.rpartition("_")
    for guess in (f"{start}_", f"{start}_{secret[:-1]}", f"{start}_{'x' * len(secret)}", start):
        assert (await guarded.get("/events", headers=bearer(guess))).status_code == 401
    assert (await guarded.get("/events", headers=bearer(token))).status_code == 200


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


@pytest.mark.parametrize("how", ["revoked", "over"])
async def test_a_long_poll_ends_with_its_token(
    guarded: Desk, tokens: TokenFile, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    made, token = tokens.create("x", [Scope.CLAIM], expires_after=60)
    wait_for_work, waiting = guarded.store.wait_for_work, asyncio.Event()

    async def wait_and_tell(bus: str, **options: Any) -> bool:
        waiting.set()
        return await wait_for_work(bus, **options)

    monkeypatch.setattr(guarded.store, "wait_for_work", wait_and_tell)
    async with asyncio.TaskGroup() as group:
        poll = group.create_task(guarded.post("/claims", {"worker_id": "w:1", "wait": 30}, headers=bearer(token)))
        await waiting.wait()
        if how == "revoked":
            tokens.revoke(made.id)
        else:
            guarded.clock.advance(60)
        await guarded.store.add_events([new_event("job")])
    assert poll.result().status_code == 401
    assert poll.result().headers["www-authenticate"].startswith("Bearer")
    assert (await guarded.store.counts()).pending == 1


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
async def test_a_damaged_tokens_file_admits_no_client(guarded: Desk, tokens: TokenFile, damage: str) -> None:
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
        (HERE, "127.0.0.1", {"X-Forwarded-Proto": "https"}, 401),
        (HERE, "127.0.0.1", {"X-Forwarded-Host": "bus.example.com"}, 401),
        (HERE, "127.0.0.1", {"X-Real-IP": "203.0.113.7"}, 401),
        (HERE, "127.0.0.1", {"Via": "1.1 proxy.example.com"}, 401),
        (HERE, "127.0.0.1", {"CF-Connecting-IP": "203.0.113.7"}, 401),
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


async def test_a_server_reached_by_a_public_address_serves_no_client_without_tokens(
    store: EventStore, clock: ManualClock
) -> None:
    """The server's own address decides, not the address that the client names."""
    async with Desk(store, clock, host="192.0.2.1") as desk:
        assert (await desk.get("/events")).status_code == 401


async def test_no_secret_is_logged_or_returned(
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
