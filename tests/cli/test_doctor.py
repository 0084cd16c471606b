"""`durabus doctor` reports problems by words and by its exit code; `durabus guarantees` prints the guarantees."""

import sqlite3
from pathlib import Path

from tests.cli.conftest import Durabus

from durabus import EventQueue, EventStore
from durabus.store.guarantees import URLS

GUARANTEES = Path(__file__).parents[2] / "docs" / "proof" / "guarantees.md"


async def test_a_store_without_errors_is_0(durabus: Durabus, queue: EventQueue) -> None:
    done = durabus("doctor", "--json")
    assert done.code == 0
    assert done.json["ok"]
    assert done.json["store"] == "sqlite"
    assert {finding["level"] for finding in done.json["findings"]} <= {"note", "warning"}


async def test_an_error_is_1_and_says_what_to_do(durabus: Durabus, store: EventStore, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "bus.db") as connection:
        connection.execute("DROP TABLE locks")
    done = durabus("doctor")
    assert done.code == 1
    assert "error" in done.out
    assert "locks" in done.out
    assert not durabus("doctor", "--json").json["ok"]


def test_a_store_that_is_not_there_is_3(durabus: Durabus, tmp_path: Path) -> None:
    done = durabus("doctor", store=f"sqlite:///{tmp_path}/none.db")
    assert done.code == 3
    assert not (tmp_path / "none.db").exists()


def test_memory_is_warned_about(durabus: Durabus) -> None:
    done = durabus("doctor", store="memory://")
    assert done.code == 0
    assert "gone when this process ends" in done.out


def test_the_page_of_guarantees_is_the_one_that_the_code_gives(durabus: Durabus) -> None:
    done = durabus("guarantees", store=None)
    assert done.code == 0
    assert done.out == GUARANTEES.read_text(), "run: durabus guarantees > docs/proof/guarantees.md"
    assert list(durabus("guarantees", "--json", store=None).json) == list(URLS)
