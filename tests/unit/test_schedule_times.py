"""When schedules are due: cron expressions, time zones with clocks that are put back and forward, intervals."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durabus import ConfigurationError, InvalidEventError, InvalidPayloadError
from durabus.schedules.schedule import declare, state_id, tick_id
from durabus.schedules.timing import Cron, Interval, Timing, check_cron, check_every, newest_slot, zone

OSLO = "Europe/Oslo"
MINUTE = 60_000


def at(text: str) -> int:
    """The instant of a time in UTC."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def slots(cron: str, begin: str, end: str, tz: str = OSLO) -> list[str]:
    """The slots after ``begin`` until ``end``, all in UTC."""
    timing, found = Cron(cron, tz), list[str]()
    slot = timing.after(at(begin))
    while slot is not None and slot <= at(end):
        found.append(datetime.fromtimestamp(slot / 1000, UTC).strftime("%d %H:%M"))
        slot = timing.after(slot)
    return found


def test_slots_follow_the_time_zone() -> None:
    assert slots("0 9 * * MON-FRI", "2026-01-02T12:00", "2026-01-06T12:00") == ["05 08:00", "06 08:00"]
    assert slots("0 9 * * *", "2026-07-02T12:00", "2026-07-04T12:00") == ["03 07:00", "04 07:00"]


def test_a_fixed_time_that_the_clock_skips_moves_to_the_end_of_the_gap() -> None:
    """In Oslo, 2026-03-29 has no time from 02:00 to 03:00, which is 01:00 in UTC."""
    assert slots("30 2 * * *", "2026-03-28T12:00", "2026-03-31T12:00") == ["29 01:00", "30 00:30", "31 00:30"]
    assert slots("0 2,3 * * *", "2026-03-28T12:00", "2026-03-30T00:30") == ["29 01:00", "30 00:00"]


def test_a_fixed_time_that_comes_twice_is_due_the_first_time_only() -> None:
    """In Oslo, 2026-10-25 has the times from 02:00 to 03:00 twice: from 00:00 and from 01:00 in UTC."""
    assert slots("30 2 * * *", "2026-10-24T12:00", "2026-10-26T12:00") == ["25 00:30", "26 01:30"]


@pytest.mark.parametrize("begin", ["2026-10-25T00:30", "2026-10-25T00:45", "2026-10-25T01:10", "2026-10-25T01:45"])
def test_a_fixed_time_is_not_due_again_for_a_schedule_that_begins_in_the_second_pass(begin: str) -> None:
    assert slots("30 2 * * *", begin, "2026-10-26T12:00") == ["26 01:30"]


def test_times_with_a_star_follow_the_time_that_has_passed() -> None:
    gap = slots("*/30 * * * *", "2026-03-29T00:00", "2026-03-29T02:00")
    assert gap == ["29 00:30", "29 01:00", "29 01:30", "29 02:00"]
    twice = slots("0 * * * *", "2026-10-24T23:00", "2026-10-25T02:00")
    assert twice == ["25 00:00", "25 01:00", "25 02:00"]


@pytest.mark.parametrize(
    ("cron", "place"),
    [
        ("61 * * * *", "'61' at character 1 is no minute"),
        ("0 24 * * *", "'24' at character 3 is no hour"),
        ("0 0 32 * *", "'32' at character 5 is no day of month"),
        ("0  0 1,x,3 * *", "'x' at character 8 is no day of month"),
        ("0 0 1 FOO *", "'FOO' at character 7 is no month"),
        ("0 0 * * 1-9", "'1-9' at character 9 is no day of week"),
        ("*/0 * * * *", "'\\*/0' at character 1 is no minute"),
        ("1,,2 * * * *", "'' at character 3 is no minute"),
        ("* * * *", "has 4 fields, and must have 5"),
        ("* * * * * *", "has 6 fields, and must have 5"),
        ("", "has 0 fields"),
        ("0 0 30 2 *", "no date matches the day '30' at character 5 in the month '2'"),
        ("* " * 200, "must be a text of at most 255 characters"),
    ],
)
def test_a_bad_expression_is_refused_with_the_position(cron: str, place: str) -> None:
    with pytest.raises(ConfigurationError, match=place):
        check_cron(cron)


