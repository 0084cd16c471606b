"""The report of the demo, read only from the store and its log after the run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from durabus.demo.shop import FOLLOW_UPS, MAIL, ORDER, PAYMENT
from durabus.model.query import Counts
from durabus.store.contract import EventStore
from durabus.views.stats import Tally

TYPES = (ORDER, PAYMENT, MAIL)
CAPTION = "p50, p99: publish to done, with all retries and takeovers"


class TypeLine(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one event type, or of all. Latency is from publish to the end, with retries and takeovers."""

    type: str
    published: int
    completed: int
    dead_letters: int
    retries: int
    p50_ms: float | None
    p99_ms: float | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the demo."""

    orders: int
    types: list[TypeLine]
    total: TypeLine
    in_store: Counts
    lost: int
    """Events that the log shows as published, but that the store does not have."""
    left: int
    """Events that are still pending or processing."""
    ended_twice: int
    broken_chains: int
    """Completed events whose follow-up was not published exactly once."""
    takeovers: int
    takeover_seconds: float | None
    """Seconds from the kill to the last takeover."""
    retries: int
    """Failed attempts that were followed by another. Attempts lost with the worker are takeovers."""
    completed_after_retry: int
    """Events that completed after at least one failed or lost attempt."""
    late_writes_refused: int | None
    """Claims that surviving workers lost; None if no worker reported."""
    seconds: float
    events_per_second: float
    orders_per_second: float | None
    """The rate of new orders, which limits the throughput."""
    dead_letters_by_error: dict[str, int]
    problems: list[str]
    """What does not add up; empty if everything does."""


async def read_report(
    store: EventStore,
    *,
    orders: int,
    orders_per_second: float | None = None,
    killed_ts: float | None = None,
    late_writes_refused: int | None = None,
) -> Report:
    """Count the whole log again, and compare it with what the store holds now."""
    tally = Tally()
    await tally.follow(store)
    counts = await store.counts()
    left = counts.pending + counts.processing
    dead = counts.failed + counts.completed_with_errors
    published = tally.published.total()
    seconds = (tally.last_end_ts or 0.0) - (tally.first_ts or 0.0)
    found = Report(
        orders=orders,
        types=[_line(tally, one, [one]) for one in TYPES],
        total=_line(tally, "all", TYPES),
        in_store=counts,
        lost=published - counts.completed - dead - left,
        left=left,
        ended_twice=tally.ended_twice,
        broken_chains=_broken_chains(tally),
        takeovers=len(tally.abandoned),
        takeover_seconds=max(tally.abandoned) - killed_ts if tally.abandoned and killed_ts else None,
        retries=tally.retries.total(),
        completed_after_retry=tally.recovered,
        late_writes_refused=late_writes_refused,
        seconds=seconds,
        events_per_second=tally.ended / seconds if seconds > 0 else 0.0,
        orders_per_second=orders_per_second,
        dead_letters_by_error=dict(tally.errors.most_common()),
        problems=[],
    )
    return msgspec.structs.replace(found, problems=_problems(found, tally))


def _line(tally: Tally, title: str, types: Sequence[str]) -> TypeLine:
    latencies = sorted(one for type_ in types for one in tally.latencies[type_])
    return TypeLine(
        type=title,
        published=sum(tally.published[one] for one in types),
        completed=sum(tally.completed[one] for one in types),
        dead_letters=sum(tally.dead[one] for one in types),
        retries=sum(tally.retries[one] for one in types),
        p50_ms=_quantile(latencies, 0.50),
        p99_ms=_quantile(latencies, 0.99),
    )


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    """The quantile ``share`` in milliseconds."""
    if not ordered:
        return None
    rank = max(0, -int(-share * len(ordered) // 1) - 1)
    return ordered[rank] * 1000


def _broken_chains(tally: Tally) -> int:
    ids = (one for type_ in FOLLOW_UPS for one in tally.completed_ids[type_])
    return sum(tally.children[event_id] != 1 for event_id in ids)


def _problems(found: Report, tally: Tally) -> list[str]:
    held, log = found.in_store, found.total
    dead = held.failed + held.completed_with_errors
    checks = (
        (found.lost != 0, f"{found.lost} events were published but are not in the store"),
        (found.left != 0, f"{found.left} events are still pending or processing"),
        (
            held.completed != log.completed,
            f"the store holds {held.completed} completed events, the log {log.completed}",
        ),
        (dead != log.dead_letters, f"the store holds {dead} dead letters, the log {log.dead_letters}"),
        (found.ended_twice != 0, f"{found.ended_twice} events ended twice"),
        (found.broken_chains != 0, f"{found.broken_chains} completed events lack their one follow-up event"),
        (tally.published[ORDER] != found.orders, f"{tally.published[ORDER]} of {found.orders} orders are in the log"),
    )
    return [text for wrong, text in checks if wrong]


def render(found: Report) -> Group:
    """The report for rich, within 80 columns."""
    verdict = (
        Text(f"✗ {'; '.join(found.problems)}", style="bold red")
        if found.problems
        else Text(
            f"✓ {found.total.published:,} published = {found.in_store.completed:,} completed "
            f"+ {found.in_store.failed + found.in_store.completed_with_errors:,} dead letters, nothing lost",
            style="bold green",
        )
    )
    return Group(_type_table(found), Text(), _fact_table(found), Text(), verdict)


def _type_table(found: Report) -> Table:
    made = Table(box=box.SIMPLE, pad_edge=False, show_edge=False, show_footer=True, collapse_padding=True)
    made.header_style = made.footer_style = "bold"
    made.caption, made.caption_justify = CAPTION, "left"
    titles = ("event type", "published", "completed", "dead letters", "retries", "p50", "p99")
    for title, footer in zip(titles, _cells(found.total), strict=True):
        made.add_column(title, footer, justify="left" if title == titles[0] else "right")
    for line in found.types:
        made.add_row(*_cells(line))
    return made


def _cells(line: TypeLine) -> Sequence[str]:
    numbers = (line.published, line.completed, line.dead_letters, line.retries)
    return (line.type, *(f"{number:,}" for number in numbers), _ms(line.p50_ms), _ms(line.p99_ms))


def _fact_table(found: Report) -> Table:
    within = "" if found.takeover_seconds is None else f", the last {found.takeover_seconds:.1f} s after the kill"
    refused = "unknown" if found.late_writes_refused is None else f"{found.late_writes_refused:,}"
    made = Table.grid(padding=(0, 2))
    made.add_column(style="bold", min_width=16)
    made.add_column()
    made.add_row("lost", f"{found.lost:,}")
    made.add_row("taken over", f"{found.takeovers:,} events of the killed worker{within}")
    made.add_row("retries", f"{found.retries:,} failed attempts were retried (without takeovers)")
    made.add_row("recovered", f"{found.completed_after_retry:,} events completed after a failed or lost attempt")
    made.add_row("late writes", f"{refused} refused")
    pace = "" if found.orders_per_second is None else f", with {found.orders_per_second:g} orders/s coming in"
    made.add_row("throughput", f"{found.events_per_second:,.0f} events/s over {found.seconds:.1f} s{pace}")
    title = "dead letters"
    for error, number in found.dead_letters_by_error.items():
        made.add_row(title, f"{number:>4,}  {error}")
        title = ""
    return made


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f} ms" if value < 1000 else f"{value / 1000:,.2f} s"  # noqa: PLR2004  (ms below a second)
