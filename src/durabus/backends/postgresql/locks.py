"""``durabus.store.locks.Locks``."""

from __future__ import annotations

from durabus.backends.postgresql.core import PostgreSQLCore
from durabus.backends.postgresql.locking import get_lock, grant, lock_of, put_lock
from durabus.backends.postgresql.session import Session
from durabus.errors import LeaseLost
from durabus.kernel.handlers import release_lock, renew_lock
from durabus.kernel.state import LockState, Refused
from durabus.model.claim import LockClaim
from durabus.model.limits import check_name


class PostgreSQLLocks(PostgreSQLCore):
    """Locks on named resources."""

    async def claim_lock(self, key: str, *, worker_id: str, token: str, lease: float) -> LockClaim | None:
        check_name(key, "lock key")

        async def claim(session: Session) -> LockClaim | None:
            lock = await grant(session, key, worker_id=worker_id, token=token, lease=lease)
            return None if lock is None else _claim_of(lock, token)

        return await self._write(claim)

    async def renew_lock(self, claim: LockClaim, *, lease: float) -> LockClaim:
        async def renew(session: Session) -> LockClaim:
            lock = renew_lock(await get_lock(session, claim.key), claim, lease, await session.now())
            if isinstance(lock, Refused):
                raise LeaseLost(claim.key, lock.reason)
            return _claim_of(await put_lock(session, lock), claim.token)

        return await self._write(renew)

    async def release_lock(self, claim: LockClaim) -> None:
        async def release(session: Session) -> None:
            lock = release_lock(await get_lock(session, claim.key), claim)
            if isinstance(lock, Refused):
                raise LeaseLost(claim.key, lock.reason)
            # the kernel says expired since ever; the row says since when, for the sweep
            await session.all("put_lock", lock.key, lock.fence, lock.worker_id, None, await session.now())

        await self._write(release)

    async def list_locks(self, *, after: str = "", limit: int = 100) -> list[LockClaim]:
        rows = await self._ask("list_locks", after, self._clock_argument(), max(limit, 0))
        return [_claim_of(lock_of(row), "") for row in rows]


def _claim_of(lock: LockState, token: str) -> LockClaim:
    return LockClaim(key=lock.key, worker_id=lock.worker_id, token=token, fence=lock.fence, expires_ts=lock.expires_ts)
