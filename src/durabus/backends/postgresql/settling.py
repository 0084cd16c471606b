"""``settle_events``: plain completions by one function, with the next claim in it; everything else by the kernel."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from durabus.backends.postgresql.changes import Changes, Stored
from durabus.backends.postgresql.rows import clean, clean_results
from durabus.backends.postgresql.session import Session
from durabus.backends.postgresql.states import load_known
from durabus.errors import LeaseLost
from durabus.kernel.state import NOT_YOURS, Refused
from durabus.kernel.transition import transition
from durabus.model.settlement import Complete, Fail, Settled, Settlement
from durabus.model.statuses import EventStatus

NOT_PLAIN = "DB001"
"""The error of ``complete_events`` for a batch that the kernel must judge."""
NO_EVENT = "no such event"


def plain_completions(settlements: Sequence[Settlement]) -> tuple[list[object], ...] | None:
    """What ``complete_events`` takes, if nothing but plain completions is to be settled; else None."""
    for one in settlements:
        if type(one) is not Complete or one.results or one.errors or not one.ref.token or not one.ref.id < 2**63:
            return None
    refs = [one.ref for one in settlements]
    return (
        [ref.id for ref in refs],
        [ref.token for ref in refs],
        [ref.fence for ref in refs],
        [one.execution_time_ms for one in settlements],  # type: ignore[union-attr]
        [one.status_code for one in settlements],  # type: ignore[union-attr]
    )


def completed(settlements: Sequence[Settlement]) -> list[Settled | LeaseLost]:
    """The answer to a batch of plain completions that took effect."""
    done = EventStatus.COMPLETED
    return [Settled(one.ref.id, done) for one in settlements]


async def settle_events(session: Session, settlements: Sequence[Settlement]) -> list[Settled | LeaseLost]:
    """End claims in the open transaction, each judged by itself, as the kernel says."""
    if not settlements:
        return []
    states = await load_known(session, [one.ref.id for one in settlements])
    now, changes = await session.now(), Changes()
    outcomes = [_settle(states, changes, _storable(one), now) for one in settlements]
    await changes.write(session)
    return outcomes


def _settle(states: dict[int, Stored], changes: Changes, settlement: Settlement, now: float) -> Settled | LeaseLost:
    ref = settlement.ref
    stored = states.get(ref.id)
    if stored is None:
        return LeaseLost(ref.id, NO_EVENT)
    applied = transition(stored.state, settlement, now)
    if isinstance(applied, Refused):
        return LeaseLost(ref.id, applied.reason)
    if applied.records:
        states[ref.id] = changes.apply(stored, applied, ref.token)
        changes.free_handler_locks(stored.state, applied.state)
    settled = states[ref.id].state.settled
    return LeaseLost(ref.id, NOT_YOURS) if settled is None else settled.answer


def _storable(settlement: Settlement) -> Settlement:
    """With texts that PostgreSQL can keep."""
    match settlement:
        case Complete():
            if settlement.results or settlement.errors:
                errors = tuple(clean(error) for error in settlement.errors)
                return replace(settlement, results=clean_results(settlement.results), errors=errors)
        case Fail():
            return replace(settlement, error=clean(settlement.error), results=clean_results(settlement.results))
        case _:
            if settlement.results:
                return replace(settlement, results=clean_results(settlement.results))
    return settlement
