"""Bronze and silver, computed once more from the store's log."""

import re
from collections import defaultdict
from typing import Any

import polars as pl
from tests.pipeline.recomputed.files import (
    ENDS,
    Entry,
    Files,
    between_ms,
    decoded,
    expect_rows,
    instant,
    json_or_none,
)

ACTIONS = {"PUBLISHED", "PICKED", "STARTED", "RELEASED", "ABANDONED", "REQUEUED", "RESET", *ENDS}
STATUSES = {"PENDING", "PROCESSING", *ENDS}
INSTANTS = ("at", "created_at", "next_retry_at")
SAME = (
    *("action", "id", "event_id", "bus", "type", "status", "attempt", "generation", "fence", "worker_id", "error"),
    *("reason", "execution_time_ms", "status_code", "tags", "metadata", "parent_id", "errors", "results"),
)
"""The columns that bronze has as the store has them."""
SET_ASIDE = ("event_id", "type", "published_at")
ABOUT = {
    "durabus_id": "id",
    "durabus_event_id": "event_id",
    "durabus_bus": "bus",
    "durabus_status": "status",
    "durabus_published_at": "published_at",
    "durabus_ended_at": "ended_at",
    "durabus_seq": "last_seq",
}


def unparsable(entry: Entry) -> str | None:
    found = []
    if entry["action"] not in ACTIONS:
        found.append("unknown action")
    if entry["status"] not in STATUSES:
        found.append("unknown status")
    for name, verb in (("payload", "is"), ("metadata", "is"), ("results", "are")):
        if entry[name] is not None and json_or_none(entry[name]) is None:
            found.append(f"{name} {verb} not JSON")
    found += [
        f"{name} are no list"
        for name in ("tags", "errors")
        if entry[name] is not None and not isinstance(decoded(entry[name]), list)
    ]
    return "; ".join(found) or None


def check_bronze(files: Files) -> None:
    """Each entry of the store is in bronze once, in order, unless the gap ledger accounts for it."""
    found = files.read("bronze.event_log").sort("seq")
    positions = [int(one) for one in found["position"]]
    assert found["seq"].to_list() == list(range(len(found)))
    assert positions == sorted(set(positions))
    assert set(positions) <= set(files.log)
    lacking = {one for one in files.log if positions and one <= positions[-1]} - set(positions)
    assert lacking <= {position for gap in gaps(files) for position in in_gap(files, gap)}
    expected = []
    ended = {entry["id"] for entry in files.archived if entry["status"] in ENDS}
    for entry in files.archived:
        at = instant(entry["at"])
        assert at is not None
        if entry["action"] == "PUBLISHED":
            assert entry["payload"] in {None, files.payloads.get(entry["event_id"])}
            assert entry["payload"] is not None or entry["id"] in ended or entry["event_id"] not in files.payloads
        else:
            assert entry["payload"] == files.log[entry["position"]]["payload"]
        row = {name: entry[name] for name in SAME} | {name: instant(entry[name]) for name in INSTANTS}
        row |= {"seq": entry["seq"], "position": str(entry["position"]), "payload": entry["payload"], "day": at.date()}
        expected.append(row | {"unparsable": unparsable(entry)})
    expect_rows(found, expected, ["seq"])


def gaps(files: Files) -> list[Entry]:
    """Return the newest line of each gap in the ledger."""
    if "ops.gaps" not in files.tables():
        return []
    lines = files.read("ops.gaps").sort("noted_at").to_dicts()
    return list({line["gap_id"]: line for line in lines}.values())


def in_gap(files: Files, gap: Entry) -> list[int]:
    return [one for one in files.log if int(gap["after"] or 0) < one <= int(gap["until"])]


def check_bronze_quarantine(files: Files) -> None:
    bronze = files.read("bronze.event_log").filter(pl.col("unparsable").is_not_null())
    expect_rows(files.read("bronze.quarantine"), bronze.to_dicts(), ["seq"])


def trails(files: Files) -> list[list[Entry]]:
    """Return the entries of each event in bronze, in order."""
    found: dict[int, list[Entry]] = defaultdict(list)
    for entry in files.archived:
        found[entry["id"]].append(entry)
    return list(found.values())


def events(files: Files) -> list[Entry]:
    """Return the rows of ``silver.events``."""
    return [_event(trail) for trail in trails(files)]


def _event(trail: list[Entry]) -> Entry:
    first, last = trail[0], trail[-1]
    picks = [one for one in trail if one["action"] == "PICKED"]
    ends = [one for one in trail if one["status"] in ENDS]
    end = ends[-1] if ends else None
    over = end if last["status"] in ENDS else None
    about = [one for one in trail if one["action"] == "PUBLISHED" or one["status"] in ENDS]
    told = about[-1] if about else dict.fromkeys(("tags", "metadata", "parent_id"))
    published = next((one["payload"] for one in trail if one["action"] == "PUBLISHED"), None)
    ended_payload = None if end is None else end["payload"]
    metadata = decoded(told["metadata"])
    begin, ended = first["created_at"], over["at"] if over else None
    return {
        **{name: first[name] for name in ("id", "event_id", "bus", "type")},
        **{name: last[name] for name in ("status", "generation")},
        "attempts": last["attempt"],
        "claims": len(picks),
        "failures": len(failed_fences(trail)),
        "published_at": instant(begin),
        "picked_at": instant(picks[0]["at"]) if picks else None,
        "ended_at": instant(ended),
        "last_at": instant(last["at"]),
        "waiting_ms": between_ms(begin, picks[0]["at"] if picks else None),
        "running_ms": between_ms(picks[-1]["at"] if picks else None, ended),
        "end_to_end_ms": between_ms(begin, ended),
        "worker_id": picks[-1]["worker_id"] if picks else None,
        "last_error": last_error(trail),
        "errors": None if end is None else decoded(end["errors"]),
        "tags": decoded(told["tags"]),
        "parent_id": told["parent_id"],
        "metadata": json_or_none(told["metadata"]),
        "payload": json_or_none(published if ended_payload is None else ended_payload),
        "results": None if end is None else json_or_none(end["results"]),
        "replay_of": metadata.get("durabus_replay_of") if isinstance(metadata, dict) else None,
        "first_seq": first["seq"],
        "last_seq": last["seq"],
    }


