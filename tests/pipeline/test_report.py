"""The data of the report: what ``gold.activity`` says, in few enough points, and the files that it is drawn with."""

import hashlib
import json
import re
from datetime import UTC, datetime, timedelta
from importlib.resources import files

import pytest
from pyspark.sql.types import StructType
from tests.pipeline.history import BEGIN, History

from durabus.errors import PipelineError
from durabus.pipeline import report_html
from durabus.pipeline.analytics import rebuild_activity
from durabus.pipeline.archive import bronze_end, event_log
from durabus.pipeline.lake import Lake
from durabus.pipeline.report import _slo_table, report
from durabus.pipeline.report_data import (
    COUNTERS,
    OTHERS,
    SHORT_ENTRIES,
    SHORT_MINUTES,
    SHOWN,
    Activity,
    percentiles,
    period_for,
    read_activity,
    report_periods,
)
from durabus.pipeline.report_html import Quantity, badge, html_page, html_table, in_words, sentence, shown
from durabus.pipeline.schema import ACTIVITY, EVENT_LOG, HISTOGRAMS

NOW = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
FIRST = datetime(2026, 1, 2, tzinfo=UTC)


def row(
    minute: int,
    facet: str,
    bus: str,
    type_: str | None,
    name: str | None = None,
    *,
    published: int = 1,
    us: int = 1_000,
) -> list[tuple[object, ...]]:
    """Make the rows of one minute in ``gold.activity``: of the minute, the hour and the day."""
    counts = [published if counter == "published" else 0 for counter in COUNTERS]
    histogram, at = [(us, published)], FIRST + timedelta(minutes=minute)
    begins = {
        "minute": at,
        "hour": FIRST + timedelta(hours=minute // 60),
        "day": FIRST + timedelta(days=minute // 1440),
    }
    return [
        (
            step,
            since,
            facet,
            bus,
            type_,
            name,
            published,
            *counts,
            *[histogram] * 3,
            at,
            at,
            "boom",
            "0190",
            minute,
        )
        for step, since in begins.items()
    ]


def written(lake: Lake, rows: list[list[tuple[object, ...]]]) -> Activity | None:
    flat = [one for some in rows for one in some]
    names = ["step", "since", "facet", "bus", "type", "name", "entries", *COUNTERS, *HISTOGRAMS]
    names += ["first_at", "last_at", "example", "example_event_id", "last_seq"]
    kinds = {field.name: field for field in lake.spark.createDataFrame([], ACTIVITY.ddl).schema}
    schema = StructType([kinds[name] for name in names])
    lake.overwrite(lake.spark.createDataFrame(flat, schema).coalesce(1), ACTIVITY.name)
    return read_activity(lake, archived=0)  # no bronze: gold alone


def test_a_lake_before_its_first_run_says_what_to_do(lake: Lake) -> None:
    with pytest.raises(PipelineError, match=r"has no table .*: `durabus pipeline run` makes it"):
        report(lake, made_at=NOW)


def test_a_lake_without_activity_names_the_missing_table(lake: Lake) -> None:
    lake.create(EVENT_LOG)
    page = report(lake, made_at=NOW)
    assert "The charts are not made yet: the lake has no table gold.activity" in page
    assert "This lake has no proof yet" in page
    assert "uPlot=function" not in page
    found = json.loads(re.findall(r'id="data">(.*)</script>', page)[0])
    assert found == {"activity": None, "slos": []}


def test_the_activity_has_a_series_for_each_row_of_a_facet(lake: Lake) -> None:
    assert read_activity(lake, archived=0) is None
    assert written(lake, []) is None
    rows = [row(minute, "type", "shop", "order.placed", published=5) for minute in (0, 3)]
    rows += [row(3, "type", "mail", "mail.sent", published=2, us=64_000)]
    rows += [row(1, "error", "shop", "order.placed", "KeyError: <text>")]
    found = written(lake, rows)
    assert found is not None
    assert (found.period, found.seconds, found.first, found.count) == ("minute", 60, int(FIRST.timestamp()), 4)
    by_key = {(one.facet, one.bus, one.type, one.name): one for one in found.series}
    order = by_key["type", "shop", "order.placed", None]
    assert (order.at, order.counters) == ([0, 3], {"published": [5, 5]})
    error = by_key["error", "shop", "order.placed", "KeyError: <text>"]
    assert (error.at, error.example, error.last_at) == ([1], "boom", "2026-01-02 00:01:00")
    assert found.left_out == {}


def test_percentiles_are_merged_for_every_choice_of_bus_and_type(lake: Lake) -> None:
    rows = [row(0, "type", "shop", "a", published=98, us=1_000), row(0, "type", "mail", "a", published=2, us=1_024_000)]
    found = written(lake, rows)
    assert found is not None
    by_key = {(one.bus, one.type): one for one in found.percentiles}
    assert set(by_key) == {(bus, type_) for bus in (None, "shop", "mail") for type_ in (None, "a")}
    for key in ((None, None), (None, "a")):
        p50, p95, p99 = by_key[key].whole["end_to_end"]
        assert (p50, p95) == (1.004, 1.004)
        assert p99 == 1_028.0, "the middle of 1,024 and 1,032.2 ms"
        assert by_key[key].spans["end_to_end"] == [[p50], [p95], [p99]]
    assert by_key["shop", "a"].whole["end_to_end"] == [1.004, 1.004, 1.004]


def test_types_beyond_the_limit_are_summed_up(lake: Lake) -> None:
    limit = SHOWN["type"]
    rows = [row(0, "type", "shop", f"t{n:02}", published=100 - n) for n in range(limit + 3)]
    found = written(lake, rows)
    assert found is not None
    assert len(found.series) == limit + 1
    (others,) = [one for one in found.series if one.type == OTHERS]
    assert others.counters == {"published": [sum(100 - n for n in range(limit, limit + 3))]}
    assert found.left_out == {"type": 3}


def test_a_long_history_is_summed_up_in_longer_periods(lake: Lake) -> None:
    found = written(lake, [row(minute, "type", "shop", "a") for minute in (0, 1, 20, 60 * 24 * 2)])
    assert found is not None
    assert (found.period, found.seconds, found.count) == ("15 minutes", 900, 193)
    assert (found.series[0].at, found.series[0].counters["published"]) == ([0, 1, 192], [2, 1, 1])


@pytest.mark.parametrize(
    ("seconds", "finest", "period"),
    [
        (60, "minute", ("minute", 1)),
        (240 * 60, "minute", ("minute", 1)),
        (241 * 60, "minute", ("minute", 2)),
        (86_400, "minute", ("minute", 10)),
        (7 * 86_400, "minute", ("hour", 1)),
        (60 * 86_400, "minute", ("hour", 6)),
        (5 * 365 * 86_400, "minute", ("day", 1)),
        (60, "second", ("second", 1)),
        (29 * 60, "second", ("second", 10)),
    ],
)
def test_the_period_suits_the_length_of_the_log(seconds: int, finest: str, period: tuple[str, int]) -> None:
    assert period_for(seconds, finest=finest) == period


async def test_a_short_log_is_shown_in_seconds(url: str, lake: Lake, history: History) -> None:
    await history.varied()
    log = lake.spark.read.format("durabus").option("url", url).load()
    lake.overwrite(event_log(log, 0), EVENT_LOG.name, EVENT_LOG.properties)
    rebuild_activity(lake)
    found = read_activity(lake, archived=bronze_end(lake).rows)
    by_minute = read_activity(lake, archived=SHORT_ENTRIES + 1)
    assert found is not None
    assert by_minute is not None
    assert (by_minute.period, by_minute.count) == ("minute", 2)
    assert (found.period, found.seconds) == ("second", 1)
    assert (found.first, found.count) == (int(BEGIN), 33), "from the first entry to the last"
    assert _sums(found) == _sums(by_minute), "the same entries, in shorter periods"
    (mail,) = [one for one in found.series if one.facet == "type" and one.type == "mail.requested"]
    assert (mail.at, mail.counters["published"]) == ([18, 19, 30, 31, 32], [1, 0, 0, 0, 1])
    (lost,) = [one for one in found.series if one.facet == "worker" and one.name == "host:9"]
    assert (lost.at, lost.counters["busy_us"]) == (list(range(19, 31)), [1_000_000] * 11 + [0]), "each second counts"


async def test_a_log_that_is_long_or_large_is_not_shown_in_seconds(lake: Lake) -> None:
    minutes = (SHORT_MINUTES - 1) * 60
    lake.create(ACTIVITY)
    for last, archived in ((minutes, 1), (minutes - 60, 0), (minutes - 60, SHORT_ENTRIES + 1)):
        assert report_periods(lake, 0, last, archived=archived).name == "minute"


def _sums(found: Activity) -> dict[tuple[str, str | None, str | None], dict[str, int]]:
    return {
        (one.facet, one.type, one.name): {
            name: total for name, values in one.counters.items() if (total := sum(values))
        }
        for one in found.series
    }


def test_a_percentile_is_the_middle_of_its_class() -> None:
    assert percentiles([]) == [None, None, None]
    assert percentiles([(10, 1)]) == [0.01, 0.01, 0.01]
    assert percentiles([(1_000, 50), (2_000, 45), (2_000, 1), (4_000, 4)]) == [1.004, 2.008, 4.016]


def test_the_vendored_files_are_those_that_were_reviewed() -> None:
    folder = files("durabus.pipeline").joinpath("report_page", "vendor")
    lines = folder.joinpath("vendor.lock").read_text().splitlines()
    pinned = {name: digest for digest, name in (line.split() for line in lines if not line.startswith("#"))}
    found = {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in folder.iterdir()}
    assert {name: digest for name, digest in found.items() if name != "vendor.lock"} == pinned
    assert f"uPlot {report_html.UPLOT}," in lines[0]
    assert f"(v{report_html.UPLOT})" in folder.joinpath("uPlot.iife.min.js").read_text()
    assert "MIT License" in folder.joinpath("LICENSE").read_text()


def test_a_text_with_the_mark_of_a_part_stays_as_it_is() -> None:
    names = ("slos", "proof", "gaps", "expectations", "steps", "stale")
    sections = {name: html_table([{"text": f"<!-- data --> {name}"}], "") for name in names}
    page = html_page(b'{"x": "</script>"}', lake="<lake>", made_at=NOW, with_charts=True, notices=[], sections=sections)
    assert page.count("&lt;!-- data --&gt;") == len(names)
    assert '{"x": "\\u003c/script>"}' in page
    assert "&lt;lake&gt;" in page
    assert "<!-- " not in page


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (1_234_567, "1,234,567"),
        (0.12345, "0.1235"),
        (1_234.56, "1,234.6"),
        (NOW, "2026-01-02 03:04:00"),
        ("<b>", "&lt;b&gt;"),
        (badge("a<b", "good"), '<span class="badge good">a&lt;b</span>'),
        (True, "True"),
    ],
)
def test_values_are_shown_for_people(value: object, text: str) -> None:
    assert shown(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "250 ms"), (2.0, "2 s"), (300, "5 min"), (21_600, "6 h"), (2_592_000, "30 d")]
)
def test_durations_have_a_fitting_unit(seconds: float, text: str) -> None:
    assert in_words(seconds) == text


