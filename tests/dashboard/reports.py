"""Reports of made-up shops: busy ones, quiet ones, and one whose lake is wrong in every way."""

from datetime import UTC, datetime
from pathlib import Path

import msgspec

from durabus.pipeline.expectations import ExpectationResult
from durabus.pipeline.gaps import FORCED, TRIMMED, Gap
from durabus.pipeline.proof_chain import Proof, Proven, Segment, SegmentState
from durabus.pipeline.report import LakeState, ReportData, report_page
from durabus.pipeline.report_data import Activity, PercentileLines, ReportSeries
from durabus.pipeline.schema import HISTOGRAMS
from durabus.pipeline.status import StepStatus

MADE_AT = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
FIRST = 1_767_312_000
"""2026-01-02 00:00 UTC"""
MINUTES = 180
PAIRS = (("shop", "order.placed"), ("shop", "payment.taken"), ("mail", "mail.requested"))


def series(facet: str, bus: str, type_: str | None, name: str | None, /, **counters: int) -> ReportSeries:
    """Make a series with the same values in every minute."""
    return ReportSeries(
        facet=facet,
        bus=bus,
        type=type_,
        name=name,
        at=list(range(MINUTES)),
        counters={counter: [value] * MINUTES for counter, value in counters.items()},
        spans={span: [12.0, 480.0, 2_400.0] for span in HISTOGRAMS},
        last_at="2026-01-02 02:59:00",
        example=f"{name}: 17",
        example_event_id="0190",
    )


def percentiles(bus: str | None, type_: str | None, p95: float) -> PercentileLines:
    values: tuple[float | None, ...] = (p95 / 40, p95, p95 * 5)
    return PercentileLines(
        bus=bus,
        type=type_,
        at=list(range(MINUTES)),
        spans={span: [[value] * MINUTES for value in values] for span in HISTOGRAMS},
        whole={span: list(values) for span in HISTOGRAMS},
    )


def activity(*, period: str = "minute", seconds: int = 60) -> Activity:
    """Return three hours of a busy shop: 7-digit sums, one type that fails. Shorter periods make it a shorter time."""
    same = {"waiting_change": 10, "working_change": 1, "handler_us": 5_000_000}
    counts = {"published": 7_000, "completed": 6_990, "claimed": 7_100}
    types = [
        series(
            "type",
            bus,
            type_,
            None,
            **{name: value * (n + 1) for name, value in counts.items()},
            dead=n,
            retried=100 * n,
            failed=100 * n,
            **same,
        )
        for n, (bus, type_) in enumerate(PAIRS)
    ]
    others = [
        series("handler", "shop", "order.placed", "orders.fulfil", completed=6_990, failed=10, handler_us=5_000_000),
        series("error", "mail", "mail.requested", "SMTPError: <n> mailbox <text> is full", failed=200, dead=2),
        series("error", "shop", "payment.taken", "</script><b>TimeoutError</b>", failed=100, dead=1),
        series("worker", "shop", None, "web-1:100", claimed=7_000, busy_us=30_000_000),
        series("parent", "mail", "mail.requested", "order.placed", published=3_500, completed=3_400, dead=2),
    ]
    known = [percentiles(None, None, 500.0), percentiles("shop", None, 300.0), percentiles("mail", None, 900.0)]
    known += [percentiles(None, type_, 700.0) for _, type_ in PAIRS] + [percentiles(*pair, 700.0) for pair in PAIRS]
    return Activity(
        period=period,
        seconds=seconds,
        first=FIRST,
        count=MINUTES,
        series=types + others,
        percentiles=known,
        left_out={"error": 7},
    )


SLO = {"slo": "in time", "bus": None, "type": "order.*", "objective": 0.99, "within_ms": 2_000.0, "seconds": 3_600,
       "good": 1_234_567, "bad": 12, "bad_share": 0.00001, "burn_rate": 0.001, "budget_left": 0.999}  # fmt: skip


def gap(reason: str, after: str, until: str, entries: int | None, missing: int | None) -> Gap:
    return Gap(
        gap_id=reason, reason=reason, after=after, until=until, entries=entries, missing=missing, noted_at=MADE_AT
    )


def proven(gaps: list[Gap]) -> Proven:
    """Return a signed proof of a lake that lacks entries."""
    segment = Segment(first_seq=0, rows=250_000, hash="1", in_store=250_000, store_hash="1", state=SegmentState.EQUAL)
    differs = msgspec.structs.replace(segment, first_seq=250_000, state=SegmentState.DIFFERS, reason="it was changed")
    proof = Proof(
        lake_id="0d9b7c3e", until="501234", entries=500_000, behind=7, missing=3, segments=[segment, differs], gaps=gaps
    )
    return Proven(number=41, made_at=MADE_AT, proof=proof, previous="", hash="5e" * 32, signature="a1" * 32)


def expectation(name: str, action: str, broken: int) -> ExpectationResult:
    row = '{"durabus_id":17,"order":1234567,"total":-19.90,"customer":{"name":"<b>Ada</b>"}}'
    return ExpectationResult(
        name=name,
        table_name="silver.order_placed",
        action=action,
        rows=1_234_567,
        broken=broken,
        samples=[row] if broken else [],
    )


def step(name: str, error: str | None = None, version: int | None = None) -> StepStatus:
    return StepStatus(
        step=name,
        version=version,
        finished_at=MADE_AT,
        seconds=12.34,
        rows=1_234_567,
        lag=0 if error is None else None,
        error=error,
    )


def troubled(*, has_activity: bool) -> LakeState:
    """Return a lake in which everything that can be wrong is wrong."""
    gaps = [gap(FORCED, "450000", "500000", 50_000, 1_200), gap(TRIMMED, "", "120", None, None)]
    return LakeState(
        path="/lakes/shop & sons",
        archived=500_123,
        has_activity=has_activity,
        proof=proven(gaps),
        gaps=gaps,
        checked=[
            expectation("total is positive", "fail", 17),
            expectation("customer is known", "warn", 1),
            expectation("order is unique", "quarantine", 0),
        ],
        steps=[
            step("bronze.event_log"),
            step("hourly_counters", version=1),
            step("spent", "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate it.", version=2),
        ],
        stale=[
            {
                "worker_id": "web-1:100",
                "bus": "shop",
                "claims": 3,
                "never_started": 1,
                "oldest_picked_at": MADE_AT,
                "oldest_seconds": 7_260.0,
                "example_event_id": "01890a5d-ac96-774b-bcce-b302099a8057",
            }
        ],
    )


def quiet(periods: int) -> Activity:
    """Return periods of a shop that completes what it gets at once: nothing waits, nothing fails."""
    counts = {"published": [5] * periods, "completed": [5] * periods, "claimed": [5] * periods}
    at = list(range(periods))
    only = ReportSeries(facet="type", bus="shop", type="order.placed", name=None, at=at, counters=counts, spans={})
    none = list[float | None]([None] * periods)
    lines = PercentileLines(
        bus=None,
        type=None,
        at=at,
        spans={span: [none, none, none] for span in HISTOGRAMS},
        whole={span: [None, None, None] for span in HISTOGRAMS},
    )
    return Activity(
        period="second", seconds=1, first=FIRST, count=periods, series=[only], percentiles=[lines], left_out={}
    )


def made(folder: Path, shown: Activity | None) -> Path:
    """Write the page as ``durabus pipeline report`` does."""
    state = troubled(has_activity=shown is not None)
    page = report_page(ReportData(activity=shown, slos=[SLO]), state, made_at=MADE_AT)
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return path
