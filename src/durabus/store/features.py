"""What a back end can do, declared as data: the suite and the refusals are derived from it."""

from __future__ import annotations

import msgspec

from durabus.errors import UnsupportedByStore


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """A feature that is False is refused with ``UnsupportedByStore``, never faked."""

    scheme: str
    survives_process_kill: bool
    survives_power_loss: bool
    shared_between_processes: bool
    caller_transactions: bool
    """``add_events`` and ``settle_events`` take part in the caller's own database transaction."""
    manual_clock: bool
    """The store can be opened on a ``ManualClock``; otherwise the suite waits in real time."""
    minimum_lease: float = 0.0
    """Shortest lease the store can judge, in seconds."""


def require(features: Features, feature: str, what: str) -> None:
    """Refuse ``what`` with a clear error unless the store declares ``feature``."""
    if not getattr(features, feature):
        raise UnsupportedByStore(f"{what} is not possible on {features.scheme}:// (it declares {feature}=False)")
