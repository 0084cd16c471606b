"""``durabus events``: lists, shows, retries and cancels events, and follows the log."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from durabus.cli.failures import CommandFailed, Exit
from durabus.cli.options import DEFAULTS, BusOption, Common, opened_store
from durabus.cli.output import (
    UNLIMITED,
    age,
    clock_time,
    console,
    entry_document,
    event_document,
    iso,
    pairs,
    payload_text,
    plain,
    print_json,
    print_json_line,
    result_document,
    say,
    status_text,
    table,
)
from durabus.errors import DurabusError, EventEnded, EventNotFound
from durabus.model.event import Event, check_event_id
from durabus.model.limits import check_batch
from durabus.model.log_entry import LogEntry
from durabus.model.pattern import matches
from durabus.model.query import EventQuery
from durabus.model.statuses import EventStatus
from durabus.store.events import EventRef
from durabus.store.log import START
from durabus.views.events import EventDetails, find_events, follow_log, read_event_details
from durabus.views.steps import handlers_of
from durabus.worker.cancelling import cancel_events

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

events = App(name="events", help="Events: list, show, tail, retry, cancel.")

SHORT_ERROR = "x" * 8
"""Part of an error that a table shows on even the narrowest terminal."""
SHORT_TYPE = 24
"""Maximum number of characters of a type in a narrow table."""
FOLLOW_EVERY = 0.2


def event_ref(text: str) -> EventRef:
    """Parse an ``id`` (a number) or an ``event_id`` (a UUID)."""
    if text.isascii() and text.isdigit() and len(text) < 19:  # noqa: PLR2004  (what fits 64 bits)
        return int(text)
    return check_event_id(text.lower())


@events.command(name="list")
async def list_events(
    *,
    status: Annotated[
        tuple[EventStatus, ...],
        Parameter(help="Only this status. Repeat the option for several.", negative="", show_default=False),
    ] = (),
    event_type: Annotated[str | None, Parameter(name="--type", help="Pattern, such as order.*")] = None,
    tag: Annotated[
        tuple[str, ...], Parameter(help="Events with at least one of these tags.", negative="", show_default=False)
    ] = (),
    bus: BusOption = None,
    limit: Annotated[int, Parameter(help="Maximum to show.")] = 20,
    before: Annotated[int | None, Parameter(help="Only ids below this one, to show the next page.")] = None,
    common: Common = DEFAULTS,
) -> None:
    """List events, newest first.

    Example: durabus events list --status FAILED --type 'order.*'
    """
    query = EventQuery(bus=bus, statuses=status, type=event_type, tags=tag, before_id=before, limit=check_batch(limit))
    async with opened_store(common) as store:
        found = await find_events(store, query)
    if common.json:
        documents = [{**event_document(event), "reason": found.reasons[event.id]} for event in found.events]
        print_json({"events": documents, "next_before_id": found.next_before_id})
        return
    if not found.events:
        say(
            "no events"
            + (" match" if query != EventQuery(limit=limit) else ": publish one with `durabus publish TYPE`")
        )
        return
    print_events(found.events, found.at_ts, found.reasons)
    if found.next_before_id is not None:
        say(f"more: --before {found.next_before_id}")


@events.command
async def show(
    event: Annotated[str, Parameter(name="EVENT", help="The id (a number) or event_id (a UUID).")],
    /,
    *,
    lake: Annotated[
        str | None,
        Parameter(env_var="DURABUS_LAKE", help="Lake of the pipeline, for events that the store has trimmed."),
    ] = None,
    common: Common = DEFAULTS,
) -> None:
    """Show one event: its data, its handlers' results, and its audit trail.

    Example: durabus events show 7
    """
    ref = event_ref(event)
    async with opened_store(common) as store:
        found = await read_event_details(store, ref)
        if found is None and lake is not None:
            from durabus.cli.lake import show_archived

            show_archived(ref, lake, as_json=common.json)
            return
    if found is None:
        raise EventNotFound(ref)
    print_event(found, as_json=common.json)


def print_event(found: EventDetails, *, as_json: bool) -> None:
    """Print one event with its handlers' results and its audit trail."""
    if as_json:
        print_json(
            {
                "event": event_document(found.event),
                "log": [entry_document(entry) for entry in found.trail],
                "results": [result_document(result) for result in found.results],
            }
        )
        return
    out = console()
    out.print(pairs(_facts(found.event)))
    if found.last_results:
        out.print()
        out.print(_handler_table(found))
    out.print()
    out.print(_trail_table(found.trail, found.event.created_ts))


