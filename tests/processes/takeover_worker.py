"""A worker process with default settings: its handlers end at once, or never.

python takeover_worker.py STORE_URL LEDGER quick|stuck|forked [TAKEOVER]
python takeover_worker.py STORE_URL LEDGER server
"""

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

from durabus import Context, Event, EventBus, open_store
from durabus.http import create_app
from durabus.http.serving import listen, serve


def die_with_parent() -> None:
    os.read(0, 1)  # not through sys.stdin, whose lock a daemon thread would hold at the end
    os._exit(1)


def live_on(end: Path) -> None:
    """Keep what the child inherited until the test is over. Its folder may be gone before this looks."""
    while end.parent.exists() and not end.exists():
        time.sleep(0.05)
    os._exit(0)


async def main(url: str, ledger: str, kind: str, takeover: str = "presence") -> None:
    threading.Thread(target=die_with_parent, daemon=True).start()
    logging.getLogger("durabus").setLevel(logging.ERROR)
    lines = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(what: str, number: int = 0) -> None:
        os.write(lines, f"{what} {number} {os.getpid()}\n".encode())

    bus = EventBus(url, takeover=takeover)

    @bus.on("*")
    async def handle(event: Event, _ctx: Context) -> None:
        write("start", event.id)
        if kind != "quick":
            await asyncio.Event().wait()
        write("end", event.id)

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await bus.start()
    write("up")
    if kind == "forked":
        while not bus.in_flight:  # noqa: ASYNC110  (a bus has no event to wait for)
            await asyncio.sleep(0.01)
        if not os.fork():
            live_on(Path(ledger + ".end"))
        write("forked")
    await stop.wait()
    await bus.shutdown(timeout=10)


async def serve_http(url: str, ledger: str, _kind: str) -> None:
    """Serve the HTTP API, and write down the port."""
    threading.Thread(target=die_with_parent, daemon=True).start()
    listening, ready = listen("127.0.0.1", 0), asyncio.Event()
    serving = asyncio.create_task(serve(create_app(await open_store(url)), listening, stop_within=1, ready=ready.set))
    await ready.wait()
    with Path(ledger).open("a") as lines:  # noqa: ASYNC230  (once, before anything else happens)
        lines.write(f"up {listening.getsockname()[1]} {os.getpid()}\n")
    await serving


if __name__ == "__main__":
    asyncio.run((serve_http if sys.argv[3] == "server" else main)(*sys.argv[1:]))
