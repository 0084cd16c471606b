"""What a planted change is."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """A change to the source that breaks one promise, and the test that must notice it."""

    name: str
    file: str
    """Below ``src/durabus``."""
    old: str
    """Must occur exactly once in the file."""
    new: str
    killed_by: str
    """A test's id. Without the parameters of a case, at least one of its cases must fail."""
    why: str
    """What a user would lose."""
    fast: bool = False
    """Whether `make test` tries it too."""
