"""A client on an app in this process, and a real server in another one."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

import httpx2
import msgspec

from durabus import EventStore, ManualClock
from durabus.http import HttpApi, Settings, TokenFile, create_app

HERE = ("127.0.0.1", 40_000)
ELSEWHERE = ("203.0.113.7", 40_000)
IDS = re.compile(r'"(id|event_id)":\d+')


class Desk:
    """The app, and a client of it. The app does not look for orphans by itself: the tests move their own clock."""

    def __init__(
        self,
        store: EventStore,
        clock: ManualClock,
        *,
        tokens: TokenFile | None = None,
        client: tuple[str, int] = HERE,
        host: str = "127.0.0.1",
        **settings: Any,
    ) -> None:
        self.store = store
        self.clock = clock
        self.app: HttpApi = create_app(store, settings=Settings(scan_every=3600.0, **settings), tokens=tokens)
        transport = httpx2.ASGITransport(app=self.app, client=client)
        self.http = httpx2.AsyncClient(transport=transport, base_url=f"http://{host}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.http.aclose()
        await self.app.close()

    async def get(self, url: str, **options: Any) -> httpx2.Response:
        return await self.http.get(url, **options)

    async def post(self, url: str, body: Any = None, **options: Any) -> httpx2.Response:
        return await self.http.post(url, json=body, **options)

    async def publish(self, title: str = "job", tags: str = "work", **fields: Any) -> int:
        answer = await self.post("/events", {"title": title, "tags": tags, **fields})
        assert answer.status_code == 201, answer.text
        id_: int = answer.json()["id"]
        return id_

    async def claim(self, tags: str = "work", worker_id: str = "host:1") -> httpx2.Response:
        answer = await self.get("/events/subscribe", params={"tags": tags, "worker_id": worker_id})
        assert answer.status_code == 200, answer.text
        return answer

    async def trail(self, id_: int) -> list[str]:
        return [entry["action"] for entry in (await self.get(f"/events/{id_}/log")).json()]


def bearer(token: str) -> dict[str, str]:
    """Return the header by which a program sends its token."""
    return {"Authorization": f"Bearer {token}"}


def same(actual: str, example: str) -> None:
    """Compare byte for byte, except for ids and for the spaces that make the document readable."""
    compact = msgspec.json.encode(msgspec.json.decode(example)).decode()
    assert IDS.sub(r'"\1":0', actual) == IDS.sub(r'"\1":0', compact)


def durabus(*arguments: str) -> list[str]:
    """The command line."""
    return [str(Path(sys.executable).with_name("durabus")), *arguments]


class Server:
    """``durabus serve`` as a process. Leaving the context stops it."""

    def __init__(self, store: str, *options: str, command: list[str] | None = None) -> None:
        self.process = subprocess.Popen(
            command or durabus("serve", "--port", "0", "--json", "--store", store, *options),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.errors: list[str] = []
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "".join(self.errors)
        self.url: str = msgspec.json.decode(line)["url"]
        self.port = int(self.url.rpartition(":")[2])

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors += iter(self.process.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(40)
        finally:
            self.process.kill()
            self._close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Ask the server to stop. Returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(40)

    def _close(self) -> None:
        self._reader.join(5)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
