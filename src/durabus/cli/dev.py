"""``durabus dev``: a real server for a first try."""

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

dev = App(name="dev", help="Real servers for a first try: up.")

STOPPING = (signal.SIGINT, signal.SIGTERM)
LOOK_EVERY = 0.5


@dev.command
def up(
    server: Annotated[Literal["postgresql", "redis", "nats", "kafka"], Parameter(help="Which one.", show_choices=True)],
    /,
    *,
    data_dir: Annotated[
        Path | None, Parameter(help="Keep its data there, and find it again; without it nothing is kept.")
    ] = None,
    json: Annotated[
        bool, Parameter(help="Print one line of JSON instead of the URL.", negative="", show_default=False)
    ] = False,
) -> int:
    """Start a server on a free port of this machine, print its URL, and run until Ctrl-C.

    It is for tries and tests: this machine only, no tuning, no backups.

    Example: durabus dev up postgresql --data-dir ./postgres
    """
    from durabus.testing.servers.known import make_server

    # Blocked, not handled: whenever a signal comes, also while the server starts, it waits until we look.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    running = make_server(server, data_dir)
    try:
        with running:
            if json:
                fields = {"server": server, "url": running.url, "pid": running.pid}
                print_json_line({**fields, "directory": str(running.directory), "kept": data_dir is not None})
            else:
                print(running.url, flush=True)
            say(f"{running.title} runs (pid {running.pid}); its log is {running.log}")
            say(f"use it: export {STORE_VARIABLE}='{running.url}'")
            say("Ctrl-C stops it" + ("" if data_dir else " and deletes its data (--data-dir keeps them)"))
            number = _wait(running)
    except ServerError as error:
        raise CommandFailed(f"no {running.title}", str(error), code=Exit.FAILED) from error
    say("stopped" + (f"; its data are in {data_dir}" if data_dir else ", nothing is left behind"))
    return 128 + number


def _wait(running: Server) -> int:
    """Until a signal comes, which is answered, or the server ends by itself, which is an error."""
    while running.running:
        if got := signal.sigtimedwait(STOPPING, LOOK_EVERY):
            return got.si_signo
    raise ServerError(f"it ended by itself: {running.last_words()}")
