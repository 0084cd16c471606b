"""The report: what ``gold.activity`` tells over time, and the state of the lake itself, as one HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any

import msgspec
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.pipeline.analytics import STALE
from durabus.pipeline.archive import bronze_end
from durabus.pipeline.expectations import ExpectationResult, newest_results
from durabus.pipeline.gaps import Gap, read_gaps, trimmed_unread
from durabus.pipeline.lake import Lake, in_utc
from durabus.pipeline.proof_chain import Proven, SegmentState, read_chain
from durabus.pipeline.report_data import Activity, read_activity
from durabus.pipeline.report_html import (
    Markup,
    Quantity,
    badge,
    html_facts,
    html_page,
    html_table,
    in_words,
    sentence,
    unfolded,
)
from durabus.pipeline.schema import ACTIVITY, EVENT_LOG
from durabus.pipeline.slos import SLOS
from durabus.pipeline.status import StepStatus, last_steps

MAX_ROWS = 200
"""Maximum number of rows of a table."""
_DECLARED = "the list of `durabus pipeline run --projections MODULE:LIST`"


class ReportData(msgspec.Struct, frozen=True, kw_only=True):
    """What the scripts of the page read."""

    activity: Activity | None
    slos: list[dict[str, Any]]


class LakeState(msgspec.Struct, frozen=True, kw_only=True):
    """What the page shows of the lake itself."""

    path: str
    archived: int
    """The number of archived log entries."""
    has_activity: bool
    """Whether there is a table ``gold.activity``."""
    proof: Proven | None
    """The newest proof."""
    gaps: Sequence[Gap]
    checked: Sequence[ExpectationResult]
    steps: Sequence[StepStatus]
    stale: Sequence[Mapping[str, Any]] | None
    """Rows of ``gold.stale_workers``; None if the lake does not have this table."""


def report(lake: Lake, *, made_at: datetime) -> str:
    """Return the page. It names the tables that the lake does not have yet.

    Raises ``PipelineError`` for a lake before its first run.
    """
    lake.read(EVENT_LOG.name)
    archived, chain = bronze_end(lake).rows, read_chain(lake)
    state = LakeState(
        path=lake.path,
        archived=archived,
        has_activity=lake.exists(ACTIVITY.name),
        proof=chain[-1] if chain else None,
        gaps=read_gaps(lake),
        checked=newest_results(lake),
        steps=last_steps(lake, archived),
        stale=_stale_workers(lake),
    )
    data = ReportData(activity=read_activity(lake, archived=archived), slos=_slos(lake))
    return report_page(data, state, made_at=made_at)


def report_page(data: ReportData, state: LakeState, *, made_at: datetime) -> str:
    """Return the page of these data. Nothing here needs Spark."""
    return html_page(
        msgspec.json.encode(data),
        lake=state.path,
        made_at=made_at,
        with_charts=data.activity is not None,
        notices=_notices(data, state),
        sections={
            "slos": _slo_table(data.slos),
            "proof": _proof(state.proof, state.archived),
            "gaps": _gaps(state.gaps),
            "expectations": _expectations(state.checked),
            "steps": _steps(state.steps),
            "stale": _stale(state.stale),
        },
    )


def _notices(data: ReportData, state: LakeState) -> list[str]:
    """Return what a reader must know first."""
    notices = []
    if data.activity is None and state.has_activity:
        notices.append("The log has no entry yet, so there is nothing to draw. Publish an event and run the pipeline.")
    elif data.activity is None:
        notices.append(
            f"The charts are not made yet: the lake has no table {ACTIVITY.name}. `durabus pipeline run` makes it."
        )
    if state.gaps:
        notices.append(f"Trimmed before it was archived: {trimmed_unread(state.gaps)}.")
    if state.proof is not None and not state.proof.proof.holds:
        notices.append("The newest proof does not hold: entries are missing in the lake, or differ.")
    broken = sum(1 for one in state.checked if one.broken)
    if broken:
        notices.append(f"Broken expectations: {broken} of {len(state.checked)}.")
    failed = [one.step for one in state.steps if one.error is not None]
    if failed:
        notices.append(f"Failed steps: {', '.join(failed)}.")
    return notices


def _slos(lake: Lake) -> list[dict[str, Any]]:
    if not lake.exists(SLOS):
        return []
    rows = lake.read(SLOS).orderBy("slo", "seconds").limit(MAX_ROWS).collect()
    return [{name: _plain(value) for name, value in row.asDict().items()} for row in rows]


def _slo_table(slos: Sequence[Mapping[str, Any]]) -> str:
    """Return a row for each SLO: its longest window, which is its own, and the burn rates of all windows."""
    windows: dict[str, list[Mapping[str, Any]]] = {}
    for one in sorted(slos, key=lambda one: one["seconds"]):
        windows.setdefault(one["slo"], []).append(one)
    lengths = sorted({one["seconds"] for one in slos})
    rows = [
        {
            "SLO": name,
            "events": of_slo[-1]["type"]
            if of_slo[-1]["bus"] is None
            else f"{of_slo[-1]['bus']} / {of_slo[-1]['type']}",
            "objective": _objective(of_slo[-1]),
            "good": of_slo[-1]["good"],
            "bad": of_slo[-1]["bad"],
            **{f"burn, {in_words(length)}": _burn_rate(of_slo, length) for length in lengths},
            "budget left": next(
                (Quantity(f"{one['budget_left'] * 100:,.1f} %") for one in of_slo if one["budget_left"] is not None),
                None,
            ),
            "result": _judged(of_slo),
        }
        for name, of_slo in sorted(windows.items())
    ]
    return html_table(rows, f"No objective is declared yet: add an `Slo` to {_DECLARED}.")


def _objective(slo: Mapping[str, Any]) -> str:
    within = "" if slo["within_ms"] is None else f" within {in_words(slo['within_ms'] / 1000)}"
    return f"{slo['objective'] * 100:g} %{within}"


def _burn_rate(windows: Sequence[Mapping[str, Any]], seconds: int) -> Quantity | None:
    rates = [one["burn_rate"] for one in windows if one["seconds"] == seconds and one["burn_rate"] is not None]
    return Quantity(f"{rates[0]:,.2f}") if rates else None


def _judged(windows: Sequence[Mapping[str, Any]]) -> str:
    if not any(one["good"] + one["bad"] for one in windows):
        return "no event ended"
    if any((one["budget_left"] or 0) < 0 for one in windows):
        return badge("budget used up", "bad")
    return (
        badge("burns too fast", "warn") if any((one["burn_rate"] or 0) > 1 for one in windows) else badge("ok", "good")
    )


def _plain(value: Any) -> Any:
    return f"{in_utc(value):%Y-%m-%d %H:%M:%S}" if isinstance(value, datetime) else value


def _proof(last: Proven | None, archived: int) -> str:
    if last is None:
        return sentence("This lake has no proof yet: `durabus pipeline prove` compares it with the store's log.")
    proof, differing = last.proof, last.proof.count(SegmentState.DIFFERS)
    wrong = [
        f"<div>entries {one.first_seq:,} to {one.first_seq + one.rows - 1:,}: {escape(one.reason)}</div>"
        for one in proof.segments
        if one.state is SegmentState.DIFFERS
    ]
    return html_facts(
        {
            "result": badge("complete", "good") if proof.holds else badge("not complete", "bad"),
            "made": last.made_at,
            "proven complete": f"{proof.entries - differing:,} of {proof.entries:,} log entries",
            **({"what differs": Markup("".join(wrong[:MAX_ROWS]))} if wrong else {}),
            "archived since": archived - proof.entries,
            "missing in the lake": proof.missing,
            "trimmed after verification": proof.trimmed,
            "trimmed unread": trimmed_unread(proof.gaps),
            "number of the proof": last.number,
            "hash (sha256)": Markup(f"<code>{last.hash}</code>"),
            "signature": "none" if last.signature is None else Markup(f"<code>{last.signature}</code>"),
        }
    )


def _gaps(gaps: Sequence[Gap]) -> str:
    rows = [
        {
            "noted": gap.noted_at,
            "reason": gap.reason,
            "after position": gap.after or "the beginning",
            "up to position": gap.until,
            "entries": "unknown" if gap.entries is None else gap.entries,
            "missing": "unknown" if gap.missing is None else gap.missing,
        }
        for gap in gaps
    ]
    total = f"<p>Together: {trimmed_unread(gaps)}.</p>" if gaps else ""
    return total + html_table(rows, "No entry was trimmed before it was archived.")


def _expectations(checked: Sequence[ExpectationResult]) -> str:
    rows = [
        {
            "expectation": one.name,
            "table": one.table_name,
            "action": one.action,
            "rows": one.rows,
            "broken": one.broken,
            "result": badge("broken", "bad" if one.action == "fail" else "warn")
            if one.broken
            else badge("met", "good"),
            "first broken row": unfolded(one.samples[0]) if one.samples else None,
        }
        for one in checked
    ]
    return html_table(rows, f"No rule is declared yet: add an `Expectation` to {_DECLARED}.")


def _steps(steps: Sequence[StepStatus]) -> str:
    rows = [
        {
            "step": one.step if one.version is None else f"{one.step} v{one.version}",
            "ended": one.finished_at,
            "rows read": one.rows,
            "took": Quantity(f"{one.seconds:.1f} s"),
            "lag": "unknown" if one.lag is None else one.lag,
            "result": badge("succeeded", "good") if one.error is None else badge("failed", "bad"),
            "error": None if one.error is None else unfolded(one.error),
        }
        for one in steps
    ]
    return html_table(rows, "No step has run yet: `durabus pipeline run` runs all of them.")


def _stale_workers(lake: Lake) -> list[Mapping[str, Any]] | None:
    if not lake.exists(STALE):
        return None
    return [row.asDict() for row in lake.read(STALE).orderBy(F.desc("claims")).limit(MAX_ROWS).collect()]


def _stale(found: Sequence[Mapping[str, Any]] | None) -> str:
    if found is None:
        return sentence(f"Not made yet: the lake has no table {STALE}.")
    rows = [
        {
            "worker": row["worker_id"],
            "bus": row["bus"],
            "claims": row["claims"],
            "never started": row["never_started"],
            "oldest claim": row["oldest_picked_at"],
            "held for": Quantity(in_words(row["oldest_seconds"])),
            "an event": row["example_event_id"],
        }
        for row in found
    ]
    return html_table(rows, "No worker holds a claim for too long.")
