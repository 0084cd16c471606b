"""Turns numbers into coordinates of small SVG charts. The templates draw them; this module makes no markup."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from durabus.http.dashboard.words import clock

WIDTH, HEIGHT = 600.0, 120.0
LABELS = 5
STEPS = (1, 1.5, 2, 3, 4, 5, 6, 8, 10)


class ChartLine(msgspec.Struct, frozen=True):
    """One line of a chart. ``points`` has one entry for each part without a gap."""

    name: str
    style: str
    points: tuple[str, ...]
    area: str
    newest: str


class ChartMark(msgspec.Struct, frozen=True):
    """A label or a tooltip at a place on the time axis."""

    x: float
    width: float
    text: str


class Chart(msgspec.Struct, frozen=True):
    """A chart, ready for the template."""

    title: str
    top: str
    half: str
    lines: tuple[ChartLine, ...]
    marks: tuple[ChartMark, ...]
    hints: tuple[ChartMark, ...]
    empty: bool


Values = Sequence[float | None]


def chart(
    title: str, begin: float, step: float, rows: Sequence[tuple[str, str, Values]], show: Callable[[float | None], str]
) -> Chart:
    """Make a chart. Each row has a name, a style and values; None is a gap."""
    count = len(rows[0][2])
    known = [value for _, _, values in rows for value in values if value is not None]
    top = round_up(max(known, default=0.0))
    return Chart(
        title=title,
        top=show(top),
        half=show(top / 2),
        lines=tuple(_line(name, style, values, top, show) for name, style, values in rows),
        marks=tuple(_mark(begin, step, count, n) for n in range(LABELS)),
        hints=tuple(
            ChartMark(n * WIDTH / count, WIDTH / count, f"{clock(begin + n * step)[:8]} UTC: {_tooltip(rows, n, show)}")
            for n in range(count)
        ),
        empty=not any(known),
    )


def round_up(value: float) -> float:
    """The next round number, so that the axis ends close above the highest point."""
    if value <= 0:
        return 1.0
    decade = 10.0 ** math.floor(math.log10(value))
    return next(decade * n for n in STEPS if decade * n >= value * 0.9999)


def _line(name: str, style: str, values: Values, top: float, show: Callable[[float | None], str]) -> ChartLine:
    width = WIDTH / len(values)
    stretches: list[list[tuple[float, float]]] = [[]]
    for n, value in enumerate(values):
        if value is None:
            stretches.append([])
        else:
            stretches[-1].append(((n + 0.5) * width, HEIGHT - min(value / top, 1.0) * HEIGHT))
    found = [_seen(stretch, width) for stretch in stretches if stretch]
    area = "".join(
        f"M{stretch[0][0]:.1f},{HEIGHT:.1f}L{_joined(stretch, 'L')}L{stretch[-1][0]:.1f},{HEIGHT:.1f}Z"
        for stretch in found
    )
    newest = next((value for value in reversed(values) if value is not None), None)
    return ChartLine(name, style, tuple(_joined(stretch, " ") for stretch in found), area, show(newest))


def _seen(stretch: list[tuple[float, float]], width: float) -> list[tuple[float, float]]:
    """Draw a single point as wide as its step: a line from a point to itself would be invisible."""
    if len(stretch) > 1:
        return stretch
    ((x, y),) = stretch
    return [(x - width / 2, y), (x + width / 2, y)]


def _joined(points: list[tuple[float, float]], by: str) -> str:
    return by.join(f"{x:.1f},{y:.1f}" for x, y in points)


def _mark(begin: float, step: float, count: int, n: int) -> ChartMark:
    share = n / (LABELS - 1)
    return ChartMark(share * WIDTH, 0, clock(begin + share * step * count)[:8])


def _tooltip(rows: Sequence[tuple[str, str, Values]], n: int, show: Callable[[float | None], str]) -> str:
    return ", ".join(f"{name} {show(values[n])}" for name, _, values in rows)
