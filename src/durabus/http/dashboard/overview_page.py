"""The overview: queue depth, throughput, failures, latencies, and what needs attention."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec

from durabus.http.api import api_of, principal_of
from durabus.http.asgi import AnyRequest
from durabus.http.dashboard import words
from durabus.http.dashboard.charts import Chart, chart
from durabus.http.dashboard.rendering import Page, bus_of, live_views, page_route, render
from durabus.model.event import Event
from durabus.model.log_entry import LogHold
from durabus.views.activity import KEPT, SLOT, ActivityCounts, BusActivity, Percentiles, percentiles, whole
from durabus.views.events import QueueCounts

RANGES = {"5m": 5.0, "15m": 15.0, "1h": 60.0}
POINTS = 60
NOW = 30.0
"""Seconds over which the current throughput is measured."""
LAG = 1.0
"""Seconds by which the counts may lag behind the log."""
OLD = 60.0
MINUTE = 60.0
OFTEN = 5
OFTEN_SHARE = 0.05
"""A type needs attention from this number of failed attempts and this share of all attempts on."""
MAX_NAMED = 3


class OverviewNotice(msgspec.Struct, frozen=True):
    """Something that needs attention."""

    text: str
    path: str
    parameters: dict[str, str]


@page_route("/")
async def overview(request: AnyRequest) -> Page:
    """The page."""
    bus, principal, live = bus_of(request), principal_of(request), live_views(request)
    tags = principal.narrow(())
    activity, hold, lakes, counted, in_flight = await asyncio.gather(
        live.activity(bus),
        live.log_hold(),
        live.lakes(),
        live.queue(bus, tags),
        live.in_flight(bus, tags),
    )
    store = api_of(request).store
    now = await store.now()
    asked = request.query_params.get("range", "")
    span = asked if asked in RANGES else "5m"
    step = RANGES[span] * MINUTE / POINTS
    end = (now - LAG) // SLOT * SLOT  # only complete slots, or the newest point would always be too low
    begin = end - step * POINTS
    series = activity.slots.series(begin, step, POINTS, principal.tags)
    current = activity.slots.between(end - NOW, end, principal.tags)
    total = whole(series)
    return render(
        request,
        "overview.html",
        now=now,
        counted=counted,
        late=[event for event in in_flight if event.expires_ts is not None and event.expires_ts < now],
        current=current,
        pace=max(min(NOW, end - activity.since_ts // SLOT * SLOT), SLOT),
        within=f"in {words.duration(now - activity.since_ts)}" if begin < activity.since_ts < now else f"in {span}",
        total=total,
        latencies=latencies(total),
        charts=charts(series, begin, step, activity.since_ts),
        # Tokens that are limited to tags must not learn of other types and other users of the server.
        notices=notices(
            now,
            [] if principal.tags else [*held(hold), *unhandled(activity, now), *failing(activity, now)],
            [] if principal.limited else [problem for lake in lakes or [] for problem in lake.problems],
            counted,
            in_flight,
        ),
        span=span,
        ranges=list(RANGES),
        activity=activity,
    )


def latencies(total: ActivityCounts) -> list[tuple[str, Percentiles]]:
    """Percentiles of the time an event waits, of one attempt, and from publish to done."""
    return [
        ("Waiting: publish to first attempt", percentiles(total.waiting)),
        ("Running: one attempt", percentiles(total.running)),
        ("Publish to done", percentiles(total.whole)),
    ]


def charts(series: list[ActivityCounts], begin: float, step: float, since: float) -> list[Chart]:
    """Charts of throughput, failures and latency. They have gaps where the log was not read."""
    done = [percentiles(counts.whole) for counts in series]
    known = [begin + step * n >= since for n in range(len(series))]

    def pace(what: str) -> list[float | None]:
        return [getattr(counts, what) / step if read else None for counts, read in zip(series, known, strict=True)]

    events = [("published", "published", pace("published")), ("done", "done", pace("completed"))]
    failures = [("failed", "failed", pace("failed_attempts")), ("dead letters", "dead", pace("dead"))]
    times = [(name, name, [getattr(found, name) for found in done]) for name in ("p99", "p95", "p50")]
    return [
        chart("Events per second", begin, step, events, words.rate),
        chart("Failed attempts per second", begin, step, failures, words.rate),
        chart("Publish to done", begin, step, times, words.duration),
    ]


def notices(
    now: float,
    failing: list[OverviewNotice],
    pipeline: list[str],
    counted: QueueCounts | None,
    in_flight: list[Event],
) -> list[OverviewNotice]:
    """All notices, the most urgent first."""
    found: list[OverviewNotice] = []
    late = Counter(event.worker_id for event in in_flight if event.expires_ts is not None and event.expires_ts < now)
    for worker, held in late.most_common(MAX_NAMED):
        text = f"{worker} is late: it holds {words.plural(held, 'event')} with an expired lease"
        found.append(OverviewNotice(text, "/dashboard/workers", {}))
    found += failing
    if counted is not None:
        oldest = counted.oldest
        if oldest is not None and oldest.due_for > OLD:
            text = f"#{oldest.id} has waited for {words.duration(oldest.age)}"
            found.append(OverviewNotice(text, f"/dashboard/events/{oldest.id}", {}))
        dead = counted.counts.failed + counted.counts.completed_with_errors
        if dead:
            text = f"{words.plural(dead, 'dead letter')} to retry or purge"
            found.append(OverviewNotice(text, "/dashboard/dead-letters", {}))
    shown = [OverviewNotice(f"Pipeline: {words.short(text)}", "/dashboard/pipeline", {}) for text in pipeline]
    return found + shown[:MAX_NAMED]


def held(hold: LogHold | None) -> list[OverviewNotice]:
    """The reason why the charts do not advance."""
    if hold is None:
        return []
    text = f"Charts and log have not advanced for {words.duration(hold.waiting)}: they wait for {hold.holder}"
    return [OverviewNotice(text, "/dashboard/live", {})]


def unhandled(activity: BusActivity, now: float) -> list[OverviewNotice]:
    """Types with events that completed without work: a handler is missing, or the type is misspelt."""
    times = Counter(one.type for one in activity.unhandled if one.at_ts > now - KEPT)
    return [
        OverviewNotice(
            f"{type_}: {words.plural(count, 'event')} completed without work in the last hour, as no process had a "
            "handler",
            "/dashboard/events",
            {"type": type_},
        )
        for type_, count in times.most_common(MAX_NAMED)
    ]


def failing(activity: BusActivity, now: float) -> list[OverviewNotice]:
    """Types with many failed attempts in the last minute."""
    recent = [one for one in activity.recent if one.at_ts > now - MINUTE]
    attempts, failures = Counter(one.type for one in recent), Counter(one.type for one in recent if one.failed)
    return [
        OverviewNotice(
            f"{type_}: {words.percent(times / attempts[type_])} of {words.plural(attempts[type_], 'attempt')} failed "
            "in the last minute",
            "/dashboard/events",
            {"type": type_},
        )
        for type_, times in failures.most_common(MAX_NAMED)
        if times >= OFTEN and times >= OFTEN_SHARE * attempts[type_]
    ]


ROUTES = [overview]
