"""Shows the demo while it runs: a live display on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import msgspec
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from durabus.demo.processes import DemoProcess
from durabus.views.stats import Tally

BAR = 47
LINE_EVERY = 2.0


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the demo at one moment."""

    seconds: float
    orders: int
    placed: int
    tally: Tally
    workers: Sequence[DemoProcess]

    @property
    def summary(self) -> str:
        """Retries, takeovers and dead letters in one line."""
        tally = self.tally
        return (
            f"{tally.retries.total():,} retries · {len(tally.abandoned):,} taken over · "
            f"{tally.dead.total():,} dead letters"
        )


class Screen:
    """A display that is updated in place and stays visible at the end; lines on anything that is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if _can_move_cursor(console) else None
        self._messages: list[tuple[float, Text]] = []
        self._progress: Progress | None = None
        self._next_line = LINE_EVERY

    def __enter__(self) -> Self:
        """Start the display."""
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop the display. The last state stays visible."""
        if self._live is not None:
            self._live.__exit__(None, None, None)

    def show(self, progress: Progress) -> None:
        """Show the current state. May be called often."""
        self._progress = progress
        if self._live is not None:
            self._live.update(self._picture(progress), refresh=True)
        elif progress.seconds >= self._next_line:
            self._next_line = progress.seconds + LINE_EVERY
            orders = f"{progress.placed:,}/{progress.orders:,} orders"
            events = f"{progress.tally.ended:,} of {progress.tally.published.total():,} events done"
            self._print(progress.seconds, f"{orders}, {events}, {progress.summary}")

    def tell(self, seconds: float, text: str, style: str = "") -> None:
        """Show a message."""
        self._messages.append((seconds, Text(text, style=style)))
        if self._live is None:
            self._print(seconds, text)
        elif self._progress is not None:
            self.show(self._progress)

    def _print(self, seconds: float, text: str) -> None:
        self._console.print(f"{seconds:6.1f} s  {text}", markup=False, soft_wrap=True)

    def _picture(self, progress: Progress) -> Group:
        happened = Table.grid(padding=(0, 2))
        happened.add_column(justify="right", style="dim", no_wrap=True)
        happened.add_column()
        for seconds, text in self._messages:
            happened.add_row(f"{seconds:.1f} s", text)
        return Group(_bars(progress), Text(), _workers(progress), Text(), happened)


def _can_move_cursor(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal


def _bars(progress: Progress) -> Table:
    done, published = progress.tally.ended, progress.tally.published.total()
    complete = progress.placed == progress.orders and done == published
    bars = Table.grid(padding=(0, 2))
    bars.add_column(style="bold", min_width=13)
    bars.add_column(width=BAR)
    bars.add_column(justify="right", min_width=15)
    # Each order leads to three events, until it is known which follow-ups there are.
    for title, number, total, shown in (
        ("orders placed", progress.placed, progress.orders, progress.orders),
        ("events done", done, published if complete else 3 * progress.orders, published),
    ):
        bars.add_row(title, ProgressBar(total=total, completed=number, width=BAR), f"{number:,}/{shown:,}")
    bars.add_row("", progress.summary, f"{progress.seconds:.1f} s", style="dim")
    return bars


def _workers(progress: Progress) -> Table:
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    made.add_column("worker", min_width=13)
    made.add_column("pid", justify="right")
    made.add_column("state", min_width=22)
    made.add_column("holding", justify="right")
    made.add_column("done", justify="right", min_width=7)
    for worker in progress.workers:
        held, done = progress.tally.held_by(worker.worker_id), progress.tally.done_by[worker.worker_id]
        style = "green" if worker.alive else "red"
        made.add_row(worker.name, str(worker.pid), f"[{style}]{worker.state}[/]", f"{held:,}", f"{done:,}")
    return made
