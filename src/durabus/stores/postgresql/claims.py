"""``durabus.store.claims.Claims``: claims, renews, settles, expires, resets and cancels events.

A claim is one call of one function in the database, which also completes the events before it. If a lease is over or a
holder left its lock, the function only says so; then a transaction takes them back first (``claim_the_long_way``).
"""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg
import msgspec
from msgspec.structs import replace

from durabus.clock import Clock, monotonic
from durabus.errors import ConfigurationError, LeaseLost
from durabus.lifecycle.state import NOT_YOURS, Applied, Refused, Reset, Revoke, Start
from durabus.lifecycle.transition import transition
from durabus.model.claim import Claim, ClaimRef, ClaimRequest, event_lock_key
from durabus.model.event import Event
from durabus.model.limits import stored_text
from durabus.model.settlement import Settled, Settlement, add_entries
from durabus.store.claims import SettleAnswer
from durabus.store.events import EventRef
from durabus.stores.postgresql.address import PostgreSQLAddress
from durabus.stores.postgresql.connection import PostgreSQLSession
from durabus.stores.postgresql.core import PostgreSQLCore, in_transaction_of
from durabus.stores.postgresql.layout import columns, instant
from durabus.stores.postgresql.locks import void_lock
from durabus.stores.postgresql.publishing import get_events, ids_of
from durabus.stores.postgresql.settlements import (
    NOT_PLAIN,
    Changes,
    expire,
    is_plain,
    load,
    load_handlers,
    load_known,
    plain_completions,
    settle_events,
    settle_in_stretches,
)
from durabus.stores.postgresql.waits import check_waits
from durabus.stores.sql.changes import NO_EVENT, completed, found_event
from durabus.stores.sql.rows import Row, claimed_event, entry_of, event_of, strings_of

EXPIRE_AT_ONCE = 1_000
"""Maximum number of expired leases that one claim takes back."""
SHARE = 20
"""Under load, a whole scan is repeated after this many times the duration of the last one."""
POSTPONED_AT_MOST = 1.0
"""Maximum seconds between two whole scans: only these find expired and newly due events."""
_REMEMBERED_BUSES = 10_000
_TRIES = 10

_rest = msgspec.json.Decoder(
    tuple[str | None, tuple[str, ...] | None, int, int | None, str | None, str | None, str | None]
).decode


class Scan(msgspec.Struct, frozen=True):
    """Where in the queue a claim begins its scan. Every event up to ``floor`` was claimed already."""

    floor: int = 0
    thorough: bool = True
    """Also look for expired leases, newly due events and events below the floor, even if the claim is full."""


WHOLE = Scan()


class Scans:
    """Chooses the scan of each claim of a store object. ``always_whole`` is for tests with a manual clock.

    A claimed row stays in the index as a dead entry until vacuum removes it, and an open transaction blocks vacuum.
    Then each claim would walk past everything that was claimed meanwhile. So a store object remembers the last id that
    it has claimed and begins there. Under load, when claims get all the events they ask for, it scans the whole queue
    only now and then.
    """

    def __init__(self, *, always_whole: bool) -> None:
        self._always_whole = always_whole
        self._floors: dict[str, int] = {}
        self._whole_again: dict[str, float] = {}

    def begin(self, request: ClaimRequest) -> tuple[Scan, float]:
        """Return the scan for a claim, and the instant at which it begins."""
        began = monotonic()
        if self._always_whole or began >= self._whole_again.get(request.bus, 0.0):
            return WHOLE, began
        return Scan(self._floors.get(request.bus, 0), thorough=False), began

    def end(self, request: ClaimRequest, scan: Scan, began: float, claims: list[Claim]) -> None:
        """Remember how long the scan took and which id it reached."""
        if len(self._floors) > _REMEMBERED_BUSES:
            self._floors.clear()
            self._whole_again.clear()
        if len(claims) < request.limit:
            self._whole_again.pop(request.bus, None)  # a claim that is not full has scanned the whole queue
        elif scan.thorough:
            now = monotonic()
            self._whole_again[request.bus] = now + min(SHARE * (now - began), POSTPONED_AT_MOST)
        if claims:
            last = claims[-1].event
            # Only fresh events have a floor: priority 0, never claimed, never delayed. Claims are in order.
            if last.fence == 1 and last.priority == 0 and last.due_ts == last.created_ts:
                self._floors[request.bus] = last.id


