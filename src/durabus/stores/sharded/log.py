"""``durabus.store.log.Log`` and ``durabus.store.locks.Locks`` of all shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from durabus.errors import LeaseLost
from durabus.model.claim import LockClaim
from durabus.model.limits import check_name
from durabus.model.log_entry import LOG_COLUMNS, LogArchives, LogEntry, LogHold, LogPage, LogRows
from durabus.store.contract import EventStore
from durabus.store.events import EventRef
from durabus.store.log import ARCHIVE, START
from durabus.stores.sharded.core import ShardedCore
from durabus.stores.sharded.numbering import join, newest, saved, split

T = TypeVar("T")
ShardRow = tuple[Any, ...]

SAVING = 30.0
"""Seconds of the lock under which a shard saves its part of an archive's position."""
POSITION, ID, AT = (LOG_COLUMNS.index(name) for name in ("position", "id", "at_ts"))


class ShardedLog(ShardedCore):
    """Implements ``store.log.Log`` and ``store.locks.Locks`` on several shards.

    A reader has a position in the log of each shard. Reading merges the logs by time.
    """

    async def read_log(self, *, after: str = START, until: str | None = None, limit: int = 1000) -> LogPage:
        async def ask(shard: EventStore, number: int) -> list[LogEntry]:
            page = await shard.read_log(after=begins[number], until=ends[number], limit=limit)
            return page.entries

        begins, ends = self._split(after), self._ends(until)
        merged, reached = _merged(await self._all(ask), begins, limit, lambda entry: (entry.at_ts, entry.position))
        entries = [
            msgspec.structs.replace(entry, id=self._numbers.outer(entry.id, number), position=position)
            for number, entry, position in merged
        ]
        return LogPage(entries, join(reached) if entries else after)

    async def read_log_rows(self, *, after: str = START, until: str | None = None, limit: int = 1000) -> LogRows:
        async def ask(shard: EventStore, number: int) -> list[ShardRow]:
            page = await shard.read_log_rows(after=begins[number], until=ends[number], limit=limit)
            return page.rows

        begins, ends = self._split(after), self._ends(until)
        merged, reached = _merged(await self._all(ask), begins, limit, lambda row: (_time(row[AT]), row[POSITION]))
        rows = [self._row(row, number, position) for number, row, position in merged]
        return LogRows(rows, join(reached) if rows else after)

    async def cut_log(self, *, after: str = START, until: str, rows: int, limit: int = 1000) -> list[str]:
        """See ``Log``. Each piece belongs to one shard, and the last piece of each shard may be shorter."""
        begins, ends = self._split(after), self._split(until)
        pieces: list[str] = []
        reached = list(begins)
        for number, shard in enumerate(self._shards):
            cuts = await shard.cut_log(
                after=begins[number], until=ends[number], rows=rows, limit=max(limit - len(pieces), 0)
            )
            for cut in cuts:
                reached[number] = cut
                pieces.append(join(reached))
        return pieces

    async def log_head(self) -> str:
        return join(await self._all(lambda shard, _: shard.log_head()))

    async def log_lag(self, after: str) -> int:
        begins = self._split(after)
        return sum(await self._all(lambda shard, number: shard.log_lag(begins[number])))

    async def log_hold(self) -> LogHold | None:
        held = [hold for hold in await self._all(lambda shard, _: shard.log_hold()) if hold is not None]
        return max(held, key=lambda hold: hold.waiting, default=None)

    async def make_log_partitions(self) -> int:
        return sum(await self._all(lambda shard, _: shard.make_log_partitions()))

    async def read_event_log(self, ref: EventRef) -> list[LogEntry]:
        number = self._numbers.of_ref(ref)
        entries = await self._shards[number].read_event_log(self._numbers.inner_ref(ref))
        return [self._numbers.entry(entry, number) for entry in entries]

    async def save_position(self, name: str, position: str | None, *, lock: LockClaim) -> None:
        home = self._numbers.of_lock(lock.key)
        shard = self._shards[home]
        if name.startswith(ARCHIVE):
            parts = [None] * self._numbers.count if position is None else self._split(position)
            await shard.save_position(name, parts[home], lock=lock)
            await self._all(lambda shard, number: self._save_part(shard, name, parts[number], lock, own=number != home))
        else:
            text = None if position is None else saved(await shard.now(), position)
            await shard.save_position(name, text, lock=lock)

    async def _save_part(self, shard: EventStore, name: str, part: str | None, lock: LockClaim, *, own: bool) -> None:
        """Save the position of an archive in a shard that does not have ``lock``, under a lock of this shard.

        If the holder of ``lock`` loses it meanwhile, an older position may stay here: that trims less, not more.
        """
        if not own:
            return
        held = await shard.claim_lock(lock.key, worker_id=lock.worker_id, token=lock.token, lease=SAVING)
        if held is None:
            raise LeaseLost(lock.key, "another process holds this lock in one of the shards")
        await shard.save_position(name, part, lock=held)
        await shard.release_lock(held)

    async def read_position(self, name: str) -> str:
        found = await self._all(lambda shard, _: shard.read_position(name))
        return join(found) if name.startswith(ARCHIVE) else newest(found)

    async def read_archives(self) -> LogArchives:
        found = await self._all(lambda shard, _: shard.read_archives())
        names = {name for one in found for name in one.positions}
        return LogArchives(
            positions={name: join([one.positions.get(name, START) for one in found]) for name in names},
            trimmed=any(one.trimmed for one in found),
        )

    async def trim_log(self, *, until: str, older_than: float = 0.0, limit: int = 10_000, ignoring: str = "") -> int:
        """See ``Log``. ``limit`` holds for each shard."""
        ends = self._split(until)
        return sum(
            await self._all(
                lambda shard, number: shard.trim_log(
                    until=ends[number], older_than=older_than, limit=limit, ignoring=ignoring
                )
            )
        )

    async def claim_lock(self, key: str, *, worker_id: str, token: str, lease: float) -> LockClaim | None:
        check_name(key, "lock key")
        shard = self._shards[self._numbers.of_lock(key)]
        return await shard.claim_lock(key, worker_id=worker_id, token=token, lease=lease)

    async def renew_lock(self, claim: LockClaim, *, lease: float) -> LockClaim:
        return await self._shards[self._numbers.of_lock(claim.key)].renew_lock(claim, lease=lease)

    async def release_lock(self, claim: LockClaim) -> None:
        await self._shards[self._numbers.of_lock(claim.key)].release_lock(claim)

    async def list_locks(self, *, after: str = "", limit: int = 100) -> list[LockClaim]:
        found = await self._all(lambda shard, _: shard.list_locks(after=after, limit=limit))
        return sorted((lock for locks in found for lock in locks), key=lambda lock: lock.key)[: max(limit, 0)]

    def _split(self, position: str) -> list[str]:
        return split(position, self._numbers.count)

    def _ends(self, until: str | None) -> Sequence[str | None]:
        return [None] * self._numbers.count if until is None else self._split(until)

    def _row(self, row: ShardRow, number: int, position: str) -> ShardRow:
        made = list(row)
        made[POSITION] = position
        if isinstance(row[ID], int):
            made[ID] = self._numbers.outer(row[ID], number)
        return tuple(made)


def _merged(
    found: Sequence[Sequence[T]], begins: Sequence[str], limit: int, key: Callable[[T], tuple[float, str]]
) -> tuple[list[tuple[int, T, str]], list[str]]:
    """Merge the entries of all shards by time, each shard in its own order: shard, entry, position after it."""
    reached, heads = list(begins), [0] * len(found)
    merged: list[tuple[int, T, str]] = []
    while len(merged) < limit:
        waiting = [number for number, entries in enumerate(found) if heads[number] < len(entries)]
        if not waiting:
            break
        number = min(waiting, key=lambda one: key(found[one][heads[one]])[0])
        entry = found[number][heads[number]]
        heads[number] += 1
        reached[number] = key(entry)[1]
        merged.append((number, entry, join(reached)))
    return merged, reached


def _time(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0  # a damaged row
