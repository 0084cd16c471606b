"""Reads the states of events, and writes the transitions that the kernel decided.

Functions in the database (migrations) claim and complete plain batches. They are translations of the kernel and much
faster. The kernel itself decides all other transitions. A batch takes a fixed number of statements, whatever its size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from durabus.lifecycle.state import AbandonedClaim, Applied, EventState, Expire, HandlerState, SettledClaim
from durabus.lifecycle.transition import transition
from durabus.model.claim import handler_lock_key
from durabus.model.event import Event
from durabus.model.log_entry import LogEntry
from durabus.model.settlement import Settled
from durabus.model.statuses import DEAD_LETTER, LIVE, EventStatus
from durabus.stores.postgresql.connection import PostgreSQLSession
from durabus.stores.postgresql.rows import (
    ACTIONS,
    STATUSES,
    Row,
    columns,
    event_of,
    handler_of,
    handler_to,
    instant,
    results_to,
    strings_to,
)

_NOT_THE_EVENT = (None,) * 7
_COUNTED = {status: number for number, status in enumerate(EventStatus)}


class PostgreSQLStored(msgspec.Struct, frozen=True):
    """An event's state in the database, and the lock that its claim holds."""

    state: EventState
    lock_key: str | None
    has_results: bool
    live: bool
    """Whether the event is in the queue and this transaction has locked its row."""


class Changes:
    """The changes of one transaction. It collects transitions in order; ``write`` writes all of them."""

    def __init__(self) -> None:
        self._before: dict[int, EventState] = {}
        self._after: dict[int, EventState] = {}
        self._has_results: dict[int, bool] = {}
        self._live: set[int] = set()
        self._entries: list[Row] = []
        self._freed: list[tuple[str, str]] = []
        """Locks of handler claims that ended: (key, token)."""
        self._let_go: dict[tuple[str, str], str] = {}
        """Locks of event claims that ended: (key, token) and the bus."""
        self._woken: set[str] = set()

    def apply(self, stored: PostgreSQLStored, applied: Applied, token: str | None = None) -> PostgreSQLStored:
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
            if event.status is EventStatus.PENDING:
                self._woken.add(event.bus)
        return PostgreSQLStored(after, lock_key, has_results=stored.has_results, live=event.status in LIVE)

    def note(self, stored: PostgreSQLStored, after: EventState) -> None:
        """Add a changed event, or changed handlers of an event."""
        id_ = after.event.id
        if id_ not in self._before:
            self._before[id_] = stored.state
            self._has_results[id_] = stored.has_results
            if stored.live:
                self._live.add(id_)
        self._after[id_] = after

    def free_handler_locks(self, before: EventState, after: EventState) -> None:
        """Free the serial lock of each handler whose claim the settlement ended by writing its result."""
        gone = {handler.token for handler in before.handlers} - {handler.token for handler in after.handlers}
        key = handler_lock_key(before.event.event_id)
        self._freed += [(key, token) for token in gone if token is not None]

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
        session.woken |= self._woken
        if session.channel is not None and self._woken:
            await session.all("notify", session.channel, sorted(self._woken))

    def _log(self, entries: list[LogEntry], event: Event, token: str | None) -> None:
        for entry in entries:
            rest: Row = _NOT_THE_EVENT
            if entry.status is EventStatus.COMPLETED:
                rest = (
                    True, event.priority, event.max_attempts, event.due_ts, event.picked_ts, event.started_ts,
                    event.idempotency_key,
                )  # fmt: skip
            next_retry = None if entry.next_retry_ts is None else instant(entry.next_retry_ts)
            self._entries.append((
                entry.action.value, entry.id, entry.event_id, entry.bus, entry.type, entry.status.value, entry.at_ts,
                entry.created_ts, entry.attempt, entry.generation, entry.fence, entry.worker_id,
                entry.error, next_retry, entry.execution_time_ms,
                entry.status_code, strings_to(entry.tags), entry.metadata_json, entry.parent_id, entry.payload_json,
                strings_to(entry.errors), results_to(entry.results), token, *rest, entry.reason,
            ))  # fmt: skip

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
                    returned.append(
                        (id_, ready, event.attempts, event.updated_ts, event.due_ts, strings_to(event.errors))
                    )
                case EventStatus.PROCESSING:
                    started.append(id_)
                    now = event.updated_ts
                case status:
                    if status in DEAD_LETTER:
                        errors, holder = strings_to(event.errors), (event.worker_id, event.picked_ts, event.started_ts)
                        dead_letters.append((id_, status.value, event.updated_ts, errors, *holder))
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
            known = {handler.result.handler_id: handler for handler in self._before[id_].handlers}
            changed += [
                handler_to(id_, handler)
                for handler in after.handlers
                if known.pop(handler.result.handler_id, None) != handler
            ]
            dropped += [(id_, handler_id) for handler_id in known]
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
                changed[before.bus][_COUNTED[before.status]] -= 1
                changed[before.bus][_COUNTED[after.event.status]] += 1
        await note_counts(session, changed)


