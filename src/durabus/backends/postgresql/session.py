"""What a verb works with: a way to ask the server, on our own connection or the caller's, and the store's clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from durabus.backends.postgresql.connection import Connection
from durabus.backends.postgresql.rows import Row
from durabus.backends.postgresql.sql import Statements

Ask = Callable[..., Awaitable[Sequence[Row]]]


class Session:
    """Handed to every verb. Statements go by their name."""

    __slots__ = ("_ask", "_instant", "_now", "channel", "sql", "woken")

    def __init__(self, ask: Ask, sql: Statements, *, now: float | None, channel: str | None) -> None:
        self._ask = ask
        self._now = now
        self._instant = now
        self.sql = sql
        self.channel = channel
        """Where to notify inside the transaction; None if the store does it after the commit."""
        self.woken: set[str] = set()
        """Buses that have something new to claim once this commits."""

    @property
    def clock(self) -> float | None:
        """What statements take as the present instant: None for the server's own clock."""
        return self._now

    async def all(self, name: str, *arguments: Any) -> Sequence[Row]:
        """Every row of the answer."""
        return await self._ask(self.sql[name], *arguments)

    async def text(self, sql: str, *arguments: Any) -> Sequence[Row]:
        """As ``all``, for a statement that was put together."""
        return await self._ask(sql, *arguments)

    async def one(self, name: str, *arguments: Any) -> Row | None:
        """The only row, or None."""
        rows = await self._ask(self.sql[name], *arguments)
        return rows[0] if rows else None

    async def value(self, name: str, *arguments: Any) -> Any:
        """The only column of the only row, or None."""
        rows = await self._ask(self.sql[name], *arguments)
        return rows[0][0] if rows else None

    async def now(self) -> float:
        """The store's clock, the same instant for all of this session."""
        if self._instant is None:
            self._instant = await self.value("now")
        return self._instant


def own_session(connection: Connection, sql: Statements, *, now: float | None) -> Session:
    """A session on a connection of the store."""
    return Session(connection.fetch, sql, now=now, channel=None)
