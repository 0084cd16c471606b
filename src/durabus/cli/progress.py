"""Shows the progress of long commands: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from durabus.cli.output import say


class Bars:
    """Progress bars on a terminal; elsewhere one line for each step that ended. ``quiet`` turns both off."""

    def __init__(self, unit: str = "rows", *, quiet: bool = False) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self.done: list[dict[str, Any]] = []
        self._unit = unit
        self._quiet = quiet
        self._live = sys.stderr.isatty() and not quiet
        from rich.console import Console

        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<22}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[pace]}"),
            console=Console(stderr=True),
            disable=not self._live,
        )
        self._task: Any = None
        self._started = 0.0

    def begins(self, step: str, total: int | None) -> None:
        """See ``Listener``."""
        self._task = self.progress.add_task(step, total=total, pace="")
        self._started = time.monotonic()  # clock: rows a second

    def moves(self, rows: int, total: int | None = None) -> None:
        """See ``Listener``. ``total`` replaces the total, if it is known only now."""
        seconds = time.monotonic() - self._started  # clock: rows a second
        self.progress.update(self._task, completed=rows, total=total, pace=self._pace(rows, seconds))

    def ends(self, step: str, rows: int, seconds: float) -> None:
        """See ``Listener``."""
        pace = self._pace(rows, seconds) if rows else ""
        self.progress.update(self._task, total=rows, completed=rows, pace=pace)
        self.progress.stop_task(self._task)
        self.done.append({"step": step, "rows": rows, "seconds": round(seconds, 3)})
        if not self._live and not self._quiet:
            say(f"{step:<22} {rows:>12,} {self._unit} {seconds:>8.1f} s  {pace}".rstrip())

    @contextmanager
    def step(self, name: str, total: int | None) -> Iterator[Callable[..., None]]:
        """Run one step. Yields a function to call with the number done, and the total if it is known only now."""
        reached = 0

        def moved(number: int, total: int | None = None) -> None:
            nonlocal reached
            reached = number
            self.moves(number, total)

        self.begins(name, total)
        yield moved
        self.ends(name, reached, time.monotonic() - self._started)  # clock: rows a second

    def _pace(self, number: int, seconds: float) -> str:
        return f"{number / max(seconds, 1e-9):,.0f} {self._unit}/s"


@contextmanager
def progress_bars(unit: str = "rows", *, quiet: bool = False) -> Iterator[Bars]:
    """Yields progress bars, and removes them at the end."""
    bars = Bars(unit, quiet=quiet)
    with bars.progress:
        yield bars
