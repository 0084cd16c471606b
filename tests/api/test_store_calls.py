"""Reports of claims that the server remembers: one store call each, and the same responses as without the memory."""

import inspect
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx2
import pytest
from tests.api.support import ELSEWHERE, Desk, bearer

from durabus import EventStore, ManualClock, open_store
from durabus.http import TokenFile, api
from durabus.http.auth.access import Scope

SLOWLY = ["get_event", "current_claims", "settle_events"]
"""The calls for a report by name of a claim that the server does not remember."""
SENDERS: dict[str, dict[str, Any]] = {
    "no limits": {},
    "limited to tags": {"tags": ["work", "mail"]},
    "limited to a bus": {"buses": ["default"]},
    "limited to both": {"tags": ["work"], "buses": ["default", "other"]},
}
RETRY_DELAY = 300.0


class CountingStore:
    """Notes every call of the server, but not the calls that the store makes to itself."""

    def __init__(self, inner: EventStore) -> None:
        self._inner = inner
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def counted(*args: Any, **options: Any) -> Any:
            self.calls.append(name)
            return await found(*args, **options)

        return counted


@pytest.fixture
def counting(store: EventStore) -> CountingStore:
    return CountingStore(store)


@pytest.fixture
async def one(counting: CountingStore, clock: ManualClock) -> AsyncIterator[Desk]:
    async with Desk(cast("EventStore", counting), clock) as made:
        yield made


@pytest.fixture
async def two(store: EventStore, clock: ManualClock) -> AsyncIterator[Desk]:
    """A second server on the same store."""
    async with Desk(store, clock) as made:
        yield made


def report(verb: str, worker_id: str = "host:1", claim: dict[str, Any] | None = None) -> dict[str, Any]:
    failed = {"error_message": "printer on fire"} if verb == "fail" else {}
    return {"worker_id": worker_id, **failed, **({} if claim is None else {"claim": claim})}


async def told(desk: Desk, verb: str, id_: int, **options: Any) -> httpx2.Response:
    return await desk.post(f"/events/{id_}/{verb}", report(verb), **options)


@pytest.mark.parametrize("limits", SENDERS.values(), ids=SENDERS)
@pytest.mark.parametrize("proved", [False, True], ids=["by name", "by claim token"])
@pytest.mark.parametrize("verb", ["complete", "fail"])
@pytest.mark.parametrize("way", ["subscribe", "claims"])
async def test_a_report_of_a_claim_that_this_server_granted_is_one_store_call(
    counting: CountingStore,
    clock: ManualClock,
    tokens: TokenFile,
    *,
    limits: dict[str, Any],
    proved: bool,
    verb: str,
    way: str,
) -> None:
    _, token = tokens.create("sender", [Scope.PUBLISH, Scope.CLAIM], **limits)
    sent = {"headers": bearer(token)}
    place: dict[str, Any] = {"client": ELSEWHERE, "host": "bus.example.com"}
    async with Desk(cast("EventStore", counting), clock, tokens=tokens, **place) as desk:
        id_ = (await desk.post("/events", {"title": "job", "tags": "work"}, **sent)).json()["id"]
        if way == "subscribe":
            got = await desk.get("/events/subscribe?tags=work&worker_id=host:1", **sent)
            proof = {"token": got.headers["Durabus-Claim-Token"], "fence": int(got.headers["Durabus-Claim-Fence"])}
        else:
            (claim,) = (await desk.post("/claims", {"worker_id": "host:1"}, **sent)).json()["claims"]
            proof = {name: claim[name] for name in ("token", "fence")}
        counting.calls.clear()
        answer = await desk.post(f"/events/{id_}/{verb}", report(verb, claim=proof if proved else None), **sent)
        assert answer.status_code == 200, answer.text
        assert counting.calls == ["settle_events"]


@pytest.mark.parametrize("verb", ["complete", "fail"])
async def test_a_server_that_does_not_remember_the_claim_gives_the_same_response(
    one: Desk, two: Desk, counting: CountingStore, verb: str
) -> None:
    ids = [await one.publish(), await one.publish()]
    await one.claim()
    await two.claim()
    known, unknown = [await told(one, verb, id_) for id_ in ids]
    assert known.json() | {"event_id": 0} == unknown.json() | {"event_id": 0}
    assert counting.calls[-3:] == SLOWLY
    assert [(await told(two, verb, id_)).text for id_ in ids] == [known.text, unknown.text]


@pytest.mark.parametrize("verb", ["complete", "fail"])
async def test_a_repeat_gets_the_first_response_from_a_server_that_still_remembers_the_claim(
    one: Desk, two: Desk, verb: str
) -> None:
    id_ = await one.publish()
    await one.claim()
    first = await told(two, verb, id_)
    trail = await one.trail(id_)
    assert (await told(one, verb, id_)).text == first.text
    assert (await told(one, verb, id_)).text == first.text
    assert await one.trail(id_) == trail


async def test_the_failure_of_a_newer_claim_is_not_taken_for_a_repeat_of_the_remembered_one(
    one: Desk, two: Desk, clock: ManualClock
) -> None:
    id_ = await one.publish()
    await one.claim()
    await told(two, "fail", id_)
    clock.advance(RETRY_DELAY)
    await two.claim()
    answer = await told(one, "fail", id_)
    assert answer.status_code == 200
    assert (await one.trail(id_))[-2:] == ["PICKED", "FAILED"]
    assert (await one.get(f"/events/{id_}")).json()["retry_count"] == 2


