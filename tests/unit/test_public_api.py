"""The names that users import, and the signatures behind them, change on purpose only."""

import tomllib
from pathlib import Path

from tests.unit.public_api import PINNED, public_api

import durabus

ROOT = Path(__file__).resolve().parents[2]


def test_the_public_api_is_the_one_that_was_written_down() -> None:
    pinned = PINNED.read_text(encoding="utf-8")
    assert public_api() == pinned, (
        "a public name or signature has changed. If that is meant: python -m tests.unit.public_api, "
        "and a line in CHANGELOG.md"
    )


def test_the_public_names_are_sorted_and_there() -> None:
    assert sorted(durabus.__all__) == durabus.__all__
    assert [name for name in durabus.__all__ if not hasattr(durabus, name)] == []


def test_the_version_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert durabus.__version__ == project["version"]
