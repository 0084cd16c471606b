"""Wake-ups by LISTEN and NOTIFY: a hint that heals, and can be switched off."""

import asyncio
import time
from typing import Any

import psycopg
import pytest

from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import new_event
from durabus.stores.postgresql import wakeup as listening
from durabus.stores.postgresql.store import PostgreSQLStore


async def opened(url: str) -> PostgreSQLStore:
    store = PostgreSQLStore.from_url(url)
    await store.open()
    return store


async def wait_until_listening(store: PostgreSQLStore, connections: int = 1) -> listening.Listener:
    while True:
        found = store._hints.listener
        if found is not None and found.is_ready and found.connections >= connections:
            return found
        await asyncio.sleep(0.01)


def looks_of(store: PostgreSQLStore) -> asyncio.Event:
    """Return an event that is set once a waiting worker has looked and found nothing."""
    looked, next_wakeup = asyncio.Event(), store._hints._next_wakeup

    async def look(bus: str) -> Any:
        row = await next_wakeup(bus)
        looked.set()
        return row

    store._hints._next_wakeup = look
    return looked


async def test_a_publish_wakes_another_process_at_once(url: str, store: PostgreSQLStore) -> None:
    other = await opened(url)
    waiting = asyncio.create_task(other.wait_for_work("default", timeout=40.0))
    await wait_until_listening(other)
    await asyncio.sleep(0.05)
    began = time.monotonic()
    await store.add_events([new_event("a")])
    assert await waiting
    assert time.monotonic() - began < 20
    await other.close()


async def test_only_the_bus_that_has_news_is_woken(url: str, store: PostgreSQLStore) -> None:
    other = await opened(url)
    quiet = asyncio.create_task(other.wait_for_work("quiet", timeout=1.5))
    loud = asyncio.create_task(other.wait_for_work("loud", timeout=40.0))
    await wait_until_listening(other)
    await store.add_events([new_event("a", bus="loud") for _ in range(3)])
    assert await loud is True
    assert await quiet is False
    await other.close()


async def test_a_cut_listener_reconnects_and_wakes_workers_that_may_have_missed_a_hint(
    url: str, store: PostgreSQLStore, admin: psycopg.Connection
) -> None:
    other = await opened(url)
    waiting = asyncio.create_task(other.wait_for_work("default", timeout=30.0))
    listener = await wait_until_listening(other)
    await asyncio.sleep(0.05)
    admin.execute("SELECT pg_terminate_backend(%s)", [listener.backend])
    await wait_until_listening(other, connections=2)
    assert await waiting
    waiting = asyncio.create_task(other.wait_for_work("default", timeout=30.0))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await store.add_events([new_event("a")])
    assert await waiting
    await other.close()


async def test_a_listener_that_gets_no_sign_of_life_is_replaced(
    url: str, store: PostgreSQLStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is half open: the server is gone, and no packet said so."""
    monkeypatch.setattr(listening, "SIGN_OF_LIFE_EVERY", 0.1)
    monkeypatch.setattr(listening, "SIGN_OF_LIFE_WITHIN", 0.2)
    proxy = Proxy(store._address.host, store._address.port)
    port = await proxy.start()
    through = url.replace(f":{store._address.port}/", f":{port}/")
    other = await opened(through)
    looked = looks_of(other)
    try:
        waiting = asyncio.create_task(other.wait_for_work("default", timeout=30.0))
        await looked.wait()  # from here on only the listener uses its connection
        listener = await wait_until_listening(other)
        before = listener.connections
        proxy.freeze()
        await asyncio.sleep(0.5)
        proxy.thaw_new_ones()
        await wait_until_listening(other, connections=before + 1)
        assert await waiting
    finally:
        await other.close()
        await proxy.stop()


async def test_without_listening_own_events_still_wake_and_others_wait_for_the_poll(
    url: str, store: PostgreSQLStore, admin: psycopg.Connection
) -> None:
    deaf = await opened(f"{url}&pooler=on&application_name=deaf")
    waiting = asyncio.create_task(deaf.wait_for_work("default", timeout=20.0))
    await asyncio.sleep(0.2)
    await deaf.add_events([new_event("a")])
    assert await waiting
    request = ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=5)
    assert len(await deaf.claim_next_events(request)) == 1
    looked = looks_of(deaf)
    waiting = asyncio.create_task(deaf.wait_for_work("default", timeout=0.5))
    await looked.wait()
    await store.add_events([new_event("a")])
    assert await waiting is False
    assert await deaf.wait_for_work("default", timeout=5.0) is True
    assert deaf._hints.listener is None
    await deaf.close()


async def test_work_that_a_claim_could_not_have_does_not_wake_it_again(store: PostgreSQLStore) -> None:
    await store.add_events([new_event("a", tags=["eu"])])
    await store._hints.close()  # the notification is sent, so the listener that begins now does not get it late
    request = ClaimRequest(bus="default", worker_id="w", token=new_token(), tags=("us",))
    assert await store.wait_for_work("default", timeout=5.0)
    assert await store.claim_next_events(request) == []
    assert await store.wait_for_work("default", timeout=0.3) is False
    await store.add_events([new_event("a", tags=["us"])])
    assert await store.wait_for_work("default", timeout=5.0)


class Proxy:
    """Stands between a store and the server, and can fall silent without closing anything."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._silent: set[asyncio.StreamWriter] = set()
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._frozen = False

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def freeze(self) -> None:
        self._frozen = True
        self._silent |= self._open

    def thaw_new_ones(self) -> None:
        self._frozen = False

    async def stop(self) -> None:
        assert self._server
        self._server.close()
        for writer in self._open:
            writer.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self._target)
        self._open |= {writer, there_writer}
        if self._frozen:
            self._silent |= {writer, there_writer}
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.get_running_loop().create_task(self._pump(source, sink))
            self._tasks.add(task)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            if sink not in self._silent:
                sink.write(data)
                await sink.drain()
        if sink not in self._silent:
            sink.close()
