"""What a run tells while it works."""

from __future__ import annotations

from typing import Protocol


class ProgressListener(Protocol):
    """Told of each step as it begins, moves and ends. Row counts are what a step takes in."""

    def begins(self, step: str, total: int | None) -> None:
        """A step begins; ``total`` rows lie before it, if that is known."""
        ...

    def moves(self, rows: int) -> None:
        """The present step has taken in ``rows`` so far."""
        ...

    def ends(self, step: str, rows: int, seconds: float) -> None:
        """A step ended."""
        ...


class Silent:
    """Nobody listens."""

    def begins(self, step: str, total: int | None) -> None:
        """See ``ProgressListener``."""

    def moves(self, rows: int) -> None:
        """See ``ProgressListener``."""

    def ends(self, step: str, rows: int, seconds: float) -> None:
        """See ``ProgressListener``."""
