"""How it goes: depth, pace, failures, latencies, and what somebody should look at."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec

from durabus.http.api import api_of, principal_of
from durabus.http.dashboard import words
from durabus.http.dashboard.activity import Pulse
from durabus.http.dashboard.board import board_of
from durabus.http.dashboard.charts import Chart, chart
from durabus.http.dashboard.counts import Counted
from durabus.http.dashboard.figures import KEPT, SLOT, Figures, Percentiles, percentiles, whole
from durabus.http.dashboard.rendering import AnyRequest, Page, bus_of, page_route, render
from durabus.model.event import Event
from durabus.model.log_entry import LogHold

RANGES = {"5m": 5.0, "15m": 15.0, "1h": 60.0}
POINTS = 60
NOW = 30.0
"""Seconds over which the present pace is told."""
LAG = 1.0
"""Seconds by which the figures may be behind the log."""
OLD = 60.0
MINUTE = 60.0
OFTEN = 5
OFTEN_SHARE = 0.05
"""So many failed attempts, and so many of all, and a type is worth a look."""
MAX_NAMED = 3


class OverviewNotice(msgspec.Struct, frozen=True):
    """Something that somebody should look at."""

    text: str
    path: str
    parameters: dict[str, str]


@page_route("/")
async def overview(request: AnyRequest) -> Page:
    """The first page."""
    bus, principal, board = bus_of(request), principal_of(request), board_of(request)
    pulse, hold, counted, in_flight = await asyncio.gather(
        board.pulse(bus),
        board.readings.log_hold(bus, principal),
        board.readings.counts(bus, principal),
        board.readings.in_flight(bus, principal),
    )
    store = api_of(request).store
    now = await store.now()
    asked = request.query_params.get("range", "")
    span = asked if asked in RANGES else "5m"
    step = RANGES[span] * MINUTE / POINTS
    end = (now - LAG) // SLOT * SLOT  # only what is over, or the newest point would always be too low
    begin = end - step * POINTS
    series = pulse.slots.series(begin, step, POINTS, principal.tags)
    lately = pulse.slots.between(end - NOW, end, principal.tags)
    total = whole(series)
    return render(
        request,
        "overview.html",
        now=now,
        counted=counted,
        late=[event for event in in_flight if event.expires_ts is not None and event.expires_ts < now],
        lately=lately,
        pace=max(min(NOW, end - pulse.since_ts // SLOT * SLOT), SLOT),
        within=f"in {words.duration(now - pulse.since_ts)}" if begin < pulse.since_ts < now else f"in {span}",
        total=total,
        latencies=latencies(total),
        charts=charts(series, begin, step, pulse.since_ts),
        # Which types there are, and who else uses the server, is not for those who see only some tags.
        notices=notices(
            now,
            [] if principal.tags else [*held(hold), *unhandled(pulse, now), *failing(pulse, now)],
            counted,
            in_flight,
        ),
        span=span,
        ranges=list(RANGES),
        pulse=pulse,
    )


def latencies(total: Figures) -> list[tuple[str, Percentiles]]:
    """The three that people ask for."""
    return [
        ("waiting: publish to first attempt", percentiles(total.waiting)),
        ("running: one attempt", percentiles(total.running)),
        ("publish to done", percentiles(total.whole)),
    ]


def charts(series: list[Figures], begin: float, step: float, since: float) -> list[Chart]:
    """Pace, failures and latency. Where the log was not read, nothing is drawn: it is not known to be zero."""
    done = [percentiles(figures.whole) for figures in series]
    known = [begin + step * n >= since for n in range(len(series))]

    def pace(what: str) -> list[float | None]:
        return [getattr(figures, what) / step if told else None for figures, told in zip(series, known, strict=True)]

    return [
        chart(
            "Events per second",
            begin,
            step,
            [
                ("published", "published", pace("published")),
                ("done", "done", pace("completed")),
            ],
            words.rate,
        ),
        chart(
            "Failed attempts per second",
            begin,
            step,
            [
                ("failed", "failed", pace("failed_attempts")),
                ("dead letters", "dead", pace("dead")),
            ],
            words.rate,
        ),
        chart(
            "Publish to done",
            begin,
            step,
            [
                ("p99", "p99", [found.p99 for found in done]),
                ("p95", "p95", [found.p95 for found in done]),
                ("p50", "p50", [found.p50 for found in done]),
            ],
            words.duration,
        ),
    ]


def notices(
    now: float, failing: list[OverviewNotice], counted: Counted | None, in_flight: list[Event]
) -> list[OverviewNotice]:
    """What needs attention, worst first."""
    found: list[OverviewNotice] = []
    late = Counter(event.worker_id for event in in_flight if event.expires_ts is not None and event.expires_ts < now)
    for worker, held in late.most_common(MAX_NAMED):
        found.append(OverviewNotice(f"{worker} is late: {held} events whose lease is over", "/dashboard/workers", {}))
    found += failing
    if counted is not None:
        oldest = counted.oldest
        if oldest is not None and oldest.due_for > OLD:
            text = f"#{oldest.id} waits for {words.duration(oldest.age)}"
            found.append(OverviewNotice(text, f"/dashboard/events/{oldest.id}", {}))
        dead = counted.counts.failed + counted.counts.completed_with_errors
        if dead:
            found.append(OverviewNotice(f"{dead:,} dead letters wait for a decision", "/dashboard/dead-letters", {}))
    return found


def held(hold: LogHold | None) -> list[OverviewNotice]:
    """Why the charts stand still."""
    if hold is None:
        return []
    text = f"Charts and the log stand still for {words.duration(hold.waiting)}: they wait for {hold.holder}"
    return [OverviewNotice(text, "/dashboard/live", {})]


def unhandled(pulse: Pulse, now: float) -> list[OverviewNotice]:
    """Types of which events ended without work: a handler is missing, or the type is misspelt."""
    times = Counter(one.type for one in pulse.unhandled if one.at_ts > now - KEPT)
    return [
        OverviewNotice(
            f"{type_}: {count:,} events lately completed without work, because no process had a handler",
            "/dashboard/events",
            {"type": type_},
        )
        for type_, count in times.most_common(MAX_NAMED)
    ]


def failing(pulse: Pulse, now: float) -> list[OverviewNotice]:
    """Types of which a notable part fails."""
    lately = [one for one in pulse.recent if one.at_ts > now - MINUTE]
    attempts, failures = Counter(one.type for one in lately), Counter(one.type for one in lately if one.failed)
    return [
        OverviewNotice(
            f"{type_}: {words.percent(times / attempts[type_])} of {attempts[type_]:,} attempts failed lately",
            "/dashboard/events",
            {"type": type_},
        )
        for type_, times in failures.most_common(MAX_NAMED)
        if times >= OFTEN and times >= OFTEN_SHARE * attempts[type_]
    ]


ROUTES = [overview]
