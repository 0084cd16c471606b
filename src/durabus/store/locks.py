"""Locks on named resources, leased and fenced."""

from __future__ import annotations

from typing import Protocol

from durabus.model.claim import LockClaim


class Locks(Protocol):
    """A lock is advice to its holder and a fence to everybody else: check the fence where it matters."""

    async def claim_lock(self, key: str, *, worker_id: str, token: str, lease: float) -> LockClaim | None:
        """Take ``key`` if nobody holds it or its lease is over; None if it is held. Never waits.

        - ``fence`` is larger than every fence this key ever had, even after the store forgot the key.
        - A repeat with the token that holds it answers the same claim.
        """
        ...

    async def renew_lock(self, claim: LockClaim, *, lease: float) -> LockClaim:
        """Extend the lease; the fence stays. Judged by the token alone. Raises ``LeaseLost`` if not held by it."""
        ...

    async def release_lock(self, claim: LockClaim) -> None:
        """Free the lock. A repeat changes nothing. Raises ``LeaseLost`` if somebody took it since."""
        ...

    async def list_locks(self, *, after: str = "", limit: int = 100) -> list[LockClaim]:
        """Held, unexpired locks with a key above ``after``, in order of key, with empty tokens."""
        ...
