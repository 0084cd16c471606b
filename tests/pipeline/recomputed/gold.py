"""The other tables of gold, computed once more from the store's log."""

import re
from collections import defaultdict
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from tests.pipeline.recomputed.activity import Row, activity, middle_of
from tests.pipeline.recomputed.files import DEAD, ENDS, Entry, Files, decoded, expect_rows
from tests.pipeline.recomputed.silver import events, newest_payload

SECOND = timedelta(seconds=1)
PERIODS = {300: "minute", 3_600: "minute", 21_600: "minute", 86_400: "hour", 259_200: "hour"}
"""The periods that each window of an SLO adds up. All longer windows add up days."""


def check_hourly_counters(files: Files) -> None:
    groups: dict[tuple[str, str, datetime], list[Entry]] = defaultdict(list)
    for event in ended(files):
        hour = event["published_at"].replace(minute=0, second=0, microsecond=0)
        groups[event["bus"], event["type"], hour].append(event)
    expected = []
    for (bus, event_type, hour), group in groups.items():
        statuses = [event["status"] for event in group]
        row = {"bus": bus, "type": event_type, "hour": hour, "events": len(group)}
        row |= {"completed": statuses.count("COMPLETED"), "dead": sum(one in DEAD for one in statuses)}
        row |= {"cancelled": statuses.count("CANCELLED"), "retried": sum(one["attempts"] > 1 for one in group)}
        row |= {"claims": sum(one["claims"] for one in group)}
        row |= {"fastest_ms": min(one["end_to_end_ms"] for one in group)}
        expected.append(row | {"slowest_ms": max(one["end_to_end_ms"] for one in group)})
    expect_rows(files.read("gold.hourly_counters_v1"), expected, ["bus", "type", "hour"])


def ended(files: Files) -> list[Entry]:
    return [event for event in events(files) if event["status"] in ENDS]


def by_entity(files: Files, entity: str) -> dict[str, list[Entry]]:
    """Return the ended events of each entity, in the order of their publishing."""
    groups: dict[str, list[Entry]] = defaultdict(list)
    for event in sorted(ended(files), key=lambda one: int(one["first_seq"])):
        payload = newest_payload(files, event)
        if isinstance(payload, dict) and payload.get(entity) is not None:
            groups[str(payload[entity])].append(event | {"newest": payload})
    return groups


def check_latest(files: Files, table: str, entity: str) -> None:
    found = {row[entity]: row for row in files.read(table).to_dicts()}
    groups = by_entity(files, entity)
    assert set(found) == set(groups)
    for name, group in groups.items():
        row = found[name]
        assert (row.pop(entity), row.pop("events")) == (name, len(group))
        assert decoded(row.pop("payload")) == group[-1]["newest"]
        assert row == {key: group[-1][key] for key in ("first_seq", "type", "status", "event_id", "published_at")}


def check_journeys(files: Files, table: str, entity: str) -> None:
    expected = []
    for name, group in by_entity(files, entity).items():
        times = [one["published_at"] for one in group]
        steps = [{name: one[name] for name in ("first_seq", "type", "published_at")} for one in group]
        row = {"steps": steps} | {
            entity: name,
            "path": [one["type"] for one in group],
            "began_at": times[0],
            "last_at": times[-1],
        }
        row["between_ms"] = [_ms(begin, end) for begin, end in pairwise(times)]
        expected.append(row | {"total_ms": _ms(times[0], times[-1])})
    expect_rows(files.read(table), expected, [entity])


def _ms(begin: datetime, end: datetime) -> float:
    return (end - begin) // timedelta(microseconds=1) / 1000


def check_stale_workers(files: Files) -> None:
    """The table says when it was made: each worker's oldest claim, plus the seconds since then."""
    found = {(row["worker_id"], row["bus"]): row for row in files.read("gold.stale_workers").to_dicts()}
    claims = [row for row in files.read("silver.attempts").to_dicts() if row["outcome"] is None]
    as_of = max(row["last_at"] for row in files.read("silver.events").to_dicts())
    for row in found.values():
        as_of = max(as_of, row["oldest_picked_at"] + row["oldest_seconds"] * SECOND)
    groups: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for claim in claims:
        if (as_of - claim["picked_at"]) / SECOND >= files.stale_after:
            groups[claim["worker_id"], claim["bus"]].append(claim)
    assert set(found) == set(groups)
    for worker, group in groups.items():
        row, oldest = found[worker], min(claim["picked_at"] for claim in group)
        assert (row["claims"], row["oldest_picked_at"]) == (len(group), oldest)
        assert row["never_started"] == sum(claim["started_at"] is None for claim in group)
        assert row["oldest_seconds"] == pytest.approx((as_of - oldest) / SECOND, abs=1e-5)
        assert row["example_event_id"] == min(claim["event_id"] for claim in group)


def check_slos(files: Files) -> None:
    periods = activity(files)
    for row in files.read("gold.slos").to_dicts():
        step = PERIODS.get(row["seconds"], "day")
        since = row["as_of"].replace(microsecond=0) - row["seconds"] * SECOND
        good = bad = 0
        for (of_step, begin, facet, bus, event_type, _), period in periods.items():
            counts = (of_step, facet) == (step, "type") and since <= begin <= row["as_of"]
            if counts and row["bus"] in {None, bus} and _matches(row["type"], event_type):
                well = _in_time(period, row["within_ms"])
                good, bad = good + well, bad + period.counts["completed"] + period.counts["dead"] - well
        assert (row["good"], row["bad"]) == (good, bad), row
        share = bad / (good + bad) if good + bad else None
        assert row["bad_share"] == share
        budget = 1 - row["objective"]
        assert row["burn_rate"] == (None if share is None else pytest.approx(share / budget))
        if row["budget_left"] is not None:
            assert row["budget_left"] == pytest.approx(1 - (share or 0.0) / budget)


def _in_time(period: Row, within_ms: float | None) -> int:
    if within_ms is None:
        return period.counts["completed"]
    durations = period.histograms["end_to_end"]
    return sum(count for smallest, count in durations.items() if middle_of(smallest) <= within_ms * 1000)


def _matches(pattern: str, event_type: str) -> bool:
    if pattern == "*":
        return True
    parts = [r"[^.]+" if part == "*" else re.escape(part) for part in pattern.split(".")]
    return re.fullmatch(r"\.".join(parts), event_type) is not None