@events.command
async def tail(
    *,
    from_start: Annotated[
        bool, Parameter(help="Begin with the oldest entry instead of now.", negative="", show_default=False)
    ] = False,
    follow: Annotated[bool, Parameter(help="Wait for new entries, or stop at the end of the log.")] = True,
    event_type: Annotated[str, Parameter(name="--type", help="Pattern, such as order.*")] = "*",
    bus: BusOption = None,
    common: Common = DEFAULTS,
) -> None:
    """Print log entries as they are committed, until Ctrl-C. With --json print one document per line.

    Example: durabus events tail --from-start --no-follow
    """
    async with opened_store(common) as store:
        position = START if from_start or not follow else await store.log_head()
        if follow and not common.json:
            say("following the log; Ctrl-C stops it")
        every = FOLLOW_EVERY if follow else 0.0
        async for entries in follow_log(store, position, every=every, stopping=asyncio.Event()):
            for entry in entries:
                if matches(event_type, entry.type) and bus in (None, entry.bus):
                    _print_entry(entry, as_json=common.json)
            if not entries and not follow:
                return


@events.command(usage="Usage: durabus events retry [OPTIONS] EVENT...")
async def retry(
    *event: Annotated[str, Parameter(name="EVENT", help="Ids (numbers) or event_ids (UUIDs).")],
    common: Common = DEFAULTS,
) -> None:
    """Put dead letters back into the queue, all or none: PENDING, with no attempts and no errors.

    Example: durabus events retry 7 12
    """
    refuse_without_events(event, everything=False)
    async with opened_store(common) as store:
        requeued = await store.requeue_dead_letters([event_ref(one) for one in event])
    if common.json:
        print_json({"requeued": len(requeued), "events": [event_document(one) for one in requeued]})
    else:
        print(f"{len(requeued)} back in the queue")


@events.command(usage="Usage: durabus events cancel [OPTIONS] EVENT...")
async def cancel(
    *event: Annotated[str, Parameter(name="EVENT", help="Ids (numbers) or event_ids (UUIDs).")],
    reason: Annotated[str, Parameter(help="Why. The log keeps it.")],
    children: Annotated[
        bool, Parameter(help="Also cancel their live descendants.", negative="", show_default=False)
    ] = False,
    common: Common = DEFAULTS,
) -> None:
    """Cancel events that wait or run. A worker that runs one of them loses its claim, and its result is refused.

    Example: durabus events cancel 3 --reason 'the order was withdrawn'
    """
    refuse_without_events(event, everything=False)
    refs = [event_ref(one) for one in event]
    cancelled: list[Event] = []
    refused: DurabusError | None = None
    async with opened_store(common) as store:
        for ref in refs:
            try:
                cancelled += await cancel_events(store, ref, reason=reason, children=children)
            except (EventEnded, EventNotFound) as error:
                refused = refused or error
    if common.json:
        print_json({"cancelled": len(cancelled), "events": [event_document(one) for one in cancelled]})
    else:
        print(f"{len(cancelled)} cancelled")
    if refused is not None:
        raise refused


def print_events(found: list[Event], now: float, reasons: Mapping[int, str | None] | None = None) -> None:
    """Print events as a table. Only the last column is shortened. A terminal too narrow for the others wraps lines."""
    from rich.console import Console
    from rich.measure import Measurement

    out = console()
    bare = _event_table(found, now, {}, out.width, with_errors=False)
    least = Measurement.get(out, out.options.update(width=UNLIMITED), bare).minimum
    if least > out.width:
        out = Console(highlight=False, width=least)
    out.print(_event_table(found, now, reasons or {}, out.width, with_errors=True))


