"""``durabus.store.dead_letters.DeadLetters``."""

from __future__ import annotations

from collections.abc import Sequence

from durabus.errors import EventNotFound, NotADeadLetter
from durabus.model.event import Event
from durabus.model.query import DeadLetterPage
from durabus.store.events import EventRef
from durabus.stores.redis.core import RedisCore
from durabus.stores.redis.events import FORGET_AT_ONCE, known_ref
from durabus.stores.redis.records import events_of


class RedisDeadLetters(RedisCore):
    """Events that ended FAILED or COMPLETED_WITH_ERRORS."""

    async def list_dead_letters(self, *, bus: str | None = None, limit: int = 100, offset: int = 0) -> DeadLetterPage:
        total, *records = await self._call("list_dead_letters", bus, max(limit, 0), max(offset, 0))
        return DeadLetterPage(events=events_of(records), total=total)

    async def requeue_dead_letters(self, refs: Sequence[EventRef]) -> list[Event]:
        if not refs:
            self._check_open()
            return []
        refused, status, *records = await self._call("requeue_dead_letters", *(known_ref(ref) for ref in refs))
        if refused and status:
            raise NotADeadLetter(refs[refused - 1], status.decode())
        if refused:
            raise EventNotFound(refs[refused - 1])
        return events_of(records)

    async def purge_dead_letters(self, *, created_until_ts: float, bus: str | None = None, limit: int = 10_000) -> int:
        self._check_open()
        purged = 0
        while purged < limit:
            at_once = min(limit - purged, FORGET_AT_ONCE)
            count: int = await self._call("purge_dead_letters", created_until_ts, bus, at_once)
            purged += count
            if count < at_once:
                break
        return purged

    async def purge_dead_letters_by_id(self, ids: Sequence[int]) -> list[int]:
        self._check_open()
        known, purged = [id_ for id_ in dict.fromkeys(ids) if id_ > 0], list[int]()
        for start in range(0, len(known), FORGET_AT_ONCE):
            purged += await self._call("purge_dead_letters_by_id", *known[start : start + FORGET_AT_ONCE])
        return purged
