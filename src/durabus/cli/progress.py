"""How a long command shows that it moves: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from durabus.cli.output import say


class Bars:
    """Progress on a terminal; elsewhere one line for each step that ended."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self.done: list[dict[str, Any]] = []
        self._live = sys.stderr.isatty()
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

    def moves(self, rows: int) -> None:
        """See ``Listener``."""
        seconds = time.monotonic() - self._started  # clock: rows a second
        self.progress.update(self._task, completed=rows, pace=f"{rows / max(seconds, 1e-9):,.0f} rows/s")

    def ends(self, step: str, rows: int, seconds: float) -> None:
        """See ``Listener``."""
        pace = f"{rows / max(seconds, 1e-9):,.0f} rows/s" if rows else ""
        self.progress.update(self._task, total=rows, completed=rows, pace=pace)
        self.progress.stop_task(self._task)
        self.done.append({"step": step, "rows": rows, "seconds": round(seconds, 3)})
        if not self._live:
            say(f"{step:<22} {rows:>12,} rows {seconds:>8.1f} s  {pace}".rstrip())


@contextmanager
def progress_bars() -> Iterator[Bars]:
    """Bars for as long as the command works."""
    bars = Bars()
    with bars.progress:
        yield bars
