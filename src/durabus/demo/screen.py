"""Shows the demo while it runs: a live display on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

import msgspec
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from durabus.views.tally import Tally

WIDTH = 96
BAR = 47
LINE_EVERY = 2.0


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One worker on the screen."""

    name: str
    worker_id: str
    pid: int
    state: str
    alive: bool


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the demo at one moment."""

    seconds: float
    orders: int
    placed: int
    tally: Tally
    workers: Sequence[WorkerRow]

    @property
    def expected(self) -> int:
        """Maximum number of events: three for each order, until the follow-ups are known."""
        return 3 * self.orders

    @property
    def summary(self) -> str:
        """Retries, takeovers and dead letters in one line."""
        tally = self.tally
        return (
            f"{tally.retries.total():,} retries · {len(tally.abandoned):,} taken over · "
            f"{tally.dead.total():,} dead letters"
        )


class Screen(Protocol):
    """Shows the progress and the messages of the demo."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: object) -> None: ...

    def show(self, progress: Progress) -> None:
        """Show the current state. May be called often."""
        ...

    def tell(self, seconds: float, text: str, style: str = "") -> None:
        """Show a message."""
        ...


class PlainScreen:
    """For pipes and files: prints messages at once, and progress every two seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = LINE_EVERY

    def __enter__(self) -> Self:
        """Nothing to set up."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Nothing to restore."""

    def show(self, progress: Progress) -> None:
        """Print one line, unless the last one is recent."""
        if progress.seconds < self._next:
            return
        self._next = progress.seconds + LINE_EVERY
        done, published = progress.tally.ended, progress.tally.published.total()
        orders = f"{progress.placed:,}/{progress.orders:,} orders"
        self._print(progress.seconds, f"{orders}, {done:,} of {published:,} events done, {progress.summary}")

    def tell(self, seconds: float, text: str, style: str = "") -> None:
        """Print one line without colour."""
        del style
        self._print(seconds, text)

    def _print(self, seconds: float, text: str) -> None:
        self._console.print(f"{seconds:6.1f} s  {text}", markup=False, soft_wrap=True)


class LiveScreen:
    """For terminals: one display that is updated in place and stays visible at the end."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._messages: list[tuple[float, Text]] = []
        self._progress: Progress | None = None

    def __enter__(self) -> Self:
        """Start the display."""
        self._live.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop the display. The last state stays visible."""
        self._live.__exit__(None, None, None)

    def show(self, progress: Progress) -> None:
        """Update the display."""
        self._progress = progress
        self._live.update(self._picture(progress), refresh=True)

    def tell(self, seconds: float, text: str, style: str = "") -> None:
        """Add a message below the display."""
        self._messages.append((seconds, Text(text, style=style)))
        if self._progress is not None:
            self.show(self._progress)

    def _picture(self, progress: Progress) -> Group:
        happened = Table.grid(padding=(0, 2))
        happened.add_column(justify="right", style="dim", no_wrap=True)
        happened.add_column()
        for seconds, text in self._messages:
            happened.add_row(f"{seconds:.1f} s", text)
        return Group(_bars(progress), Text(), _workers(progress), Text(), happened)


def _bars(progress: Progress) -> Table:
    done, published = progress.tally.ended, progress.tally.published.total()
    complete = progress.placed == progress.orders and done == published
    bars = Table.grid(padding=(0, 2))
    bars.add_column(style="bold", min_width=13)
    bars.add_column(width=BAR)
    bars.add_column(justify="right", min_width=15)
    bars.add_row(
        "orders placed",
        ProgressBar(total=progress.orders, completed=progress.placed, width=BAR),
        f"{progress.placed:,}/{progress.orders:,}",
    )
    bars.add_row(
        "events done",
        ProgressBar(total=published if complete else progress.expected, completed=done, width=BAR),
        f"{done:,}/{published:,}",
    )
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
        held, done = progress.tally.held_by[worker.worker_id], progress.tally.done_by[worker.worker_id]
        style = "green" if worker.alive else "red"
        made.add_row(worker.name, str(worker.pid), f"[{style}]{worker.state}[/]", f"{len(held):,}", f"{done:,}")
    return made


def screen_for(console: Console) -> Screen:
    """The live display on a terminal that supports it; otherwise lines."""
    return LiveScreen(console) if console.is_terminal and not console.is_dumb_terminal else PlainScreen(console)
