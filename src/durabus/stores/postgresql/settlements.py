"""Reads the states of events, writes the transitions that the lifecycle decided, and settles claims.

Functions in the database (migrations) claim and complete plain batches. They are translations of the lifecycle and much
faster. The lifecycle itself decides all other transitions. A batch takes the same number of statements at any size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TypeGuard

from msgspec.structs import replace

from durabus.errors import LeaseLost
from durabus.lifecycle.handlers import logged, merge_results
from durabus.lifecycle.state import NOT_YOURS, AbandonedClaim, Applied, EventState, Expire, HandlerState, Refused
from durabus.lifecycle.transition import transition
from durabus.model.event import Event, NewEvent
from durabus.model.log_entry import LogEntry
from durabus.model.result import with_first_success
from durabus.model.settlement import Complete, Settled, Settlement, add_entries
from durabus.model.statuses import DEAD_LETTER, LIVE, SETTLED, TERMINAL, EventStatus, ResultStatus
from durabus.stores.postgresql.connection import PostgreSQLSession
from durabus.stores.postgresql.layout import columns, instant
from durabus.stores.postgresql.publishing import add_events, get_events, note_counts
from durabus.stores.postgresql.waits import with_stored
from durabus.stores.sql.changes import NO_EVENT, StoredEvent, changed_handlers, completed, freed_handler_locks
from durabus.stores.sql.rows import (
    Row,
    entry_of,
    entry_to,
    event_of,
    handler_of,
    results_to,
    settled_of,
    strings_to,
    to_json,
)

COUNTED = {status: number for number, status in enumerate(EventStatus)}
"""The place of each status in ``note_counts``."""
NOT_PLAIN = "DB001"
"""The error of ``complete_events`` for a batch that the lifecycle must decide."""
MOST_STRETCHES = 5
NO_ROWS = (None,) * 9
PLAIN_RESULTS = SETTLED - {ResultStatus.UNRECOVERABLE}


class Changes:
    """The changes of one transaction. It collects transitions in order; ``write`` writes all of them."""

    def __init__(self) -> None:
        self._before: dict[int, EventState] = {}
        self._after: dict[int, EventState] = {}
        self._has_results: dict[int, bool] = {}
        self._live: set[int] = set()
        self._entries: list[Row] = []
        self._freed: list[Row] = []
        """Locks of handler claims that ended: (key, token)."""
        self._let_go: dict[tuple[str, str], str] = {}
        """Locks of event claims that ended: (key, token) and the bus."""
        self._woken: set[str] = set()
        self._children: list[NewEvent] = []
        self._parents: set[str] = set()
        """Parents that may be due: children of theirs have ended, or they were released until that."""

    def apply(self, stored: StoredEvent, applied: Applied, token: str | None = None) -> StoredEvent:
        """Add a transition, and return the state after it.

        ``token`` belongs to a settlement, so that its repeat is recognised, or to an abandoned claim that may still
        settle.
        """
        before, after = stored.state, _as_stored(applied.state)
        event = after.event
        self.note(stored, after)
        lock_key = stored.lock_key
        if applied.records:
            self._log([record.entry() for record in applied.records], event, token)
            if after.token != before.token and lock_key is not None and before.token is not None:
                self._let_go[lock_key, before.token] = event.bus
                lock_key = None
            # A cancelled event may have held the lock of its bus, or the ordering key of an event that waits.
            if event.status is EventStatus.PENDING or event.status is EventStatus.CANCELLED:
                self._woken.add(event.bus)
            if after.waits_for_children:
                self._parents.add(event.event_id)
            if event.parent_id is not None and event.status in TERMINAL:
                self._parents.add(event.parent_id)
        return StoredEvent(after, lock_key, has_results=stored.has_results, live=event.status in LIVE)

    def note(self, stored: StoredEvent, after: EventState) -> None:
        """Add a changed event, or changed handlers of an event."""
        id_ = after.event.id
        if id_ not in self._before:
            self._before[id_] = stored.state
            self._has_results[id_] = stored.has_results
            if stored.live:
                self._live.add(id_)
        self._after[id_] = after

    def add_children(self, children: Sequence[NewEvent]) -> None:
        """Add new events that belong to what was changed. They are written after the entries."""
        self._children += children

    def free_handler_locks(self, before: EventState, after: EventState) -> None:
        """Free the serial lock of each handler whose claim has ended."""
        self._freed += freed_handler_locks(before, after)

    async def write(self, session: PostgreSQLSession) -> None:
        """Write the changes, with one statement for each kind."""
        await self._write_handlers(session)
        if self._entries:
            await session.all("append_entries", *columns(self._entries))
        await self._write_events(session)
        if self._freed:
            await session.all("free_claimed_locks", *columns(self._freed))
        if self._let_go:
            freed = {row[0] for row in await session.all("free_event_locks", *columns(sorted(self._let_go)))}
            self._woken |= {bus for (key, _), bus in self._let_go.items() if key in freed}
        await self._write_counts(session)
        if self._children:
            await add_events(session, self._children)
        if self._parents:
            rows = await session.all("wake_parents", session.channel, sorted(self._parents))
            session.woken |= {bus for (bus,) in rows}
        session.woken |= self._woken
        if session.channel is not None and self._woken:
            await session.all("notify", session.channel, sorted(self._woken))

    def _log(self, entries: list[LogEntry], event: Event, token: str | None) -> None:
        for entry in entries:
            retry = entry.next_retry_ts
            as_stored = entry if retry is None else replace(entry, next_retry_ts=instant(retry))
            self._entries.append(entry_to(as_stored, event, token))

    async def _write_events(self, session: PostgreSQLSession) -> None:
        returned: list[Row] = []
        started: list[int] = []
        dead_letters: list[Row] = []
        gone: list[int] = []
        now = 0.0
        for id_, after in self._after.items():
            event = after.event
            if id_ not in self._live or event == self._before[id_].event:
                continue
            match event.status:
                case EventStatus.PENDING:
                    ready = event.due_ts <= event.updated_ts
                    times = (event.updated_ts, event.due_ts)
                    errors = strings_to(event.errors)
                    returned.append((id_, ready, event.attempts, *times, errors, after.waits_for_children))
                case EventStatus.PROCESSING:
                    started.append(id_)
                    now = event.updated_ts
                case status:
                    if status in DEAD_LETTER:
                        errors, holder = strings_to(event.errors), (event.worker_id, event.picked_ts, event.started_ts)
                        times = (event.updated_ts, event.due_ts)
                        dead_letters.append((id_, status.value, *times, errors, *holder))
                    gone.append(id_)
        if returned:
            await session.all("return_events", *columns(returned))
        if started:
            await session.all("start_events", started, now)
        if dead_letters:
            await session.all("insert_dead_letters", *columns(dead_letters))
        if gone:
            await session.all("forget_live_events", gone)

    async def _write_handlers(self, session: PostgreSQLSession) -> None:
        changed: list[Row] = []
        dropped: list[Row] = []
        marked: list[int] = []
        for id_, after in self._after.items():
            if after.handlers == self._before[id_].handlers:
                continue
            written, deleted = changed_handlers(self._before[id_], after)
            changed += written
            dropped += deleted
            if not self._has_results[id_]:
                marked.append(id_)
        if changed:
            await session.all("put_results", *columns(changed))
        if dropped:
            await session.all("forget_handler_results", *columns(dropped))
        if marked:
            await session.all("mark_results", marked)

    async def _write_counts(self, session: PostgreSQLSession) -> None:
        changed: defaultdict[str, list[int]] = defaultdict(lambda: [0] * len(EventStatus))
        for id_, after in self._after.items():
            before = self._before[id_].event
            if before.status is not after.event.status:
                changed[before.bus][COUNTED[before.status]] -= 1
                changed[before.bus][COUNTED[after.event.status]] += 1
        await note_counts(session, changed)


def _as_stored(state: EventState) -> EventState:
    """Return the state with instants as PostgreSQL will return them."""
    event = state.event
    due = instant(event.due_ts)
    expires = None if event.expires_ts is None else instant(event.expires_ts)
    if (due, expires) != (event.due_ts, event.expires_ts):
        state = replace(state, event=replace(event, due_ts=due, expires_ts=expires))
    settled = state.settled
    if settled is not None and settled.outcome.next_retry_ts is not None:
        outcome = replace(settled.outcome, next_retry_ts=instant(settled.outcome.next_retry_ts))
        state = replace(state, settled=replace(settled, outcome=outcome))
    if any(handler.result.expires_ts is not None for handler in state.handlers):
        state = replace(state, handlers=tuple(_handler_as_stored(handler) for handler in state.handlers))
    return state


def _handler_as_stored(handler: HandlerState) -> HandlerState:
    expires = handler.result.expires_ts
    return handler if expires is None else replace(handler, result=replace(handler.result, expires_ts=instant(expires)))


async def load(session: PostgreSQLSession, ids: Iterable[int]) -> dict[int, StoredEvent]:
    """Return the states of live events, and lock them until the transaction ends. Other events are left out."""
    wanted = [id_ for id_ in dict.fromkeys(ids) if 0 < id_ < 2**63]
    rows = await session.all("get_states", wanted) if wanted else ()
    handlers = await load_handlers(session, [row[0] for row in rows if row[-1]])
    states: dict[int, StoredEvent] = {}
    events = [event_of(row[:-3]) for row in rows]
    put_back = [event.id for event in events if event.status is EventStatus.PENDING and event.fence]
    lost = await abandoned_claims(session, put_back)
    for event, row in zip(events, rows, strict=True):
        token, lock_key, has_results = row[-3:]
        left = lost.get(event.id)
        abandoned = None if left is None else AbandonedClaim(left[1], *left[3:])
        state = EventState(event, token, handlers.get(event.id, ()), None, abandoned)
        states[row[0]] = StoredEvent(state, lock_key, has_results=has_results, live=True)
    return states


async def abandoned_claims(session: PostgreSQLSession, ids: Sequence[int]) -> dict[int, Row]:
    """Return abandoned claims without a later claim, by id: (id, token, fence, worker_id, picked, started)."""
    return {row[0]: row for row in await session.all("abandoned_claims", ids)} if ids else {}


async def load_one(session: PostgreSQLSession, id_: int) -> StoredEvent | None:
    """Return the state of one live event, or None."""
    return (await load(session, [id_])).get(id_)


async def load_known(session: PostgreSQLSession, ids: Iterable[int]) -> dict[int, StoredEvent]:
    """Return the states of events in any status, and how their last claims ended."""
    wanted = list(dict.fromkeys(ids))
    states = await load(session, wanted)
    missing = [id_ for id_ in wanted if id_ not in states]
    for event in (await get_events(session, missing)).values():
        states[event.id] = StoredEvent(EventState(event), None, has_results=True, live=False)
    handlers = await load_handlers(session, [id_ for id_, stored in states.items() if not stored.live])
    settled = {row[0]: settled_of(row) for row in await session.all("last_settlements", list(states))} if states else {}
    return {
        id_: replace(
            stored,
            state=replace(stored.state, handlers=handlers.get(id_, stored.state.handlers), settled=settled.get(id_)),
        )
        for id_, stored in states.items()
    }


async def load_handlers(session: PostgreSQLSession, ids: Sequence[int]) -> dict[int, tuple[HandlerState, ...]]:
    """Return the states of the handlers of events, by id."""
    if not ids:
        return {}
    found: dict[int, list[HandlerState]] = {}
    for id_, *fields in await session.all("list_results", ids):
        found.setdefault(id_, []).append(handler_of(fields))
    return {id_: tuple(handlers) for id_, handlers in found.items()}


async def expire(
    session: PostgreSQLSession, rows: Sequence[Row], max_attempts: int | None, ended: str | None = None
) -> int:
    """End the claims on events (rows of ids) whose lease is over, or whose process has ended. Returns how many."""
    if not rows:
        return 0
    now, changes, taken = await session.now(), Changes(), 0
    for stored in (await load(session, sorted(row[0] for row in rows))).values():
        applied = transition(stored.state, Expire(max_attempts, ended), now)
        if isinstance(applied, Applied):
            lost = applied.state.abandoned
            changes.apply(stored, applied, None if lost is None else lost.token)
            taken += 1
    await changes.write(session)
    return taken


def is_plain(one: Settlement) -> TypeGuard[Complete]:
    """Return whether ``complete_events`` may be able to settle it."""
    if type(one) is not Complete or one.errors or one.children or one.reason is not None:
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
    """Return the results for the log entries and, row by row, for ``event_results``. Most events store none."""
    handler_ids = [one.handler_id for one in settlements]
    names = {handler_id: None if handler_id is None else to_json(handler_id) for handler_id in set(handler_ids)}
    texts: list[object] = [names[handler_id] for handler_id in handler_ids]
    if not any(one.results for one in settlements):
        return texts[:1] if len(names) == 1 else texts, *NO_ROWS
    rows: list[Row] = []
    for place, one in enumerate(settlements):
        if not one.results:
            continue
        results = tuple(handler.result for handler in merge_results((), one.results))
        shown = with_first_success(tuple(map(logged, results)), one.handler_id, one.execution_time_ms)
        texts[place] = results_to(shown)
        rows += [
            (
                one.ref.id, result.handler_id, result.status.value, result.attempts, result.error, result.value_json,
                result.execution_time_ms, result.fence, result.worker_id,
            )
            for result in results
        ]  # fmt: skip
    return texts, *columns(rows)


async def settle_in_stretches(
    session: PostgreSQLSession, settlements: Sequence[Settlement]
) -> list[Settled | LeaseLost]:
    """Settle in order, in the open transaction: the function completes runs of plain ones, the lifecycle the others.

    So one failure does not slow down a hundred completions. With many failures the lifecycle settles all. The function
    raises if a claim is not plain.
    """
    stretches = [list(stretch) for _, stretch in groupby(settlements, is_plain)]
    distinct = len({one.ref.id for one in settlements}) == len(settlements)
    # The entries of children come after those of all settlements, so the batch is not divided.
    if any(one.children for one in settlements) or not distinct or not 1 < len(stretches) <= MOST_STRETCHES:
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


async def settle_events(
    session: PostgreSQLSession, settlements: Sequence[Settlement], *, with_entries: bool = False
) -> list[Settled | LeaseLost]:
    """End claims in the open transaction as the lifecycle decides. Each one succeeds or fails alone."""
    if not settlements:
        return []
    states = await load_known(session, [one.ref.id for one in settlements])
    now, changes, written = await session.now(), Changes(), list[Row]()
    outcomes = [_settle(states, changes, one, now, written) for one in await with_stored(session, settlements, states)]
    await changes.write(session)
    if with_entries and written:
        return add_entries(
            outcomes, settlements, map(entry_of, await session.all("settlement_entries", *columns(written)))
        )
    return outcomes


def _settle(
    states: dict[int, StoredEvent], changes: Changes, settlement: Settlement, now: float, written: list[Row]
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
        changes.add_children(settlement.children)
        written.append((ref.id, ref.fence))
    settled = states[ref.id].state.settled
    return LeaseLost(ref.id, NOT_YOURS) if settled is None else settled.outcome
