"""What the demo shows: a live display on a terminal, a line every few seconds elsewhere, and at the end the report."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from durabus.clock import monotonic
from durabus.demo.processes import DemoProcess
from durabus.demo.shop import MAIL, ORDER, ORDERS_PER_SECOND, PAYMENT
from durabus.store.contract import EventStore
from durabus.views.stats import RunTotals, Tally, TypeTotals

BAR, REST = 47, 32
"""Width of a progress bar, and of what is beside it."""
LINE_EVERY = 2.0
SECOND = 1000


class Screen:
    """A display that is updated in place and stays visible at the end; lines on anything that is no terminal."""

    def __init__(self, console: Console, orders: int, workers: Sequence[DemoProcess]) -> None:
        moves_cursor = console.is_terminal and not console.is_dumb_terminal
        self.live = Live(console=console, auto_refresh=False) if moves_cursor else None
        self.orders = orders
        self.workers = workers
        self.tally = Tally()
        self._console = console
        self._messages: list[tuple[float, Text]] = []
        self._started = monotonic()
        self._next_line = LINE_EVERY

    @property
    def _seconds(self) -> float:
        return monotonic() - self._started

    def show(self) -> None:
        """Show the current state. May be called often."""
        if self.live is not None:
            self.live.update(self.picture(), refresh=True)
        elif self._seconds >= self._next_line:
            self._next_line = self._seconds + LINE_EVERY
            placed, published = self.tally.published[ORDER], self.tally.published.total()
            events = f"{self.tally.ended:,} of {published:,} events done"
            self._print(f"{placed:,}/{self.orders:,} orders, {events}, {self._summary()}")

    def tell(self, text: str, style: str = "") -> None:
        """Show a message."""
        self._messages.append((self._seconds, Text(text, style=style)))
        if self.live is None:
            self._print(text)
        else:
            self.show()

    def picture(self) -> Group:
        """What the display shows now."""
        told = Table.grid(padding=(0, 2))
        told.add_column(justify="right", style="dim", no_wrap=True)
        told.add_column()
        for seconds, text in self._messages:
            told.add_row(f"{seconds:.1f} s", text)
        return Group(self._bars(), Text(), self._worker_table(), Text(), told)

    def _print(self, text: str) -> None:
        self._console.print(f"{self._seconds:6.1f} s  {text}", markup=False, soft_wrap=True)

    def _summary(self) -> str:
        retries, taken, dead = self.tally.retries.total(), len(self.tally.abandoned), self.tally.dead.total()
        return f"{retries:,} retries · {taken:,} taken over · {dead:,} dead letters"

    def _bars(self) -> Table:
        placed, published, done = self.tally.published[ORDER], self.tally.published.total(), self.tally.ended
        # Each order leads to three events, until it is known which follow-ups there are.
        expected = published if placed == self.orders and done == published else 3 * self.orders
        bars = Table.grid(padding=(0, 2))
        bars.add_column(style="bold", no_wrap=True)
        bars.add_column(width=max(1, min(BAR, self._console.width - REST)))
        bars.add_column(justify="right", min_width=15)
        bars.add_row("orders placed", ProgressBar(self.orders, placed), f"{placed:,}/{self.orders:,}")
        bars.add_row("events done", ProgressBar(expected, done), f"{done:,}/{published:,}")
        bars.add_row("", self._summary(), f"{self._seconds:.1f} s", style="dim")
        return bars

    def _worker_table(self) -> Table:
        made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
        narrow = self._console.width < REST + BAR
        made.add_column("worker", min_width=None if narrow else 13)
        made.add_column("pid", justify="right")
        made.add_column("state", min_width=None if narrow else 22)
        made.add_column("holding", justify="right")
        made.add_column("done", justify="right", min_width=7)
        for worker in self.workers:
            held, done = self.tally.held_by(worker.worker_id), self.tally.done_by[worker.worker_id]
            state = Text(worker.state, style="green" if worker.alive else "red")
            made.add_row(worker.name, str(worker.pid), state, f"{held:,}", f"{done:,}")
        return made


async def read_report(store: EventStore, orders: int, killed_ts: float | None = None) -> RunTotals:
    """Count the whole log again, and compare it with what the store holds now."""
    tally = Tally()
    await tally.follow(store)
    found = tally.totals(await store.counts(), (ORDER, PAYMENT, MAIL), killed_ts)
    if tally.published[ORDER] != orders:
        found.problems.append(f"{tally.published[ORDER]} of {orders} orders are in the log")
    return found


def render(found: RunTotals, refused: int | None) -> Group:
    """The report for rich, within 80 columns. ``refused`` late writes are unknown if no worker reported."""
    dead = found.in_store.failed + found.in_store.completed_with_errors
    sum_ = f"{found.total.published:,} published = {found.in_store.completed:,} completed + {dead:,} dead letters"
    wrong = Text(f"✗ {'; '.join(found.problems)}", style="bold red")
    verdict = wrong if found.problems else Text(f"✓ {sum_}, nothing lost", style="bold green")
    return Group(_type_table(found), Text(), _fact_table(found, refused), Text(), verdict)


def _type_table(found: RunTotals) -> Table:
    made = Table(box=box.SIMPLE, pad_edge=False, show_edge=False, show_footer=True, collapse_padding=True)
    made.header_style = made.footer_style = "bold"
    made.caption, made.caption_justify = "p50, p99: publish to done, with all retries and takeovers", "left"
    titles = ("event type", "published", "completed", "dead letters", "retries", "p50", "p99")
    for title, footer in zip(titles, _cells(found.total), strict=True):
        made.add_column(title, footer, justify="left" if footer == "all" else "right", no_wrap=footer == "all")
    for line in found.types:
        made.add_row(*_cells(line))
    return made


def _cells(line: TypeTotals) -> list[str]:
    numbers = (line.published, line.completed, line.dead_letters, line.retries)
    return [line.type, *(f"{number:,}" for number in numbers), _time(line.p50_ms), _time(line.p99_ms)]


def _time(ms: float | None) -> str:
    return "-" if ms is None else f"{ms:,.0f} ms" if ms < SECOND else f"{ms / SECOND:,.2f} s"


def _fact_table(found: RunTotals, refused: int | None) -> Table:
    within = "" if found.takeover_seconds is None else f", the last {found.takeover_seconds:.1f} s after the kill"
    pace = f"{found.events_per_second:,.0f} events/s over {found.seconds:.1f} s"
    made = Table.grid(padding=(0, 2))
    made.add_column(style="bold", min_width=16)
    made.add_column()
    made.add_row("lost", f"{found.lost:,}")
    made.add_row("taken over", f"{found.takeovers:,} events of the killed worker{within}")
    made.add_row("retries", f"{found.retries:,} failed attempts were retried (without takeovers)")
    made.add_row("parents", f"{found.parents_returned:,} went back to the queue until their children had ended")
    made.add_row("recovered", f"{found.completed_after_retry:,} events completed after a failed or lost attempt")
    made.add_row("late writes", "unknown" if refused is None else f"{refused:,} refused")
    made.add_row("throughput", f"{pace}, with {ORDERS_PER_SECOND} orders/s coming in")
    for number, (error, events) in enumerate(found.dead_letters_by_error.items()):
        made.add_row("" if number else "dead letters", f"{events:>4,}  {error}")
    return made
