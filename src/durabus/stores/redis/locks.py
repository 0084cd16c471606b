"""``durabus.store.locks.Locks``."""

from __future__ import annotations

from durabus.errors import LeaseLost
from durabus.lifecycle.state import NOT_YOURS
from durabus.model.claim import LockClaim
from durabus.model.limits import check_name
from durabus.stores.redis.core import RedisCore
from durabus.stores.redis.records import decode_lock


class RedisLocks(RedisCore):
    """Locks on named resources."""

    async def claim_lock(self, key: str, *, worker_id: str, token: str, lease: float) -> LockClaim | None:
        check_name(key, "lock key")
        record = await self._call("claim_lock", key, worker_id, token, lease)
        return decode_lock(record).claim(token) if record else None

    async def renew_lock(self, claim: LockClaim, *, lease: float) -> LockClaim:
        record = await self._call("renew_lock", claim.key, claim.token, claim.fence, lease)
        if not record:
            raise LeaseLost(claim.key, NOT_YOURS)
        return decode_lock(record).claim(claim.token)

    async def release_lock(self, claim: LockClaim) -> None:
        if await self._call("release_lock", claim.key, claim.token, claim.fence):
            raise LeaseLost(claim.key, NOT_YOURS)

    async def list_locks(self, *, after: str = "", limit: int = 100) -> list[LockClaim]:
        self._check_open()
        locks: list[LockClaim] = []
        while len(locks) < limit:
            go_on, *records = await self._call("list_locks", after, limit - len(locks))
            locks += [decode_lock(record).claim("") for record in records]
            if not go_on:
                break
            after = go_on.decode()
        return locks