def claim_arguments(request: ClaimRequest, scan: Scan, *, expired: bool = True) -> tuple[object, ...]:
    """Return the arguments of the functions for a claim, after the clock."""
    return (
        request.bus,
        request.worker_id,
        request.token,
        max(request.limit, 0),
        request.lease,
        event_lock_key(request.mode, request.bus),
        list(request.tags) or None,
        0 if scan.thorough else scan.floor,
        expired,
        scan.thorough,
    )


def verdict_of(rows: Sequence[Row]) -> str | None:
    """Return why the function did not claim, or None if it did."""
    return rows[0][2] if rows and rows[0][0] == 0 else None


async def claim_the_long_way(session: PostgreSQLSession, request: ClaimRequest) -> list[Claim]:
    """Take back expired events and locks, then claim, all in one transaction."""
    expired = True
    for _ in range(_TRIES):
        rows = await session.all(
            "claim_next_events", session.clock, *claim_arguments(request, WHOLE, expired=expired), request.event_id
        )
        match verdict_of(rows):
            case "held":
                return await _held(session, request, rows[0][-1] or "")
            case "expired":
                # wait for a transaction that takes them back now: it will not claim all of them
                await session.all("take_advisory_lock", f"expired:{request.bus}")
                found = await session.all("expired_events", request.bus, await session.now(), EXPIRE_AT_ONCE)
                await expire(session, found, request.max_attempts)
                expired = False
            case "waits":
                await check_waits(session, request.bus)
                expired = False
            case "lock":
                await void_lock(session, event_lock_key(request.mode, request.bus) or "", request)
            case _:
                return await claims_of(session, request, rows)
    return []


async def claims_of(session: PostgreSQLSession, request: ClaimRequest, rows: Sequence[Row]) -> list[Claim]:
    """Return claims from the rows that the function returned."""
    bus, worker_id, token = request.bus, request.worker_id, request.token
    claims: list[Claim] = []
    with_results: list[int] = []
    revision = (rows[0][13] or "") if rows else ""
    for (
        id_, event_id, type_, payload, rest, attempts, generation, fence, has_results, created, due, picked, expires, _,
    ) in rows:  # fmt: skip
        event = claimed_event((
            id_, event_id, bus, type_, payload, attempts, generation, fence, worker_id, created,
            due, picked, expires,
        ))  # fmt: skip
        if rest is not None:
            event = _with_rest(event, rest)
        if has_results:
            with_results.append(id_)
        claims.append(Claim(event, token, (), revision))
    return await _with_results(session, claims, with_results) if with_results else claims


def _with_rest(event: Event, rest: str) -> Event:
    metadata, tags, priority, max_attempts, parent_id, key, errors = _rest(rest)
    return replace(
        event,
        metadata_json=metadata,
        tags=tags or (),
        priority=priority,
        max_attempts=max_attempts,
        parent_id=parent_id,
        idempotency_key=key,
        errors=strings_of(errors),
    )


async def _with_results(session: PostgreSQLSession, claims: list[Claim], ids: Sequence[int]) -> list[Claim]:
    handlers = await load_handlers(session, ids)
    return [
        replace(claim, results=tuple(handler.result for handler in handlers[claim.event.id]))
        if claim.event.id in handlers
        else claim
        for claim in claims
    ]


async def _held(session: PostgreSQLSession, request: ClaimRequest, revision: str) -> list[Claim]:
    events = [event_of(row) for row in await session.all("held_events", request.token)]
    claims = [Claim(event, request.token, (), revision) for event in events]
    return await _with_results(session, claims, [event.id for event in events])


