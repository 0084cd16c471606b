"""Reads the SQL files of a store: one file for each part, with a ``-- name:`` block for each statement."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

NAME = "-- name: "


@cache
def statements(package: str) -> dict[str, str]:
    """Return the text of every statement in ``package``'s folder ``statements``, by name and without comments."""
    found: dict[str, str] = {}
    for part in files(package).joinpath("statements").iterdir():
        if part.name.endswith(".sql"):
            for block in part.read_text(encoding="utf-8").split(NAME)[1:]:
                name, _, text = block.partition("\n")
                if name in found:
                    raise ValueError(f"{package} has two statements named {name!r}; the second one is in {part.name}")
                found[name] = "\n".join(line for line in text.splitlines() if not line.startswith("--")).strip()
    return found
