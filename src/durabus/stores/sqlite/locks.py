"""``durabus.store.locks.Locks``: grants, renews, releases and lists locks."""

from __future__ import annotations

from collections.abc import Sequence

from durabus.errors import LeaseLost
from durabus.lifecycle.handlers import claim_lock, release_lock, renew_lock, void_handler, void_handlers_under
from durabus.lifecycle.state import LockState, Refused
from durabus.model.claim import LockClaim, handler_lock_key
from durabus.model.limits import check_name
from durabus.stores.sql.rows import Row, lock_claim_of, lock_of
from durabus.stores.sqlite.connection import Transaction
from durabus.stores.sqlite.core import SQLiteCore
from durabus.stores.sqlite.layout import SQL
from durabus.stores.sqlite.settlements import expire, load, store_handlers

KEPT_FOR = 86_400.0
"""Seconds that the row of a free lock is kept, so that a repeated release is recognised."""


class SQLiteLocks(SQLiteCore):
    """Implements ``store.locks.Locks`` on SQLite."""

    async def claim_lock(self, key: str, *, worker_id: str, token: str, lease: float) -> LockClaim | None:
        check_name(key, "lock key")

        def claim(tx: Transaction) -> LockClaim | None:
            lock = grant(tx, key, worker_id=worker_id, token=token, lease=lease)
            return None if lock is None else lock_claim_of(lock, token)

        return await self._write(claim)

    async def renew_lock(self, claim: LockClaim, *, lease: float) -> LockClaim:
        def renew(tx: Transaction) -> LockClaim:
            lock = renew_lock(get_lock(tx, claim.key), claim, lease, tx.now)
            if isinstance(lock, Refused):
                raise LeaseLost(claim.key, lock.reason)
            put_lock(tx, lock)
            return lock_claim_of(lock, claim.token)

        return await self._write(renew)

    async def release_lock(self, claim: LockClaim) -> None:
        def release(tx: Transaction) -> None:
            lock = release_lock(get_lock(tx, claim.key), claim)
            if isinstance(lock, Refused):
                raise LeaseLost(claim.key, lock.reason)
            # The lifecycle sets no end for a free lock. The row needs one, so that old rows can be deleted.
            tx.run(SQL["put_lock"], (lock.key, lock.fence, lock.worker_id, None, tx.now))

        await self._write(release)

    async def list_locks(self, *, after: str = "", limit: int = 100) -> list[LockClaim]:
        rows = await self._read(lambda tx: tx.all(SQL["list_locks"], {"after": after, "now": tx.now, "limit": limit}))
        return [lock_claim_of(lock_of(row), "") for row in rows]


def grant(tx: Transaction, key: str, *, worker_id: str, token: str, lease: float) -> LockState | None:
    """Take a lock if the lifecycle allows it. A refusal or a repeat writes nothing."""
    held = get_lock(tx, key)
    lock = may_claim(held, key, worker_id=worker_id, token=token, lease=lease, now=tx.now)
    if isinstance(lock, Refused):
        return None
    return lock if lock is held else take(tx, lock)


def may_claim(
    held: LockState | None, key: str, *, worker_id: str, token: str, lease: float, now: float
) -> LockState | Refused:
    """Return the lifecycle's decision. A new grant has fence 0: ``take`` sets the real one."""
    return claim_lock(held, key=key, worker_id=worker_id, token=token, lease=lease, fence=0, now=now)


def take(tx: Transaction, lock: LockState, max_attempts: int | None = None) -> LockState:
    """Write a grant with the next fence, and delete some locks that have long been free.

    A holder that let the lock expire loses what it claimed with it: events, or a handler.
    """
    lost = get_lock(tx, lock.key)
    if lost is not None and lost.token not in (None, lock.token):
        _void(tx, lost, max_attempts)
    fence: int = lock.fence or tx.value(SQL["take_lock_fence"])
    taken = LockState(key=lock.key, fence=fence, worker_id=lock.worker_id, token=lock.token, expires_ts=lock.expires_ts)
    put_lock(tx, taken)
    tx.run(SQL["sweep_locks"], {"before": tx.now - KEPT_FOR})
    return taken


def _void(tx: Transaction, lost: LockState, max_attempts: int | None) -> None:
    expire(tx, tx.all(SQL["locked_events"], (lost.token, lost.key)), max_attempts)
    prefix = handler_lock_key("")
    id_ = tx.value(SQL["get_event_id"], (lost.key.removeprefix(prefix),)) if lost.key.startswith(prefix) else None
    stored = None if id_ is None else load(tx, id_)
    if stored is not None and lost.token is not None:
        store_handlers(tx, stored, void_handler(stored.state, lost.token))


def void_handlers(tx: Transaction, key: str, rows: Sequence[Row]) -> None:
    """End the handler claims under a lock that another claim takes. The rows begin with the ids of their events."""
    for stored in [load(tx, row[0]) for row in rows]:
        if stored is not None:
            store_handlers(tx, stored, void_handlers_under(stored.state, key, tx.now))


def get_lock(tx: Transaction, key: str) -> LockState | None:
    """Return a lock, or None if it has no row."""
    row = tx.one(SQL["get_lock"], (key,))
    return None if row is None else lock_of(row)


def put_lock(tx: Transaction, lock: LockState) -> None:
    """Write the lock as the lifecycle decided."""
    tx.run(SQL["put_lock"], (lock.key, lock.fence, lock.worker_id, lock.token, lock.expires_ts))
