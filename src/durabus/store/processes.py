"""Processes: which of them live, and what happens to the claims of one that has ended."""

from __future__ import annotations

from typing import Protocol

import msgspec

# Seconds by the store's clock, on stores where processes renew their presence: one that has not done so for
# PRESENT_FOR has ended.
RENEWED_EVERY = 1.0
PRESENT_FOR = 2.5


class EndedProcesses(msgspec.Struct, frozen=True):
    """Processes that have ended, and when to look for more."""

    incarnations: list[str]
    look_again_in: float
    """Seconds until the next look is useful."""


class Processes(Protocol):
    """A claim, a handler claim or a lock belongs to a process if its token begins with the process's incarnation.

    Such a claim is free soon after the process has ended. Any other claim is free when its lease is over. The fence
    decides in both cases: a process that was wrongly taken for dead writes nothing once its event is claimed again.
    """

    async def show_presence(self, incarnation: str) -> bool:
        """Show that the process lives. Returns whether the store will see its end.

        - While the answer is False, no token may begin with the incarnation.
        - A process calls it before its first claim, and again every ``presence_renewed_every`` seconds while it holds
          claims. A repeat only renews the presence. Where it must be renewed, each claim of the process renews it too.
        - A claim that the process repeats, because it got no reply, renews the presence as well.
        - Without ``sees_ended_processes`` the answer is always False.
        """
        ...

    async def withdraw_presence(self, incarnation: str) -> None:
        """End the presence of a process that goes on without it. What it still holds is free when its leases are over.

        A repeat changes nothing.
        """
        ...

    async def ended_processes(self) -> EndedProcesses:
        """Return processes that showed their presence, ended without withdrawing it, and may still hold claims."""
        ...

    async def end_process(self, incarnation: str, *, max_attempts: int | None = None, limit: int = 1000) -> int:
        """Take back what belongs to a process that has ended. Returns how many events were taken back.

        - At most ``limit`` events of any bus are taken back as ``expire_events`` does, before their leases are over:
          those with the smallest ``id``. Their error is ``process ended (worker …)``.
        - An event that comes back so for the first time is due at once. If the process before it ended too, the event
          is due after a second, then after 2, 4, 8 … seconds, but never later than its lease would have ended: an event
          that kills every process does not do so faster and faster.
        - The leases of its locks and of its handler claims end now, so that other processes may take them.
        - If the process lives, nothing happens. A process that shows no presence does not live.
        - Any process may call this at any time, any number of times.
        """
        ...
