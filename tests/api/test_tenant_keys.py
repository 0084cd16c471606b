"""Keys and ids of limited tokens: two hostile tenants and an admin who use the same names."""

from typing import Any

import httpx2
import pytest
from tests.api.support import Desk, bearer

from durabus.server import TokenFile
from durabus.server.access import Scope
from durabus.server.tenancy import MAX_KEY_CHARS

ID = "0190a5d2-2f2c-7000-8000-000000000000"
SAME_NAMES: dict[str, dict[str, Any]] = {
    "idempotency_key": {"idempotency_key": "invoice-7"},
    "event_id": {"event_id": ID},
    "ordering_key": {"metadata": {"ordering_key": "customer-7", "other": 1}},
}
NAMES = pytest.mark.parametrize("names", SAME_NAMES.values(), ids=SAME_NAMES)


class Holder:
    """A token and its verbs; events carry its first tag."""

    def __init__(self, desk: Desk, tokens: TokenFile, *tags: str, buses: tuple[str, ...] = ()) -> None:
        self._desk = desk
        self._tag = tags[0] if tags else "untenanted"
        _, token = tokens.create(self._tag, list(Scope), tags=tags, buses=buses)
        self._headers = bearer(token)

    async def get(self, url: str) -> httpx2.Response:
        return await self._desk.get(url, headers=self._headers)

    async def post(self, url: str, body: Any = None) -> httpx2.Response:
        return await self._desk.post(url, body, headers=self._headers)

    async def publish(self, title: str, **fields: Any) -> httpx2.Response:
        return await self.post("/events", {"title": title, "tags": self._tag, **fields})

    async def publish_batch(self, *events: dict[str, Any]) -> httpx2.Response:
        return await self.post("/events/batch", {"events": [{"tags": self._tag, **event} for event in events]})

    async def whole(self, title: str, **fields: Any) -> dict[str, Any]:
        """Published by the batch endpoint, which shows all fields."""
        answer = await self.publish_batch({"title": title, **fields})
        assert answer.status_code == 201, answer.text
        (event,) = answer.json()["events"]
        found: dict[str, Any] = event
        return found

    async def claimed(self) -> list[dict[str, Any]]:
        answer = await self.post("/claims", {"worker_id": f"{self._tag}:1", "limit": 100})
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
def admin(guarded: Desk, tokens: TokenFile) -> Holder:
    return Holder(guarded, tokens)


@NAMES
async def test_equal_names_of_two_tenants_and_an_admin_are_three_events(
    email: Holder, sms: Holder, admin: Holder, names: dict[str, Any]
) -> None:
    for first, *others in ((email, sms, admin), (admin, sms, email)):
        answers = [await first.publish("mine", **names)]
        answers += [await other.publish("mine", **names) for other in others]
        assert [answer.status_code for answer in answers] == [201, 201, 201]
        assert len({answer.json()["id"] for answer in answers}) == 3


@NAMES
async def test_equal_names_in_batches_are_three_events(
    email: Holder, sms: Holder, admin: Holder, names: dict[str, Any]
) -> None:
    answers = [await holder.publish_batch({"title": "a", **names}, {"title": "b"}) for holder in (admin, email, sms)]
    assert [answer.status_code for answer in answers] == [201, 201, 201]
    assert len({event["id"] for answer in answers for event in answer.json()["events"]}) == 6


@pytest.mark.parametrize("name", ["idempotency_key", "event_id"])
async def test_a_repeat_is_found_in_its_own_scope_also_with_a_new_token(
    guarded: Desk, tokens: TokenFile, email: Holder, name: str
) -> None:
    first = (await email.publish("mine", **SAME_NAMES[name])).json()["id"]
    rotated = Holder(guarded, tokens, "email")
    assert (await rotated.publish("again", **SAME_NAMES[name])).json()["id"] == first
    batch = (await rotated.publish_batch({"title": "again", **SAME_NAMES[name]})).json()["events"]
    assert [event["id"] for event in batch] == [first]


