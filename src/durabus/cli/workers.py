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
    list_held_locks,
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
        found = await read_workers(store, bus)
    shown = [worker for worker in found if gone or not worker.hidden]
    if common.json:
        print_json({"workers": [_worker_document(worker) for worker in shown]})
        return
    if not shown:
        say("no workers" + ("" if len(found) == len(shown) else f"; --gone shows {len(found)} that are gone"))
        return
    right = {"justify": "right"}
    made = table("worker", "state", ("last seen", right), ("holding", right), ("overdue", right), ("handlers", right))
    for worker in shown:
        made.add_row(
            plain(worker.worker_id),
            f"[{STATE_STYLES[worker.state]}]{worker.state}[/]",
            f"{age(worker.now - worker.last_seen_ts)} ago",
            str(len(worker.held)),
            str(worker.overdue),
            str(worker.handlers),
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
        known = released or any(one.worker_id == worker for one in await read_workers(store, bus))
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
        held = await list_held_locks(store, after=after, limit=limit)
    if common.json:
        found = [
            {"key": one.key, "worker_id": one.worker_id, "fence": one.fence, "expires_at": iso(one.expires_ts)}
            for one in held.locks
        ]
        print_json({"locks": found, "next_after": held.next_after})
        return
    if not held.locks:
        say("no locks are held")
        return
    made = table("key", "held by", ("fence", {"justify": "right"}), ("expires in", {"justify": "right"}))
    for one in held.locks:
        made.add_row(plain(one.key), plain(one.worker_id), str(one.fence), age(max(one.expires_ts - held.at_ts, 0.0)))
    console().print(made)
    if held.next_after is not None:
        say(f"more: --after {held.next_after}")


def _worker_document(worker: WorkerView) -> dict[str, object]:
    return {
        "worker_id": worker.worker_id,
        "state": worker.state,
        "last_seen_at": iso(worker.last_seen_ts),
        "holds": [event.id for event in worker.held],
        "overdue": worker.overdue,
        "handlers": worker.handlers,
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
        shown = [handler for handler in await registered_handlers(store, bus) if handler.missing or not missing]
    if common.json:
        print_json({"handlers": [_handler_document(handler) for handler in shown]})
        return
    if not shown:
        say("no handlers")
        return
    made = handler_table("bus", "handler", "pattern", "state", ("last seen", {"justify": "right"}), "node")
    for handler in shown:
        state = "missing" if handler.missing else "live"
        made.add_row(
            plain(handler.bus),
            plain(handler.handler_id),
            plain(", ".join(handler.patterns)),
            f"[{STATE_STYLES[state]}]{state}[/]",
            f"{age(handler.silent_for)} ago",
            plain(handler.node),
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
        chosen = [handler for handler in await registered_handlers(store, bus) if handler.handler_id in names]
        unknown = sorted(set(names) - {handler.handler_id for handler in chosen})
        if unknown or not names:
            raise CommandFailed(
                "no such handler",
                f"no bus has {', '.join(map(repr, unknown)) or 'a handler without a name'}",
                "`durabus handlers list` lists the handlers",
                code=Exit.NOT_FOUND,
            )
        if not yes:
            where = ", ".join(f"{handler.handler_id} on bus {handler.bus}" for handler in chosen)
            confirm(f"Forget {where}? Waiting events complete without it. [y/N] ", "waiting events would complete")
        for handler in chosen:
            await store.unregister_handler(handler.bus, handler.handler_id)
    if common.json:
        print_json({"forgotten": [{"bus": handler.bus, "handler_id": handler.handler_id} for handler in chosen]})
        return
    for handler in chosen:
        print(f"{handler.handler_id} of bus {handler.bus} is forgotten")
        if not handler.missing:
            say(
                f"node {handler.node} is live and will register it again: stop that node, or unsubscribe the handler "
                "there"
            )


def _handler_document(handler: HandlerView) -> dict[str, object]:
    return {
        "bus": handler.bus,
        "handler_id": handler.handler_id,
        "patterns": handler.patterns,
        "state": "missing" if handler.missing else "live",
        "nodes": handler.nodes,
        "last_seen_at": iso(handler.last_seen_ts),
        "last_seen_on": handler.node,
    }