@pytest.mark.parametrize(
    ("good", "bad", "burn_rate", "budget_left", "result"),
    [
        (0, 0, None, None, "no event ended"),
        (99, 1, 0.5, None, "ok"),
        (90, 10, 9.0, None, "burns too fast"),
        (90, 10, 9.0, -8.0, "budget used up"),
    ],
)
def test_an_slo_is_judged(good: int, bad: int, burn_rate: float | None, budget_left: float | None, result: str) -> None:
    slo = {"slo": "in time", "bus": None, "type": "order.*", "objective": 0.99, "within_ms": 2_000.0, "seconds": 300}
    slo |= {"good": good, "bad": bad, "burn_rate": burn_rate, "budget_left": budget_left}
    page = _slo_table([slo])
    assert result in page
    assert '<td class="wide" data-label="Objective">99 % within 2 s</td>' in page
    assert ("-800.0 %" in page) == (budget_left is not None)


def test_an_slo_is_one_row_with_the_burn_rate_of_each_window() -> None:
    slo = {
        "slo": "in time",
        "bus": "shop",
        "type": "order.*",
        "objective": 0.99,
        "within_ms": None,
        "good": 7,
        "bad": 1,
    }
    hours = [(1, 2.5, None), (720, 0.5, 0.5)]
    slos = [slo | {"seconds": n * 3_600, "burn_rate": rate, "budget_left": left} for n, rate, left in hours]
    page = _slo_table(slos[::-1])
    assert page.count("<tr>") == 2
    assert (
        '<td class="number" data-label="Burn, 1 h">2.50</td><td class="number" data-label="Burn, 30 d">0.50</td>'
        in page
    )
    assert "shop / order.*" in page
    assert "burns too fast" in page


def test_a_column_without_values_is_left_out() -> None:
    page = html_table([{"step": "a", "error": None, "took": Quantity("2.0 s")}], "")
    assert "Error" not in page
    assert '<td class="number" data-label="Took">2.0 s</td>' in page


def test_code_in_a_sentence_is_marked() -> None:
    assert sentence("Run `durabus <x>` now.") == '<p class="nothing">Run <code>durabus &lt;x&gt;</code> now.</p>'