@pytest.mark.parametrize("cron", ["0 0 29 2 *", "0 0 L * *", "0 0 * * MON#1", "5,10-20/2 */3 * JAN-mar 7"])
def test_what_the_parser_knows_is_accepted(cron: str) -> None:
    assert check_cron(cron) == cron


@pytest.mark.parametrize("tz", ["Europe/Olso", "../etc/passwd", "Europe", "", "CEST2", "\0", 5, None])
def test_a_zone_that_does_not_exist_is_refused(tz: Any) -> None:
    with pytest.raises(ConfigurationError, match="is no time zone"):
        zone(tz)


def test_the_error_of_a_zone_names_one_that_is_alike() -> None:
    with pytest.raises(ConfigurationError, match="'Europe/Oslo' meant"):
        zone("Europe/Olso")


@pytest.mark.parametrize("every", [0, -1, 0.05, float("nan"), float("inf"), "1", True, None, 1e12])
def test_an_interval_outside_the_limits_is_refused(every: Any) -> None:
    with pytest.raises(ConfigurationError, match="every"):
        check_every(every)


def test_an_interval_keeps_its_beginning() -> None:
    timing = Interval(30_000, 1_000)
    assert [timing.after(instant) for instant in (0, 999, 1_000, 31_001)] == [1_000, 1_000, 31_000, 61_000]


TIMINGS: list[Timing] = [
    Interval(30_000, 7),
    Cron("*/5 * * * *", OSLO),
    Cron("30 2 * * *", OSLO),
    Cron("0 0 29 2 *", "UTC"),
    Cron("0 12 1 1,7 *", "America/New_York"),
]


@settings(deadline=None, max_examples=60)
@given(
    timing=st.sampled_from(TIMINGS), begin=st.integers(0, 2**41), steps=st.integers(0, 50), more=st.integers(0, 10**9)
)
def test_the_newest_slot_is_the_one_that_counting_finds(timing: Timing, begin: int, steps: int, more: int) -> None:
    first = timing.after(begin)
    assert first is not None
    now = slot = first
    for _ in range(steps):
        now = timing.after(now) or now
    now += min(more, 40 * MINUTE)
    while (following := timing.after(slot)) is not None and following <= now:
        slot = following
    assert newest_slot(timing, first, now) == slot


def test_ids_are_made_of_bus_name_and_slot_or_number() -> None:
    ids = {tick_id(bus, name, slot) for bus in "ab" for name in "cd" for slot in (1_000, 2_000)}
    ids |= {state_id(bus, name, number) for bus in "ab" for name in "cd" for number in (1_000, 2_000)}
    assert len(ids) == 16
    assert tick_id("a", "b", 5) == tick_id("a", "b", 5)
    assert tick_id("a", "b", at("2026-01-01T00:00"))[14] == "7"


@pytest.mark.parametrize(
    ("given_", "error"),
    [
        ({"name": ""}, InvalidEventError),
        ({"name": "n" * 201}, InvalidEventError),
        ({"event_type": "a.*"}, InvalidEventError),
        ({"payload": object()}, InvalidPayloadError),
        ({"payload": "x" * 600_000}, InvalidPayloadError),
        ({"catch_up": "two"}, ConfigurationError),
        ({"overlap": "join"}, ConfigurationError),
        ({"catch_up": "all", "overlap": "skip"}, ConfigurationError),
        ({"tags": ["a,b"]}, InvalidEventError),
        ({"priority": 5_000}, InvalidEventError),
        ({"tz": "Mars"}, ConfigurationError),
        ({"when": "x"}, ConfigurationError),
        ({"when": 0}, ConfigurationError),
    ],
)
def test_a_wrong_declaration_is_refused(given_: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        declare(**{"name": "n", "when": 1.0, "event_type": "a.b", **given_})
