"""Advisory locks that show that a process lives: over lost connections, a restart of the server, and without LISTEN."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import asyncpg
import psycopg
import pytest
from tests.postgresql.test_listening import opened, wait_until_listening
from tests.worker.support import until

from durabus import Action, EventBus, EventStore, new_event
from durabus.model.claim import ClaimRequest, new_incarnation, new_token
from durabus.stores.postgresql.processes import FREE_FOR
from durabus.stores.postgresql.store import PostgreSQLStore
from durabus.testing.servers.postgresql import PostgreSQLServer

STUCK = 5

Open = Callable[[str], Awaitable[PostgreSQLStore]]


@pytest.fixture
async def open_store() -> AsyncIterator[Open]:
    async with AsyncExitStack() as stack:

        async def make(url: str) -> PostgreSQLStore:
            store = await opened(url)
            stack.push_async_callback(store.close)
            return store

        yield make


async def abandoned(store: EventStore) -> int:
    return sum(entry.action is Action.ABANDONED for entry in (await store.read_log(limit=1000)).entries)


async def ended(store: PostgreSQLStore, seconds: float = 2 * FREE_FOR) -> list[str]:
    """Return the processes that the store takes for ended within some seconds."""
    until_ = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < until_:
        found = (await store.ended_processes()).incarnations
        if found:
            return found
        await asyncio.sleep(0.05)
    return []


async def test_a_process_whose_store_is_gone_has_ended(url: str, open_store: Open) -> None:
    gone, other = await opened(url), await open_store(url)
    name = new_incarnation()
    assert await gone.show_presence(name)
    await gone.add_events([new_event("a")])
    await gone.claim_next_events(ClaimRequest(bus="default", worker_id="w", token=new_token(name)))
    assert await other.show_presence(new_incarnation())
    assert await ended(other) == []
    await gone.close()
    assert await ended(other, 10.0) == [name]
    assert await other.end_process(name) == 1
    assert await ended(other) == []


async def test_a_lost_connection_is_not_the_end_of_a_process(
    url: str, store: PostgreSQLStore, open_store: Open, admin: psycopg.Connection
) -> None:
    other, name = await open_store(url), new_incarnation()
    assert await store.show_presence(name)
    assert await other.show_presence(new_incarnation())
    listener = await wait_until_listening(store)
    admin.execute("SELECT pg_terminate_backend(%s)", [listener.backend])
    await wait_until_listening(store, 2)
    assert await store.show_presence(name)
    assert await ended(other, 1.0) == []


async def test_a_process_that_cannot_connect_again_lives_on_its_other_connections(
    url: str, store: PostgreSQLStore, open_store: Open, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has no connection left for it, and those of its heartbeat still work."""

    async def refuse(**_: object) -> None:
        raise OSError("no connection left")

    other, name = await open_store(url), new_incarnation()
    assert await store.show_presence(name)
    assert await other.show_presence(new_incarnation())
    await asyncio.to_thread(asyncio.run, store.now())  # as a heartbeat does, from a loop of its own
    listener = await wait_until_listening(store)
    with monkeypatch.context() as patch:
        patch.setattr(asyncpg, "connect", refuse)
        admin.execute("SELECT pg_terminate_backend(%s)", [listener.backend])
        assert await ended(other, 2.0) == []
        assert not listener.is_ready
    await wait_until_listening(store, 2)
    assert await ended(other) == []
    await store.withdraw_presence(name)
    await until(lambda: not locks_of(admin, name))


def locks_of(admin: psycopg.Connection, incarnation: str) -> int:
    """Return how many sessions hold the lock of a process."""
    key = "(classid::bigint << 32) | objid::bigint = hashtextextended(%s, 4)"
    row = admin.execute(f"SELECT count(*) FROM pg_locks WHERE {key}", [incarnation]).fetchone()
    assert row is not None
    return int(row[0])


async def test_without_listening_no_presence_is_shown(url: str, open_store: Open) -> None:
    store = await open_store(f"{url}&listen=off")
    assert not await store.show_presence(new_incarnation())
    assert (await store.ended_processes()).incarnations == []


async def test_processes_that_left_or_ended_have_no_row(url: str, open_store: Open, admin: psycopg.Connection) -> None:
    store = await open_store(url)
    names = [new_incarnation() for _ in range(3)]
    for name in names:
        assert await store.show_presence(name)
    assert admin.execute("SELECT count(*) FROM processes").fetchone() == (3,)
    for name in names:
        await store.withdraw_presence(name)
    admin.execute("INSERT INTO processes VALUES (%s, now())", [new_incarnation()])
    (dead,) = await ended(store, 10.0)
    assert await store.end_process(dead) == 0
    assert admin.execute("SELECT count(*) FROM processes").fetchone() == (0,)


@pytest.mark.timeout(120)
async def test_a_restart_of_the_server_takes_nothing_from_processes_that_live() -> None:
    begun = 0

    async def handle(_event: object) -> None:
        nonlocal begun
        begun += 1
        await asyncio.Event().wait()

    with PostgreSQLServer() as server:
        async with AsyncExitStack() as stack:
            buses = []
            for _ in range(2):
                bus = EventBus(await opened(server.url), shutdown_timeout=0.1)
                stack.push_async_callback(bus.store.close)
                bus.subscribe("stuck", handle, id="stuck")
                buses.append(await stack.enter_async_context(bus))
            await buses[0].store.add_events([new_event("stuck") for _ in range(STUCK)])
            await until(lambda: begun == STUCK)
            await asyncio.to_thread(server.restart, immediate=True)
            for bus in buses:
                assert isinstance(bus.store, PostgreSQLStore)
                await wait_until_listening(bus.store, 2)
            await asyncio.sleep(3 * FREE_FOR)
            assert await abandoned(buses[0].store) == 0
            assert begun == STUCK
