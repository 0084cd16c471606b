"""``durabus.store.locks.Locks``: grants, renews, releases and lists locks."""

from __future__ import annotations

from collections.abc import Sequence

from durabus.errors import LeaseLost
from durabus.lifecycle.handlers import claim_lock, release_lock, renew_lock, void_handler, void_handlers_under
from durabus.lifecycle.state import LockState, Refused
from durabus.model.claim import ClaimRequest, LockClaim, handler_lock_key
from durabus.model.limits import check_name
from durabus.stores.postgresql.connection import PostgreSQLSession
from durabus.stores.postgresql.core import PostgreSQLCore
from durabus.stores.postgresql.layout import columns, instant
from durabus.stores.postgresql.publishing import id_of
from durabus.stores.postgresql.settlements import Changes, expire, load, load_one
from durabus.stores.sql.rows import lock_claim_of, lock_of

KEPT_FOR = 86_400.0
"""Seconds that the row of a free lock is kept, so that a repeated release is recognised."""


async def grant(session: PostgreSQLSession, key: str, *, worker_id: str, token: str, lease: float) -> LockState | None:
    """Take a lock if the lifecycle allows it. A refusal or a repeat writes nothing."""
    held = await get_lock(session, key)
    lock = claim_lock(held, key=key, worker_id=worker_id, token=token, lease=lease, fence=0, now=await session.now())
    if isinstance(lock, Refused):
        return None
    if lock is held:
        return lock
    if held is not None and held.token is not None:
        await _void(session, held, None)
    fence: int = await session.value("take_lock_fence")
    taken = LockState(key=key, fence=fence, worker_id=worker_id, token=token, expires_ts=lock.expires_ts)
    await session.all("sweep_locks", await session.now() - KEPT_FOR)
    return await put_lock(session, taken)


async def grant_all(
    session: PostgreSQLSession, keys: Sequence[str], *, worker_id: str, token: str, lease: float
) -> list[str]:
    """Take the locks that the lifecycle allows, and return their keys. The number of statements is always the same."""
    if not keys:
        return []
    now, ordered = await session.now(), sorted(keys)
    await session.all("take_advisory_locks", ordered)
    held = {lock.key: lock for lock in map(lock_of, await session.all("get_locks", ordered))}
    granted: list[LockState] = []
    for key in ordered:
        before = held.get(key)
        lock = claim_lock(before, key=key, worker_id=worker_id, token=token, lease=lease, fence=0, now=now)
        if isinstance(lock, Refused):
            continue
        if before is not None and before.token not in (None, token):
            await _void(session, before, None)
        granted.append(lock)
    rows = [(lock.key, worker_id, token, instant(lock.expires_ts)) for lock in granted]
    if rows:
        await session.all("put_locks", *columns(rows))
        await session.all("sweep_locks", now - KEPT_FOR)
    return [lock.key for lock in granted]


async def void_lock(session: PostgreSQLSession, key: str, request: ClaimRequest) -> None:
    """Free an expired lock. Its holder loses what it claimed with it: events, or a handler; so do late handlers."""
    held = await get_lock(session, key)
    others = held is not None and held.token not in (None, request.token)
    if held is not None and others and held.expires_ts <= await session.now():
        await _void(session, held, request.max_attempts)
        await session.all("put_lock", key, held.fence, held.worker_id, None, await session.now())
    await _void_handlers(session, key)


async def _void_handlers(session: PostgreSQLSession, key: str) -> None:
    """End the handler claims that were made under a lock which another claim takes, once their leases are over."""
    now, changes = await session.now(), Changes()
    rows = await session.all("events_with_handlers_under", key)
    for stored in (await load(session, [id_ for (id_,) in rows])).values():
        changes.note(stored, void_handlers_under(stored.state, key, now))
    await changes.write(session)


async def _void(session: PostgreSQLSession, lost: LockState, max_attempts: int | None) -> None:
    await expire(session, await session.all("locked_events", lost.token, lost.key), max_attempts)
    prefix = handler_lock_key("")
    id_ = await id_of(session, lost.key.removeprefix(prefix)) if lost.key.startswith(prefix) else None
    stored = None if id_ is None else await load_one(session, id_)
    if stored is not None and lost.token is not None:
        changes = Changes()
        changes.note(stored, void_handler(stored.state, lost.token))
        await changes.write(session)


async def get_lock(session: PostgreSQLSession, key: str) -> LockState | None:
    """Return a lock, or None if it has no row. No other transaction can take it until this one ends."""
    await session.all("take_advisory_lock", key)
    row = await session.one("get_lock", key)
    return None if row is None else lock_of(row)


async def put_lock(session: PostgreSQLSession, lock: LockState) -> LockState:
    """Write the lock as the lifecycle decided."""
    expires = instant(lock.expires_ts)
    await session.all("put_lock", lock.key, lock.fence, lock.worker_id, lock.token, expires)
    return LockState(key=lock.key, fence=lock.fence, worker_id=lock.worker_id, token=lock.token, expires_ts=expires)


class PostgreSQLLocks(PostgreSQLCore):
    """Implements ``store.locks.Locks`` on PostgreSQL."""

    async def claim_lock(self, key: str, *, worker_id: str, token: str, lease: float) -> LockClaim | None:
        check_name(key, "lock key")

        async def claim(session: PostgreSQLSession) -> LockClaim | None:
            lock = await grant(session, key, worker_id=worker_id, token=token, lease=lease)
            return None if lock is None else lock_claim_of(lock, token)

        return await self._write(claim)

    async def renew_lock(self, claim: LockClaim, *, lease: float) -> LockClaim:
        async def renew(session: PostgreSQLSession) -> LockClaim:
            lock = renew_lock(await get_lock(session, claim.key), claim, lease, await session.now())
            if isinstance(lock, Refused):
                raise LeaseLost(claim.key, lock.reason)
            return lock_claim_of(await put_lock(session, lock), claim.token)

        return await self._write(renew)

    async def release_lock(self, claim: LockClaim) -> None:
        async def release(session: PostgreSQLSession) -> None:
            lock = release_lock(await get_lock(session, claim.key), claim)
            if isinstance(lock, Refused):
                raise LeaseLost(claim.key, lock.reason)
            # The lifecycle sets no end for a free lock. The row needs one, so that old rows can be deleted.
            await session.all("put_lock", lock.key, lock.fence, lock.worker_id, None, await session.now())

        await self._write(release)

    async def list_locks(self, *, after: str = "", limit: int = 100) -> list[LockClaim]:
        rows = await self._ask("list_locks", after, self._clock_argument(), max(limit, 0))
        return [lock_claim_of(lock_of(row), "") for row in rows]
