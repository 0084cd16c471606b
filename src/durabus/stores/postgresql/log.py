"""``durabus.store.log.Log``: reads and trims the event log, and saves the positions of its readers."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable

from durabus.clock import Clock, monotonic
from durabus.errors import InvalidEventError, LeaseLost
from durabus.model.claim import LockClaim
from durabus.model.log_entry import HELD_AFTER, LogArchives, LogEntry, LogHold, LogPage, LogRows
from durabus.store.events import EventRef
from durabus.store.log import ARCHIVE, START
from durabus.stores.postgresql.address import PostgreSQLAddress
from durabus.stores.postgresql.connection import PostgreSQLSession
from durabus.stores.postgresql.core import PostgreSQLCore
from durabus.stores.postgresql.publishing import known_events
from durabus.stores.postgresql.schema import DAYS_AHEAD, PARTITIONS_EVERY
from durabus.stores.sql.changes import in_parts
from durabus.stores.sql.rows import Row, entry_of, log_row

LOOK_EVERY = 5.0
"""Seconds between two questions for a hold. A reader at the end of the log reads twice a second."""

logger = logging.getLogger("durabus.postgresql")


class Holds:
    """Warns once of each transaction that holds the log back. Each store object has one."""

    def __init__(self, ask: Callable[[], Awaitable[LogHold | None]]) -> None:
        self._ask = ask
        self._next = 0.0
        self._told: tuple[int | None, str] | None = None

    async def look(self) -> None:
        """Ask whether there is a hold, now and then only. Called when a reader got no entries."""
        if monotonic() >= self._next:
            self._next = monotonic() + LOOK_EVERY
            await self._ask()

    def note(self, hold: LogHold | None) -> None:
        """Log a warning for a new hold, and a message when it ends."""
        found = None if hold is None else (hold.pid, hold.application)
        if found == self._told:
            return
        self._told = found
        if hold is None:
            logger.info("the log can be read to its end again")
        else:
            logger.warning(
                "readers of the log have waited for %.0f s: %s keeps committed entries from them; commit or end it",
                hold.waiting,
                hold.holder,
            )


_POSITION = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,16})")
_LIMIT = 2**63
_DROP_WITHIN = 3600.0
"""Maximum seconds to drop one partition: the names of its events are deleted one by one."""

TxPosition = tuple[str, int]
"""The 64-bit number of a transaction, as text, and the number of the entry."""


class PostgreSQLLog(PostgreSQLCore):
    """Implements ``store.log.Log`` on PostgreSQL.

    A position is (transaction, number). Readers stop below the oldest transaction that still runs: no transaction can
    commit an entry below that point, so a reader skips none. A transaction that stays open holds readers back, and
    ``log_hold`` returns which one, and for how long.
    """

    def __init__(self, address: PostgreSQLAddress, clock: Clock | None = None) -> None:
        super().__init__(address, clock)
        self._holds = Holds(self.log_hold)

    async def read_log(self, *, after: str = START, until: str | None = None, limit: int = 1000) -> LogPage:
        entries = [entry_of(row) for row in await self._page(after, until, limit)]
        return LogPage(entries, entries[-1].position if entries else after)

    async def read_log_rows(self, *, after: str = START, until: str | None = None, limit: int = 1000) -> LogRows:
        rows = [log_row(row) for row in await self._page(after, until, limit)]
        return LogRows(rows, rows[-1][0] if rows else after)

    async def cut_log(self, *, after: str = START, until: str, rows: int, limit: int = 1000) -> list[str]:
        span = await self._span(after, until)
        return [row[0] for row in await self._ask("cut_log", *span, max(rows, 1), max(limit, 0))]

    async def log_head(self) -> str:
        rows = await self._ask("log_head")
        return rows[0][0] if rows else START

    async def log_lag(self, after: str) -> int:
        return int((await self._ask("log_lag", *await self._span(after, None)))[0][0])

    async def log_hold(self) -> LogHold | None:
        rows = await self._ask("log_hold", self._clock_argument(), HELD_AFTER)
        hold = LogHold(**dict(rows[0])) if rows else None
        self._holds.note(hold)
        return hold

    async def make_log_partitions(self) -> int:
        made = int((await self._ask("make_log_partitions", self._clock_argument(), DAYS_AHEAD))[0][0])
        self._partitions_until = monotonic() + PARTITIONS_EVERY
        return made

    async def read_event_log(self, ref: EventRef) -> list[LogEntry]:
        async def read(session: PostgreSQLSession) -> list[LogEntry]:
            (event,) = await known_events(session, [ref])
            rows = () if event is None else await session.all("read_event_log", event.id, event.event_id)
            return [entry_of(row) for row in rows]

        return await self._look(read)

    async def save_position(self, name: str, position: str | None, *, lock: LockClaim) -> None:
        if position is not None and name.startswith(ARCHIVE):
            await self._span(position, None)  # raises for a position that this log cannot have given

        async def save(session: PostgreSQLSession) -> None:
            held = await session.one("hold_lock", lock.key)
            if held is None or held[1] != lock.token or held[0] != lock.fence:
                raise LeaseLost(lock.key, "the lock is not held by this claim")
            if position is None:
                await session.all("forget_position", name)
            else:
                await session.all("save_position", name, position, await session.now())

        await self._write(save)

    async def read_position(self, name: str) -> str:
        rows = await self._ask("read_position", name)
        return rows[0][0] if rows else START

    async def read_archives(self) -> LogArchives:
        found = {row[0]: row[1] for row in await self._ask("read_archives")}
        return LogArchives(trimmed=found.pop("trimmed", None) is not None, positions=found)

    async def trim_log(self, *, until: str, older_than: float = 0.0, limit: int = 10_000, ignoring: str = "") -> int:
        """Search without locks: an event that has ended or is unknown stays so until it is deleted."""
        _, _, last_tx, last = await self._span(START, until)
        bounds = (last_tx, last, self._clock_argument(), older_than, ignoring)
        ended = [row[0] for row in await self._ask("completed_until", *bounds, max(limit, 0))]
        unknown = [row[0] for row in await self._ask("unknown_until", *bounds, max(limit, 0))]
        gone = 0
        for part in in_parts(ended):
            gone += (await self._ask("trim_completed", part, ignoring))[0][1]
        for part in in_parts(unknown):
            gone += len(await self._ask("forget_unknown_entries", *bounds, part))
        return gone

    async def drop_log_days(self, *, older_than: float) -> int:
        """Drop the log partitions of days that ended at least ``older_than`` seconds ago. Returns how many.

        Dropping a table is fast, whatever it holds. COMPLETED and CANCELLED events of those days are deleted; live
        events and dead letters keep their entries. A day with an entry after the position of an archive stays, and so
        do later days. Only the owner of the schema may call this.
        """
        sql, days = self._sql["drop_log_partition"], 0
        while True:
            rows = await self._call(
                lambda connection: connection.fetch(sql, self._clock_argument(), older_than, timeout=_DROP_WITHIN)
            )
            if rows[0][0] is None:
                return days
            days += 1

    async def _page(self, after: str, until: str | None, limit: int) -> list[Row]:
        rows = await self._ask("read_log", *await self._span(after, until), max(limit, 0))
        if not rows:
            await self._holds.look()
        return rows

    async def _span(self, after: str, until: str | None) -> tuple[str, int, str, int]:
        """Return both ends of a range of the log. Raises for a position that this log cannot have given yet."""
        first, last = _tx_position(after), None if until is None else _tx_position(until)
        furthest = max(int(first[0]), 0 if last is None else int(last[0]))
        if furthest and int((await self._ask("next_transaction"))[0][0]) <= furthest:
            raise _foreign(after if int(first[0]) == furthest else str(until))
        return (*first, *(last or (str(_LIMIT - 1), _LIMIT - 1)))


def _tx_position(position: str) -> TxPosition:
    if position == START:
        return "0", 0
    found = _POSITION.fullmatch(position)
    if found is None:
        raise _foreign(position)
    transaction, number = int(found[1], 16), int(found[2], 16)
    if transaction >= _LIMIT or number >= _LIMIT:
        raise _foreign(position)
    return str(transaction), number


def _foreign(position: str) -> InvalidEventError:
    return InvalidEventError(f"position={position!r}: not one that this log gave; begin with the empty string")
