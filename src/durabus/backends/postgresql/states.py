"""The road for everything that is not the common case: read the states, ask the kernel, write what it decided.

A batch of plain claims and completions has functions of its own in the database (migrations); they are translations of
the kernel and much faster. All other transitions go through here and *are* the kernel. A batch costs a fixed number of
statements, however many events it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from durabus.backends.postgresql.changes import Changes, Stored
from durabus.backends.postgresql.rows import ACTIONS, STATUSES, Row, event_of, handler_of
from durabus.backends.postgresql.session import Session
from durabus.kernel.state import AbandonedClaim, Applied, EventState, Expire, HandlerState, SettledClaim
from durabus.kernel.transition import transition
from durabus.model.event import Event
from durabus.model.settlement import Settled
from durabus.model.statuses import EventStatus


async def load(session: Session, ids: Iterable[int]) -> dict[int, Stored]:
    """The states of live events, locked until the end of the transaction. Others are not in the answer."""
    wanted = [id_ for id_ in dict.fromkeys(ids) if 0 < id_ < 2**63]
    rows = await session.all("get_states", wanted) if wanted else ()
    handlers = await load_handlers(session, [row[0] for row in rows if row[-1]])
    states: dict[int, Stored] = {}
    events = [event_of(row[:-3]) for row in rows]
    put_back = [event.id for event in events if event.status is EventStatus.PENDING and event.fence]
    lost = await abandoned_claims(session, put_back)
    for event, row in zip(events, rows, strict=True):
        token, lock_key, has_results = row[-3:]
        left = lost.get(event.id)
        abandoned = None if left is None else AbandonedClaim(left[1], *left[3:])
        state = EventState(event, token, handlers.get(event.id, ()), None, abandoned)
        states[row[0]] = Stored(state, lock_key, has_results=has_results, live=True)
    return states


async def abandoned_claims(session: Session, ids: Sequence[int]) -> dict[int, Row]:
    """Abandoned claims that nobody followed: (id, token, fence, worker_id, picked, started) by id."""
    return {row[0]: row for row in await session.all("abandoned_claims", ids)} if ids else {}


async def load_one(session: Session, id_: int) -> Stored | None:
    """The state of one live event."""
    return (await load(session, [id_])).get(id_)


async def load_known(session: Session, ids: Iterable[int]) -> dict[int, Stored]:
    """The states of events wherever they are in their lives, with how their last claims ended."""
    wanted = list(dict.fromkeys(ids))
    states = await load(session, wanted)
    missing = [id_ for id_ in wanted if id_ not in states]
    for event in (await get_events(session, missing)).values():
        states[event.id] = Stored(EventState(event), None, has_results=True, live=False)
    handlers = await load_handlers(session, [id_ for id_, stored in states.items() if not stored.live])
    settled = {row[0]: _settled(row) for row in await session.all("last_settlements", list(states))} if states else {}
    return {
        id_: replace(
            stored,
            state=replace(stored.state, handlers=handlers.get(id_, stored.state.handlers), settled=settled.get(id_)),
        )
        for id_, stored in states.items()
    }


async def load_handlers(session: Session, ids: Sequence[int]) -> dict[int, tuple[HandlerState, ...]]:
    """What the handlers of events did so far."""
    if not ids:
        return {}
    found: dict[int, tuple[HandlerState, ...]] = {}
    for id_, *columns in await session.all("list_results", ids):
        found[id_] = (*found.get(id_, ()), handler_of(columns))
    return found


async def get_events(session: Session, ids: Iterable[int], event_ids: Sequence[str] = ()) -> dict[int, Event]:
    """Events wherever they are in their lives, seen at one moment."""
    wanted = [id_ for id_ in dict.fromkeys(ids) if 0 < id_ < 2**63]
    if not wanted and not event_ids:
        return {}
    return {row[0]: event_of(row) for row in await session.all("get_events", wanted, list(event_ids))}


async def expire(session: Session, rows: Sequence[Row], max_attempts: int | None) -> int:
    """Take events, given as rows of their ids, from claims whose lease is over. Answers how many."""
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
