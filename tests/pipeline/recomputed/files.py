"""Reads a SQLite store and a lake as files, with Polars. No module of durabus and no Spark takes part."""

import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
from polars.testing import assert_frame_equal

Entry = dict[str, Any]
ENDS = {"COMPLETED", "COMPLETED_WITH_ERRORS", "FAILED", "CANCELLED"}
DEAD = {"COMPLETED_WITH_ERRORS", "FAILED"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Files:
    """The files of a store and of the lake that follows it.

    - ``stores``: copies of the SQLite file, then the file itself. A log that was trimmed is whole in the copies.
    - ``rules``: for each expectation, the rows that meet it. ``stale_after``: seconds.
    - ``newest``: the upcaster of each event type.
    """

    stores: Sequence[Path]
    lake: Path
    rules: dict[str, pl.Expr] = field(default_factory=dict)
    stale_after: float = 300.0
    newest: dict[str, Callable[[Any], Any]] = field(default_factory=dict)

    def tables(self) -> list[str]:
        found = [one.parent for one in self.lake.glob("*/*/_delta_log")]
        return sorted(f"{one.parent.name}.{one.name}" for one in found)

    def read(self, table: str) -> pl.DataFrame:
        return pl.scan_delta(str(self.lake / table.replace(".", "/"))).collect()

    @cached_property
    def log(self) -> dict[int, Entry]:
        """Every entry that the store ever had, by position."""
        entries: dict[int, Entry] = {}
        for row in self._ask("SELECT * FROM event_log ORDER BY position"):
            entries[row["position"]] = row | {"results": written_out(row)}
        return entries

    @cached_property
    def payloads(self) -> dict[str, str]:
        """The payload of each event that the store ever had, by ``event_id``."""
        queries = ("events", "dead_letters", "event_log WHERE payload IS NOT NULL")
        return {
            row["event_id"]: row["payload"]
            for query in queries
            for row in self._ask(f"SELECT event_id, payload FROM {query}")
        }

    @cached_property
    def archived(self) -> list[Entry]:
        """The entries that bronze has, as the store has them, with their ``seq`` and the payload in bronze."""
        bronze = self.read("bronze.event_log").sort("seq")
        rows = bronze.select("seq", "position", "payload", "unparsable").to_dicts()
        return [
            self.log[int(row["position"])]
            | {"seq": row["seq"], "payload": row["payload"], "unparsable": row["unparsable"]}
            for row in rows
        ]

    def _ask(self, query: str) -> list[Entry]:
        rows: list[Entry] = []
        for path in self.stores:
            database = sqlite3.connect(path)
            database.row_factory = sqlite3.Row
            rows += map(dict, database.execute(query))
            database.close()
        return rows

    def kept(self) -> set[int]:
        """Return the positions that the log of the store still has."""
        return {row["position"] for row in Files([self.stores[-1]], self.lake)._ask("SELECT position FROM event_log")}


def copy_of(store: Path, name: str) -> Path:
    """Copy a SQLite file that others have open."""
    copy = store.with_name(name)
    source, target = sqlite3.connect(store), sqlite3.connect(copy)
    source.backup(target)
    source.close()
    target.close()
    return copy


def written_out(row: Entry) -> str | None:
    """Return the results of an entry. In the file, the id of a handler stands for its success at the first call."""
    text: str | None = row["results"]
    if text is None or not text.startswith('"'):
        return text
    result = {"handler_id": json.loads(text), "status": "SUCCEEDED", "attempts": 1, "error": None, "value_json": None}
    result |= {"execution_time_ms": row["execution_time_ms"], "fence": 0, "worker_id": None, "expires_ts": None}
    return json.dumps([result], separators=(",", ":"))


def microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


def instant(seconds: float | None) -> datetime | None:
    return None if seconds is None else EPOCH + timedelta(microseconds=microseconds(seconds))


def between_ms(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else (microseconds(end) - microseconds(begin)) / 1000


def decoded(text: str | None) -> Any:
    """Return the value of a JSON text; None if it does not parse."""
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return None


def json_or_none(text: str | None) -> str | None:
    return text if decoded(text) is not None or text == "null" else None


def expect_rows(found: pl.DataFrame, expected: list[Entry], key: Sequence[str]) -> None:
    """Compare a table with rows that have all of its columns. Order does not matter."""
    assert not expected or set(expected[0]) == set(found.columns)
    made = pl.DataFrame(expected, schema=found.schema)
    assert_frame_equal(found.sort(key), made.sort(key), rel_tol=1e-9, abs_tol=1e-9)
