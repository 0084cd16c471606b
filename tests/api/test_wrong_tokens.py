"""Wrong tokens get 401 for a while, then 429. A client with a valid token notices nothing."""

import pytest
from tests.api.support import HERE, Desk, bearer

from durabus import EventStore, ManualClock
from durabus.http import TokenFile
from durabus.http.auth import peers
from durabus.http.auth.access import Scope
from durabus.http.auth.peers import ALLOWED, WrongTokens


async def test_a_client_that_guesses_tokens_is_refused_and_one_at_the_same_address_is_served(
    guarded: Desk, tokens: TokenFile, store: EventStore, clock: ManualClock
) -> None:
    _, token = tokens.create("x", [Scope.READ])
    for number in range(ALLOWED):
        assert (await guarded.get("/events", headers=bearer(f"durabus_{number}_x"))).status_code == 401
    refused = await guarded.get("/events", headers=bearer("durabus_1_x"))
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "60")
    assert refused.headers["content-type"] == "application/problem+json"
    assert "x-ratelimit" not in refused.headers
    form = {"Origin": "http://bus.example.com", "Content-Type": "application/x-www-form-urlencoded"}
    login = await guarded.http.post("/dashboard/login", content=b"token=durabus_1_x", headers=form)
    assert login.status_code == 429
    assert (await guarded.get("/events", headers=bearer(token))).status_code == 200
    assert (await guarded.get("/events")).status_code == 401, "no token is not a wrong one"
    async with Desk(store, clock, tokens=tokens, client=HERE, host="bus.example.com") as elsewhere:
        assert (await elsewhere.get("/events", headers=bearer("durabus_1_x"))).status_code == 401


def test_one_wrong_token_per_second_is_forgiven() -> None:
    clock = ManualClock()
    wrong = WrongTokens(clock.now)
    assert [wrong.too_many("203.0.113.7") for _ in range(ALLOWED + 5)] == [False] * ALLOWED + [True] * 5
    clock.advance(2)
    assert [wrong.too_many("203.0.113.7") for _ in range(3)] == [False, True, True]
    clock.advance(3_600)
    assert not any(wrong.too_many("203.0.113.7") for _ in range(ALLOWED))


def test_an_ipv6_network_is_one_peer() -> None:
    wrong = WrongTokens(ManualClock().now)
    for number in range(ALLOWED):
        assert not wrong.too_many(f"2001:db8::{number:x}")
    assert wrong.too_many("2001:db8::ffff")
    assert not wrong.too_many("2001:db8:0:1::1")
    assert not wrong.too_many("::ffff:203.0.113.7")
    assert not wrong.too_many("")


def test_a_bounded_number_of_peers_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "KEPT_PEERS", 3)
    monkeypatch.setattr(peers, "ALLOWED", 1)
    wrong = WrongTokens(ManualClock().now)
    assert [wrong.too_many(host) for host in ("a", "b", "c")] == [False] * 3
    assert wrong.too_many("a")
    assert not wrong.too_many("d"), "b makes room for d: it was heard of longest ago"
    assert wrong.too_many("a")
    assert wrong.too_many("c")
    assert not wrong.too_many("b")
