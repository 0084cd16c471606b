"""Locks on named resources, leased and fenced."""

from __future__ import annotations

from typing import Protocol

from durabus.model.claim import LockClaim


class Locks(Protocol):
    """A lock does not stop a holder whose lease is over: the protected resource must compare fences."""

    async def claim_lock(self, key: str, *, worker_id: str, token: str, lease: float) -> LockClaim | None:
        """Take the lock ``key`` if it is free or its lease is over. Returns None if it is held. Never waits.

        - ``fence`` is larger than every fence this key ever had, even if the store has deleted the key since.
        - A repeat with the token that holds the lock returns the same claim.
        """
        ...

    async def renew_lock(self, claim: LockClaim, *, lease: float) -> LockClaim:
        """Extend the lease; the fence stays. Only the token decides, even if the lease is over.

        Raises ``LeaseLost`` if the claim does not hold the lock.
        """
        ...

    async def release_lock(self, claim: LockClaim) -> None:
        """Free the lock. A repeat changes nothing. Raises ``LeaseLost`` if another claim took the lock."""
        ...

    async def list_locks(self, *, after: str = "", limit: int = 100) -> list[LockClaim]:
        """Return the held, unexpired locks with a key above ``after``, in order of key, with empty tokens."""
        ...
