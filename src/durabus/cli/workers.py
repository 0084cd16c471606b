"""``durabus workers``, ``handlers`` and ``locks``: which process has which events, handlers and locks."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from durabus.cli.failures import CommandFailed, Exit
from durabus.cli.options import DEFAULTS, BusOption, Common, opened_store
from durabus.cli.output import age, confirm, console, handler_table, iso, plain, print_json, print_whole, say, table
from durabus.model.limits import check_batch
from durabus.views.workers import (
    MAX_RELEASED,
    HandlerView,
    WorkerView,
    read_workers,
    registered_handlers,
    release_worker,
)

workers = App(name="workers", help="Worker processes: list, release.")
handlers = App(name="handlers", help="Handlers that processes have registered: list, forget.")

STATE_STYLES = {"live": "green", "late": "bold red", "missing": "bold red", "gone": "dim"}


@workers.command(name="list")
async def list_workers(
    *,
    bus: BusOption = None,
    gone: Annotated[
        bool, Parameter(help="Also show workers gone for ten minutes.", negative="", show_default=False)
    ] = False,
    common: Common = DEFAULTS,
) -> None:
    """List worker processes and what they hold: live, late (silent, or with an expired lease) or gone.

    Example: durabus workers list
    """
    async with opened_store(common) as store:
        lines = await read_workers(store, bus)
    shown = [line for line in lines if gone or not line.folded]
    if common.json:
        print_json({"workers": [_worker_document(line) for line in shown]})
        return
    if not shown:
        say("no workers" + ("" if len(lines) == len(shown) else f"; --gone shows {len(lines)} that are gone"))
        return
    right = {"justify": "right"}
    made = table("worker", "state", ("last seen", right), ("holding", right), ("overdue", right), ("handlers", right))
    for line in shown:
        made.add_row(
            plain(line.worker_id),
            f"[{STATE_STYLES[line.state]}]{line.state}[/]",
            f"{age(line.now - line.heard_ts)} ago",
            str(len(line.held)),
            str(line.overdue),
            str(line.handlers),
        )
    console().print(made)


@workers.command
async def release(
    worker: Annotated[str, Parameter(name="WORKER", help="The worker as `durabus workers list` shows it: host:pid.")],
    /,
    *,
    bus: Annotated[str | None, Parameter(help="Only events of this bus. Default: of all buses.")] = None,
    reason: Annotated[str, Parameter(help="Reason to record in the log.")] = "worker released on the command line",
    common: Common = DEFAULTS,
) -> None:
    """Return all events of a worker to the queue. The attempt does not count; later writes of the worker are refused.

    Example: durabus workers release web-1:4242
    """
    async with opened_store(common) as store:
        released = await release_worker(store, bus, worker, reason=reason)
        known = released or any(line.worker_id == worker for line in await read_workers(store, bus))
    if not known:
        raise CommandFailed(
            "no such worker",
            f"{worker!r} holds no event and has no handler on any bus",
            "`durabus workers list` lists the workers",
            code=Exit.NOT_FOUND,
        )
    if common.json:
        print_json({"worker_id": worker, "released": released})
    else:
        print(f"{released} events of {worker} returned to the queue")
    if released == MAX_RELEASED:
        say("the worker may hold more events: run the command again")


async def locks(
    *,
    after: Annotated[str, Parameter(help="Only keys after this one, to show the next page.", show_default=False)] = "",
    limit: Annotated[int, Parameter(help="Maximum to show.")] = 100,
    common: Common = DEFAULTS,
) -> None:
    """List held locks by key, with their holders, fences and remaining time.

    Example: durabus locks
    """
    check_batch(limit)
    async with opened_store(common) as store:
        held, now = await store.list_locks(after=after, limit=limit), await store.now()
    if common.json:
        found = [
            {"key": one.key, "worker_id": one.worker_id, "fence": one.fence, "expires_at": iso(one.expires_ts)}
            for one in held
        ]
        print_json({"locks": found, "next_after": held[-1].key if len(held) == limit else None})
        return
    if not held:
        say("no locks are held")
        return
    made = table("key", "held by", ("fence", {"justify": "right"}), ("expires in", {"justify": "right"}))
    for one in held:
        made.add_row(plain(one.key), plain(one.worker_id), str(one.fence), age(max(one.expires_ts - now, 0.0)))
    console().print(made)
    if len(held) == limit:
        say(f"more: --after {held[-1].key}")


def _worker_document(line: WorkerView) -> dict[str, object]:
    return {
        "worker_id": line.worker_id,
        "state": line.state,
        "last_seen_at": iso(line.heard_ts),
        "holds": [event.id for event in line.held],
        "overdue": line.overdue,
        "handlers": line.handlers,
    }


@handlers.command(name="list")
async def list_handlers(
    *,
    bus: BusOption = None,
    missing: Annotated[
        bool, Parameter(help="Only handlers that no live node has.", negative="", show_default=False)
    ] = False,
    common: Common = DEFAULTS,
) -> None:
    """List handlers. A handler is missing if no node that has it was seen for 30 s; its events wait.

    Example: durabus handlers list
    """
    async with opened_store(common) as store:
        shown = [line for line in await registered_handlers(store, bus) if line.missing or not missing]
    if common.json:
        print_json({"handlers": [_handler_document(line) for line in shown]})
        return
    if not shown:
        say("no handlers")
        return
    made = handler_table("bus", "handler", "pattern", "state", ("last seen", {"justify": "right"}), "node")
    for line in shown:
        state = "missing" if line.missing else "live"
        made.add_row(
            plain(line.bus),
            plain(line.handler_id),
            plain(", ".join(line.patterns)),
            f"[{STATE_STYLES[state]}]{state}[/]",
            f"{age(line.silent_for)} ago",
            plain(line.node),
        )
    print_whole(made)


@handlers.command
async def forget(
    *names: Annotated[str, Parameter(name="HANDLER", help="As `durabus handlers list` shows it.")],
    bus: Annotated[str | None, Parameter(help="Only on this bus. Default: on all buses.")] = None,
    yes: Annotated[bool, Parameter(help="Do not ask.", negative="", show_default=False)] = False,
    common: Common = DEFAULTS,
) -> None:
    """Forget handlers, so that events no longer wait for them. A live node registers its own again within 10 s.

    Example: durabus handlers forget mail.send --yes
    """
    async with opened_store(common) as store:
        lines = [line for line in await registered_handlers(store, bus) if line.handler_id in names]
        unknown = sorted(set(names) - {line.handler_id for line in lines})
        if unknown or not names:
            raise CommandFailed(
                "no such handler",
                f"no bus has {', '.join(map(repr, unknown)) or 'a handler without a name'}",
                "`durabus handlers list` lists the handlers",
                code=Exit.NOT_FOUND,
            )
        if not yes:
            where = ", ".join(f"{line.handler_id} on bus {line.bus}" for line in lines)
            confirm(f"Forget {where}? Waiting events complete without it. [y/N] ", "waiting events would complete")
        for line in lines:
            await store.unregister_handler(line.bus, line.handler_id)
    if common.json:
        print_json({"forgotten": [{"bus": line.bus, "handler_id": line.handler_id} for line in lines]})
        return
    for line in lines:
        print(f"{line.handler_id} of bus {line.bus} is forgotten")
        if not line.missing:
            say(
                f"node {line.node} is live and will register it again: stop that node, or unsubscribe the handler there"
            )


def _handler_document(line: HandlerView) -> dict[str, object]:
    return {
        "bus": line.bus,
        "handler_id": line.handler_id,
        "patterns": line.patterns,
        "state": "missing" if line.missing else "live",
        "nodes": line.nodes,
        "last_seen_at": iso(line.last_seen_ts),
        "last_seen_on": line.node,
    }
