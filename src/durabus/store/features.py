"""What a store can do, declared as data. The conformance suite and the refusals of calls are derived from it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from durabus.errors import UnsupportedByStore
from durabus.model.event import ordering_key_of
from durabus.model.settlement import Keep, Release, Settlement
from durabus.model.statuses import ResultStatus


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """What a store declares. It refuses a call that needs a feature it lacks with ``UnsupportedByStore``."""

    scheme: str
    survives_process_kill: bool
    survives_power_loss: bool
    shared_between_processes: bool
    caller_transactions: bool
    """``add_events`` and ``settle_events`` take part in the caller's own database transaction."""
    manual_clock: bool
    """The store can be opened on a ``ManualClock``; otherwise the suite waits in real time."""
    ordering_keys: bool = False
    """Claims keep the order of events that have the same ``ordering_key``."""
    claims_by_event_id: bool = False
    """``ClaimRequest.event_id`` is obeyed."""
    idempotency_keys: bool = True
    """``NewEvent.idempotency_key`` is obeyed."""
    serial_modes: bool = True
    """``ClaimRequest.mode`` may be bus-serial or global-serial."""
    one_order: bool = True
    """Ids, claims and log have one order, and batches are all or none. No call is refused where this is False: both
    then hold among the events of one shard, and a batch across shards that fails half-way raises and must be repeated.
    """
    children: bool = True
    """Settlements and ``Keep`` store ``children`` in the same step, and ``Release.until_children`` is obeyed."""
    waits: bool = True
    """Settlements may bring waits: the step that stores an event meets the waits for it."""
    calls_in_order: bool = False
    """A call sees what earlier calls of the same store object write, even if the caller has not awaited them yet. So a
    worker claims an event in the same turn of the event loop in which the event is published, in one commit with it.
    """
    minimum_lease: float = 0.0
    """The shortest lease that the store can judge, in seconds."""
    sees_ended_processes: bool = False
    """``ended_processes`` finds processes that have ended, long before their leases are over."""
    presence_renewed_every: float | None = None
    """Seconds after which a process that holds claims must renew its presence. None: its presence ends with it, and a
    process that is frozen or cut off keeps its claims.
    """


def require(features: Features, feature: str, what: str) -> None:
    """Raise ``UnsupportedByStore``, naming ``what`` was asked for, unless the store declares ``feature``."""
    if not getattr(features, feature):
        raise UnsupportedByStore(f"{what} is not possible on {features.scheme}:// (it declares {feature}=False)")


def refuse_children(features: Features, parts: Iterable[Settlement | Keep]) -> None:
    """Refuse settlements that have to do with children on a store that cannot store both in one step."""
    for one in parts:
        if one.children or (isinstance(one, Release) and one.until_children):
            require(features, "children", "a settlement with children, or until they have ended,")


def refuse_waits(features: Features, settlements: Iterable[Settlement]) -> None:
    """Refuse waits on a store that cannot meet them in the step that stores an event."""
    if not features.waits and any(r.status is ResultStatus.WAITING for one in settlements for r in one.results):
        require(features, "waits", "ctx.wait_for")


def refuse_unordered(features: Features, metadata: Iterable[str | None]) -> None:
    """Refuse events with an ordering key on a store that does not keep the order of keys."""
    if not features.ordering_keys and any(one is not None and ordering_key_of(one) for one in metadata):
        require(features, "ordering_keys", "an ordering_key")
