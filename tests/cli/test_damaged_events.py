"""One damaged event does not hide the others."""

import json
import math
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.conftest import Durabus

from durabus import EventQueue

BROKEN = '{"order":'


def by_hand(folder: Path, value: str | float, *statements: str) -> None:
    with closing(sqlite3.connect(folder / "bus.db", isolation_level=None)) as admin:
        for sql in statements:
            assert admin.execute(sql, (value,)).rowcount > 0


async def test_a_payload_that_does_not_decode_is_null_with_its_text_beside(
    durabus: Durabus, queue: EventQueue, tmp_path: Path
) -> None:
    by_hand(
        tmp_path,
        BROKEN,
        "UPDATE dead_letters SET payload = ?, metadata = 'oops' WHERE id = 2",
        "UPDATE event_log SET payload = ? WHERE id = 2 AND payload IS NOT NULL",
    )
    (dead,) = durabus("dlq", "list", "--json").json["events"]
    assert (dead["payload"], dead["payload_text"]) == (None, BROKEN)
    assert "does not decode" in dead["payload_error"]
    assert (dead["metadata"], dead["metadata_text"]) == (None, "oops")
    third, second, first = durabus("events", "list", "--json").json["events"]
    assert (third["payload"], second["payload"], first["payload"]) == ({"order": 3}, None, {"order": 1})
    assert "payload_text" in second
    assert not {"payload_text", "payload_error"} & (third.keys() | first.keys())
    shown = durabus("events", "show", "2", "--json").json
    assert shown["event"]["payload_text"] == shown["log"][-1]["payload_text"] == BROKEN
    tail = durabus("events", "tail", "--from-start", "--no-follow", "--json").out.splitlines()
    assert [entry["payload_text"] for entry in map(json.loads, tail) if "payload_text" in entry] == [BROKEN]


async def test_people_see_the_raw_text_with_a_mark(durabus: Durabus, queue: EventQueue, tmp_path: Path) -> None:
    by_hand(tmp_path, BROKEN, "UPDATE dead_letters SET payload = ? WHERE id = 2")
    shown = durabus("events", "show", "2")
    assert shown.code == 0, shown.err
    assert f"{BROKEN}  ✗ stored JSON does not decode" in shown.out
    assert "✗" not in durabus("events", "show", "1").out
    assert durabus("dlq", "list").code == 0


@pytest.mark.parametrize("due", [1e12, 1e18, math.inf])
async def test_an_instant_beyond_the_calendar_is_null(
    durabus: Durabus, queue: EventQueue, tmp_path: Path, due: float
) -> None:
    by_hand(
        tmp_path,
        due,
        "UPDATE events SET due_at = ?, errors = '[\"late\"]' WHERE id = 3",
        "UPDATE event_log SET at = ? WHERE id = 3",
    )
    newest = durabus("events", "list", "--json").json["events"][0]
    assert (newest["id"], newest["due_at"]) == (3, None)
    assert newest["created_at"] is not None
    for command in (["events", "list"], ["events", "show", "3"], ["events", "show", "3", "--json"]):
        done = durabus(*command)
        assert done.code == 0, done.err
    assert "after the year 9999" in durabus("events", "show", "3").out
    assert "--:--:--.---" in durabus("events", "tail", "--from-start", "--no-follow").out
