"""``gold.activity``, computed once more from the store's log: each entry adds to its minute, hour and day."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tests.pipeline.recomputed.files import DEAD, ENDS, EPOCH, Entry, Files, decoded, expect_rows, instant, microseconds
from tests.pipeline.recomputed.silver import trails

COUNTERS = (
    *("entries", "published", "claimed", "retried", "completed", "dead", "cancelled", "failed", "abandoned", "late"),
    *("released", "requeued", "waiting_change", "working_change", "handler_us", "busy_us"),
)
HISTOGRAMS = ("waiting", "running", "end_to_end")
KEY = ["step", "since", "facet", "bus", "type", "name"]
DETAILS = (
    (r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", "<uuid>"),
    (r"0x[0-9a-fA-F]+", "<hex>"),
    (r"'[^']*'|\"[^\"]*\"", "<text>"),
    (r"\d+([.:,]\d+)*", "<n>"),
)
MINUTE = timedelta(minutes=1)
NEVER = EPOCH - timedelta(days=1)


@dataclass
class Row:
    """What the entries of one period and subject add up to."""

    counts: Counter[str] = field(default_factory=Counter)
    histograms: dict[str, Counter[int]] = field(default_factory=lambda: {name: Counter() for name in HISTOGRAMS})
    first_at: datetime | None = None
    last_at: datetime | None = None
    example: tuple[str, str] | None = None
    example_seq: int = -1
    last_seq: int = -1


@dataclass
class Fact:
    """What one entry adds to one subject."""

    facet: str
    entry: Entry
    type: str | None
    name: str | None = None
    minute: datetime = NEVER
    counts: dict[str, int] = field(default_factory=dict)
    durations: dict[str, int] = field(default_factory=dict)
    seen_at: datetime | None = None
    example: str | None = None


def activity(files: Files) -> dict[tuple[Any, ...], Row]:
    """Return the rows of ``gold.activity`` by their key."""
    published: dict[str, Entry] = {}
    for entry in files.archived:
        if entry["action"] == "PUBLISHED":
            published.setdefault(entry["event_id"], entry)
    rows: dict[tuple[Any, ...], Row] = {}
    for trail in trails(files):
        for fact in _facts(trail, published):
            for step, since in _periods(fact.minute):
                key = (step, since, fact.facet, fact.entry["bus"], fact.type, fact.name)
                _add(rows.setdefault(key, Row()), fact)
    return rows


def _periods(minute: datetime) -> list[tuple[str, datetime]]:
    hour = minute.replace(minute=0)
    return [("minute", minute), ("hour", hour), ("day", hour.replace(hour=0))]


def _add(row: Row, fact: Fact) -> None:
    row.counts.update(fact.counts)
    for name, duration in fact.durations.items():
        row.histograms[name][class_of(duration)] += 1
    if fact.seen_at is not None:
        row.first_at = min(row.first_at or fact.seen_at, fact.seen_at)
        row.last_at = max(row.last_at or fact.seen_at, fact.seen_at)
    seq = fact.entry["seq"]
    if fact.example is not None and seq > row.example_seq:
        row.example, row.example_seq = (fact.example, fact.entry["event_id"]), seq
    row.last_seq = max(row.last_seq, seq)


def _facts(trail: list[Entry], published: dict[str, Entry]) -> Iterator[Fact]:
    claim: Entry | None = None
    lost, claims, earlier = None, 0, list[Entry]()
    for entry in trail:
        if entry["action"] == "PICKED":
            claim, claims = entry, claims + 1
        late = entry["action"] in {"RELEASED", *ENDS} and lost == entry["fence"]
        counts, depth = _counts(entry, late=late)
        durations = _durations(entry, claim, first=claims == 1)
        yield _fact("type", entry, counts=counts | depth, durations=durations)
        held = not late and claim is not None and _ends_claim(entry, claim)
        worker = entry["worker_id"] or (claim["worker_id"] if held and claim is not None else None)
        if worker is not None:
            yield _fact("worker", entry, type=None, name=worker, counts=counts)
        if held and claim is not None:
            yield from _busy(entry, claim, worker)
        if (trouble := _trouble(entry)) is not None:
            yield _fact("error", entry, name=without_details(trouble), counts=counts, example=trouble)
        if entry["status"] in ENDS:
            results = decoded(entry["results"]) or []
            yield from _results(entry, results, earlier)
            earlier = results if entry["results"] is not None else earlier
        if entry["parent_id"] is not None and (entry["action"] == "PUBLISHED" or entry["status"] in ENDS):
            yield _of_parent(entry, published.get(entry["parent_id"]), counts)
        if entry["action"] == "ABANDONED":
            lost = entry["fence"]


def _fact(facet: str, entry: Entry, **fields: Any) -> Fact:
    at = instant(entry["at"])
    assert at is not None
    made = Fact(facet=facet, entry=entry, **{"type": entry["type"], "seen_at": at} | fields)
    made.minute = at.replace(second=0, microsecond=0) if made.minute is NEVER else made.minute
    return made


def _counts(entry: Entry, *, late: bool) -> tuple[dict[str, int], dict[str, int]]:
    """Return the counters of an entry, and by how many it changes the events that wait and those in progress."""
    action, status = entry["action"], entry["status"]
    flags = {
        "entries": True,
        "published": action == "PUBLISHED",
        "claimed": action == "PICKED",
        "retried": action == "PICKED" and entry["attempt"] > 1,
        "completed": status == "COMPLETED",
        "dead": status in DEAD,
        "cancelled": status == "CANCELLED",
        "failed": action == "FAILED",
        "abandoned": action == "ABANDONED",
        "late": late,
        "released": action == "RELEASED",
        "requeued": action == "REQUEUED",
    }
    counts = {name: int(flag) for name, flag in flags.items()}
    counts["handler_us"] = round((entry["execution_time_ms"] or 0.0) * 1000)
    waiting = working = 0
    idle = action == "CANCELLED" and entry["worker_id"] is None
    if action in {"PUBLISHED", "REQUEUED"}:
        waiting = 1
    elif action == "PICKED":
        waiting, working = -1, 1
    elif status in ENDS:
        waiting, working = (-1, 0) if late or idle else (0, -1)
    elif status == "PENDING" and not late:
        waiting, working = 1, -1
    return counts, {"waiting_change": waiting, "working_change": working}


def _durations(entry: Entry, claim: Entry | None, *, first: bool) -> dict[str, int]:
    at, begin = microseconds(entry["at"]), microseconds(entry["created_at"])
    if entry["action"] == "PICKED":
        return {"waiting": at - begin} if first else {}
    if entry["status"] != "COMPLETED":
        return {}
    running = {} if claim is None else {"running": at - microseconds(claim["at"])}
    return running | {"end_to_end": at - begin}


def _ends_claim(entry: Entry, claim: Entry) -> bool:
    """Return whether an entry ends the newest claim. A cancellation has the fence after it."""
    if entry["action"] not in {"RELEASED", "ABANDONED", "RESET", *ENDS} or claim["at"] > entry["at"]:
        return False
    if entry["action"] == "CANCELLED":
        return entry["worker_id"] is not None and claim["fence"] in {entry["fence"], entry["fence"] - 1}
    return bool(claim["fence"] == entry["fence"])


def _busy(entry: Entry, claim: Entry, worker: str | None) -> Iterator[Fact]:
    """Yield the time of a claim in each minute that it touches."""
    begin, end = instant(claim["at"]), instant(entry["at"])
    assert begin is not None
    assert end is not None
    minute = begin.replace(second=0, microsecond=0)
    while minute <= end:
        inside = min(end, minute + MINUTE) - max(begin, minute)
        busy = {"busy_us": inside // timedelta(microseconds=1)}
        yield _fact("worker", entry, type=None, name=worker, minute=minute, counts=busy, seen_at=None)
        minute += MINUTE


def _trouble(entry: Entry) -> str | None:
    if entry["action"] not in {"FAILED", "ABANDONED"} and entry["status"] not in DEAD:
        return None
    told = entry["error"] or (decoded(entry["errors"]) or [None])[-1]
    return "no error was given" if told is None else str(told)


def without_details(error: str) -> str:
    for pattern, name in DETAILS:
        error = re.sub(pattern, name, error)
    return error[:200]


def _results(entry: Entry, results: list[Entry], earlier: list[Entry]) -> Iterator[Fact]:
    """Yield the results of handlers. After a requeue, an end names the earlier successes once more."""
    known = {one["handler_id"] for one in earlier if one["status"] == "SUCCEEDED"}
    for one in results:
        well = one["status"] == "SUCCEEDED"
        if one["status"] in {"KEPT", "WAITING"} or (well and one["handler_id"] in known):
            continue
        took = one.get("execution_time_ms")
        us = 0 if took is None else round(took * 1000)
        counts = {"entries": 1, "completed": int(well), "failed": int(not well), "handler_us": us}
        durations = {} if took is None else {"running": us}
        yield _fact("handler", entry, name=one["handler_id"], counts=counts, durations=durations, seen_at=None)


def _of_parent(entry: Entry, parent: Entry | None, counts: dict[str, int]) -> Fact:
    if parent is None:
        return _fact("parent", entry, counts=counts)
    since = microseconds(entry["at"]) - microseconds(parent["created_at"])
    name = "waiting" if entry["action"] == "PUBLISHED" else "end_to_end"
    return _fact("parent", entry, name=parent["type"], counts=counts, durations={name: since})


def class_of(duration: int) -> int:
    """Return the smallest duration of the class of a duration: there are 64 between two powers of two."""
    duration = max(0, duration)
    return duration - duration % width_of(duration)


def width_of(duration: int) -> int:
    return 1 if duration < 64 else 2 ** (duration.bit_length() - 7)


def middle_of(smallest: int) -> float:
    return smallest if smallest < 64 else smallest + width_of(smallest) / 2


def percentile_ms(histogram: Counter[int], share: int) -> float | None:
    rank = math.ceil(share / 100 * histogram.total())
    for smallest in sorted(histogram):
        rank -= histogram[smallest]
        if rank <= 0:
            return middle_of(smallest) / 1000
    return None


def check_activity(files: Files) -> None:
    expected = []
    for key, row in activity(files).items():
        made: Entry = dict(zip(KEY, key, strict=True)) | {name: row.counts[name] for name in COUNTERS}
        for name in HISTOGRAMS:
            found = row.histograms[name]
            made[name] = [{"from_us": one, "count": found[one]} for one in sorted(found)]
            made |= {f"{name}_p{share}_ms": percentile_ms(found, share) for share in (50, 95, 99)}
        example, example_id = row.example or (None, None)
        made |= {"first_at": row.first_at, "last_at": row.last_at, "last_seq": row.last_seq}
        expected.append(made | {"example": example, "example_event_id": example_id})
    expect_rows(files.read("gold.activity"), expected, KEY)
