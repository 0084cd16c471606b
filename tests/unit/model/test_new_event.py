"""``new_event`` checks the values of a publisher before anything is stored."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from msgspec.structs import replace

from durabus.errors import ConfigurationError, DurabusError, InvalidEventError, InvalidPayloadError
from durabus.lifecycle.transition import publish
from durabus.model.event import DEFAULT_BUS, NewEvent, check_event_id, expires_after_of, new_event, new_event_id

EVENT_ID = "0190a000-0000-7000-8000-000000000007"


def test_only_the_type_is_needed() -> None:
    new = new_event("order.placed", event_id=EVENT_ID)
    assert new == NewEvent(event_id=EVENT_ID, bus=DEFAULT_BUS, type="order.placed", payload_json="null")


def test_everything_else_is_checked_and_encoded() -> None:
    new = new_event(
        "order.placed",
        {"order_id": 7},
        bus="orders",
        event_id=EVENT_ID,
        metadata={"source": "web"},
        tags=["vip", "eu", "vip"],
        priority=-5,
        delay=timedelta(minutes=1),
        max_attempts=3,
        parent_id=EVENT_ID,
        idempotency_key="order-7",
    )
    assert new == NewEvent(
        event_id=EVENT_ID,
        bus="orders",
        type="order.placed",
        payload_json='{"order_id":7}',
        metadata_json='{"source":"web"}',
        tags=("vip", "eu"),
        priority=-5,
        delay=60.0,
        max_attempts=3,
        parent_id=EVENT_ID,
        idempotency_key="order-7",
    )


def test_no_metadata_and_empty_metadata_are_the_same() -> None:
    assert new_event("a", metadata={}).metadata_json is None


def test_an_event_id_is_a_uuid_of_version_7_and_sorts_by_time() -> None:
    ids = [new_event("a").event_id for _ in range(100)]
    assert {uuid.UUID(event_id).version for event_id in ids} == {7}
    assert ids == sorted(set(ids))


def test_a_made_event_id_passes_its_own_check() -> None:
    made = new_event_id()
    assert check_event_id(made) == made


@pytest.mark.parametrize("field", ["event_id", "parent_id"])
@pytest.mark.parametrize(
    "bad",
    [
        "",
        "7",
        "order-7",
        EVENT_ID.upper(),
        EVENT_ID.replace("-", ""),
        f"{{{EVENT_ID}}}",
        f"{EVENT_ID}\n",
        f" {EVENT_ID}",
        EVENT_ID.replace("0", "g"),
        EVENT_ID.replace("0", "\u0660"),
        7,
        uuid.UUID(EVENT_ID),
        b"0190a000-0000-7000-8000-000000000007",
    ],
    ids=ascii,
)
def test_an_id_that_is_no_canonical_uuid_is_refused_with_value_and_remedy(field: str, bad: Any) -> None:
    expected = re.escape(f"event_id={bad!r}: must be a UUID in canonical lower-case form")
    with pytest.raises(InvalidEventError, match=expected):
        new_event("order.placed", **{field: bad})


@pytest.mark.parametrize("version", [1, 4, 7])
def test_an_id_may_be_a_uuid_of_any_version(version: int) -> None:
    event_id = str(uuid.UUID(int=7, version=version) if version < 6 else uuid.UUID(EVENT_ID))
    assert new_event("a", event_id=event_id).event_id == event_id


@pytest.mark.parametrize("bad", [0, -1, 1.5, "3", True], ids=repr)
def test_a_limit_of_attempts_below_one_is_refused(bad: Any) -> None:
    with pytest.raises(
        InvalidEventError, match=re.escape(f"max_attempts={bad!r}: must be a whole number of 1 or more")
    ):
        new_event("a", max_attempts=bad)


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"event_type": ""}, InvalidEventError, "event type"),
        ({"event_type": "a\nb"}, InvalidEventError, "event type"),
        ({"event_type": None}, InvalidEventError, "event type"),
        ({"bus": ""}, InvalidEventError, "bus"),
        ({"idempotency_key": ""}, InvalidEventError, "idempotency_key"),
        ({"idempotency_key": "k" * 256}, InvalidEventError, "idempotency_key"),
        ({"tags": "vip"}, InvalidEventError, "tags"),
        ({"tags": ["a,b"]}, InvalidEventError, "tag"),
        ({"priority": 1001}, InvalidEventError, "priority"),
        ({"delay": -1}, ConfigurationError, "delay"),
        ({"delay": float("nan")}, ConfigurationError, "delay"),
        ({"payload": {1: 2}}, InvalidPayloadError, "payload"),
        ({"metadata": {"raw": b""}}, InvalidPayloadError, "metadata"),
    ],
    ids=str,
)
def test_a_bad_field_is_refused_by_name(options: dict[str, Any], error: type[DurabusError], named: str) -> None:
    with pytest.raises(error, match=named):
        new_event(**{"event_type": "order.placed"} | options)


@pytest.mark.parametrize("metadata", ["web", ["source"], 7], ids=repr)
def test_metadata_that_is_no_mapping_is_refused(metadata: Any) -> None:
    with pytest.raises(DurabusError, match="metadata"):
        new_event("order.placed", metadata=metadata)


def test_at_becomes_a_delay() -> None:
    due = datetime.now(timezone(timedelta(hours=9))) + timedelta(hours=2)  # clock: the publisher's own
    assert new_event("t", at=due).delay == pytest.approx(7200, abs=30)
    assert new_event("t", at=due - timedelta(days=1)).delay == 0


def test_an_expiry_becomes_a_duration_in_the_metadata() -> None:
    for expires in (90, timedelta(seconds=90)):
        assert new_event("t", metadata={"a": 1}, expires=expires).metadata_json == '{"a":1,"expires_after":90.0}'
    until = datetime.now(UTC) + timedelta(seconds=90)  # clock: the publisher's own
    after = expires_after_of(new_event("t", expires=until).metadata_json or "")
    assert after == pytest.approx(90, abs=30)
    assert new_event("t", expires=90, delay=60).delay == 60


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"at": datetime(2030, 1, 31)}, "has no time zone"),  # noqa: DTZ001  (this is what is refused)
        ({"expires": datetime(2030, 1, 31)}, "has no time zone"),  # noqa: DTZ001
        ({"at": 5}, "must be an aware datetime"),
        ({"at": "2030-01-31T09:00:00Z"}, "must be an aware datetime"),
        ({"at": datetime(2030, 1, 31, tzinfo=UTC), "delay": 5}, "give only one of them"),
        ({"expires": 0}, "must be more than 0 seconds"),
        ({"expires": -1}, "must be more than 0 seconds"),
        ({"expires": timedelta(0)}, "must be more than 0 seconds"),
        ({"expires": float("nan")}, "must be more than 0 seconds"),
        ({"expires": "soon"}, "must be seconds"),
        ({"expires": True}, "must be seconds"),
        ({"expires": datetime(2020, 1, 31, tzinfo=UTC)}, "this instant is past"),
        ({"expires": datetime(9999, 1, 31, tzinfo=UTC)}, "a hundred years"),
        ({"at": datetime(9999, 1, 31, tzinfo=UTC)}, "a hundred years"),
        ({"expires": 60, "delay": 60}, "no worker could begin it"),
        ({"metadata": {"expires_after": "soon"}}, "expires_after='soon'"),
        ({"metadata": {"expires_after": True}}, "expires_after=True"),
    ],
)
def test_bad_times_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(DurabusError, match=text):
        new_event("t", **options)


@pytest.mark.parametrize(
    ("picked", "late"), [(None, False), (1000.0, False), (1089.9, False), (1090.0, True), (2000.0, True)]
)
def test_an_event_has_expired_if_it_was_claimed_too_late(picked: float | None, late: bool) -> None:
    made = publish(new_event("t", expires=90), 7, 1000.0).state.event
    assert replace(made, picked_ts=picked).has_expired is late
    assert not replace(made, picked_ts=picked, metadata_json=None).has_expired