async def test_an_answer_does_not_tell_whether_a_name_is_taken(email: Holder, sms: Holder, admin: Holder) -> None:
    """Whoever asks with a name that others use sees what who asks with a fresh one sees."""
    await admin.publish("secret", **SAME_NAMES["idempotency_key"])
    stored = await admin.whole("secret", **SAME_NAMES["event_id"])
    theirs = await sms.whole("secret", event_id=ID, idempotency_key="k")
    for known in (ID, stored["event_id"], theirs["event_id"]):
        fresh = known[:-1] + "f"
        for names in ({"event_id": known}, {"parent_id": known}):
            taken = await email.publish("mine", **names)
            free = await email.publish("mine", **dict.fromkeys(names, fresh))
            assert taken.status_code == free.status_code
            assert taken.json().keys() == free.json().keys()


async def test_the_head_of_one_tenants_line_blocks_nobody_else(email: Holder, sms: Holder, admin: Holder) -> None:
    line = SAME_NAMES["ordering_key"]
    await email.publish("never claimed", **line)
    second = (await email.publish("behind it", **line)).json()["id"]
    theirs = (await sms.publish("mine", **line)).json()["id"]
    admins = (await admin.publish("mine", **line)).json()["id"]
    assert [claim["id"] for claim in await sms.claimed()] == [theirs]
    ids = [claim["id"] for claim in await admin.claimed()]
    assert admins in ids
    assert second not in ids, "the order within a tenant's own line holds"


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


async def test_a_tenant_cannot_hang_a_child_under_anothers_event(email: Holder, sms: Holder, admin: Holder) -> None:
    for stranger in (await admin.whole("parent"), await sms.whole("parent"), await sms.whole("parent", event_id=ID)):
        answer = await email.publish("child", parent_id=stranger["event_id"])
        assert answer.status_code == 400
        assert "parent_id" in answer.json()["detail"]
        batch = await email.publish_batch({"title": "child", "parent_id": stranger["event_id"]}, {"title": "x"})
        assert batch.status_code == 400
    assert (await email.get("/stats")).json()["pending"] == 0


async def test_a_tenant_names_its_own_parents_by_the_id_it_sent_or_the_id_it_sees(email: Holder) -> None:
    mine = await email.whole("parent", event_id=ID)
    assert (await email.whole("child", parent_id=ID))["parent_id"] == mine["event_id"]
    assert (await email.whole("child", parent_id=mine["event_id"]))["parent_id"] == mine["event_id"]
    other = ID[:-1] + "1"
    batch = await email.publish_batch({"title": "parent", "event_id": other}, {"title": "child", "parent_id": other})
    parent, child = batch.json()["events"]
    assert child["parent_id"] == parent["event_id"]


async def test_tokens_of_two_buses_do_not_share_event_ids(guarded: Desk, tokens: TokenFile, admin: Holder) -> None:
    """Stores keep keys by bus, but an ``event_id`` is one for all of them."""
    await admin.publish("mine", event_id=ID)
    shop, mail = (Holder(guarded, tokens, buses=(bus,)) for bus in ("shop", "mail"))
    first = await shop.publish("mine", event_id=ID, bus="shop")
    second = await mail.publish("mine", event_id=ID, bus="mail")
    assert (first.status_code, second.status_code) == (201, 201)
    assert (await shop.publish("again", event_id=ID, bus="shop")).json()["id"] == first.json()["id"]


@pytest.mark.parametrize("name", ["idempotency_key", "ordering_key"])
async def test_the_longest_key_of_a_tenant(email: Holder, admin: Holder, name: str) -> None:
    def named(length: int) -> dict[str, Any]:
        return {name: "k" * length} if name == "idempotency_key" else {"metadata": {name: "k" * length}}

    assert (await email.publish("just", **named(MAX_KEY_CHARS))).status_code == 201
    refused = await email.publish("too long", **named(MAX_KEY_CHARS + 1))
    assert refused.status_code == 400
    assert str(MAX_KEY_CHARS) in refused.json()["detail"]
    assert (await admin.publish("no limit but the store's", **named(255))).status_code == 201


async def test_an_admin_who_imitates_a_scope_shows_a_tenant_nothing(email: Holder, admin: Holder) -> None:
    await email.publish("mine", **SAME_NAMES["idempotency_key"])
    (mine,) = [claim["event"] for claim in await admin.claimed()]
    await email.post(f"/events/{mine['id']}/complete", {"worker_id": "untenanted:1"})
    other = await admin.whole("secret", bus="other", idempotency_key=mine["idempotency_key"])
    assert other["id"] != mine["id"]
    answer = await email.publish("mine", bus="other", **SAME_NAMES["idempotency_key"])
    assert answer.status_code == 409
    assert "secret" not in answer.text