class PostgreSQLClaims(PostgreSQLCore):
    """Implements ``store.claims.Claims`` on PostgreSQL."""

    def __init__(self, address: PostgreSQLAddress, clock: Clock | None = None) -> None:
        super().__init__(address, clock)
        self._scans = Scans(always_whole=clock is not None)

    async def claim_next_events(self, request: ClaimRequest) -> list[Claim]:
        return (await self._settle_and_claim((), request)).claims

    async def start_events(self, refs: Sequence[ClaimRef]) -> list[Event | LeaseLost]:
        if not refs:
            self._check_open()
            return []
        return await self._write(lambda session: _start(session, refs))

    async def renew_event_claims(self, refs: Sequence[ClaimRef], *, lease: float) -> list[float | LeaseLost]:
        if not refs:
            self._check_open()
            return []
        return await self._write(lambda session: _renew(session, refs, lease))

    async def settle_events(
        self,
        settlements: Sequence[Settlement],
        *,
        then_claim: ClaimRequest | None = None,
        connection: object | None = None,
        with_entries: bool = False,
    ) -> SettleAnswer:
        self._check_open()
        if connection is not None:
            if then_claim is not None:
                raise ConfigurationError(
                    "settle_events(connection=…, then_claim=…): a claim cannot wait for the caller's commit, "
                    "claim in a call of its own"
                )
            async with in_transaction_of(connection, self._home) as session:
                return SettleAnswer(await settle_events(session, settlements, with_entries=with_entries), [])
        if not settlements and then_claim is None:
            return SettleAnswer([], [])
        if with_entries and settlements:
            outcomes = await self._settle_with_entries(settlements)
            return SettleAnswer(outcomes, [] if then_claim is None else await self.claim_next_events(then_claim))
        return await self._settle_and_claim(settlements, then_claim)

    async def current_claims(self, ids: Sequence[int]) -> list[ClaimRef | None]:
        wanted = [id_ for id_ in ids if 0 < id_ < 2**63]
        found = {row[0]: ClaimRef(*row) for row in await self._ask("current_claims", wanted)}
        missing = [id_ for id_ in wanted if id_ not in found]
        if missing:
            found |= {row[0]: ClaimRef(*row[:3]) for row in await self._ask("abandoned_claims", missing)}
        return [found.get(id_) for id_ in ids]

    async def expire_events(self, *, max_attempts: int | None = None, limit: int = 1000) -> int:
        async def take(session: PostgreSQLSession) -> int:
            rows = await session.all("expired_events_of_all", await session.now(), max(limit, 0))
            return await expire(session, rows, max_attempts)

        return await self._write(take)

    async def reset_event(self, ref: EventRef, *, reason: str) -> Event:
        return found_event(
            ref, await self._write(lambda session: _take_away(session, [ref], Reset(stored_text(reason))))
        )

    async def cancel_event(self, ref: EventRef, *, reason: str) -> Event:
        return found_event(ref, await self.cancel_events([ref], reason=reason))

    async def cancel_events(self, refs: Sequence[EventRef], *, reason: str) -> list[Event | None]:
        return await self._write(lambda session: _take_away(session, refs, Revoke(stored_text(reason))))

    async def _settle_and_claim(self, settlements: Sequence[Settlement], request: ClaimRequest | None) -> SettleAnswer:
        """Settle and claim in one statement if all settlements are plain. Else the lifecycle settles first."""
        if all(map(is_plain, settlements)):
            try:
                return await self._complete_and_claim(settlements, request)
            except asyncpg.PostgresError as error:
                if error.sqlstate != NOT_PLAIN:
                    raise
        outcomes = await self._settle(settlements)
        if request is None:
            return SettleAnswer(outcomes, [])
        return SettleAnswer(outcomes, (await self._complete_and_claim((), request)).claims)

    async def _settle(self, settlements: Sequence[Settlement]) -> list[Settled | LeaseLost]:
        try:
            return await self._write(lambda session: settle_in_stretches(session, settlements))
        except asyncpg.PostgresError as error:
            if error.sqlstate != NOT_PLAIN:
                raise
        return await self._write(lambda session: settle_events(session, settlements))

    async def _settle_with_entries(self, settlements: Sequence[Settlement]) -> list[Settled | LeaseLost]:
        if all(map(is_plain, settlements)):
            done = plain_completions(settlements)  # type: ignore[arg-type]
            try:
                rows = await self._ask("complete_and_read_events", self._clock_argument(), self._channel, *done)
                return add_entries(completed(settlements), settlements, map(entry_of, rows))
            except asyncpg.PostgresError as error:
                if error.sqlstate != NOT_PLAIN:
                    raise
        return await self._write(lambda session: settle_events(session, settlements, with_entries=True))

    async def _complete_and_claim(
        self, settlements: Sequence[Settlement], request: ClaimRequest | None
    ) -> SettleAnswer:
        done = plain_completions(settlements) if settlements else ()  # type: ignore[arg-type]
        outcomes = completed(settlements)
        if request is None:
            await self._ask("complete_events", self._clock_argument(), self._channel, *done)
            return SettleAnswer(outcomes, [])
        if request.event_id is not None:
            if done:
                await self._ask("complete_events", self._clock_argument(), self._channel, *done)
            return SettleAnswer(outcomes, await self._write(lambda session: claim_the_long_way(session, request)))
        tick = self._hints.claim_began()
        scan, began = self._scans.begin(request)
        arguments = claim_arguments(request, scan)
        if done:
            name, settling = "complete_and_claim_events", (self._channel, *done)
        else:
            name, settling, arguments = "claim_next_events", (), (*arguments, None)
        rows = await self._ask(name, self._clock_argument(), *settling, *arguments)
        if verdict_of(rows) is not None:
            claims = await self._write(lambda session: claim_the_long_way(session, request))
        else:
            claims = await claims_of(self._plain_session(), request, rows)
        self._hints.claimed(request, tick, anything=bool(claims))
        self._scans.end(request, scan, began, claims)
        return SettleAnswer(outcomes, claims)


