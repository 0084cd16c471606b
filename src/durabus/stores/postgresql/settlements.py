"""Settles claims: one function completes plain ones, and the kernel decides all others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TypeGuard

from durabus.errors import LeaseLost
from durabus.lifecycle.state import NOT_YOURS, Refused
from durabus.lifecycle.transition import merge_results, transition
from durabus.model.settlement import Complete, Settled, Settlement
from durabus.model.statuses import SETTLED, EventStatus, ResultStatus
from durabus.stores.postgresql.connection import PostgreSQLSession
from durabus.stores.postgresql.sql import columns
from durabus.stores.postgresql.states import Changes, load_known
from durabus.stores.sql.changes import NO_EVENT, StoredEvent
from durabus.stores.sql.rows import Row, results_to

NOT_PLAIN = "DB001"
"""The error of ``complete_events`` for a batch that the kernel must decide."""


MOST_STRETCHES = 5
PLAIN_RESULTS = SETTLED - {ResultStatus.UNRECOVERABLE}


def is_plain(one: Settlement) -> TypeGuard[Complete]:
    """Return whether ``complete_events`` may be able to settle it."""
    if type(one) is not Complete or one.errors or one.reason is not None:
        return False
    if not one.ref.token or not one.ref.id < 2**63:
        return False
    return all(result.status in PLAIN_RESULTS and result.expires_ts is None for result in one.results)


def plain_completions(settlements: Sequence[Complete]) -> tuple[list[object] | None, ...]:
    """Return the arguments of ``complete_events`` for plain completions."""
    refs = [one.ref for one in settlements]
    return (
        [ref.id for ref in refs],
        [ref.token for ref in refs],
        [ref.fence for ref in refs],
        [one.execution_time_ms for one in settlements],
        [one.status_code for one in settlements],
        *_results_of(settlements),
    )


def _results_of(settlements: Sequence[Complete]) -> tuple[list[object] | None, ...]:
    """Return the results for the log entries and, row by row, for ``event_results``. Most events have none."""
    if not any(one.results for one in settlements):
        return (None,) * 10
    texts: list[object] = []
    rows: list[Row] = []
    for one in settlements:
        results = tuple(handler.result for handler in merge_results((), one.results))
        texts.append(results_to(results))
        rows += [
            (
                one.ref.id, result.handler_id, result.status.value, result.attempts, result.error, result.value_json,
                result.execution_time_ms, result.fence, result.worker_id,
            )
            for result in results
        ]  # fmt: skip
    return texts, *columns(rows)


def completed(settlements: Sequence[Settlement]) -> list[Settled | LeaseLost]:
    """Return the outcomes of a batch of plain completions."""
    done = EventStatus.COMPLETED
    return [Settled(one.ref.id, done) for one in settlements]


async def settle_in_stretches(
    session: PostgreSQLSession, settlements: Sequence[Settlement]
) -> list[Settled | LeaseLost]:
    """Settle in order, in the open transaction: the function completes runs of plain ones, the kernel the others.

    So one failure does not slow down a hundred completions. With many failures the kernel settles all. The function
    raises if a claim is not plain.
    """
    stretches = [list(stretch) for _, stretch in groupby(settlements, is_plain)]
    if not 1 < len(stretches) <= MOST_STRETCHES or len({one.ref.id for one in settlements}) < len(settlements):
        return await settle_events(session, settlements)
    await session.all("lock_events", [one.ref.id for one in settlements])
    outcomes: list[Settled | LeaseLost] = []
    for stretch in stretches:
        plain = [one for one in stretch if is_plain(one)]
        if plain:
            await session.all("complete_events", session.clock, session.channel, *plain_completions(plain))
            outcomes += completed(plain)
        else:
            outcomes += await settle_events(session, stretch)
    return outcomes


async def settle_events(session: PostgreSQLSession, settlements: Sequence[Settlement]) -> list[Settled | LeaseLost]:
    """End claims in the open transaction as the kernel decides. Each one succeeds or fails alone."""
    if not settlements:
        return []
    states = await load_known(session, [one.ref.id for one in settlements])
    now, changes = await session.now(), Changes()
    outcomes = [_settle(states, changes, one, now) for one in settlements]
    await changes.write(session)
    return outcomes


def _settle(
    states: dict[int, StoredEvent], changes: Changes, settlement: Settlement, now: float
) -> Settled | LeaseLost:
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
