"""What all parts of the store share: connections, calls on them, the clock, and the check that it is open.

A call runs on a connection of the store, or in the caller's own transaction on a connection of any supported library.
``store.callers`` finds the driver's connection behind the library's: psycopg (sync or async) or asyncpg.
"""

from __future__ import annotations

import asyncio
import os
import sys
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg

from durabus.clock import Clock, monotonic
from durabus.errors import ConfigurationError, StoreClosedError, StoreError
from durabus.model.event import Event, NewEvent
from durabus.store.callers import NO_TRANSACTION, WRAPPED, driver_of, is_from
from durabus.store.features import Features
from durabus.stores.postgresql import schema
from durabus.stores.postgresql.address import PostgreSQLAddress
from durabus.stores.postgresql.coalescer import CallCoalescer, PublishCoalescer
from durabus.stores.postgresql.connection import (
    READING,
    WRITING,
    Ask,
    Connection,
    Pool,
    PostgreSQLSession,
    own_session,
    store_error,
    transaction,
)
from durabus.stores.postgresql.layout import Statements
from durabus.stores.postgresql.publishing import add_events
from durabus.stores.postgresql.schema import DAYS_AHEAD, PARTITIONS_EVERY
from durabus.stores.postgresql.service import ServiceThread
from durabus.stores.postgresql.wakeup import PostgreSQLHints
from durabus.stores.sql.rows import Row

A = TypeVar("A")
T = TypeVar("T")

ADD_UP_EVERY = 500
"""Number of calls after which a store object adds up ``event_count_notes``."""

FEATURES = Features(
    scheme="postgresql",
    survives_process_kill=True,
    survives_power_loss=True,
    shared_between_processes=True,
    caller_transactions=True,
    manual_clock=True,
    ordering_keys=True,
    claims_by_event_id=True,
    sees_ended_processes=True,
)

_NEW, _OPEN, _CLOSED = range(3)
_ACCEPTED = (
    f"must be a connection to it from psycopg 3 (sync or async) or asyncpg, {WRAPPED}, or a Django connection over "
    "psycopg 3"
)


