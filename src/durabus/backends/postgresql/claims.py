"""``durabus.store.claims.Claims``."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from durabus.backends.postgresql.caller import in_transaction_of
from durabus.backends.postgresql.changes import Changes
from durabus.backends.postgresql.claiming import claim_arguments, claim_the_long_way, claims_of, verdict_of
from durabus.backends.postgresql.core import PostgreSQLCore
from durabus.backends.postgresql.publishing import id_of
from durabus.backends.postgresql.rows import columns, instant
from durabus.backends.postgresql.session import Session
from durabus.backends.postgresql.settling import (
    NO_EVENT,
    NOT_PLAIN,
    completed,
    is_plain,
    plain_completions,
    settle_events,
    settle_in_stretches,
)
from durabus.backends.postgresql.states import expire, get_events, load, load_known
from durabus.errors import ConfigurationError, EventNotFound, LeaseLost
from durabus.kernel.state import NOT_YOURS, Applied, Refused, Reset, Start
from durabus.kernel.transition import transition
from durabus.model.claim import Claim, ClaimRef, ClaimRequest
from durabus.model.event import Event
from durabus.model.settlement import Settled, Settlement
from durabus.model.text import stored_text
from durabus.store.claims import SettleAnswer
from durabus.store.events import EventRef


class PostgreSQLClaims(PostgreSQLCore):
    """Claims on events."""

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
    ) -> SettleAnswer:
        self._check_open()
        if connection is not None:
            if then_claim is not None:
                raise ConfigurationError(
                    "settle_events(connection=…, then_claim=…): a claim cannot wait for the caller's commit, "
                    "claim in a call of its own"
                )
            async with in_transaction_of(connection, self._home) as session:
                return SettleAnswer(await settle_events(session, settlements), [])
        if not settlements and then_claim is None:
            return SettleAnswer([], [])
        return await self._settle_and_claim(settlements, then_claim)

    async def current_claims(self, ids: Sequence[int]) -> list[ClaimRef | None]:
        wanted = [id_ for id_ in ids if 0 < id_ < 2**63]
        found = {row[0]: ClaimRef(*row) for row in await self._ask("current_claims", wanted)}
        missing = [id_ for id_ in wanted if id_ not in found]
        if missing:
            found |= {row[0]: ClaimRef(*row[:3]) for row in await self._ask("abandoned_claims", missing)}
        return [found.get(id_) for id_ in ids]

    async def expire_events(self, *, max_attempts: int | None = None, limit: int = 1000) -> int:
        async def take(session: Session) -> int:
            rows = await session.all("expired_events_of_all", await session.now(), max(limit, 0))
            return await expire(session, rows, max_attempts)

        return await self._write(take)

    async def reset_event(self, ref: EventRef, *, reason: str) -> Event:
        return await self._write(lambda session: _reset(session, ref, stored_text(reason)))

    async def _settle_and_claim(self, settlements: Sequence[Settlement], request: ClaimRequest | None) -> SettleAnswer:
        """One statement if everything is as usual; else the kernel in a transaction, then the claim."""
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


async def _start(session: Session, refs: Sequence[ClaimRef]) -> list[Event | LeaseLost]:
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


async def _renew(session: Session, refs: Sequence[ClaimRef], lease: float) -> list[float | LeaseLost]:
    """The road of the heartbeat: two statements, and a third one only for claims with a lock."""
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


async def _reset(session: Session, ref: EventRef, reason: str) -> Event:
    id_ = await id_of(session, ref)
    stored = (await load(session, [id_])).get(id_) if id_ is not None else None
    event = stored.state.event if stored is not None else (await get_events(session, [id_ or 0])).get(id_ or 0)
    if event is None:
        raise EventNotFound(ref)
    applied = None if stored is None else transition(stored.state, Reset(reason), await session.now())
    if stored is None or not isinstance(applied, Applied):
        return event
    changes = Changes()
    after = changes.apply(stored, applied)
    await changes.write(session)
    return after.state.event
