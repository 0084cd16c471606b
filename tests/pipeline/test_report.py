"""The report: one file, nothing to load, charts that say what the tables say."""

import re
from datetime import UTC, datetime

import pytest

from durabus.pipeline.charts import Bar, Series, bar_chart, line_chart, nice_ceiling, short
from durabus.pipeline.lake import Lake
from durabus.pipeline.report import duration, report

NOW = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


async def test_a_lake_without_analytics_says_what_to_do(lake: Lake) -> None:
    from durabus.errors import PipelineError

    with pytest.raises(PipelineError, match=r"has no table .*: `durabus pipeline run` makes it"):
        report(lake, made_at=NOW)


def test_a_line_chart_stays_inside_its_frame() -> None:
    chart = line_chart([Series("a", "blue", [(0.0, 0.0), (60.0, 7.0), (120.0, 3.0)])], title="T")
    points = [tuple(map(float, pair)) for pair in re.findall(r"[ML]([\d.]+) ([\d.]+)", chart)]
    assert points
    assert all(64 <= x <= 848 and 12 <= y <= 232 for x, y in points)


@pytest.mark.parametrize("draw", [lambda: line_chart([], title="T"), lambda: bar_chart([], title="T")])
def test_a_chart_without_data_says_so(draw: object) -> None:
    assert "T: nothing to show yet" in draw()  # type: ignore[operator]


def test_bars_are_as_long_as_their_values() -> None:
    chart = bar_chart([Bar("a", [("red", 10.0)], "ten"), Bar("b", [("red", 5.0)], "five")], title="T")
    widths = [float(width) for width in re.findall(r'<rect[^>]* width="([\d.]+)"', chart)]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.1)


@pytest.mark.parametrize(
    ("value", "ceiling"), [(1.0, 1.0), (1.1, 2.0), (7, 10.0), (23, 25.0), (260, 500.0), (0.03, 0.05)]
)
def test_an_axis_ends_at_a_round_number(value: float, ceiling: float) -> None:
    assert nice_ceiling(value) == pytest.approx(ceiling)


@pytest.mark.parametrize(("number", "text"), [(0, "0"), (999, "999"), (1500, "1.5k"), (2_000_000, "2M")])
def test_numbers_are_short(number: float, text: str) -> None:
    assert short(number) == text


@pytest.mark.parametrize(
    ("ms", "text"), [(12.34, "12.3 ms"), (1500, "1.5 s"), (180_000, "3 min"), (7_200_000 * 2, "4 h")]
)
def test_spans_are_said_in_a_fitting_unit(ms: float, text: str) -> None:
    assert duration(ms) == text