def _event_table(
    found: list[Event], now: float, reasons: Mapping[int, str | None], width: int, *, with_errors: bool
) -> Table:
    from rich.text import Text

    whole, number = {"no_wrap": True}, {"no_wrap": True, "justify": "right"}
    made = table(
        ("id", number),
        ("status", whole),
        ("type", {**whole, "overflow": "ellipsis", "max_width": max(SHORT_TYPE, width // 4)}),
        ("tries", number),
        ("age", number),
        "error",
    )
    for event in found:
        error = reasons.get(event.id) or (event.errors[-1] if event.errors else "")
        # Rich first narrows columns that may wrap. So the column may wrap, but its text may not.
        last = Text.from_markup(plain(error if with_errors else SHORT_ERROR), overflow="ellipsis")
        last.no_wrap = True
        made.add_row(
            str(event.id),
            status_text(event.status),
            plain(event.type),
            str(event.attempts),
            age(now - event.created_ts),
            last,
        )
    return made


def _facts(event: Event) -> list[tuple[str, str]]:
    waits = event.status is EventStatus.PENDING and event.errors and event.due_ts > event.updated_ts
    optional = {
        "tags": ", ".join(event.tags),
        "metadata": event.metadata_json,
        "parent": event.parent_id,
        "key": event.idempotency_key,
        "priority": str(event.priority) if event.priority else None,
        "requeued": f"{event.generation} times" if event.generation else None,
        "worker": event.worker_id if event.status is EventStatus.PROCESSING else None,
        "next attempt": (iso(event.due_ts) or "after the year 9999") if waits else None,
    }
    attempts = str(event.attempts) if event.max_attempts is None else f"{event.attempts} of {event.max_attempts}"
    return [
        ("event", f"{event.id}  {event.event_id}"),
        ("type", plain(event.type)),
        ("bus", plain(event.bus)),
        ("status", status_text(event.status)),
        ("attempts", attempts),
        ("published", str(iso(event.created_ts))),
        ("payload", payload_text(event)),
        *((name, plain(value)) for name, value in optional.items() if value),
    ]


def _handler_table(found: EventDetails) -> Table:
    """Each handler, and below it its steps and sleeps. Errors are shown whole, values are cut to the width."""
    number = {"justify": "right"}
    made = table("handler", "result", ("tries", number), ("took", number), ("error or value", {"overflow": "fold"}))
    for handler in handlers_of(found.last_results):
        result = handler.result
        if result is None:
            made.add_row(plain(handler.handler_id), handler.status, "", "", "")
        else:
            value = None if handler.traceback else result.value_json
            last = plain(result.error) if result.error else _one_line(value)
            made.add_row(
                plain(handler.handler_id), result.status, str(result.attempts), _took(result.execution_time_ms), last
            )
        for step in handler.steps:
            name, tries = f"  > {plain(step.name)}", str(step.attempts)
            until = "" if step.until_ts is None else f"until {iso(step.until_ts) or 'after the year 9999'}"
            if step.waits_for is not None:
                made.add_row(name, "waits", "", "", plain(f"for {step.waits_for} {until}".rstrip()))
            elif step.until_ts is None:
                made.add_row(name, "kept", tries, _took(step.milliseconds), _one_line(step.value_json))
            else:
                made.add_row(name, "sleep", "", "", until)
    return made


def _took(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f"{milliseconds:.0f} ms" if milliseconds < 1000 else age(milliseconds / 1000)  # noqa: PLR2004


def _one_line(value_json: str | None) -> Text:
    """A value that the table cuts where its column ends."""
    from rich.text import Text

    shown = "" if value_json in (None, "null") else str(value_json)
    text = Text.from_markup(plain(shown), overflow="ellipsis")
    text.no_wrap = True
    return text


def _trail_table(trail: list[LogEntry], created: float) -> Table:
    number = {"justify": "right"}
    retried = any(entry.next_retry_ts for entry in trail)
    again = [("again in", number)] if retried else []
    made = table(("after", number), "action", ("try", number), ("fence", number), "worker", *again, "error or reason")
    for entry in trail:
        wait = age(entry.next_retry_ts - entry.at_ts) if entry.next_retry_ts else ""
        made.add_row(
            f"{entry.at_ts - created:.3f} s",
            entry.action,
            str(entry.attempt),
            str(entry.fence),
            plain(entry.worker_id or ""),
            *([wait] if retried else []),
            plain(entry.error or entry.reason or ""),
        )
    return made


def _print_entry(entry: LogEntry, *, as_json: bool) -> None:
    if as_json:
        print_json_line(entry_document(entry))
        return
    line = f"{clock_time(entry.at_ts)}  {entry.action:<21}  {entry.id:>8}  {entry.type}"
    if entry.attempt > 1:
        line += f"  try {entry.attempt}"
    why = entry.error or entry.reason
    if why:
        line += f"  {why}"
    print("".join(char if char.isprintable() else " " for char in line), flush=True)


def refuse_without_events(refs: tuple[str, ...], *, everything: bool) -> None:
    """Refuse a command that has both ids and ``--all``, or neither."""
    if bool(refs) == everything:
        raise CommandFailed(
            "which events?",
            "you gave both ids and --all" if refs else "you gave neither ids nor --all",
            "give the ids of events, or --all",
            code=Exit.USAGE,
        )