async def _start(session: PostgreSQLSession, refs: Sequence[ClaimRef]) -> list[Event | LeaseLost]:
    states = await load_known(session, [ref.id for ref in refs])
    now, changes = await session.now(), Changes()
    answer: list[Event | LeaseLost] = []
    for ref in refs:
        stored = states.get(ref.id)
        applied = Refused(NO_EVENT) if stored is None else transition(stored.state, Start(ref), now)
        if stored is None or isinstance(applied, Refused):
            answer.append(LeaseLost(ref.id, applied.reason if isinstance(applied, Refused) else NOT_YOURS))
            continue
        states[ref.id] = changes.apply(stored, applied)
        answer.append(states[ref.id].state.event)
    await changes.write(session)
    return answer


async def _renew(session: PostgreSQLSession, refs: Sequence[ClaimRef], lease: float) -> list[float | LeaseLost]:
    """Renew claims for the heartbeat: two statements, and a third only for claims with a lock."""
    now = await session.now()
    expires = instant(now + lease)
    ordered = sorted((ref.id, ref.token, ref.fence) for ref in refs)
    rows = await session.all("renew_event_claims", *columns(ordered), expires)
    renewed = {row[0]: row for row in rows}
    locks = {(row[1], row[2]) for row in rows if row[1] is not None}
    if locks:
        await session.all("renew_event_locks", *columns(sorted(locks)), expires)
    missing = [ref.id for ref in refs if ref.id not in renewed]
    known = await get_events(session, missing) if missing else {}
    answer: list[float | LeaseLost] = []
    for ref in refs:
        row = renewed.get(ref.id)
        if row is not None and (row[2], row[3]) == (ref.token, ref.fence):
            answer.append(expires)
        else:
            unknown = row is None and ref.id not in known
            answer.append(LeaseLost(ref.id, NO_EVENT if unknown else NOT_YOURS))
    return answer


async def _take_away(
    session: PostgreSQLSession, refs: Sequence[EventRef], command: Reset | Revoke
) -> list[Event | None]:
    """Reset or cancel events. An event that the command does not apply to is returned unchanged."""
    named = await ids_of(session, [ref for ref in refs if isinstance(ref, str)])
    ids = [ref if isinstance(ref, int) else named.get(ref, 0) for ref in refs]
    states, now, changes = await load(session, ids), await session.now(), Changes()
    parents: set[str | None] = set()
    for id_ in [id_ for id_ in dict.fromkeys(ids) if id_ in states]:
        if states[id_].state.event.event_id in parents:  # it may be due now, because its last child has ended
            await changes.write(session)
            states, changes, parents = states | await load(session, [id_]), Changes(), set()
        before = states[id_].state
        applied = transition(before, command, now)
        if isinstance(applied, Applied):
            states[id_] = changes.apply(states[id_], applied)
            changes.free_handler_locks(before, applied.state)
            parents.add(before.event.parent_id)
    await changes.write(session)
    found = await get_events(session, [id_ for id_ in ids if id_ not in states])
    return [states[id_].state.event if id_ in states else found.get(id_) for id_ in ids]
