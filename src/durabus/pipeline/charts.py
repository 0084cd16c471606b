"""Static SVG charts without a script and without a library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

import msgspec

WIDTH, HEIGHT = 860, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 28
BAR, GAP = 22, 10
LABEL = 250


class Series(msgspec.Struct, frozen=True):
    """A named line: values over instants (seconds). ``style`` is a class of the page's stylesheet."""

    name: str
    style: str
    points: list[tuple[float, float]]


class Bar(msgspec.Struct, frozen=True):
    """A labelled bar of one or more values. The shorter values are drawn over the longer ones."""

    label: str
    values: list[tuple[str, float]]
    """(style, value)"""
    note: str


def line_chart(series: Sequence[Series], *, unit: str = "", title: str) -> str:
    """Lines over time."""
    points = [point for one in series for point in one.points]
    if not points:
        return _nothing(title)
    start, end = min(at for at, _ in points), max(at for at, _ in points)
    top = nice_ceiling(max(1.0, *(value for _, value in points)))
    span = (end - start) or 1.0

    def place(at: float, value: float) -> tuple[float, float]:
        x = LEFT + (at - start) / span * (WIDTH - LEFT - RIGHT)
        y = TOP + (1 - max(value, 0.0) / top) * (HEIGHT - TOP - BOTTOM)
        return x, y

    parts = [_opening(WIDTH, HEIGHT, title), *_grid(top, unit), *_time_axis(start, end)]
    for one in series:
        spots = [place(at, value) for at, value in sorted(one.points)]
        path = " ".join(f"{'L' if n else 'M'}{x:.1f} {y:.1f}" for n, (x, y) in enumerate(spots))
        floor = HEIGHT - BOTTOM
        if len(spots) == 1:
            x, y = spots[0]
            parts.append(f'<circle class="dot {one.style}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
        else:
            parts.append(
                f'<path class="area {one.style}" d="{path} L{spots[-1][0]:.1f} {floor} L{spots[0][0]:.1f} {floor} Z"/>'
            )
            parts.append(f'<path class="line {one.style}" d="{path}"/>')
    return "".join([*parts, "</svg>", _legend([(one.style, one.name) for one in series])])


def bar_chart(bars: Sequence[Bar], legend: Sequence[tuple[str, str]] = (), *, title: str) -> str:
    """Horizontal bars, each with its label and a note."""
    if not bars:
        return _nothing(title)
    height = TOP + len(bars) * (BAR + GAP)
    longest = max((value for bar in bars for _, value in bar.values), default=0.0) or 1.0
    room = WIDTH - LABEL - 190
    parts = [_opening(WIDTH, height, title)]
    for number, bar in enumerate(bars):
        y = TOP + number * (BAR + GAP)
        label = bar.label if len(bar.label) <= 36 else f"{bar.label[:35]}…"  # noqa: PLR2004  (what fits)
        text = f"<title>{escape(bar.label)}</title>{escape(label)}"
        parts.append(f'<text class="label" x="{LABEL - 10}" y="{y + BAR - 6}">{text}</text>')
        for style, value in sorted(bar.values, key=lambda one: -one[1]):
            width = max(value / longest * room, 1.5 if value else 0.0)
            parts.append(f'<rect class="bar {style}" x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" rx="3"/>')
        widest = max((value for _, value in bar.values), default=0.0) / longest * room
        parts.append(f'<text class="note" x="{LABEL + widest + 8:.1f}" y="{y + BAR - 6}">{escape(bar.note)}</text>')
    return "".join([*parts, "</svg>", _legend(legend)])


def nice_ceiling(value: float) -> float:
    """Return the next larger of 1, 2, 2.5, 5, 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1.0, 2.0, 2.5, 5.0, 10.0) if step * power >= value - 1e-9)


def short(value: float) -> str:
    """Return a number as text for an axis, such as 1.5k."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{letter}"
    return f"{value:.3g}"


def _opening(width: int, height: int, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}" '
        'xmlns="http://www.w3.org/2000/svg">'
    )


def _grid(top: float, unit: str) -> list[str]:
    parts = []
    for quarter in range(5):
        y = TOP + (1 - quarter / 4) * (HEIGHT - TOP - BOTTOM)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="tick end" x="{LEFT - 8}" y="{y + 4:.1f}">{short(top * quarter / 4)}{escape(unit)}</text>'
        )
    return parts


def _time_axis(start: float, end: float) -> list[str]:
    span = end - start
    form = "%d %b" if span > 2 * 86_400 else "%H:%M" if span > 10 * 60 else "%H:%M:%S"
    parts = []
    for step in range(5):
        x = LEFT + step / 4 * (WIDTH - LEFT - RIGHT)
        text = datetime.fromtimestamp(start + (end - start) * step / 4, UTC).strftime(form)
        anchor = "start" if step == 0 else "end" if step == 4 else "middle"  # noqa: PLR2004  (the last of five)
        parts.append(f'<text class="tick" text-anchor="{anchor}" x="{x:.1f}" y="{HEIGHT - 8}">{text}</text>')
    return parts


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    if not entries:
        return ""
    items = "".join(f'<span><i class="{style}"></i>{escape(name)}</span>' for style, name in entries)
    return f'<p class="legend">{items}</p>'


def _nothing(title: str) -> str:
    return f'<p class="nothing">{escape(title)}: nothing to show yet</p>'