async def note_counts(session: PostgreSQLSession, changed: dict[str, list[int]]) -> None:
    """Write how the numbers of events of each bus changed, in the order of ``EventStatus``."""
    rows = [(bus, *counts) for bus, counts in changed.items() if any(counts)]
    if rows:
        await session.all("note_counts", *columns(rows))


def _as_stored(state: EventState) -> EventState:
    """Return the state with instants as PostgreSQL will return them."""
    event = state.event
    due = instant(event.due_ts)
    expires = None if event.expires_ts is None else instant(event.expires_ts)
    if (due, expires) != (event.due_ts, event.expires_ts):
        state = replace(state, event=replace(event, due_ts=due, expires_ts=expires))
    settled = state.settled
    if settled is not None and settled.answer.next_retry_ts is not None:
        answer = replace(settled.answer, next_retry_ts=instant(settled.answer.next_retry_ts))
        state = replace(state, settled=replace(settled, answer=answer))
    if any(handler.result.expires_ts is not None for handler in state.handlers):
        state = replace(state, handlers=tuple(_handler_as_stored(handler) for handler in state.handlers))
    return state


def _handler_as_stored(handler: HandlerState) -> HandlerState:
    expires = handler.result.expires_ts
    return handler if expires is None else replace(handler, result=replace(handler.result, expires_ts=instant(expires)))


async def load(session: PostgreSQLSession, ids: Iterable[int]) -> dict[int, PostgreSQLStored]:
    """Return the states of live events, and lock them until the transaction ends. Other events are left out."""
    wanted = [id_ for id_ in dict.fromkeys(ids) if 0 < id_ < 2**63]
    rows = await session.all("get_states", wanted) if wanted else ()
    handlers = await load_handlers(session, [row[0] for row in rows if row[-1]])
    states: dict[int, PostgreSQLStored] = {}
    events = [event_of(row[:-3]) for row in rows]
    put_back = [event.id for event in events if event.status is EventStatus.PENDING and event.fence]
    lost = await abandoned_claims(session, put_back)
    for event, row in zip(events, rows, strict=True):
        token, lock_key, has_results = row[-3:]
        left = lost.get(event.id)
        abandoned = None if left is None else AbandonedClaim(left[1], *left[3:])
        state = EventState(event, token, handlers.get(event.id, ()), None, abandoned)
        states[row[0]] = PostgreSQLStored(state, lock_key, has_results=has_results, live=True)
    return states


async def abandoned_claims(session: PostgreSQLSession, ids: Sequence[int]) -> dict[int, Row]:
    """Return abandoned claims without a later claim, by id: (id, token, fence, worker_id, picked, started)."""
    return {row[0]: row for row in await session.all("abandoned_claims", ids)} if ids else {}


async def load_one(session: PostgreSQLSession, id_: int) -> PostgreSQLStored | None:
    """Return the state of one live event, or None."""
    return (await load(session, [id_])).get(id_)


async def load_known(session: PostgreSQLSession, ids: Iterable[int]) -> dict[int, PostgreSQLStored]:
    """Return the states of events in any status, and how their last claims ended."""
    wanted = list(dict.fromkeys(ids))
    states = await load(session, wanted)
    missing = [id_ for id_ in wanted if id_ not in states]
    for event in (await get_events(session, missing)).values():
        states[event.id] = PostgreSQLStored(EventState(event), None, has_results=True, live=False)
    handlers = await load_handlers(session, [id_ for id_, stored in states.items() if not stored.live])
    settled = {row[0]: _settled(row) for row in await session.all("last_settlements", list(states))} if states else {}
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
    found: dict[int, tuple[HandlerState, ...]] = {}
    for id_, *fields in await session.all("list_results", ids):
        found[id_] = (*found.get(id_, ()), handler_of(fields))
    return found


async def get_events(session: PostgreSQLSession, ids: Iterable[int], event_ids: Sequence[str] = ()) -> dict[int, Event]:
    """Return events in any status, read at one instant."""
    wanted = [id_ for id_ in dict.fromkeys(ids) if 0 < id_ < 2**63]
    if not wanted and not event_ids:
        return {}
    return {row[0]: event_of(row) for row in await session.all("get_events", wanted, list(event_ids))}


async def expire(session: PostgreSQLSession, rows: Sequence[Row], max_attempts: int | None) -> int:
    """End the claims on events (rows of their ids) whose lease is over. Returns how many."""
    if not rows:
        return 0
    now, changes, taken = await session.now(), Changes(), 0
    for stored in (await load(session, sorted(row[0] for row in rows))).values():
        applied = transition(stored.state, Expire(max_attempts), now)
        if isinstance(applied, Applied):
            lost = applied.state.abandoned
            changes.apply(stored, applied, None if lost is None else lost.token)
            taken += 1
    await changes.write(session)
    return taken


def _settled(row: Row) -> SettledClaim:
    id_, token, fence, action, status, next_retry = row
    return SettledClaim(token, fence, ACTIONS[action], Settled(id_, STATUSES[status], next_retry))
