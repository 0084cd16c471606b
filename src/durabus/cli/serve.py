"""``durabus serve``: serves the HTTP API and the dashboard until a signal."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from durabus.cli.failures import CommandFailed, Exit, require_installed
from durabus.cli.options import DEFAULTS, Common, store_url
from durabus.cli.output import print_json_line, say, set_up_logging
from durabus.errors import ConfigurationError
from durabus.model.event import DEFAULT_BUS

TOKENS_VARIABLE = "DURABUS_TOKENS"
DEFAULT_PORT = 8484
STOP_WITHIN = 10
NEEDED = ("jinja2", "litestar", "prometheus_client", "uvicorn")


async def serve(
    *,
    host: Annotated[
        str, Parameter(help="Address to listen on. Other machines can connect only with --tokens.")
    ] = "127.0.0.1",
    port: Annotated[int, Parameter(help="Port; 0 takes a free one.")] = DEFAULT_PORT,
    tokens: Annotated[
        Path | None,
        Parameter(env_var=TOKENS_VARIABLE, help="File of `durabus tokens`. With it every request needs a token."),
    ] = None,
    bus: Annotated[str, Parameter(help="Bus for requests that name none.")] = DEFAULT_BUS,
    lease: Annotated[float, Parameter(help="Seconds after which a silent worker loses its event.")] = 30.0,
    retry_delay: Annotated[float, Parameter(help="Seconds from a failure to the next attempt.")] = 300.0,
    max_retries: Annotated[int, Parameter(help="Number of failures after which an event is FAILED.")] = 3,
    max_wait: Annotated[float, Parameter(help="Maximum seconds that a claim waits for work.")] = 30.0,
    stop_within: Annotated[int, Parameter(help="Seconds that open requests have to end at shutdown.")] = STOP_WITHIN,
    common: Common = DEFAULTS,
) -> None:
    """Serve the HTTP API, and the dashboard at its root.

    After SIGTERM or Ctrl-C it accepts no new requests and finishes running ones. A second signal quits at once.

    Example: durabus serve --port 8484
    """
    require_server()
    from durabus.http.app import create_app
    from durabus.http.auth.peers import is_loopback
    from durabus.http.auth.tokens import TokenFile
    from durabus.http.serving import listen
    from durabus.http.serving import serve as serve_until_stopped
    from durabus.http.settings import Settings

    if tokens is None and not is_loopback(host):
        raise _needs_tokens(host)
    settings = Settings(bus=bus, lease=lease, retry_delay=retry_delay, max_retries=max_retries, max_wait=max_wait)
    app = create_app(store_url(common), settings=settings, tokens=None if tokens is None else TokenFile(tokens))
    set_up_logging(logging.WARNING)
    try:
        listening = listen(host, port)
    except ConfigurationError as error:
        raise CommandFailed("cannot listen", str(error), "--port 0 takes a free port", code=Exit.FAILED) from error
    name = f"[{host}]" if ":" in host else host
    url = f"http://{name}:{listening.getsockname()[1]}"

    def ready() -> None:
        if common.json:
            print_json_line({"url": url, "pid": os.getpid()})
        else:
            print(url, flush=True)
        say(f"serving bus {bus!r} on {app.api.store.features.scheme}://; Ctrl-C or SIGTERM stops it")
        if not is_loopback(host):
            say("tokens are sent unencrypted: put a TLS proxy in front of this server")

    with listening:
        await serve_until_stopped(app, listening, stop_within=stop_within, ready=ready)
    say("stopped")


def _needs_tokens(host: str) -> CommandFailed:
    return CommandFailed(
        f"other machines can reach {host}",
        "a server without tokens may serve this machine only",
        "run `durabus tokens create NAME --scope admin --tokens tokens.json`, then add --tokens tokens.json",
        code=Exit.USAGE,
    )


def require_server() -> None:
    """Refuse a command if the extra ``server`` is not installed."""
    require_installed(NEEDED, what="the HTTP server", extras="server")
