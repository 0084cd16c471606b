"""Keys, ids and claim tokens of limited tokens: two hostile tenants and an admin that use the same names.

The tests run on every store. One store of each kind serves all of them: each test has its own bus and ``event_id``.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import uuid4

import httpx2
import msgspec
import pytest
from tests.api.support import ELSEWHERE, Desk, bearer
from tests.places import EVERYWHERE, lasting_url

from durabus import EventStore, ManualClock, open_store
from durabus.http import TokenFile
from durabus.http.auth.access import MAX_KEY_CHARS, Scope

SAME_NAMES: dict[str, dict[str, Any]] = {
    "idempotency_key": {"idempotency_key": "invoice-7"},
    "ordering_key": {"metadata": {"ordering_key": "customer-7", "other": 1}},
}


@pytest.fixture(scope="module", params=EVERYWHERE)
async def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EventStore]:
    opened = await open_store(lasting_url(request.param, request, tmp_path_factory.mktemp("store")))
    yield opened
    await opened.close()


@pytest.fixture
async def guarded(store: EventStore, clock: ManualClock, tokens: TokenFile) -> AsyncIterator[Desk]:
    own_bus = f"b{uuid4().hex}"
    async with Desk(store, clock, tokens=tokens, client=ELSEWHERE, host="bus.example.com", bus=own_bus) as made:
        yield made


@pytest.fixture
def event_id() -> str:
    return str(uuid4())


@pytest.fixture
def token() -> str:
    return uuid4().hex


@pytest.fixture(params=["idempotency_key", "event_id", "ordering_key"])
def names(request: pytest.FixtureRequest, event_id: str) -> dict[str, Any]:
    return SAME_NAMES.get(request.param, {"event_id": event_id})


class Holder:
    """A token and its verbs; events carry its first tag."""

    def __init__(self, desk: Desk, tokens: TokenFile, *tags: str, buses: tuple[str, ...] = ()) -> None:
        self._desk = desk
        self._tag = tags[0] if tags else "untenanted"
        _, token = tokens.create(self._tag, list(Scope), tags=tags, buses=buses)
        self._headers = bearer(token)
        self.bus = buses[0] if buses else desk.app.api.settings.bus

    async def get(self, url: str) -> httpx2.Response:
        return await self._desk.get(url, headers=self._headers)

    async def post(self, url: str, body: Any = None) -> httpx2.Response:
        return await self._desk.post(url, body, headers=self._headers)

    async def publish(self, title: str, **fields: Any) -> httpx2.Response:
        return await self.post("/events", {"title": title, "tags": self._tag, **fields})

    async def publish_batch(self, *events: dict[str, Any]) -> httpx2.Response:
        return await self.post("/events/batch", {"events": [{"tags": self._tag, **event} for event in events]})

    async def whole(self, title: str, **fields: Any) -> dict[str, Any]:
        """Publish by the batch endpoint, which returns all fields."""
        answer = await self.publish_batch({"title": title, **fields})
        assert answer.status_code == 201, answer.text
        (event,) = answer.json()["events"]
        found: dict[str, Any] = event
        return found

    async def claimed(self, **fields: Any) -> list[dict[str, Any]]:
        answer = await self.post("/claims", {"worker_id": f"{self._tag}:1", "limit": 100, **fields})
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["claims"]
        return found


@pytest.fixture
def email(guarded: Desk, tokens: TokenFile) -> Holder:
    return Holder(guarded, tokens, "email")


@pytest.fixture
def sms(guarded: Desk, tokens: TokenFile) -> Holder:
    return Holder(guarded, tokens, "sms")


@pytest.fixture
def shop(guarded: Desk, tokens: TokenFile) -> Holder:
    return Holder(guarded, tokens, buses=(f"b{uuid4().hex}",))


@pytest.fixture
def mail(guarded: Desk, tokens: TokenFile) -> Holder:
    return Holder(guarded, tokens, buses=(f"b{uuid4().hex}",))


@pytest.fixture
def admin(guarded: Desk, tokens: TokenFile) -> Holder:
    return Holder(guarded, tokens)


async def test_equal_names_of_two_tenants_and_an_admin_are_three_events(
    email: Holder, sms: Holder, admin: Holder, names: dict[str, Any]
) -> None:
    for first, *others in ((email, sms, admin), (admin, sms, email)):
        answers = [await first.publish("mine", **names)]
        answers += [await other.publish("mine", **names) for other in others]
        assert [answer.status_code for answer in answers] == [201, 201, 201]
        assert len({answer.json()["id"] for answer in answers}) == 3


async def test_equal_names_in_batches_are_three_events(
    email: Holder, sms: Holder, admin: Holder, names: dict[str, Any]
) -> None:
    answers = [await holder.publish_batch({"title": "a", **names}, {"title": "b"}) for holder in (admin, email, sms)]
    assert [answer.status_code for answer in answers] == [201, 201, 201]
    assert len({event["id"] for answer in answers for event in answer.json()["events"]}) == 6


@pytest.mark.parametrize("names", ["idempotency_key", "event_id"], indirect=True)
async def test_a_repeat_is_found_in_its_own_scope_also_with_a_new_token(
    guarded: Desk, tokens: TokenFile, email: Holder, names: dict[str, Any]
) -> None:
    first = (await email.publish("mine", **names)).json()["id"]
    rotated = Holder(guarded, tokens, "email")
    assert (await rotated.publish("again", **names)).json()["id"] == first
    batch = (await rotated.publish_batch({"title": "again", **names})).json()["events"]
    assert [event["id"] for event in batch] == [first]


async def test_a_response_does_not_reveal_whether_a_name_is_taken(
    email: Holder, sms: Holder, admin: Holder, event_id: str
) -> None:
    """A tenant gets the same response for a name that others use as for a fresh one."""
    await admin.publish("secret", **SAME_NAMES["idempotency_key"])
    stored = await admin.whole("secret", event_id=event_id)
    theirs = await sms.whole("secret", event_id=event_id, idempotency_key="k")
    for known in (event_id, stored["event_id"], theirs["event_id"]):
        fresh = str(uuid4())
        for names in ({"event_id": known}, {"parent_id": known}):
            taken = await email.publish("mine", **names)
            free = await email.publish("mine", **dict.fromkeys(names, fresh))
            assert taken.status_code == free.status_code
            assert taken.json().keys() == free.json().keys()


async def test_an_unclaimed_event_of_a_key_blocks_only_its_own_tenant(
    email: Holder, sms: Holder, admin: Holder
) -> None:
    line = SAME_NAMES["ordering_key"]
    await email.publish("never claimed", **line)
    second = (await email.publish("behind it", **line)).json()["id"]
    theirs = (await sms.publish("mine", **line)).json()["id"]
    admins = (await admin.publish("mine", **line)).json()["id"]
    assert [claim["id"] for claim in await sms.claimed()] == [theirs]
    ids = [claim["id"] for claim in await admin.claimed()]
    assert admins in ids
    assert second not in ids, "the order within a tenant's own line holds"


async def then_claimed(holder: Holder, **fields: Any) -> list[dict[str, Any]]:
    wanted = {"worker_id": "w:1", "limit": 100, **fields}
    answer = await holder.post("/claims/settle", {"settlements": [], "then_claim": wanted})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["claims"]
    return found


@pytest.mark.parametrize("claim", [Holder.claimed, then_claimed], ids=["claim", "then_claim"])
async def test_equal_claim_tokens_of_two_tenants_bring_each_its_own_claims(
    email: Holder, sms: Holder, token: str, claim: Callable[..., Awaitable[list[dict[str, Any]]]]
) -> None:
    """A tenant that guesses a token, or uses it first, gets no claim of the other tenant and learns nothing."""
    mine, theirs = [(await holder.whole("job"))["id"] for holder in (email, sms)]
    first = await claim(email, token=token)
    assert [one["id"] for one in first] == [mine]
    assert [one["id"] for one in await claim(sms, token=token)] == [theirs]
    assert await claim(email, token=token) == first, "a repeat brings the same claims"
    assert await claim(sms, token=first[0]["token"]) == [], "nor does the token help that the other one was shown"
    proof = {name: first[0][name] for name in ("id", "token", "fence")}
    settled = await email.post("/claims/settle", {"settlements": [{"outcome": "complete", **proof}]})
    assert settled.json()["outcomes"] == [{"id": mine, "status": "COMPLETED"}]


async def test_equal_claim_tokens_of_two_buses_and_an_admin_bring_each_its_own_claims(
    shop: Holder, mail: Holder, admin: Holder, token: str
) -> None:
    ids = [(await holder.whole("job", bus=holder.bus))["id"] for holder in (shop, mail, admin)]
    claims = [await holder.claimed(bus=holder.bus, token=token) for holder in (shop, mail, admin)]
    assert [[claim["id"] for claim in some] for some in claims] == [[id_] for id_ in ids]
    assert claims[2][0]["token"] == token, "an unlimited token's are stored as they are"


async def test_an_event_of_another_tenant_is_as_absent_as_one_that_is_not_there(
    email: Holder, sms: Holder, admin: Holder
) -> None:
    """The replies have the same status and text: a tenant that tries all ids learns nothing from them."""
    theirs = (await sms.whole("secret", max_retries=1))["id"]
    (claim,) = await sms.claimed()
    proof = {"token": claim["token"], "fence": claim["fence"]}
    absent = 4_711_000
    report = {"worker_id": "sms:1", "claim": proof}
    calls: list[tuple[str, Any]] = [
        ("/events/{id}", None),
        ("/events/{id}?include_logs=true", None),
        ("/events/{id}/log", None),
        ("/dashboard/events/{id}", None),
        ("/events/{id}/complete", report),
        ("/events/{id}/complete", {"worker_id": "sms:1"}),
        ("/events/{id}/fail", report),
        ("/events/{id}/start", report),
        ("/events/{id}/reset?reason=mine", {}),
        ("/claims/settle", {"settlements": [{"outcome": "complete", "id": "{id}", **proof}]}),
        ("/claims/renew", {"claims": [{"id": "{id}", **proof}]}),
        ("/claims/start", {"claims": [{"id": "{id}", **proof}]}),
        ("/dead-letters/requeue", {"ids": ["{id}"]}),
    ]
    for path, body in calls:
        replies = []
        for id_ in (theirs, absent):
            text = msgspec.json.encode(body).decode().replace('"{id}"', str(id_))
            url = path.replace("{id}", str(id_))
            reply = await (email.get(url) if body is None else email.post(url, msgspec.json.decode(text)))
            replies.append((reply.status_code, re.sub(r"\d+", "N", reply.text)))
        assert replies[0] == replies[1], path
        assert replies[0][0] == 404, path
    (unchanged,) = [event for event in (await admin.get("/events")).json()["events"] if event["id"] == theirs]
    assert unchanged["status"] == "PROCESSING"


async def test_a_tenant_sees_its_keys_as_it_wrote_them(email: Holder, admin: Holder) -> None:
    names = {**SAME_NAMES["idempotency_key"], **SAME_NAMES["ordering_key"]}
    event = await email.whole("mine", max_retries=1, **names)
    (claim,) = await email.claimed()
    proof = {name: claim[name] for name in ("id", "token", "fence")}
    await email.post("/claims/settle", {"settlements": [{"outcome": "fail", "error_message": "no", **proof}]})
    dead = (await email.get("/dead-letters")).json()["events"][0]
    requeued = (await email.post("/dead-letters/requeue", {"ids": [event["id"]]})).json()["events"][0]
    (then_claimed,) = (
        await email.post("/claims/settle", {"settlements": [], "then_claim": {"worker_id": "email:1"}})
    ).json()["claims"]
    for seen in (event, claim["event"], dead, requeued, then_claimed["event"]):
        assert {name: seen[name] for name in names} == names
    page = (await email.get(f"/dashboard/events/{event['id']}")).text
    assert "invoice-7" in page
    assert "@" not in page.partition("invoice-7")[0][-40:]
    assert "customer-7" in page
    assert "@customer-7" not in page
    await admin.publish("other", **names)
    (kept,) = [claim["event"] for claim in await admin.claimed()]
    assert {name: kept[name] for name in names} == names, "an unlimited token's keys are stored as they are"


async def test_a_tenant_cannot_hang_a_child_under_anothers_event(
    email: Holder, sms: Holder, admin: Holder, event_id: str
) -> None:
    for stranger in (
        await admin.whole("parent"),
        await sms.whole("parent"),
        await sms.whole("parent", event_id=event_id),
    ):
        answer = await email.publish("child", parent_id=stranger["event_id"])
        assert answer.status_code == 400
        assert "parent_id" in answer.json()["detail"]
        batch = await email.publish_batch({"title": "child", "parent_id": stranger["event_id"]}, {"title": "x"})
        assert batch.status_code == 400
    assert (await email.get("/stats")).json()["pending"] == 0


async def test_a_tenant_names_its_own_parents_by_the_id_it_sent_or_the_id_it_sees(email: Holder, event_id: str) -> None:
    mine = await email.whole("parent", event_id=event_id)
    assert (await email.whole("child", parent_id=event_id))["parent_id"] == mine["event_id"]
    assert (await email.whole("child", parent_id=mine["event_id"]))["parent_id"] == mine["event_id"]
    other = str(uuid4())
    batch = await email.publish_batch({"title": "parent", "event_id": other}, {"title": "child", "parent_id": other})
    parent, child = batch.json()["events"]
    assert child["parent_id"] == parent["event_id"]


async def test_tokens_of_two_buses_do_not_share_event_ids(
    shop: Holder, mail: Holder, admin: Holder, event_id: str
) -> None:
    """Stores keep keys by bus, but an ``event_id`` is one for all of them."""
    await admin.publish("mine", event_id=event_id)
    first = await shop.publish("mine", event_id=event_id, bus=shop.bus)
    second = await mail.publish("mine", event_id=event_id, bus=mail.bus)
    assert (first.status_code, second.status_code) == (201, 201)
    assert (await shop.publish("again", event_id=event_id, bus=shop.bus)).json()["id"] == first.json()["id"]


@pytest.mark.parametrize("name", ["idempotency_key", "ordering_key"])
async def test_the_longest_key_of_a_tenant(email: Holder, admin: Holder, name: str) -> None:
    def named(length: int) -> dict[str, Any]:
        return {name: "k" * length} if name == "idempotency_key" else {"metadata": {name: "k" * length}}

    assert (await email.publish("just", **named(MAX_KEY_CHARS))).status_code == 201
    refused = await email.publish("too long", **named(MAX_KEY_CHARS + 1))
    assert refused.status_code == 400
    assert str(MAX_KEY_CHARS) in refused.json()["detail"]
    assert (await admin.publish("no limit but the store's", **named(255))).status_code == 201


async def test_an_admin_that_imitates_a_scope_shows_a_tenant_nothing(email: Holder, admin: Holder) -> None:
    await email.publish("mine", **SAME_NAMES["idempotency_key"])
    (mine,) = [claim["event"] for claim in await admin.claimed()]
    await email.post(f"/events/{mine['id']}/complete", {"worker_id": "untenanted:1"})
    other_bus = f"{email.bus}-other"
    other = await admin.whole("secret", bus=other_bus, idempotency_key=mine["idempotency_key"])
    assert other["id"] != mine["id"]
    answer = await email.publish("mine", bus=other_bus, **SAME_NAMES["idempotency_key"])
    assert answer.status_code == 409
    assert "secret" not in answer.text
