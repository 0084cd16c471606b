"""A lock resource by itself: any worker may claim, renew, release or lose it at any time."""

from __future__ import annotations

from msgspec.structs import replace
from tests.unit.lifecycle.explorer import FENCE, LEASE, NOW, OVER, Broken, Tally

from durabus.lifecycle import handlers
from durabus.lifecycle.state import LockState, Refused
from durabus.model.claim import LockClaim

KEY = "report"
TOKENS = ("now", "old")
FENCES = (FENCE, FENCE - 1, FENCE + 1)


class LockModel:
    """States are the lock as the store holds it; None before it was ever claimed."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.trying = ""

    def start(self) -> LockState | None:
        """Return the first state: no worker has claimed the lock yet."""
        return None

    def check(self, lock: LockState | None) -> None:
        """Check that there are never two valid claims: of all possible claims only the holder's is accepted."""
        accepted = [
            (token, fence)
            for token in TOKENS
            for fence in FENCES
            if not isinstance(handlers.renew_lock(lock, lock_claim(token, fence), LEASE, NOW), Refused)
        ]
        if len(accepted) > 1:
            raise Broken(f"several claims on one lock are accepted: {accepted}")

    def moves(self, lock: LockState | None) -> list[tuple[str, LockState | None]]:
        """Return claims by new and repeated tokens, renewals and releases by right and wrong claims, and expiry."""
        found: list[tuple[str, LockState | None]] = []
        for token in ("new", *TOKENS):
            found += self._claim(lock, token)
        for token in TOKENS:
            for fence in FENCES:
                found += self._renew(lock, lock_claim(token, fence))
                found += self._release(lock, lock_claim(token, fence))
        if lock is not None and alive(lock):
            found.append(("lease over", replace(lock, expires_ts=OVER)))
        return found

    def _claim(self, lock: LockState | None, token: str) -> list[tuple[str, LockState | None]]:
        fence = 1 if lock is None else lock.fence + 1
        got = handlers.claim_lock(lock, key=KEY, worker_id="w", token=token, lease=LEASE, fence=fence, now=NOW)
        if isinstance(got, Refused):
            self.tally.refused["claim_lock"] += 1
            if not alive(lock):
                raise Broken(f"a free lock is refused to {token}")
            return []
        return [(f"claim {token}", renamed_lock(got))] if self._granted(lock, token, got) else []

    def _granted(self, lock: LockState | None, token: str, got: LockState) -> bool:
        held = lock is not None and lock.token is not None
        if lock is not None and lock.token == token and alive(lock):
            if got != lock:
                raise Broken("the repeat of a lock claim is not answered with the claim that is held")
            return False
        if got == lock:
            return False
        if alive(lock):
            raise Broken(f"a live claim on the lock is displaced by {token}")
        if lock is not None and got.fence <= lock.fence:
            raise Broken("a lock is granted with a fence that is not larger")
        self.tally.applied["claim_lock"] += 1
        self.tally.seen["takeover of a lock"] += held
        return True

    def _renew(self, lock: LockState | None, claim: LockClaim) -> list[tuple[str, LockState | None]]:
        after = handlers.renew_lock(lock, claim, LEASE, NOW)
        current = lock is not None and (lock.token, lock.fence) == (claim.token, claim.fence)
        self._count("renew_lock", after, current=current)
        if isinstance(after, Refused) or lock is None:
            return []
        if after != replace(lock, expires_ts=NOW + LEASE):
            raise Broken("a renewal changed more than the expiry")
        return [("renew", after)] if after != lock else []

    def _release(self, lock: LockState | None, claim: LockClaim) -> list[tuple[str, LockState | None]]:
        after = handlers.release_lock(lock, claim)
        free = lock is not None and lock.token is None
        if free and not isinstance(after, Refused) and lock is not None:
            if after != lock:
                raise Broken("the repeat of a release changed something")
            return []
        current = lock is not None and (lock.token, lock.fence) == (claim.token, claim.fence)
        if not free:
            self._count("release_lock", after, current=current)
        if isinstance(after, Refused) or lock is None:
            return []
        if after.fence != lock.fence or after.token is not None:
            raise Broken("a release must free the lock and keep the fence")
        return [("release", after)]

    def _count(self, verb: str, after: LockState | Refused, *, current: bool) -> None:
        if isinstance(after, Refused):
            self.tally.refused[verb] += 1
            self.tally.seen["stale write on a lock"] += not current
            if current:
                raise Broken(f"{verb}: the holder is refused")
        else:
            self.tally.applied[verb] += 1
            if not current:
                raise Broken(f"{verb}: a stale write is accepted")


def alive(lock: LockState | None) -> bool:
    """Return whether a worker holds the lock and its lease is not over."""
    return lock is not None and lock.token is not None and lock.expires_ts > NOW


def lock_claim(token: str, fence: int, key: str = KEY) -> LockClaim:
    """Return a claim as a worker would send it."""
    return LockClaim(key=key, worker_id="w", token=token, fence=fence, expires_ts=NOW + LEASE)


def renamed_lock(lock: LockState, token: str = "now") -> LockState:
    """Return the lock with the holder renamed to ``token`` and the newest fence to ``FENCE``."""
    return replace(lock, fence=FENCE, token=None if lock.token is None else token)
