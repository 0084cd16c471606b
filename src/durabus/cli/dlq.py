"""``durabus dlq``: the dead letters."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import App, Parameter

from durabus.cli.backend import refuse_absent_file
from durabus.cli.events import event_ref, event_table, refuse_without_events
from durabus.cli.failures import CommandFailed, Exit
from durabus.cli.options import DEFAULTS, Common, opened_store, store_url
from durabus.cli.output import console, event_document, print_json, say
from durabus.dead_letters import DLQInspector
from durabus.model.event import Event
from durabus.model.limits import MAX_BATCH
from durabus.store.contract import EventStore
from durabus.store.events import EventRef

dlq = App(name="dlq", help="Dead letters: list, retry, purge.")

RETRY_BATCH = 500
YES = {"y", "yes"}

BusOption = Annotated[str | None, Parameter(help="Only this bus; without it all.")]


@dlq.command(name="list")
async def list_dead_letters(
    *,
    bus: BusOption = None,
    limit: Annotated[int, Parameter(help="At most so many.")] = 20,
    offset: Annotated[int, Parameter(help="Leave out so many of the newest.")] = 0,
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
    console().print(event_table(page.events, now))
    say(f"{len(page.events)} of {page.total}; `durabus dlq retry ID` tries one again")


@dlq.command(usage="Usage: durabus dlq retry [OPTIONS] [EVENT...]")
async def retry(
    *event: Annotated[str, Parameter(name="EVENT", help="Ids (numbers) or event_ids (UUIDs).")],
    every: Annotated[bool, Parameter(name="--all", help="All dead letters.", negative="", show_default=False)] = False,
    bus: Annotated[str | None, Parameter(help="With --all: only of this bus.")] = None,
    common: Common = DEFAULTS,
) -> None:
    """Put dead letters back into the queue, all or none: PENDING, with no attempts and no errors.

    Example: durabus dlq retry 7 12
    """
    refuse_without_events(event, everything=every)
    async with opened_store(common) as store:
        refs = await _all_dead(store, bus) if every else [event_ref(one) for one in event]
        requeued: list[Event] = []
        for start in range(0, len(refs), RETRY_BATCH):
            requeued += await store.requeue_dead_letters(refs[start : start + RETRY_BATCH])
    if common.json:
        print_json({"requeued": len(requeued), "events": [event_document(one) for one in requeued]})
    else:
        print(f"{len(requeued)} back in the queue")


@dlq.command
async def purge(
    *,
    older_than_days: Annotated[float, Parameter(help="Only those published so long ago; 0 is all.")] = 30.0,
    bus: BusOption = None,
    yes: Annotated[bool, Parameter(name=["--yes", "-y"], help="Do not ask.", negative="", show_default=False)] = False,
    common: Common = DEFAULTS,
) -> None:
    """Delete old dead letters for good. Their log entries stay.

    Example: durabus dlq purge --older-than-days 90 --yes
    """
    which = f"dead letters older than {older_than_days:g} days" if older_than_days else "all dead letters"
    where = f"{store_url(common)}, {f'bus {bus}' if bus else 'every bus'}"
    refuse_absent_file(store_url(common))
    if not yes:
        _confirm(f"Delete {which} ({where}) for good? [y/N] ")
    async with opened_store(common) as store:
        purged = await DLQInspector(store, bus=bus).purge(older_than_days)
    if common.json:
        print_json({"purged": purged})
    else:
        print(f"{purged} purged")


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise CommandFailed(
            "not confirmed", "purge deletes for good, and there is no terminal to ask on", "add --yes", code=Exit.USAGE
        )
    print(question, end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in YES:
        raise CommandFailed("not confirmed", "nothing was deleted")


async def _all_dead(store: EventStore, bus: str | None) -> list[EventRef]:
    """Collected before the first is retried: one that fails again at once must not come round for ever."""
    refs: list[EventRef] = []
    while True:
        page = await store.list_dead_letters(bus=bus, limit=MAX_BATCH, offset=len(refs))
        refs += [event.id for event in page.events]
        if not page.events or len(refs) >= page.total:
            return refs
