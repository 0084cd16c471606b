"""The dashboard of the demo: a server in its own process. It ends with the demo, even if the demo is killed."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import threading
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path
from typing import Self

from durabus.demo.fleet import WorkerDied
from durabus.demo.shop import BUS
from durabus.errors import ConfigurationError

PORT = 8484
START_WITHIN = 30.0
STOP_WITHIN = 2
LOG_TAIL = 1500


class Dashboard:
    """Runs ``python -m durabus.demo.dashboard`` until the context ends."""

    def __init__(self, store: str, log: Path) -> None:
        self._store = store
        self._log = log
        self._process: Process | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        # Its own session: Ctrl-C in the terminal goes to the demo, which then closes the server's stdin.
        with self._log.open("wb") as stderr:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "durabus.demo.dashboard", "--store", self._store),
                stdin=PIPE,
                stdout=PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        assert self._process.stdout is not None  # noqa: S101  (it is a pipe)
        try:
            async with asyncio.timeout(START_WITHIN):
                self.url = (await self._process.stdout.readline()).decode().strip()
        except BaseException:
            await self._end()
            raise
        if not self.url:
            await self._end()
            words = self._log.read_text(errors="replace")[-LOG_TAIL:].strip()
            raise WorkerDied(f"the dashboard did not start: {words}")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._end()

    async def _end(self) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        try:
            async with asyncio.timeout(2 * STOP_WITHIN):
                await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def main() -> None:
    """Run ``python -m durabus.demo.dashboard --store URL``. It prints its address."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True)
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    threading.Thread(target=_stop_when_alone, daemon=True).start()
    asyncio.run(_serve(options.store))


def _stop_when_alone() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


async def _serve(store: str) -> None:
    # Imported here: without --stay the demo needs no HTTP server.
    from durabus.http.app import create_app  # noqa: PLC0415
    from durabus.http.serving import listen, serve  # noqa: PLC0415
    from durabus.http.settings import Settings  # noqa: PLC0415

    try:
        listening = listen("127.0.0.1", PORT)
    except ConfigurationError:
        listening = listen("127.0.0.1", 0)  # another program uses the port
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
    with listening:
        app = create_app(store, settings=Settings(bus=BUS))
        await serve(app, listening, stop_within=STOP_WITHIN, ready=lambda: print(url, flush=True))


if __name__ == "__main__":
    main()
