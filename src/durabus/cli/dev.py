"""``durabus dev``: starts a real server to try a store."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from durabus.cli.failures import CommandFailed, Exit
from durabus.cli.output import print_json_line, say
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
    from durabus.testing.servers.known import make_server

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