def failed_fences(trail: list[Entry]) -> set[int]:
    """Return the claims that failed or were lost. One that was settled well after it was lost did not fail."""
    lost = {one["fence"] for one in trail if one["action"] in {"FAILED", "ABANDONED"}}
    return lost - {one["fence"] for one in trail if one["action"] in {"COMPLETED", "COMPLETED_WITH_ERRORS", "RELEASED"}}


def last_error(trail: list[Entry]) -> str | None:
    settled = {one["fence"] for one in trail if one["action"] in {"RELEASED", *ENDS}}
    for one in reversed(trail):
        taken_back = one["action"] == "ABANDONED" and one["fence"] in settled
        if one["error"] is not None and not taken_back:
            return str(one["error"])
    return None


def check_events(files: Files) -> None:
    expect_rows(files.read("silver.events"), events(files), ["id"])


def check_attempts(files: Files) -> None:
    expected = [row for trail in trails(files) for row in _attempts(trail)]
    expect_rows(files.read("silver.attempts"), expected, ["id", "fence"])


def _attempts(trail: list[Entry]) -> list[Entry]:
    rows: dict[int, Entry] = {}
    for entry in trail:
        action, fence = entry["action"], entry["fence"]
        if action in {"PUBLISHED", "REQUEUED"} or action not in ACTIONS:
            continue
        if action == "CANCELLED":
            # A cancellation that takes a claim away has the fence after it.
            for one in (fence, fence - 1):
                if one in rows:
                    rows[one]["last_seq"] = entry["seq"]
                    if rows[one]["outcome"] is None:
                        _end(rows[one], entry)
            continue
        row = rows.setdefault(fence, _claim(entry))
        row["last_seq"] = entry["seq"]
        row["generation"] = max(row["generation"], entry["generation"])
        if action == "PICKED":
            row |= {"attempt": entry["attempt"], "worker_id": entry["worker_id"], "picked_at": instant(entry["at"])}
            row["at"] = entry["at"]
        elif action == "STARTED":
            row["started_at"] = row["started_at"] or instant(entry["at"])
        else:
            _end(row, entry)
    for row in rows.values():
        row["held_ms"] = between_ms(row.pop("at"), row.pop("end"))
    return list(rows.values())


def _claim(entry: Entry) -> Entry:
    known = {name: entry[name] for name in ("id", "fence", "event_id", "bus", "type", "generation")}
    unknown = ("attempt", "worker_id", "picked_at", "started_at", "ended_at", "outcome", "error", "reason")
    return known | dict.fromkeys((*unknown, "execution_time_ms", "held_ms", "at", "end"))


def _end(row: Entry, entry: Entry) -> None:
    row |= {"outcome": entry["action"], "end": entry["at"], "ended_at": instant(entry["at"])}
    row |= {name: entry[name] for name in ("error", "reason", "execution_time_ms")}


def newest_payload(files: Files, event: Entry) -> Any:
    value = decoded(event["payload"])
    upcast = files.newest.get(event["type"])
    return value if upcast is None else upcast(value)


def check_typed(files: Files, table: str) -> None:
    """Each event of the type is in its table with the values of its payload, or in the quarantine with a reason."""
    rows = {row["durabus_id"]: row for row in files.read(table).to_dicts()}
    refused = {row["id"]: row for row in quarantined(files) if row["table_name"] == table}
    own = [one for one in events(files) if _table_of(one["type"]) == table and one["payload"] is not None]
    assert own, f"no event of a type that {table} is named after"
    assert sorted([*rows, *refused]) == sorted(one["id"] for one in own)
    for event in own:
        payload = newest_payload(files, event)
        if event["id"] in refused:
            row = refused[event["id"]]
            assert row["reason"]
            assert decoded(row["payload"]) == payload
            assert {name: row[name] for name in SET_ASIDE} == {name: event[name] for name in SET_ASIDE}
            continue
        row = rows[event["id"]]
        assert {name: row.pop(name) for name in ABOUT} == {name: event[of] for name, of in ABOUT.items()}
        assert _shaped(payload, row) == row


def quarantined(files: Files) -> list[Entry]:
    return files.read("silver.quarantine").to_dicts() if "silver.quarantine" in files.tables() else []


def check_quarantine(files: Files) -> None:
    """The rows themselves are compared with their typed tables: here, each belongs to one of them."""
    rows = quarantined(files)
    assert {row["table_name"] for row in rows} <= set(files.tables())
    keys = [(row["table_name"], row["id"]) for row in rows]
    assert len(keys) == len(set(keys))


def _table_of(event_type: str) -> str:
    return f"silver.{re.sub(r'[.:/-]+', '_', event_type.lower())}"


def _shaped(value: Any, like: Any) -> Any:
    """Return a payload with None for each field that only other payloads of its table have."""
    if isinstance(like, dict) and isinstance(value, dict):
        return {name: _shaped(value.get(name), one) for name, one in like.items()}
    return value
