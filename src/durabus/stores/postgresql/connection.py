"""Connections to the server, its errors as durabus errors, a pool of connections, and the session of a call."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, TypeVar

import asyncpg

from durabus.errors import (
    ConfigurationError,
    DurabusError,
    InvalidEventError,
    SchemaError,
    StoreClosedError,
    StoreError,
    StoreUnavailableError,
)
from durabus.stores.postgresql.address import PostgreSQLAddress
from durabus.stores.postgresql.layout import Statements
from durabus.stores.sql.rows import Row

T = TypeVar("T")

Connection: TypeAlias = Any
"""``asyncpg.Connection``: asyncpg ships no types."""

OLDEST_SERVER = (14, 0)
COMMAND_TIMEOUT = 30.0
"""Maximum seconds of one statement. After that the connection counts as lost."""

TRIES = 8
"""How often a transaction is repeated after a conflict before its caller gets the error."""
RECONNECTS = 2
"""How often a call is repeated on a new connection after its own was lost. Every call can be repeated."""

READING = "ISOLATION LEVEL REPEATABLE READ READ ONLY"
WRITING = "ISOLATION LEVEL READ COMMITTED"
PLANNING = "SET LOCAL enable_seqscan = off; SET LOCAL jit = off"
"""A prepared statement keeps its plan, and a plan made while a table was small would read all of a long queue.
The settings are local to the transaction, because a pooler may give the connection to other clients."""

DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
"""What a call on a connection may raise. The third occurs when the connection breaks in the middle of a call."""

_LOST_STATES = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03"})
_AGAIN = frozenset({"40001", "40P01"})
_CONFIGURATION = {
    "28P01": "the password is wrong, or the user unknown: check the user and password in the URL",
    "28000": "the server does not let this user in: check the user in the URL, and pg_hba.conf on the server",
    "3D000": "there is no such database: create it, or name another one in the URL",
}
_MEANING = {
    "25006": "the server is read-only, perhaps a replica: point the URL at the primary",
    "53100": "the server's disk is full: free some space, the store works again at once",
    "53200": "the server is out of memory",
    "53300": "the server has no connection left: raise max_connections, or lower pool= in the URL",
    "53400": "a limit of the server's configuration is reached",
    "55P03": "another session holds a lock for too long: see pg_stat_activity",
    "57014": "the statement took too long and was cancelled: is the server overloaded?",
}
_SCHEMA = {
    "3F000": "the schema is missing",
    "42P01": "a table is missing",
    "42703": "a column is missing",
    "42883": "a function is missing",
}


async def connect(address: PostgreSQLAddress) -> Connection:
    """Return a new connection. Raises ``StoreUnavailableError`` or ``ConfigurationError`` with one clear line."""
    arguments: dict[str, Any] = {}
    if address.sslmode is not None:
        arguments["ssl"] = _ssl(address)
    try:
        connection = await asyncpg.connect(
            host=address.host,
            port=address.port,
            user=address.user,
            password=address.password,
            database=address.database,
            timeout=address.connect_timeout,
            command_timeout=COMMAND_TIMEOUT,
            statement_cache_size=200 if address.prepared else 0,
            max_cached_statement_lifetime=0,
            # a pooler accepts no other settings
            server_settings={"application_name": address.application_name},
            **arguments,
        )
    except Exception as error:
        raise connect_error(error, address) from error
    if connection.get_server_version() < OLDEST_SERVER:
        version = ".".join(map(str, connection.get_server_version()[:2]))
        await connection.close()
        raise SchemaError(f"{address.shown}: this is PostgreSQL {version}, durabus needs {OLDEST_SERVER[0]} or newer")
    return connection


@asynccontextmanager
async def transaction(connection: Connection, mode: str) -> AsyncIterator[None]:
    """Run a transaction: commit at its end, roll back after an error. One round trip begins it and sets the planner."""
    await connection.execute(f"BEGIN {mode}; {PLANNING}")
    try:
        yield
    except BaseException:
        if not connection.is_closed():
            await connection.execute("ROLLBACK")
        raise
    await connection.execute("COMMIT")


def connect_error(error: Exception, address: PostgreSQLAddress) -> Exception:
    """Return the durabus error for a failed attempt to connect."""
    state = getattr(error, "sqlstate", None)
    if state in _CONFIGURATION:
        return ConfigurationError(f"{address.shown}: {_CONFIGURATION[state]} (PostgreSQL: {error})")
    if state in _MEANING:
        return StoreUnavailableError(f"{address.shown}: {_MEANING[state]} (PostgreSQL: {error})")
    if isinstance(error, asyncpg.ClientConfigurationError | ssl.SSLError):
        return ConfigurationError(f"{address.shown}: {error}")
    if isinstance(error, TimeoutError):
        return StoreUnavailableError(
            f"{address.shown}: no answer within {address.connect_timeout:g} s: is the host right, and is there a "
            "firewall in between?"
        )
    return StoreUnavailableError(f"{address.shown}: cannot connect ({error}): is the server running and reachable?")


def is_lost(error: BaseException) -> bool:
    """Return whether the connection is lost, so that the outcome of the statement is unknown."""
    if isinstance(error, asyncpg.PostgresError):
        return error.sqlstate in _LOST_STATES or str(error.sqlstate).startswith("08")
    return isinstance(error, OSError | asyncpg.InterfaceError | asyncpg.InternalClientError | TimeoutError)


def is_worth_another_try(error: BaseException) -> bool:
    """Return whether the server rolled the transaction back because of a conflict with another one."""
    return getattr(error, "sqlstate", None) in _AGAIN


def store_error(error: BaseException, where: str) -> DurabusError:
    """Return the durabus error for an error of a statement: the server, the cause and the remedy."""
    state = getattr(error, "sqlstate", None)
    if state in _SCHEMA:
        return SchemaError(
            f"{where}: {_SCHEMA[state]} ({error}): run `durabus db migrate`, or open the store as a user that may "
            "create it"
        )
    if state == "42501":
        return StoreError(f"{where}: this user may not do that ({error}): grant it one of the roles in roles.sql")
    if str(state).startswith("22"):
        return InvalidEventError(f"{where}: a value that PostgreSQL cannot store ({error}); nothing was written")
    if is_lost(error):
        return StoreUnavailableError(f"{where}: the connection was lost ({str(error) or type(error).__name__})")
    meaning = _MEANING.get(str(state), "nothing was written")
    return StoreUnavailableError(f"{where}: {meaning} (PostgreSQL: {error})")


async def let_go(connection: Connection) -> None:
    """Close the connection. Waits two seconds at most, because the server may be gone."""
    try:
        await connection.close(timeout=2.0)
    except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()


def _ssl(address: PostgreSQLAddress) -> Any:
    """Return what asyncpg takes: a mode by name, or a context with the given certificate authority."""
    if address.sslrootcert is None:
        return address.sslmode
    context = ssl.create_default_context(cafile=address.sslrootcert)
    context.check_hostname = address.sslmode == "verify-full"
    return context


class Pool:
    """A few connections of one event loop. Taking and returning one costs no statement."""

    def __init__(self, address: PostgreSQLAddress, size: int) -> None:
        self._address = address
        self._size = size
        self._idle: list[Connection] = []
        self._unwanted: set[Connection] = set()
        self._open = 0
        self._closed = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._retiring: set[asyncio.Task[None]] = set()
        self._users = 0
        self._unused = asyncio.Event()
        self._unused.set()

    async def take(self) -> Connection:
        """Return an idle connection, a new one, or the next one that another call gives back."""
        if self._closed:
            raise StoreClosedError(f"the store on {self._address.shown} is closed: open a new one")
        self._users += 1
        self._unused.clear()
        try:
            while True:
                while self._idle:
                    connection = self._idle.pop()
                    if not connection.is_closed():
                        return connection
                    self._open -= 1
                if self._open < self._size:
                    return await self._connect()
                await self._wait()
        except BaseException:
            self._left()
            raise

    def give_back(self, connection: Connection, *, usable: bool = True) -> None:
        """Return a connection to the pool. An unusable one is closed; the next call gets a new one."""
        if usable and not connection.is_closed() and connection not in self._unwanted:
            self._idle.append(connection)
        else:
            self._unwanted.discard(connection)
            self._retire(connection)
        self._wake()
        self._left()

    def replace(self, connection: Connection) -> None:
        """Close a connection of the pool as soon as no call uses it. The next call gets a new one."""
        if connection in self._idle:
            self._idle.remove(connection)
            self._retire(connection)
        elif not connection.is_closed():
            self._unwanted.add(connection)

    async def run(self, call: Callable[[Connection], Awaitable[T]]) -> T:
        """Run a call on a connection. Repeats it after a conflict, and on a new connection after its own was lost."""
        tries = reconnects = 0
        while True:
            connection = await self.take()
            usable = False  # a call that is cancelled in its middle leaves the connection in an unknown state
            try:
                answer = await call(connection)
            except DRIVER_ERRORS as error:
                lost = is_lost(error)
                usable = not lost and not connection.is_in_transaction()
                if lost and reconnects < RECONNECTS and not isinstance(error, TimeoutError):
                    reconnects += 1
                    self.drop_idle()
                elif is_worth_another_try(error) and tries < TRIES:
                    tries += 1
                elif (getattr(error, "sqlstate", None) or "").startswith("DB"):
                    raise  # a message of a database function to its caller
                else:
                    raise store_error(error, self._address.shown) from error
            except Exception:
                usable = not connection.is_in_transaction()
                raise
            else:
                usable = True
                return answer
            finally:
                self.give_back(connection, usable=usable)
            await asyncio.sleep(random.uniform(0, 0.01) * tries)

    def drop_idle(self) -> None:
        """Close the idle connections. The server closed one, so the others are probably gone too."""
        while self._idle:
            self._retire(self._idle.pop())

    async def wait_until_unused(self) -> None:
        """Wait until no call uses a connection or waits for one."""
        await self._unused.wait()

    async def close(self) -> None:
        """Wait until no call uses a connection, then close all. Later calls raise."""
        await self._unused.wait()
        self._closed = True
        self.drop_idle()
        if self._retiring:
            await asyncio.wait(self._retiring)

    def abandon(self) -> None:
        """Drop the sockets. The event loop is gone, so nothing can be awaited."""
        for connection in self._idle:
            try:
                connection.terminate()
            except RuntimeError:  # the loop is closed: the garbage collector closes the socket
                continue
        self._idle.clear()

    def _retire(self, connection: Connection) -> None:
        """Close in the background: after a cancelled call, asyncpg still has to cancel the statement on the server."""
        self._open -= 1
        task = asyncio.get_running_loop().create_task(let_go(connection))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _connect(self) -> Connection:
        self._open += 1
        try:
            return await connect(self._address)
        except BaseException:
            self._open -= 1
            self._wake()
            raise

    async def _wait(self) -> None:
        free: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(free)
        try:
            await free
        except asyncio.CancelledError:
            if free.done() and not free.cancelled():
                self._wake()  # this waiter was woken and cancelled: wake the next one
            raise

    def _wake(self) -> None:
        while self._waiting:
            free = self._waiting.popleft()
            if not free.done():
                free.set_result(None)
                return

    def _left(self) -> None:
        self._users -= 1
        if self._users == 0:
            self._unused.set()


Ask = Callable[..., Awaitable[Sequence[Row]]]


class PostgreSQLSession:
    """Runs statements by name, on a connection of the store or of the caller, with the store's clock."""

    __slots__ = ("_ask", "_instant", "_now", "channel", "sql", "woken")

    def __init__(self, ask: Ask, sql: Statements, *, now: float | None, channel: str | None) -> None:
        self._ask = ask
        self._now = now
        self._instant = now
        self.sql = sql
        self.channel = channel
        """The channel to notify inside the transaction; None if the store notifies after the commit."""
        self.woken: set[str] = set()
        """Buses that have new events to claim once this commits."""

    @property
    def clock(self) -> float | None:
        """The present instant for statements; None means the server's own clock."""
        return self._now

    async def all(self, name: str, *arguments: Any) -> Sequence[Row]:
        """Run a statement and return all rows."""
        return await self._ask(self.sql[name], *arguments)

    async def text(self, sql: str, *arguments: Any) -> Sequence[Row]:
        """Run a statement given as text and return all rows."""
        return await self._ask(sql, *arguments)

    async def one(self, name: str, *arguments: Any) -> Row | None:
        """Run a statement and return its only row, or None."""
        rows = await self._ask(self.sql[name], *arguments)
        return rows[0] if rows else None

    async def value(self, name: str, *arguments: Any) -> Any:
        """Run a statement and return the only column of its only row, or None."""
        rows = await self._ask(self.sql[name], *arguments)
        return rows[0][0] if rows else None

    async def now(self) -> float:
        """Return the store's time. It is the same instant for the whole session."""
        if self._instant is None:
            self._instant = await self.value("now")
        return self._instant


def own_session(connection: Connection, sql: Statements, *, now: float | None) -> PostgreSQLSession:
    """Return a session on a connection of the store."""
    return PostgreSQLSession(connection.fetch, sql, now=now, channel=None)
