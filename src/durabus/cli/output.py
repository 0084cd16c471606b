"""Output of commands: JSON documents and tables on stdout; messages, questions, progress and the log on stderr."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from durabus.cli.failures import CommandFailed, Exit
from durabus.errors import PayloadDecodeError
from durabus.model.event import Event
from durabus.model.log_entry import LogEntry
from durabus.model.payload import decode_payload
from durabus.model.result import HandlerResult
from durabus.model.statuses import EventStatus

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


STATUS_STYLES = {
    EventStatus.PENDING: "yellow",
    EventStatus.PROCESSING: "cyan",
    EventStatus.COMPLETED: "green",
    EventStatus.COMPLETED_WITH_ERRORS: "red",
    EventStatus.FAILED: "red",
    EventStatus.CANCELLED: "dim",
}
PLAIN_WIDTH = 100
"""Width of a table that goes into a pipe or a file."""
UNLIMITED = 10_000
SHORT_PATTERN = 20


def print_json(document: Any) -> None:
    """Print one indented JSON document. The keys keep their order."""
    print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def print_json_line(document: Any) -> None:
    """Print one JSON document on one line (NDJSON)."""
    print(msgspec.json.encode(document).decode(), flush=True)


def say(text: str) -> None:
    """Print a message for people to stderr, so that stdout has data only."""
    print(text, file=sys.stderr, flush=True)


def console() -> Console:
    """The console that tables are printed to."""
    from rich.console import Console

    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=PLAIN_WIDTH)


def table(*columns: str | tuple[str, Mapping[str, Any]]) -> Table:
    """A table without borders. A column is its title, or its title and rich options."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        title, options = (column, {}) if isinstance(column, str) else column
        made.add_column(title, **options)
    return made


