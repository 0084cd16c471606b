"""The verbs that change nothing: what any node acknowledged before the call is seen."""

from __future__ import annotations

from collections.abc import Sequence

from durabus.backends.fold.core import FoldCore
from durabus.backends.fold.node import Node
from durabus.model.claim import ClaimRef, LockClaim
from durabus.model.event import Event
from durabus.model.handler import BusInfo, Registered
from durabus.model.log_entry import LogEntry, LogHold, LogPage, LogRows
from durabus.model.query import Counts, DeadLetterPage, EventPage, EventQuery
from durabus.model.result import HandlerResult
from durabus.store.events import EventRef
from durabus.store.log import START


class FoldReads:
    """Each catches up with the log, then asks the replica in the caller's own thread."""

    _node: Node

    @property
    def _core(self) -> FoldCore:
        return self._node.replica.core

    async def _current(self) -> FoldCore:
        await self._node.catch_up()
        return self._node.replica.core

    async def list_handlers(self, bus: str) -> Registered:
        return await (await self._current()).list_handlers(bus)

    async def list_buses(self, *, after: str = "", limit: int = 100) -> list[BusInfo]:
        return await (await self._current()).list_buses(after=after, limit=limit)

    async def active_buses(self, *, after: str = "", limit: int = 100) -> list[str]:
        return await (await self._current()).active_buses(after=after, limit=limit)

    async def get_event(self, ref: EventRef) -> Event | None:
        return await (await self._current()).get_event(ref)

    async def get_events(self, refs: Sequence[EventRef]) -> list[Event | None]:
        return await (await self._current()).get_events(refs)

    async def has_event(self, ref: EventRef) -> bool:
        return await (await self._current()).has_event(ref)

    async def find(self, query: EventQuery) -> EventPage:
        return await (await self._current()).find(query)

    async def counts(self, bus: str | None = None) -> Counts:
        return await (await self._current()).counts(bus)

    async def current_claims(self, ids: Sequence[int]) -> list[ClaimRef | None]:
        return await (await self._current()).current_claims(ids)

    async def list_results(self, ref: EventRef) -> list[HandlerResult]:
        return await (await self._current()).list_results(ref)

    async def list_locks(self, *, after: str = "", limit: int = 100) -> list[LockClaim]:
        return await (await self._current()).list_locks(after=after, limit=limit)

    async def read_log(self, *, after: str = START, until: str | None = None, limit: int = 1000) -> LogPage:
        return await (await self._current()).read_log(after=after, until=until, limit=limit)

    async def read_log_rows(self, *, after: str = START, until: str | None = None, limit: int = 1000) -> LogRows:
        return await (await self._current()).read_log_rows(after=after, until=until, limit=limit)

    async def cut_log(self, *, after: str = START, until: str, rows: int, limit: int = 1000) -> list[str]:
        return await (await self._current()).cut_log(after=after, until=until, rows=rows, limit=limit)

    async def log_head(self) -> str:
        return await (await self._current()).log_head()

    async def log_lag(self, after: str) -> int:
        return await (await self._current()).log_lag(after)

    async def log_hold(self) -> LogHold | None:
        return await (await self._current()).log_hold()

    async def read_event_log(self, ref: EventRef) -> list[LogEntry]:
        return await (await self._current()).read_event_log(ref)

    async def read_position(self, name: str) -> str:
        return await (await self._current()).read_position(name)

    async def list_dead_letters(self, *, bus: str | None = None, limit: int = 100, offset: int = 0) -> DeadLetterPage:
        return await (await self._current()).list_dead_letters(bus=bus, limit=limit, offset=offset)
