"""``durabus schedules``: lists, shows, puts, pauses, resumes, runs and deletes schedules."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from cyclopts import App, Parameter

from durabus.cli.failures import CommandFailed, Exit
from durabus.cli.options import DEFAULTS, Common, opened_store
from durabus.cli.output import age, console, handler_table, iso, plain, print_json, say
from durabus.cli.publish import payload_of
from durabus.errors import ScheduleNotFound
from durabus.model.claim import default_worker_id
from durabus.model.event import DEFAULT_BUS
from durabus.schedules.schedule import CatchUp, Overlap, Schedule
from durabus.schedules.schedules import Schedules
from durabus.schedules.timing import SECOND

schedules = App(name="schedules", help="Schedules: list, show, put, pause, resume, run, delete.")

SHOWN_STATES = 10

NameOption = Annotated[str, Parameter(name="NAME", help="The name of the schedule.")]
OfBus = Annotated[str, Parameter(help="The bus of the schedule.")]
ReasonOption = Annotated[str | None, Parameter(help="Why; the history keeps it.")]


@schedules.command
async def put(
    name: NameOption,
    event_type: Annotated[str, Parameter(name="TYPE", help="Type of the events, such as report.due.")],
    /,
    *,
    cron: Annotated[str | None, Parameter(help="When: five fields, as in '0 9 * * MON-FRI'.")] = None,
    every: Annotated[float | None, Parameter(help="When: seconds between two events, in place of --cron.")] = None,
    tz: Annotated[str, Parameter(help="The time zone of --cron.")] = "UTC",
    data: Annotated[
        str, Parameter(help="Payload: JSON, @FILE with JSON, or - for stdin.", allow_leading_hyphen=True)
    ] = "null",
    catch_up: Annotated[CatchUp, Parameter(help="Events for slots that passed while no worker ran.")] = CatchUp.ONE,
    overlap: Annotated[Overlap, Parameter(help="What happens if the last event has not ended.")] = Overlap.SKIP,
    tag: Annotated[
        tuple[str, ...], Parameter(help="A tag. Repeat the option for several.", negative="", show_default=False)
    ] = (),
    priority: Annotated[int, Parameter(help="Larger numbers go first; 0 is normal.", allow_leading_hyphen=True)] = 0,
    reason: ReasonOption = None,
    bus: OfBus = DEFAULT_BUS,
    common: Common = DEFAULTS,
) -> None:
    """Store a schedule, or replace the one of this name. A worker of the bus publishes its events.

    Example: durabus schedules put nightly report.due --cron '0 3 * * *' --tz Europe/Oslo
    """
    given = cron if every is None else every
    if given is None or None not in (cron, every):
        raise CommandFailed(
            "when?",
            "a schedule needs --cron or --every, and not both",
            "--cron '0 3 * * *', or --every 30",
            code=Exit.USAGE,
        )
    async with opened_store(common, create=True) as store:
        found = await Schedules(store, bus).put(
            name,
            given,
            event_type,
            payload_of(data),
            tz=tz,
            catch_up=catch_up,
            overlap=overlap,
            tags=tag,
            priority=priority,
            actor=default_worker_id(),
            reason=reason,
        )
    _print(found, bus, common)


@schedules.command(name="list")
async def list_schedules(*, bus: OfBus = DEFAULT_BUS, common: Common = DEFAULTS) -> None:
    """List the schedules of a bus, with their next runs.

    Example: durabus schedules list
    """
    async with opened_store(common) as store:
        found, now = await Schedules(store, bus).list(), await store.now()
    if common.json:
        print_json({"schedules": [document(one) for one in found]})
        return
    if not found:
        say(f"no schedules on bus {bus}")
        return
    made = handler_table("schedule", "when", "type", ("next run", {"justify": "right"}), "last run", "state")
    for one in found:
        next_run = "-" if one.next_run_at is None else f"in {age(max(one.next_run_at.timestamp() - now, 0.0))}"
        last = "never" if one.last_run_at is None else f"{age(max(now - one.last_run_at.timestamp(), 0.0))} ago"
        state = "paused" if one.paused else "active"
        made.add_row(plain(one.name), plain(when(one)), plain(one.type), next_run, last, state)
    console().print(made)


@schedules.command
async def show(name: NameOption, /, *, bus: OfBus = DEFAULT_BUS, common: Common = DEFAULTS) -> None:
    """Show one schedule: what it publishes, its next runs, and what changed it.

    Example: durabus schedules show nightly
    """
    async with opened_store(common) as store:
        of_bus = Schedules(store, bus)
        found, states = await of_bus.get(name), await of_bus.history(name, SHOWN_STATES)
        if found is None:
            raise ScheduleNotFound(name, bus)
        runs = await of_bus.next_runs(name)
    if common.json:
        texts = [_text(run) for run in runs]
        print_json({**document(found), "next_runs": texts, "history": [document(one) for one in states]})
        return
    print(f"{found.name} on bus {bus}: {when(found)}, publishes {found.type}{', paused' if found.paused else ''}")
    print(f"catch up: {found.catch_up}, overlap: {found.overlap}, skipped so far: {found.skipped}")
    print("next runs:" if not found.paused else "next runs, if it were not paused:")
    for run in runs:
        print(f"  {_text(run)}")
    print("newest states:")
    for one in states:
        by = "" if one.actor is None else f" by {one.actor}"
        why = "" if one.reason is None else f": {one.reason}"
        print(f"  {one.number} {iso(one.changed_ms / SECOND)} {one.action}{by}{why}")


@schedules.command
async def pause(
    name: NameOption, /, *, reason: ReasonOption = None, bus: OfBus = DEFAULT_BUS, common: Common = DEFAULTS
) -> None:
    """Stop a schedule until it is resumed.

    Example: durabus schedules pause nightly --reason 'moving the database'
    """
    async with opened_store(common) as store:
        found = await Schedules(store, bus).pause(name, actor=default_worker_id(), reason=reason)
    _print(found, bus, common)


@schedules.command
async def resume(
    name: NameOption, /, *, reason: ReasonOption = None, bus: OfBus = DEFAULT_BUS, common: Common = DEFAULTS
) -> None:
    """Let a paused schedule go on with its next slot.

    Example: durabus schedules resume nightly
    """
    async with opened_store(common) as store:
        found = await Schedules(store, bus).resume(name, actor=default_worker_id(), reason=reason)
    _print(found, bus, common)


@schedules.command
async def run(
    name: NameOption, /, *, reason: ReasonOption = None, bus: OfBus = DEFAULT_BUS, common: Common = DEFAULTS
) -> None:
    """Let a worker publish the event of a schedule at once, also while it is paused.

    Example: durabus schedules run nightly
    """
    async with opened_store(common) as store:
        event_id = await Schedules(store, bus).run_now(name, actor=default_worker_id(), reason=reason)
    if common.json:
        print_json({"event_id": event_id})
    else:
        print(f"a worker of bus {bus} publishes event {event_id}")


@schedules.command
async def delete(
    name: NameOption, /, *, reason: ReasonOption = None, bus: OfBus = DEFAULT_BUS, common: Common = DEFAULTS
) -> None:
    """Delete a schedule. Code that declares it puts it again when it starts.

    Example: durabus schedules delete nightly
    """
    async with opened_store(common) as store:
        deleted = await Schedules(store, bus).delete(name, actor=default_worker_id(), reason=reason)
    if not deleted:
        raise ScheduleNotFound(name, bus)
    if common.json:
        print_json({"deleted": name})
    else:
        print(f"{name} is deleted")


def when(schedule: Schedule) -> str:
    """When a schedule is due, in words."""
    return f"every {schedule.every:g} s" if schedule.cron is None else f"{schedule.cron} {schedule.tz}"


def document(schedule: Schedule) -> dict[str, Any]:
    """A schedule as JSON."""
    return {
        "name": schedule.name,
        "type": schedule.type,
        "payload": schedule.payload,
        "cron": schedule.cron,
        "every": schedule.every,
        "tz": schedule.tz,
        "catch_up": schedule.catch_up,
        "overlap": schedule.overlap,
        "tags": schedule.tags,
        "priority": schedule.priority,
        "paused": schedule.paused,
        "next_run_at": _text(schedule.next_run_at),
        "last_run_at": _text(schedule.last_run_at),
        "last_event_id": schedule.last_event_id,
        "skipped": schedule.skipped,
        "number": schedule.number,
        "action": schedule.action,
        "actor": schedule.actor,
        "reason": schedule.reason,
        "changed_at": iso(schedule.changed_ms / SECOND),
    }


def _text(instant: datetime | None) -> str | None:
    return None if instant is None else iso(instant.timestamp())


def _print(schedule: Schedule, bus: str, common: Common) -> None:
    if common.json:
        print_json(document(schedule))
        return
    after = "paused" if schedule.paused else f"next run {_text(schedule.next_run_at)}"
    print(f"{schedule.name} on bus {bus}: {when(schedule)}, publishes {schedule.type}, {after}")
