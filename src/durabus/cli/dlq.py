"""``durabus dlq``: lists, shows, retries and purges dead letters."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from durabus.cli.events import event_ref, print_event, print_events, refuse_without_events
from durabus.cli.failures import CommandFailed, Exit
from durabus.cli.options import DEFAULTS, BusOption, Common, opened_store, refuse_absent_file, shown_url, store_url
from durabus.cli.output import confirm, event_document, print_json, progress_bars, say
from durabus.errors import EventNotFound, NotADeadLetter
from durabus.model.event import Event
from durabus.model.limits import seconds
from durabus.model.statuses import DEAD_LETTER
from durabus.queue.dead_letters import DAY, DLQInspector, dead_letter_ids, purge_older, requeue_still_dead
from durabus.store.contract import EventStore
from durabus.views.dead_letters import count_dead_letters, dead_letters_named
from durabus.views.events import read_event_details

dlq = App(name="dlq", help="Dead letters: list, show, retry, purge.")

AT_ONCE = 500


@dlq.command(name="list")
async def list_dead_letters(
    *,
    bus: BusOption = None,
    limit: Annotated[int, Parameter(help="Maximum to show.")] = 20,
    offset: Annotated[int, Parameter(help="Skip this many of the newest.")] = 0,
    common: Common = DEFAULTS,
) -> None:
    """List dead letters, newest first, with their last error.

    Example: durabus dlq list --limit 50
    """
    async with opened_store(common) as store:
        page, now = await DLQInspector(store, bus=bus).list(limit=limit, offset=offset), await store.now()
    if common.json:
        print_json({"events": [event_document(event) for event in page.events], "total": page.total})
        return
    if not page.total:
        say("no dead letters")
        return
    print_events(page.events, now)
    say(f"{len(page.events)} of {page.total}; `durabus dlq retry ID` retries one")


@dlq.command
async def show(
    event: Annotated[str, Parameter(name="EVENT", help="The id (a number) or event_id (a UUID).")],
    /,
    *,
    common: Common = DEFAULTS,
) -> None:
    """Show one dead letter: its data, one error for each attempt, its handlers' results, and its audit trail.

    Example: durabus dlq show 7
    """
    ref = event_ref(event)
    async with opened_store(common) as store:
        found = await read_event_details(store, ref)
    if found is None:
        raise EventNotFound(ref)
    if found.event.status not in DEAD_LETTER:
        raise NotADeadLetter(ref, found.event.status)
    print_event(found, as_json=common.json)


@dlq.command(usage="Usage: durabus dlq retry [OPTIONS] [EVENT...]")
async def retry(
    *event: Annotated[str, Parameter(name="EVENT", help="Ids (numbers) or event_ids (UUIDs).")],
    every: Annotated[bool, Parameter(name="--all", help="All dead letters.", negative="", show_default=False)] = False,
    bus: Annotated[str | None, Parameter(help="With --all: only on this bus.")] = None,
    common: Common = DEFAULTS,
) -> None:
    """Put dead letters back into the queue: PENDING, with no attempts and no errors.

    If you name events, all of them are retried or none.

    Example: durabus dlq retry 7 12
    """
    refuse_without_events(event, everything=every)
    async with opened_store(common) as store:
        if every:
            requeued = await _retry_all(store, bus)
        else:
            requeued = await store.requeue_dead_letters([event_ref(one) for one in event])
    if common.json:
        print_json({"requeued": len(requeued), "events": [event_document(one) for one in requeued]})
    else:
        print(f"{len(requeued)} back in the queue")


@dlq.command(usage="Usage: durabus dlq purge [OPTIONS] [EVENT...]")
async def purge(
    *event: Annotated[str, Parameter(name="EVENT", help="Only these: ids (numbers) or event_ids (UUIDs).")],
    older_than_days: Annotated[
        float | None, Parameter(help="Without EVENT: those older than this many days. Default: 30; 0 means all.")
    ] = None,
    bus: BusOption = None,
    yes: Annotated[bool, Parameter(name=["--yes", "-y"], help="Do not ask.", negative="", show_default=False)] = False,
    common: Common = DEFAULTS,
) -> None:
    """Delete dead letters permanently: the named ones, or old ones. Their log entries stay.

    Example: durabus dlq purge --older-than-days 90 --yes
    """
    days = 30.0 if older_than_days is None else older_than_days
    if event and (older_than_days is not None or bus is not None):
        raise CommandFailed(
            "which events?",
            "you gave events and also --older-than-days or --bus",
            "give either events or conditions",
            code=Exit.USAGE,
        )
    if event:
        which = f"{len(event)} dead letters"
    else:
        seconds(days * DAY, "older_than_days in seconds")  # refuses an invalid duration
        which = f"dead letters older than {days:g} days" if days else "all dead letters"
    where = shown_url(common) if event else f"{shown_url(common)}, {f'bus {bus}' if bus else 'every bus'}"
    refuse_absent_file(store_url(common))
    if not yes:
        confirm(f"Delete {which} ({where}) permanently? [y/N] ", "purge deletes permanently")
    async with opened_store(common) as store:
        purged = await _purge_named(store, event) if event else await _purge_old(store, bus, days)
    if common.json:
        print_json({"purged": purged})
    else:
        print(f"{purged} purged")


async def _retry_all(store: EventStore, bus: str | None) -> list[Event]:
    """Retry all dead letters in steps. Skips those that were retried or purged meanwhile."""
    ids = await dead_letter_ids(store, bus)
    requeued: list[Event] = []
    with progress_bars("events", quiet=len(ids) <= AT_ONCE) as bars, bars.step("retry", len(ids)) as moved:
        for start in range(0, len(ids), AT_ONCE):
            requeued += await requeue_still_dead(store, ids[start : start + AT_ONCE])
            moved(min(start + AT_ONCE, len(ids)))
    return requeued


async def _purge_named(store: EventStore, named: tuple[str, ...]) -> int:
    """Purge the named dead letters. Checks all names first, so that a wrong name deletes nothing."""
    ids = await dead_letters_named(store, map(event_ref, named))
    return len(await store.purge_dead_letters_by_id(ids))


async def _purge_old(store: EventStore, bus: str | None, days: float) -> int:
    total = await count_dead_letters(store, bus)
    with progress_bars("events", quiet=total <= AT_ONCE) as bars, bars.step("purge", None) as moved:
        return await purge_older(store, bus, days * DAY, at_once=AT_ONCE, moved=moved)
