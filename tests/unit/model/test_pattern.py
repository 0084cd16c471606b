"""Event type globs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from durabus.errors import InvalidEventError
from durabus.model.limits import MAX_NAME_CHARS
from durabus.model.pattern import check_pattern, check_type, matches

SEED_TABLE = [
    ("user.created", ["user.created"], ["user.updated"]),
    ("user.*", ["user.created", "user.updated"], ["order.created"]),
    ("*", ["user.created", "user", "a.b.c.d", "", "."], []),
    ("order.*.shipped", ["order.123.shipped"], ["order.shipped"]),
]
NAMES = st.text("ab.*", max_size=12)


def slowly(pattern: str, event_type: str) -> bool:
    """Match the pattern by a regular expression."""
    if pattern == "*":
        return True
    segments = ("[^.]*" if segment == "*" else re.escape(segment) for segment in pattern.split("."))
    return re.fullmatch(r"\.".join(segments), event_type, re.DOTALL) is not None


@pytest.mark.parametrize(("pattern", "event_type"), [(pattern, name) for pattern, yes, _ in SEED_TABLE for name in yes])
def test_the_table_of_globs_matches(pattern: str, event_type: str) -> None:
    assert matches(pattern, event_type)


@pytest.mark.parametrize(("pattern", "event_type"), [(pattern, name) for pattern, _, no in SEED_TABLE for name in no])
def test_the_table_of_globs_does_not_match(pattern: str, event_type: str) -> None:
    assert not matches(pattern, event_type)


@pytest.mark.parametrize(
    ("pattern", "event_type"),
    [
        ("user.*", "user"),
        ("user.*", "user.created.twice"),
        ("*.created", "created"),
        ("*.*", "user"),
        ("*.*", "a.b.c"),
        ("User.*", "user.created"),
        ("user", "user.created"),
        ("user.created", "user"),
    ],
)
def test_a_star_stands_for_exactly_one_segment(pattern: str, event_type: str) -> None:
    assert not matches(pattern, event_type)


@pytest.mark.parametrize("pattern", ["user.cr*", "us*.created", "**", "user.**", "user.?reated", "user.[c]reated"])
def test_nothing_else_is_a_wildcard(pattern: str) -> None:
    assert not matches(pattern, "user.created")
    assert matches(pattern, pattern)


@given(NAMES, NAMES)
@example("*.a", ".a")
@example("a.*", "a.")
def test_every_pattern_matches_what_the_slow_way_matches(pattern: str, event_type: str) -> None:
    assert matches(pattern, event_type) is slowly(pattern, event_type)


@given(st.lists(st.text("ab", max_size=3), min_size=1, max_size=6), st.data())
def test_a_star_may_replace_any_segment(segments: list[str], data: st.DataObject) -> None:
    stars = data.draw(st.lists(st.booleans(), min_size=len(segments), max_size=len(segments)))
    pattern = ".".join("*" if star else segment for segment, star in zip(segments, stars, strict=True))
    assert matches(pattern, ".".join(segments))


def test_a_hostile_pattern_costs_linear_time() -> None:
    segments = 200_000
    pattern, event_type = "*." * segments + "x", "a." * segments + "y"
    started = time.perf_counter()
    assert not matches(pattern, event_type)
    assert time.perf_counter() - started < 2, "a matcher that backtracks would need hours"


@pytest.mark.parametrize("pattern", ["*", "user.*", "order.*.shipped", "a" * MAX_NAME_CHARS])
def test_a_pattern_is_a_name(pattern: str) -> None:
    assert check_pattern(pattern) == pattern


@pytest.mark.parametrize("pattern", ["", "a" * (MAX_NAME_CHARS + 1), "a\nb", "\ud800", None, 7], ids=ascii)
def test_a_pattern_that_is_no_name_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidEventError, match="pattern"):
        check_pattern(pattern)


@pytest.mark.parametrize("segment", [">", "#", "+", "?", "%", "**"])
def test_a_wildcard_of_another_system_is_refused_with_ours(segment: str) -> None:
    with pytest.raises(InvalidEventError, match=r"is no wildcard here.*'order\.\*'"):
        check_pattern(f"order.{segment}")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("a..b", "a.b"), (".a", "a"), ("a.", "a"), ("order placed", "order_placed"), ("order.placed ", "order.placed")],
)
@pytest.mark.parametrize("check", [check_pattern, check_type])
def test_empty_segments_and_spaces_are_refused_with_what_was_meant(
    check: Callable[[str], str], name: str, meant: str
) -> None:
    with pytest.raises(InvalidEventError, match=f"Did you mean {meant!r}"):
        check(name)


@pytest.mark.parametrize(
    "name", ["order.placed", "ordre.passée", "EmailNotification", "a-b_c.1", "order/placed", "a>b"]
)
def test_what_separates_nothing_is_a_letter(name: str) -> None:
    assert (check_pattern(name), check_type(name)) == (name, name)
