"""Limits on names, tags, priorities, batches and durations."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from durabus.errors import ConfigurationError, InvalidEventError
from durabus.model.limits import (
    MAX_BATCH,
    MAX_DEPTH,
    MAX_NAME_CHARS,
    MAX_PAYLOAD_BYTES,
    MAX_PRIORITY,
    MAX_SECONDS,
    MAX_TAG_CHARS,
    MAX_TAGS,
    check_batch,
    check_name,
    check_priority,
    check_tags,
    seconds,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, 0.0), (1, 1.0), (0.25, 0.25), (timedelta(0), 0.0), (timedelta(minutes=2, milliseconds=1), 120.001)],
)
def test_a_duration_is_float_seconds(value: float | timedelta, expected: float) -> None:
    number = seconds(value, "delay")
    assert number == expected
    assert type(number) is float


def test_a_hundred_years_are_the_longest_duration() -> None:
    assert seconds(MAX_SECONDS, "delay") == MAX_SECONDS
    with pytest.raises(ConfigurationError, match="delay is too long: the limit is 3155760000 seconds"):
        seconds(timedelta.max, "delay")


@pytest.mark.parametrize(
    "value", [-1, -0.001, float("nan"), float("inf"), float("-inf"), timedelta(seconds=-1)], ids=str
)
def test_a_negative_or_infinite_duration_is_refused(value: float | timedelta) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"lease={value!r}: must be 0 or more seconds and finite")):
        seconds(value, "lease")


def test_an_integer_too_large_for_a_float_is_no_duration() -> None:
    with pytest.raises(ConfigurationError, match="lease"):
        seconds(10**400, "lease")


@pytest.mark.parametrize("value", [True, "5", None, [5], b"5"], ids=repr)
def test_a_duration_that_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=re.escape(f"lease={value!r}: must be seconds (a number) or a timedelta")
    ):
        seconds(value, "lease")


@pytest.mark.parametrize("value", [0, 0.0, timedelta(0)])
def test_zero_is_refused_where_it_makes_no_sense(value: float | timedelta) -> None:
    with pytest.raises(ConfigurationError, match="must be more than 0 seconds"):
        seconds(value, "lease", allow_zero=False)


@pytest.mark.parametrize("value", ["a", "order.placed", "Grüße 😀", "x" * MAX_NAME_CHARS, "a b"])
def test_a_printable_name_is_taken_as_it_is(value: str) -> None:
    assert check_name(value, "bus") == value


@pytest.mark.parametrize("value", ["a\nb", "\x00", "tab\t", "\u200b", "\ud800", "\x7f", "\u2028"], ids=ascii)
def test_a_name_with_invisible_characters_is_refused(value: str) -> None:
    with pytest.raises(InvalidEventError, match=re.escape(f"bus={value!r}: control characters")):
        check_name(value, "bus")


def test_an_empty_name_is_refused_with_the_limit() -> None:
    with pytest.raises(InvalidEventError, match=f"bus is empty: it must have 1 to {MAX_NAME_CHARS} characters"):
        check_name("", "bus")


def test_a_name_that_is_too_long_is_refused_with_its_length_its_beginning_and_the_limit() -> None:
    with pytest.raises(InvalidEventError, match=f"bus has 256 characters.*xxx.*limit is {MAX_NAME_CHARS}") as caught:
        check_name("x" * 256, "bus")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", [None, 7, b"bus", ["bus"]], ids=repr)
def test_a_name_that_is_no_string_is_refused_with_its_type(value: Any) -> None:
    with pytest.raises(InvalidEventError, match=f"must be a string, not {type(value).__name__}"):
        check_name(value, "bus")


def test_tags_keep_their_order_and_lose_doubles() -> None:
    assert check_tags(["b", "a", "b", "c", "a"]) == ("b", "a", "c")


@pytest.mark.parametrize(
    "tags", [["a", "b"], ("a", "b"), {"a": 1, "b": 2}, iter(["a", "b"])], ids=lambda t: type(t).__name__
)
def test_tags_may_come_from_anything_that_can_be_walked(tags: Any) -> None:
    assert check_tags(tags) == ("a", "b")


def test_tags_are_counted_without_doubles() -> None:
    most = [f"tag{n}" for n in range(MAX_TAGS)]
    assert check_tags(most + most) == tuple(most)
    with pytest.raises(InvalidEventError, match=f"33 tags: the limit is {MAX_TAGS}"):
        check_tags([*most, "one more"])


def test_a_tag_has_a_longest_length() -> None:
    assert check_tags(["x" * MAX_TAG_CHARS]) == ("x" * MAX_TAG_CHARS,)
    with pytest.raises(InvalidEventError, match=f"at most {MAX_TAG_CHARS} characters"):
        check_tags(["x" * (MAX_TAG_CHARS + 1)])


@pytest.mark.parametrize("tag", ["a,b", " a", "a ", ","], ids=repr)
def test_a_tag_with_a_comma_or_space_around_it_is_refused(tag: str) -> None:
    with pytest.raises(InvalidEventError, match=re.escape(f"tag={tag!r}") + ".*no comma, no space"):
        check_tags([tag])


@pytest.mark.parametrize("tag", ["", "a\n", 7, None, ["a"], {"a": 1}], ids=repr)
def test_a_tag_that_is_no_name_is_refused(tag: Any) -> None:
    with pytest.raises(InvalidEventError, match="tag"):
        check_tags([tag])


def test_one_string_is_not_taken_for_a_list_of_letters() -> None:
    with pytest.raises(InvalidEventError, match="tags='vip': must be a list of strings, not one string"):
        check_tags("vip")


@pytest.mark.parametrize("tags", [5, 1.5, object()], ids=["int", "float", "object"])
def test_tags_that_cannot_be_walked_are_refused(tags: Any) -> None:
    with pytest.raises(InvalidEventError, match="tags="):
        check_tags(tags)


@pytest.mark.parametrize("priority", [0, 1, -1, MAX_PRIORITY, -MAX_PRIORITY])
def test_a_priority_within_its_limits_is_taken(priority: int) -> None:
    assert check_priority(priority) == priority


@pytest.mark.parametrize("priority", [MAX_PRIORITY + 1, -MAX_PRIORITY - 1, 1.5, True, "1", None], ids=repr)
def test_a_priority_outside_its_limits_is_refused_with_value_and_limits(priority: Any) -> None:
    with pytest.raises(InvalidEventError, match=re.escape(f"priority={priority!r}") + ".*from -1000 to 1000"):
        check_priority(priority)


@pytest.mark.parametrize("size", [1, 2, MAX_BATCH])
def test_a_batch_within_its_limits_is_taken(size: int) -> None:
    assert check_batch(size) == size


@pytest.mark.parametrize("size", [0, -1, MAX_BATCH + 1, 1.0, True, "1", None], ids=repr)
def test_a_batch_outside_its_limits_is_refused_with_option_value_and_limits(size: Any) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"page={size!r}") + ".*from 1 to 10000"):
        check_batch(size, "page")


def test_the_limits_are_the_documented_ones() -> None:
    assert (MAX_PAYLOAD_BYTES, MAX_NAME_CHARS, MAX_DEPTH) == (1_048_576, 255, 64)
    assert (MAX_TAGS, MAX_TAG_CHARS, MAX_PRIORITY, MAX_BATCH) == (32, 64, 1_000, 10_000)
