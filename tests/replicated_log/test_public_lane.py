"""Events on the public lane: ours come back exactly, foreign ones by a written rule, and the rest is refused."""

import json
from typing import Any

import pytest
from tests.replicated_log.simulated_log import SimulatedLog
from tests.replicated_log.simulated_store import simulated_store

from durabus.model.event import DEFAULT_BUS, NewEvent, new_event, new_event_id
from durabus.stores.replicated_log.public_lane import NoEventError, arrival, public_record
from durabus.stores.replicated_log.records import DamagedRecordError, label
from durabus.stores.replicated_log.transport import BrokerRecord

ID = "0190f0e4-0000-7000-8000-000000000001"


def entry(
    body: Any, headers: dict[str, str] | None = None, *, type_: str = "order.placed", place: int = 5
) -> BrokerRecord:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return BrokerRecord((place,), 1.0, type_, headers or {}, data)


def full() -> NewEvent:
    return new_event(
        "order.placed_ü",
        {"n": 1, "text": "ü\n"},
        bus=" bus with spaces ",
        metadata={"traceparent": "00-abc-def-01", "source": "web"},
        tags=["eu", "vip"],
        priority=3,
        delay=1.5,
        max_attempts=4,
        parent_id=new_event_id(),
        idempotency_key="key",
    )


def test_an_event_comes_back_exactly() -> None:
    new = full()
    record = public_record(new, session="s", number=4, place=1, count=3)
    # NATS strips the spaces around header values.
    headers = {name: value.strip() for name, value in record.headers.items()}
    came, rest = arrival(BrokerRecord((1,), 1.0, record.type, headers, record.body))
    assert came == new
    assert rest is not None
    assert (rest.session, rest.number, rest.place, rest.count) == ("s", 4, 1, 3)


def test_the_body_is_the_payload_and_the_headers_say_the_rest() -> None:
    new = full()
    record = public_record(new, session="s", number=4, place=0, count=1)
    assert json.loads(record.body) == {"n": 1, "text": "ü\n"}
    assert record.headers["event_id"] == record.headers["ce_id"] == new.event_id
    assert record.headers["bus_id"] == new.bus
    assert record.headers["event_type"] == record.headers["ce_type"] == new.type
    assert record.headers["event_parent_id"] == new.parent_id
    assert record.headers["traceparent"] == "00-abc-def-01"


def test_a_foreign_event_needs_only_a_json_body() -> None:
    came, rest = arrival(entry({"n": 1}))
    assert rest is None
    assert (came.type, came.bus, came.payload_json) == ("order.placed", DEFAULT_BUS, '{"n":1}')
    again, _ = arrival(entry({"n": 1}))
    other, _ = arrival(entry({"n": 1}, place=6))
    assert came.event_id == again.event_id != other.event_id


def test_a_foreign_event_may_name_its_id_bus_and_type() -> None:
    headers = {"event_id": ID, "bus_id": "shop", "event_type": "order.paid", "event_parent_id": ID, "traceparent": "t"}
    came, _ = arrival(entry([1], headers))
    assert (came.event_id, came.bus, came.type, came.parent_id) == (ID, "shop", "order.paid", ID)
    assert came.metadata_json == '{"traceparent":"t"}'


@pytest.mark.parametrize("style", ["ce_", "ce-", "Ce-"])
def test_cloudevents_names_are_understood(style: str) -> None:
    headers = {f"{style}id": "A-17", f"{style}type": "order.paid", f"{style}source": "/shop"}
    came, _ = arrival(entry({}, headers, place=1))
    again, _ = arrival(entry({}, headers, place=2))
    assert came.type == "order.paid"
    assert came.event_id == again.event_id


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"", {}),
        (b"not json", {}),
        (b'{"n": NaN}', {}),
        (b'"\xff"', {}),
        (b"[" * 100_000, {}),
        (b"{}", {"event_type": "a*"}),
        (b"{}", {"bus_id": "x" * 256}),
        (b"{}", {"event_parent_id": "no uuid"}),
    ],
)
def test_what_cannot_be_an_event_is_refused(body: bytes, headers: dict[str, str]) -> None:
    with pytest.raises(NoEventError):
        arrival(entry(body, headers))


OURS = public_record(full(), session="s", number=4, place=0, count=1)
NO_PLACE = '{"session":"s","number":1,"place":1,"count":1,"event_id":"e","bus":"b","type":"t"}'


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (OURS.body + b" ", OURS.headers),
        (OURS.body, {**OURS.headers, "durabus": OURS.headers["durabus"].replace('"priority":3', '"priority":2')}),
        (OURS.body, {name: value for name, value in OURS.headers.items() if name != "durabus-crc"}),
        (OURS.body, {name: value for name, value in OURS.headers.items() if name != "durabus"}),
        (b"{}", {"durabus": "{", **label(b"{", b"{}")}),
        (b"\xff", {"durabus": OURS.headers["durabus"], **label(OURS.headers["durabus"].encode(), b"\xff")}),
        (b"{}", {"durabus": NO_PLACE, **label(NO_PLACE.encode(), b"{}")}),
    ],
)
def test_a_publish_of_durabus_that_is_not_as_it_was_written_is_damaged(body: bytes, headers: dict[str, str]) -> None:
    with pytest.raises(DamagedRecordError):
        arrival(entry(body, headers))


async def test_large_metadata_travels_apart_and_comes_back() -> None:
    log = SimulatedLog()
    store = simulated_store(log)
    await store.open()
    new = new_event("t", {"n": 1}, metadata={"text": "ü" * 50_000})
    (stored,) = await store.add_events([new])
    assert stored.metadata_json == new.metadata_json
    assert all(sum(map(len, entry.headers.values())) < 10_000 for entry in log.entries)
    late = simulated_store(log)
    await late.open()
    assert await late.get_event(stored.id) == stored
    await late.close()
    await store.close()