def handler_table(*columns: str | tuple[str, Mapping[str, Any]]) -> Table:
    """A table whose column ``pattern`` wraps, so that ``print_whole`` need not wrap the others."""
    pattern = {"overflow": "fold", "max_width": max(SHORT_PATTERN, console().width // 4)}
    return table(*(("pattern", pattern) if column == "pattern" else column for column in columns))


def print_whole(made: Table) -> None:
    """Print a table without shortening any text. A terminal that is too narrow wraps the lines."""
    from rich.console import Console
    from rich.measure import Measurement

    out = console()
    needed = Measurement.get(out, out.options.update(width=UNLIMITED), made).maximum
    if needed > out.width:
        out = Console(highlight=False, width=needed)
    out.print(made)


def pairs(rows: Iterable[tuple[str, str]]) -> Table:
    """A table of names and values, one pair per line."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2))
    made.add_column(style="bold")
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, value)
    return made


def status_text(status: EventStatus) -> str:
    """A status in its colour, as rich markup."""
    return f"[{STATUS_STYLES[status]}]{status}[/]"


def plain(text: str) -> str:
    """Escape text from an event, so that it shows unchanged and cannot move the cursor."""
    from rich.markup import escape

    return escape("".join(char if char.isprintable() else " " for char in text))


def age(seconds: float) -> str:
    """A duration in its largest unit, such as 3 h."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if abs(seconds) >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s" if abs(seconds) < 10 else f"{seconds:.0f} s"  # noqa: PLR2004  (one decimal below ten)


def iso(instant: float | None) -> str | None:
    """A time in ISO 8601 for programs; None if there is none or it is after the year 9999."""
    moment = None if instant is None else _moment(instant)
    return None if moment is None else moment.isoformat(timespec="microseconds")


def clock_time(instant: float) -> str:
    """The local time of day for people."""
    moment = _moment(instant)
    return "--:--:--.---" if moment is None else moment.astimezone().strftime("%H:%M:%S.%f")[:-3]


def _moment(instant: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(instant, UTC)
    except (OverflowError, OSError, ValueError):
        return None


def payload_text(event: Event) -> str:
    """The payload for people, as rich markup, with a mark if it is not JSON."""
    try:
        decode_payload(event.payload_json)
    except PayloadDecodeError as error:
        return f"{plain(event.payload_json)}  [red]✗ {plain(str(error))}[/]"
    return plain(event.payload_json)


def _decoded(name: str, text: str | None, absent: Any = None) -> dict[str, Any]:
    """The decoded value of stored JSON under its name. If it does not decode: null, the text and the error."""
    try:
        return {name: absent if text is None else decode_payload(text)}
    except PayloadDecodeError as error:
        return {name: None, f"{name}_text": text, f"{name}_error": str(error)}


def event_document(event: Event) -> dict[str, Any]:
    """An event for programs."""
    return {
        "id": event.id,
        "event_id": event.event_id,
        "bus": event.bus,
        "type": event.type,
        "status": event.status,
        **_decoded("payload", event.payload_json),
        **_decoded("metadata", event.metadata_json, {}),
        "tags": event.tags,
        "priority": event.priority,
        "attempts": event.attempts,
        "max_attempts": event.max_attempts,
        "retry_count": event.retry_count,
        "errors": event.errors,
        "generation": event.generation,
        "fence": event.fence,
        "worker_id": event.worker_id,
        "parent_id": event.parent_id,
        "idempotency_key": event.idempotency_key,
        "created_at": iso(event.created_ts),
        "updated_at": iso(event.updated_ts),
        "due_at": iso(event.due_ts),
        "lease_expires_at": iso(event.expires_ts),
    }


def entry_document(entry: LogEntry) -> dict[str, Any]:
    """A log entry for programs."""
    return {
        "position": entry.position,
        "action": entry.action,
        "id": entry.id,
        "event_id": entry.event_id,
        "bus": entry.bus,
        "type": entry.type,
        "status": entry.status,
        "at": iso(entry.at_ts),
        "created_at": iso(entry.created_ts),
        "attempt": entry.attempt,
        "generation": entry.generation,
        "fence": entry.fence,
        "worker_id": entry.worker_id,
        "error": entry.error,
        "reason": entry.reason,
        "next_retry_at": iso(entry.next_retry_ts),
        "execution_time_ms": entry.execution_time_ms,
        "status_code": entry.status_code,
        "tags": entry.tags,
        "parent_id": entry.parent_id,
        **_decoded("payload", entry.payload_json),
        "errors": entry.errors,
        "results": [result_document(result) for result in entry.results],
    }


def result_document(result: HandlerResult) -> dict[str, Any]:
    """A handler's result for programs."""
    return {
        "handler_id": result.handler_id,
        "status": result.status,
        "attempts": result.attempts,
        "error": result.error,
        **_decoded("value", result.value_json),
        "execution_time_ms": result.execution_time_ms,
    }


YES = {"y", "yes"}


def confirm(question: str, consequence: str) -> None:
    """Ask the user on the terminal. Without a terminal or a yes the command ends and changes nothing."""
    if not sys.stdin.isatty():
        why = f"{consequence}, and there is no terminal to ask you on"
        raise CommandFailed("not confirmed", why, "add --yes", code=Exit.USAGE)
    print(question, end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in YES:
        raise CommandFailed("not confirmed", "nothing was changed")


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


LogFormat = Literal["text", "json"]

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
EVERY_RECORD_HAS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Fields of every record. Other fields were passed as ``extra``. Only newer Pythons have ``taskName``."""


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, the record's extras, and a traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of JSON."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in EVERY_RECORD_HAS},
        }
        traceback = record.exc_text or (self.formatException(record.exc_info) if record.exc_info else None)
        if traceback:
            fields["traceback"] = traceback
        return msgspec.json.encode(fields, enc_hook=str).decode()


def set_up_logging(level: int, log_format: LogFormat = "text") -> None:
    """Write records of this level and above to stderr, unless the user's code has configured logging."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=level, handlers=[handler])
