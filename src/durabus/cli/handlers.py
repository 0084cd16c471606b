"""``durabus handlers``: lists registered handlers, and forgets those that no live process has."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from durabus.cli.failures import CommandFailed, Exit
from durabus.cli.options import DEFAULTS, Common, opened_store
from durabus.cli.output import age, confirm, handler_table, iso, plain, print_json, print_whole, say
from durabus.views.handlers import HandlerView, registered_handlers

handlers = App(name="handlers", help="Handlers that processes have registered: list, forget.")

STATE_STYLES = {"live": "green", "missing": "bold red"}


@handlers.command(name="list")
async def list_handlers(
    *,
    bus: Annotated[str | None, Parameter(help="Only this bus. Default: all buses.")] = None,
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
        print_json({"handlers": [_document(line) for line in shown]})
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


def _document(line: HandlerView) -> dict[str, object]:
    return {
        "bus": line.bus,
        "handler_id": line.handler_id,
        "patterns": line.patterns,
        "state": "missing" if line.missing else "live",
        "nodes": line.nodes,
        "last_seen_at": iso(line.last_seen_ts),
        "last_seen_on": line.node,
    }
