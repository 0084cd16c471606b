"""Histograms of durations: exact counts in narrow classes, which merge by adding.

A histogram is a sorted array of (``from_us``, ``count``): the smallest duration of a class in microseconds, and the
number of durations in it. A class is at most 1/64 of its durations wide, so a percentile is off by less than 1 %.
Spark's KLL sketches choose values at random when they merge: an updated table would differ from a rebuilt one.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

HISTOGRAM = "ARRAY<STRUCT<from_us: BIGINT, count: BIGINT>>"
PARTS = 64
"""The number of classes from one power of two to the next. Durations below it have a class each."""


def class_of(microseconds: str) -> str:
    """Return SQL for the class of a duration: its smallest duration. One below zero counts as zero."""
    value = f"greatest(0L, {microseconds})"
    return f"CASE WHEN {value} < {PARTS} THEN {value} ELSE {value} - {value} % {_width(value)} END"


def merged(histogram: str) -> Column:
    """Return the aggregate that merges the histograms of a group. A class may occur several times in it."""
    return F.array_sort(F.flatten(F.collect_list(histogram)))


def percentile_ms(histogram: str, share: float) -> Column:
    """Return a percentile of a histogram in milliseconds; NULL if it is empty."""
    return F.expr(
        f"aggregate({histogram}, named_struct('rank', CAST(ceil({share}D * {_total(histogram)}) AS BIGINT), "
        f"'found', CAST(NULL AS BIGINT)), (state, one) -> named_struct('rank', state.rank - one.count, "
        f"'found', coalesce(state.found, CASE WHEN state.rank <= one.count THEN one.from_us END)), "
        f"state -> (state.found + {_half_width('state.found')}) / 1000D)"
    )


def count_within(histogram: str, milliseconds: float) -> Column:
    """Return how many durations are at most this long. A class counts as a whole, by its middle."""
    middle = f"one.from_us + {_half_width('one.from_us')}"
    return F.expr(
        f"aggregate(filter({histogram}, one -> {middle} <= {milliseconds * 1000:.0f}), 0L, (n, one) -> n + one.count)"
    )


def _total(histogram: str) -> str:
    return f"aggregate({histogram}, 0L, (n, one) -> n + one.count)"


def _half_width(value: str) -> str:
    return f"CASE WHEN {value} < {PARTS} THEN 0 ELSE {_width(value)} / 2 END"


def _width(value: str) -> str:
    """Return SQL for the width of the class of a duration of at least ``PARTS``: a power of two."""
    return f"shiftleft(1L, CAST(floor(log2({value})) AS INT) - {PARTS.bit_length() - 1})"
