"""docs/proof/benchmarks.md is made by a whole run: nothing on it is missing, and each group names its commit."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "proof" / "benchmarks.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "measurement",
    [
        "EventBus.publish, sequential",
        "recovery of 100 events after kill -9, default settings",
        r"the distribution's PostgreSQL [\d.]+ drain, 1 process",
    ],
    ids=["a sequential publish", "a killed worker", "the distribution's PostgreSQL"],
)
def test_the_table_has_a_row_for(measurement: str) -> None:
    assert re.search(rf"^\| {measurement} \| [\d.,]+", PAGE, flags=re.MULTILINE)


def test_the_peers_and_the_pipeline_were_measured() -> None:
    assert "Not measured on this machine yet." not in PAGE
    assert len(re.findall(r"^Taken .+ at commit \w+", PAGE, flags=re.MULTILINE)) == 2


def test_each_group_names_its_commit() -> None:
    groups = re.findall(r"^  - (\S+): (.+)$", PAGE, flags=re.MULTILINE)
    assert groups
    assert [name for name, line in groups if not re.search(r", commit [\w.-]+, load ", line)] == []