class PostgreSQLCore:
    """Opens and closes the store, and runs calls on its connections."""

    features = FEATURES

    def __init__(self, address: PostgreSQLAddress, clock: Clock | None = None) -> None:
        self._address = address
        self._clock = clock
        self._sql = Statements(address.schema)
        self._channel = address.channel if address.listen else None
        self._state = _NEW
        self._process = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool: Pool | None = None
        self._service = ServiceThread(address)
        self._hints = PostgreSQLHints(address, self._service, self._notify, self._next_wakeup)
        self._home = CallerContext(address, self._sql, self._clock_argument)
        self._publish_coalescer = PublishCoalescer(self._publish)
        self._call_coalescers: dict[str, CallCoalescer[Any, Any]] = {}
        self._partitions_until = 0.0
        self._calls = 0

    async def open(self) -> None:
        if self._state != _NEW:
            self._check_open()
            return
        pool = Pool(self._address, self._address.pool)
        connection = await pool.take()
        try:
            self._home.installation = await schema.prepare(connection, self._address, self._clock_argument())
        except asyncpg.PostgresError as error:
            raise store_error(error, self._address.shown) from error
        finally:
            pool.give_back(connection)
            if self._home.installation is None:
                await pool.close()
        self._loop, self._pool, self._process = asyncio.get_running_loop(), pool, os.getpid()
        self._hints.begin()
        self._state = _OPEN
        self._partitions_until = monotonic() + PARTITIONS_EVERY

    async def close(self) -> None:
        if self._state == _OPEN:
            self._check_open()
            self._state = _CLOSED
            self._hints.wake_all()
            if self._loop is asyncio.get_running_loop():
                await self._leave()
            elif self._loop is not None and self._loop.is_running():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._leave(), self._loop))
            elif self._pool is not None:
                self._pool.abandon()
            await asyncio.to_thread(self._service.stop)
        self._state = _CLOSED

    async def verify(self) -> None:
        await self._call(lambda connection: schema.verify(connection, self._address))

    async def now(self) -> float:
        if self._clock is not None:
            self._check_open()
            return self._clock.now()
        return float((await self._ask("now"))[0][0])

    async def wait_for_work(self, bus: str, *, timeout: float) -> bool:  # noqa: ASYNC109  (the contract's name)
        self._check_open()
        return await self._hints.wait(bus, timeout)

    def _clock_argument(self) -> float | None:
        """Return the present instant for statements; None means the server's own clock."""
        return None if self._clock is None else self._clock.now()

    async def _ask(self, name: str, *arguments: Any) -> list[Row]:
        """Run one statement as its own transaction."""
        sql = self._sql[name]
        return await self._call(lambda connection: connection.fetch(sql, *arguments))

    async def _together(self, verb: str, argument: A, send: Callable[[Sequence[A]], Awaitable[Sequence[T]]]) -> T:
        """Run in one statement with other calls of this verb; alone if ``open`` ran on another event loop."""
        self._check_open()
        if asyncio.get_running_loop() is not self._loop:
            return (await send([argument]))[0]
        coalescer = self._call_coalescers.get(verb)
        if coalescer is None:
            coalescer = self._call_coalescers[verb] = CallCoalescer(send)
        answer: T = await coalescer.call(argument)
        return answer

    def _plain_session(self) -> PostgreSQLSession:
        """Return a session in which each statement is its own transaction."""

        async def ask(sql: str, *arguments: Any) -> Sequence[Row]:
            return await self._serve(lambda connection: connection.fetch(sql, *arguments))

        return PostgreSQLSession(ask, self._sql, now=self._clock_argument(), channel=None)

    async def _publish(self, new: Sequence[NewEvent]) -> list[Event]:
        session = self._plain_session()
        events = await add_events(session, new)
        self._hints.tell(session.woken)
        return events

    async def _look(self, run: Callable[[PostgreSQLSession], Awaitable[T]]) -> T:
        """Run several statements that see the same snapshot."""

        async def look(connection: Connection) -> T:
            async with transaction(connection, READING):
                return await run(own_session(connection, self._sql, now=self._clock_argument()))

        return await self._call(look)

    async def _write(self, run: Callable[[PostgreSQLSession], Awaitable[T]]) -> T:
        """Run in a transaction. Returns when it is committed."""
        woken: set[str] = set()

        async def write(connection: Connection) -> T:
            async with transaction(connection, WRITING):
                session = own_session(connection, self._sql, now=self._clock_argument())
                answer = await run(session)
            woken.update(session.woken)
            return answer

        answer = await self._call(write)
        self._hints.tell(woken)
        return answer

    async def _call(self, run: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        """Run on a connection of this event loop or, if ``open`` ran on another one, of the store's own thread."""
        self._check_open()
        return await self._serve(run)

    async def _serve(self, run: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        """Run a call that was accepted, maybe before the store began to close.

        Now and then, add up the counts and make log partitions first. Any number of store objects may do so at the
        same time.
        """
        self._calls += 1
        if self._calls % ADD_UP_EVERY == 0:
            adding, making = self._sql["add_up_counts"], self._sql["make_log_partitions"]
            await self._dispatch(lambda connection: connection.fetch(adding))
            if monotonic() > self._partitions_until:
                self._partitions_until = monotonic() + PARTITIONS_EVERY
                await self._dispatch(lambda connection: connection.fetch(making, self._clock_argument(), DAYS_AHEAD))
        return await self._dispatch(run)

    async def _dispatch(self, run: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        if asyncio.get_running_loop() is self._loop and self._pool is not None:
            return await self._pool.run(run)
        return await asyncio.wrap_future(self._service.submit(lambda pool: pool.run(run)))

    async def _notify(self, buses: list[str]) -> None:
        sql = self._sql["notify"]
        await self._dispatch(lambda connection: connection.fetch(sql, self._address.channel, buses))

    async def _next_wakeup(self, bus: str) -> Row:
        async def look(buses: Sequence[str]) -> Sequence[Row]:
            return await self._plain_session().all("next_wakeup", buses, self._clock_argument())

        return await self._together("wait_for_work", bus, look)

    async def _leave(self) -> None:
        if self._pool is not None:
            await self._publish_coalescer.wait_until_idle()
            for coalescer in self._call_coalescers.values():
                await coalescer.wait_until_idle()
            await self._pool.wait_until_unused()
            await asyncio.sleep(0)  # calls that have just returned may still send hints
            await self._hints.close()
            await self._pool.close()
        await asyncio.sleep(0)  # sockets close in the next cycle of the event loop

    def _check_open(self) -> None:
        if self._state == _OPEN and self._process == os.getpid():
            return
        where = self._address.shown
        if self._state == _NEW:
            raise StoreClosedError(f"the store on {where} is not open yet: await open() first, or use open_store()")
        if self._state == _CLOSED:
            raise StoreClosedError(f"the store on {where} is closed: open a new one")
        raise StoreClosedError(
            f"the store on {where} was opened in process {self._process} and is used in its child {os.getpid()}: "
            "open a store in each process, after the fork"
        )


class CallerContext:
    """What a session on a caller's connection needs of the store."""

    def __init__(self, address: PostgreSQLAddress, sql: Statements, clock: Callable[[], float | None]) -> None:
        self.address = address
        self.sql = sql
        self.clock = clock
        self.installation: str | None = None
        """The id that tells this schema from one of the same name in another database."""
        self.checked: weakref.WeakSet[Any] = weakref.WeakSet()
        """Connections that were checked to lead to this schema. They need no second check."""


@asynccontextmanager
async def in_transaction_of(connection: object, home: CallerContext) -> AsyncIterator[PostgreSQLSession]:
    """Yield a session in the caller's open transaction. A sync connection is used in the caller's thread."""
    driver = await driver_of(connection, "postgresql")
    ask = _ask_of(driver, connection, home)
    try:
        await _check(driver, ask, home)
        channel = home.address.channel if home.address.listen else None
        yield PostgreSQLSession(ask, home.sql, now=home.clock(), channel=channel)
    except Exception as error:
        if isinstance(error, asyncpg.PostgresError | asyncpg.InterfaceError) or is_from(type(error), "psycopg"):
            raise store_error(error, home.address.shown) from error
        raise


def _ask_of(driver: Any, given: object, home: CallerContext) -> Ask:
    if is_from(type(driver), "asyncpg") and hasattr(driver, "is_in_transaction"):
        if not driver.is_in_transaction():
            raise StoreError(f"{NO_TRANSACTION} (async with connection.transaction(): …)")
        fetch: Ask = driver.fetch
        return fetch
    if is_from(type(driver), "psycopg") and hasattr(driver, "pgconn"):
        if driver.autocommit and driver.info.transaction_status.name == "IDLE":
            raise StoreError(f"{NO_TRANSACTION} (with connection.transaction(): …)")
        return _ask_psycopg(driver)
    refused = "psycopg2 cannot take part, psycopg 3 can; it " if is_from(type(driver), "psycopg2") else ""
    raise ConfigurationError(f"connection={type(given).__name__} for {home.address.shown}: {refused}{_ACCEPTED}")


def _ask_psycopg(driver: Any) -> Ask:
    psycopg = sys.modules["psycopg"]
    tuples = psycopg.rows.tuple_row
    if isinstance(driver, psycopg.AsyncConnection):

        async def ask_async(sql: str, *arguments: Any) -> Any:
            async with psycopg.AsyncRawCursor(driver, row_factory=tuples) as cursor:
                await cursor.execute(sql, arguments or None)
                return await cursor.fetchall() if cursor.description else []

        return ask_async

    async def ask(sql: str, *arguments: Any) -> Any:
        with psycopg.RawCursor(driver, row_factory=tuples) as cursor:
            cursor.execute(sql, arguments or None)
            return cursor.fetchall() if cursor.description else []

    return ask


async def _check(driver: Any, ask: Ask, home: CallerContext) -> None:
    """Raise for another database before anything is written, without an SQL error that would end the transaction."""
    checked = getattr(driver, "_con", driver)  # asyncpg's pool lends a new wrapper each time
    if checked in home.checked:
        return
    name = f'"{home.address.schema}".installation'
    there = (await ask("SELECT current_database(), to_regclass($1::text) IS NOT NULL", name))[0]
    installation = (await ask(f"SELECT id::text FROM {name}"))[0][0] if there[1] else None  # noqa: S608  (our own name)
    if installation != home.installation:
        raise ConfigurationError(
            f"connection is to database {there[0]!r}, which does not hold the schema of {home.address.shown}: "
            "one commit can span only one database, connect to that one"
        )
    home.checked.add(checked)
