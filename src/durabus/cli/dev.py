"""``durabus demo`` runs a small shop through crashes; ``durabus dev`` starts a real server to try a store."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from durabus.cli.failures import CommandFailed, Exit
from durabus.cli.lake import refuse_without_spark
from durabus.cli.output import print_json_line, say
from durabus.cli.serve import require_server
from durabus.errors import ServerError
from durabus.store.connect import STORE_VARIABLE
from durabus.testing.servers.server import Server

dev = App(name="dev", help="Real servers to try a store: up.")

STOPPING = (signal.SIGINT, signal.SIGTERM)
LOOK_EVERY = 0.5


@dev.command
def up(
    server: Annotated[
        Literal["postgresql", "redis", "nats", "kafka"], Parameter(help="The server.", show_choices=True)
    ],
    /,
    *,
    data_dir: Annotated[
        Path | None, Parameter(help="Folder to keep the data in. Without it the data is deleted at the end.")
    ] = None,
    json: Annotated[
        bool, Parameter(help="Print one line of JSON instead of the URL.", negative="", show_default=False)
    ] = False,
) -> int:
    """Start a server on a free port of this machine, print its URL, and run until Ctrl-C.

    It is for trials and tests: it serves this machine only, and has no tuning and no backups.

    Example: durabus dev up postgresql --data-dir ./postgres
    """
    from durabus.testing.servers.server import make_server

    # Blocked, not handled: a signal, even one that comes while the server starts, stays pending until `_wait`.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    running = make_server(server, data_dir)
    try:
        with running:
            if json:
                fields = {"server": server, "url": running.url, "pid": running.pid}
                print_json_line({**fields, "directory": str(running.directory), "kept": data_dir is not None})
            else:
                print(running.url, flush=True)
            say(f"{running.title} is running (pid {running.pid}); its log is {running.log}")
            say(f"to use it: export {STORE_VARIABLE}='{running.url}'")
            say("Ctrl-C stops it" + ("" if data_dir else " and deletes its data (--data-dir keeps the data)"))
            number = _wait(running)
    except ServerError as error:
        raise CommandFailed(f"no {running.title}", str(error), code=Exit.FAILED) from error
    say("stopped; " + (f"its data is in {data_dir}" if data_dir else "its data is deleted"))
    return 128 + number


def _wait(running: Server) -> int:
    """Wait for a signal and return it. Raises ``ServerError`` if the server ends by itself."""
    while running.running:
        if got := signal.sigtimedwait(STOPPING, LOOK_EVERY):
            return got.si_signo
    raise ServerError(f"it ended by itself: {running.last_words()}")


async def demo(
    *,
    store: Annotated[
        Literal["sqlite", "postgresql", "redis", "nats", "kafka"],
        Parameter(help="The store to use. The demo starts and stops the server it needs."),
    ] = "sqlite",
    orders: Annotated[int, Parameter(help="Orders to place; each becomes about three events.")] = 3000,
    keep: Annotated[
        bool, Parameter(help="Keep the folder with the database and print its path.", negative="", show_default=False)
    ] = False,
    json: Annotated[bool, Parameter(help="Print the report as JSON.", negative="", show_default=False)] = False,
    pipeline: Annotated[
        bool,
        Parameter(help="Then run the pipeline on Spark: it makes tables and a page with charts.", show_default=False),
    ] = False,
    stay: Annotated[
        bool,
        Parameter(help="Keep running with new orders, and serve the dashboard.", negative="", show_default=False),
    ] = False,
) -> int:
    """Watch a small shop survive failing handlers and a worker killed with kill -9, in about half a minute.

    Example: durabus demo --orders 1000 --keep
    """
    from durabus.demo.run import DemoOptions, run_demo

    if stay:
        require_server()
    if pipeline:
        refuse_without_spark()
    try:
        return await run_demo(
            DemoOptions(store=store, orders=orders, keep=keep, json=json, pipeline=pipeline, stay=stay)
        )
    except ServerError as error:
        raise CommandFailed("no server for the demo", str(error), code=Exit.FAILED) from error