async def test_a_requeued_event_is_reported_under_its_new_claim(one: Desk, two: Desk) -> None:
    id_ = await one.publish(max_retries=1)
    await one.claim()
    assert (await told(two, "fail", id_)).status_code == 400
    await two.post("/dead-letters/requeue", {"ids": [id_]})
    await two.claim()
    answer = await told(one, "fail", id_)
    assert (answer.status_code, answer.json()["retry_count"]) == (400, 1)
    assert await one.trail(id_) == ["PICKED", "FAILED", "PICKED", "FAILED"]


@pytest.mark.parametrize("verb", ["complete", "fail"])
async def test_a_worker_that_another_one_has_overtaken_is_refused(
    one: Desk, two: Desk, clock: ManualClock, verb: str
) -> None:
    id_ = await one.publish()
    await one.claim()
    clock.advance(31.0)
    await two.claim(worker_id="host:2")
    trail = await one.trail(id_)
    assert (await told(one, verb, id_)).status_code == 409
    assert await one.trail(id_) == trail
    assert (await two.post(f"/events/{id_}/complete", {"worker_id": "host:2"})).status_code == 200


@pytest.mark.parametrize("verb", ["complete", "fail"])
async def test_a_late_report_is_one_store_call_too(
    one: Desk, counting: CountingStore, clock: ManualClock, verb: str
) -> None:
    id_ = await one.publish()
    await one.claim()
    clock.advance(31.0)
    assert await one.store.expire_events() == 1
    counting.calls.clear()
    assert (await told(one, verb, id_)).status_code == 200
    assert counting.calls == ["settle_events"]


@pytest.mark.parametrize("verb", ["complete", "fail"])
async def test_a_claim_that_was_reset_cannot_be_reported(one: Desk, two: Desk, verb: str) -> None:
    id_ = await one.publish()
    await one.claim()
    await two.post(f"/events/{id_}/reset?reason=stuck")
    assert (await told(one, verb, id_)).status_code == 409
    assert (await one.trail(id_))[-1] == "RESET"


@pytest.mark.parametrize("verb", ["complete", "fail"])
async def test_a_removed_event_is_not_found(one: Desk, verb: str) -> None:
    id_ = await one.publish()
    await one.claim()
    assert await one.store.remove_event(id_)
    assert (await told(one, verb, id_)).status_code == 404


@pytest.mark.parametrize("verb", ["complete", "fail"])
async def test_another_worker_cannot_report_a_remembered_claim(one: Desk, counting: CountingStore, verb: str) -> None:
    id_ = await one.publish()
    await one.claim()
    other = await one.post(f"/events/{id_}/{verb}", report(verb, "host:2"))
    wrong = await one.post(f"/events/{id_}/{verb}", report(verb, claim={"token": "0" * 32, "fence": 1}))
    assert (other.status_code, wrong.status_code) == (409, 409)
    counting.calls.clear()
    assert (await told(one, verb, id_)).status_code == 200
    assert counting.calls == ["settle_events"]


@pytest.mark.parametrize("proved", [False, True], ids=["by name", "by claim token"])
@pytest.mark.parametrize("verb", ["complete", "fail"])
@pytest.mark.parametrize("limits", [{"tags": ["mail"]}, {"buses": ["other"]}, {"tags": ["work"], "buses": ["other"]}])
async def test_a_token_that_may_not_see_the_event_cannot_report_a_remembered_claim(
    guarded: Desk, tokens: TokenFile, limits: dict[str, Any], verb: str, proved: bool
) -> None:
    _, holder = tokens.create("holder", list(Scope), tags=["work", "mail"])
    _, stranger = tokens.create("stranger", list(Scope), **limits)
    made = await guarded.post("/events", {"title": "job", "tags": "work"}, headers=bearer(holder))
    id_ = made.json()["id"]
    got = await guarded.get("/events/subscribe?worker_id=host:1", headers=bearer(holder))
    proof = {"token": got.headers["Durabus-Claim-Token"], "fence": int(got.headers["Durabus-Claim-Fence"])}
    body = report(verb, claim=proof if proved else None)
    before = (await guarded.get(f"/events/{id_}/log", headers=bearer(holder))).text
    assert (await guarded.post(f"/events/{id_}/{verb}", body, headers=bearer(stranger))).status_code == 404
    assert (await guarded.get(f"/events/{id_}/log", headers=bearer(holder))).text == before
    assert (await guarded.post(f"/events/{id_}/{verb}", body, headers=bearer(holder))).status_code == 200


async def test_a_server_remembers_a_bounded_number_of_claims(
    one: Desk, counting: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "GRANTED_KEPT", 2)
    ids = [await one.publish() for _ in range(3)]
    for _ in ids:
        await one.claim()
    counting.calls.clear()
    answers = [await told(one, "complete", id_) for id_ in ids]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert counting.calls == [*SLOWLY, "settle_events", "settle_events"]


async def test_a_server_forgets_claims_that_have_ended(one: Desk) -> None:
    ids = [await one.publish() for _ in range(4)]
    await one.claim()
    claims = (await one.post("/claims", {"worker_id": "host:1", "limit": 3})).json()["claims"]
    assert len(one.app.api.granted._claims) == 4
    ends = [{"outcome": "complete", **{name: claim[name] for name in ("id", "token", "fence")}} for claim in claims]
    await one.post("/claims/settle", {"settlements": ends})
    await told(one, "complete", ids[0])
    assert not one.app.api.granted._claims


async def test_the_report_of_an_event_that_the_store_forgets_at_once_is_recorded(clock: ManualClock) -> None:
    store = await open_store("memory://?max_history=0", clock=clock)
    async with Desk(store, clock) as desk:
        id_ = await desk.publish()
        await desk.claim()
        answer = await told(desk, "complete", id_)
        assert (answer.status_code, answer.json()["action"]) == (200, "COMPLETED")
    await store.close()
