"""The ``EventStore`` of NATS and Kafka.

Verbs that write append a command to the log. Verbs that read see everything that any node acknowledged before the call.
"""

from __future__ import annotations

from collections.abc import Sequence

from durabus.clock import Clock
from durabus.errors import EventNotFound, LeaseLost
from durabus.model.claim import (
    Claim,
    ClaimRef,
    ClaimRequest,
    LockClaim,
)
from durabus.model.event import Event, NewEvent
from durabus.model.handler import BusInfo, HandlerInfo, Registered
from durabus.model.limits import check_name, stored_text
from durabus.model.log_entry import LogArchives, LogEntry, LogHold, LogPage, LogRows
from durabus.model.query import Counts, DeadLetterPage, EventPage, EventQuery
from durabus.model.settlement import Settlement
from durabus.store.claims import SettleAnswer
from durabus.store.events import EventRef
from durabus.store.features import Features, require
from durabus.store.log import START
from durabus.store.processes import EndedProcesses
from durabus.stores.replicated_log import commands as c
from durabus.stores.replicated_log.log_clock import LogClock, at_manual_time
from durabus.stores.replicated_log.node import Node
from durabus.stores.replicated_log.options import Options
from durabus.stores.replicated_log.results import ReplicatedLogCalls, ReplicatedLogResults
from durabus.stores.replicated_log.transport import Transport
from durabus.stores.replicated_log.wire import wire, wire_ref


class ReplicatedLogRegistrations(ReplicatedLogCalls):
    """Implements ``store.registrations.Registrations`` on a replicated log."""

    async def register_handlers(
        self, bus: str, node: str, handlers: Sequence[HandlerInfo], *, kept_for: float | None
    ) -> None:
        await self._write(c.RegisterHandlers(bus, node, tuple(handlers), kept_for))

    async def unregister_handler(self, bus: str, handler_id: str) -> bool:
        known: bool = await self._write(c.UnregisterHandler(bus, handler_id))
        return known

    async def list_handlers(self, bus: str) -> Registered:
        return await (await self._current()).list_handlers(bus)

    async def list_buses(self, *, after: str = "", limit: int = 100) -> list[BusInfo]:
        return await (await self._current()).list_buses(after=after, limit=limit)

    async def active_buses(self, *, after: str = "", limit: int = 100) -> list[str]:
        return await (await self._current()).active_buses(after=after, limit=limit)

    async def stop_bus(self, bus: str) -> None:
        await self._write(c.StopBus(bus))

    async def archive_buses(self, *, stopped_for: float, limit: int = 1000) -> int:
        return await self._count(c.ArchiveBuses(stopped_for, limit))


class ReplicatedLogEvents(ReplicatedLogCalls):
    """Implements ``store.events.Events`` on a replicated log."""

    async def add_events(self, new: Sequence[NewEvent], *, connection: object | None = None) -> list[Event]:
        if connection is not None:
            require(self.features, "caller_transactions", "add_events(connection=…)")
        if not new:
            self._node.check_open()
            return []
        if self._core.knows_any(new):
            # A caller repeats a publish. If the replica shows it, the public lane gets no second copy.
            await self._node.catch_up()
            known = self._core.stored(new)
            if known is not None:
                return known
        return await self._publish(new)

    async def get_event(self, ref: EventRef) -> Event | None:
        return await (await self._current()).get_event(ref)

    async def get_events(self, refs: Sequence[EventRef]) -> list[Event | None]:
        return await (await self._current()).get_events(refs)

    async def has_event(self, ref: EventRef) -> bool:
        return await (await self._current()).has_event(ref)

    async def remove_event(self, ref: EventRef) -> bool:
        removed: bool = await self._write(c.RemoveEvent(ref))
        return removed

    async def find(self, query: EventQuery) -> EventPage:
        return await (await self._current()).find(query)

    async def trim_event_history(self, bus: str, *, older_than: float, limit: int = 10_000) -> int:
        return await self._count(c.TrimEventHistory(bus, older_than, limit))

    async def cleanup_excess_events(self, bus: str, *, keep: int, limit: int = 10_000, node: str | None = None) -> int:
        return await self._count(c.CleanupExcessEvents(bus, keep, limit, node))

    async def counts(self, bus: str | None = None) -> Counts:
        return await (await self._current()).counts(bus)


class ReplicatedLogClaims(ReplicatedLogCalls):
    """Implements ``store.claims.Claims`` on a replicated log."""

    async def claim_next_events(self, request: ClaimRequest) -> list[Claim]:
        if self._core.nothing_to_claim(request):
            # An idle worker that polls must not make the log grow.
            await self._node.catch_up()
            if self._core.nothing_to_claim(request):
                return []
        claims: list[Claim] = await self._write(c.ClaimNextEvents(request))
        return claims

    async def current_claims(self, ids: Sequence[int]) -> list[ClaimRef | None]:
        return await (await self._current()).current_claims(ids)

    async def start_events(self, refs: Sequence[ClaimRef]) -> list[Event | LeaseLost]:
        return await self._list(refs and c.StartEvents(tuple(map(wire_ref, refs))))

    async def renew_event_claims(self, refs: Sequence[ClaimRef], *, lease: float) -> list[float | LeaseLost]:
        return await self._list(refs and c.RenewEventClaims(tuple(map(wire_ref, refs)), lease))

    async def settle_events(
        self,
        settlements: Sequence[Settlement],
        *,
        then_claim: ClaimRequest | None = None,
        connection: object | None = None,
        with_entries: bool = False,
    ) -> SettleAnswer:
        if connection is not None:
            require(self.features, "caller_transactions", "settle_events(connection=…)")
        if not settlements:
            return SettleAnswer([], [] if then_claim is None else await self.claim_next_events(then_claim))
        command = c.SettleEvents(wire(settlements), then_claim)
        answer: SettleAnswer = await self._node.command(command, with_entries=with_entries)
        await self._publish_children(settlements, answer.outcomes)
        return answer

    async def expire_events(self, *, max_attempts: int | None = None, limit: int = 1000) -> int:
        if self._core.nothing_expired():
            await self._node.catch_up()
            if self._core.nothing_expired():
                return 0
        return await self._count(c.ExpireEvents(max_attempts, limit))

    async def reset_event(self, ref: EventRef, *, reason: str) -> Event:
        event: Event = await self._write(c.ResetEvent(ref, stored_text(reason)))
        return event

    async def cancel_event(self, ref: EventRef, *, reason: str) -> Event:
        (event,) = await self.cancel_events([ref], reason=reason)
        if event is None:
            raise EventNotFound(ref)
        return event

    async def cancel_events(self, refs: Sequence[EventRef], *, reason: str) -> list[Event | None]:
        return await self._list(refs and c.CancelEvents(tuple(refs), stored_text(reason)))


class ReplicatedLogProcesses(ReplicatedLogCalls):
    """Implements ``store.processes.Processes`` on a replicated log, by the time that the broker writes on records."""

    async def show_presence(self, incarnation: str) -> bool:
        await self._write(c.ShowPresence(incarnation))
        return self.features.sees_ended_processes

    async def withdraw_presence(self, incarnation: str) -> None:
        await self._write(c.WithdrawPresence(incarnation))

    async def ended_processes(self) -> EndedProcesses:
        """See ``Processes``. It asks the replica of this node, so a look that finds nothing costs the broker nothing.

        A replica that is behind does not know yet that a process has shown itself or left. So what it finds is read
        again at the end of the log.
        """
        self._node.check_open()
        found = await self._core.ended_processes()
        return await (await self._current()).ended_processes() if found.incarnations else found

    async def end_process(self, incarnation: str, *, max_attempts: int | None = None, limit: int = 1000) -> int:
        return await self._count(c.EndProcess(incarnation, max_attempts, limit))


class ReplicatedLogLocks(ReplicatedLogCalls):
    """Implements ``store.locks.Locks`` on a replicated log."""

    async def claim_lock(self, key: str, *, worker_id: str, token: str, lease: float) -> LockClaim | None:
        check_name(key, "lock key")
        claim: LockClaim | None = await self._write(c.ClaimLock(key, worker_id, token, lease))
        return claim

    async def renew_lock(self, claim: LockClaim, *, lease: float) -> LockClaim:
        renewed: LockClaim = await self._write(c.RenewLock(claim, lease))
        return renewed

    async def release_lock(self, claim: LockClaim) -> None:
        await self._write(c.ReleaseLock(claim))

    async def list_locks(self, *, after: str = "", limit: int = 100) -> list[LockClaim]:
        return await (await self._current()).list_locks(after=after, limit=limit)


class ReplicatedLogLog(ReplicatedLogCalls):
    """Implements ``store.log.Log`` and ``store.dead_letters.DeadLetters`` on a replicated log."""

    async def read_log(self, *, after: str = START, until: str | None = None, limit: int = 1000) -> LogPage:
        return await (await self._current()).read_log(after=after, until=until, limit=limit)

    async def read_log_rows(self, *, after: str = START, until: str | None = None, limit: int = 1000) -> LogRows:
        return await (await self._current()).read_log_rows(after=after, until=until, limit=limit)

    async def cut_log(self, *, after: str = START, until: str, rows: int, limit: int = 1000) -> list[str]:
        return await (await self._current()).cut_log(after=after, until=until, rows=rows, limit=limit)

    async def trim_log(self, *, until: str, older_than: float = 0.0, limit: int = 10_000, ignoring: str = "") -> int:
        return await self._count(c.TrimLog(until, older_than, limit, ignoring))

    async def log_head(self) -> str:
        return await (await self._current()).log_head()

    async def log_lag(self, after: str) -> int:
        return await (await self._current()).log_lag(after)

    async def log_hold(self) -> LogHold | None:
        return await (await self._current()).log_hold()

    async def make_log_partitions(self) -> int:
        return await (await self._current()).make_log_partitions()

    async def read_event_log(self, ref: EventRef) -> list[LogEntry]:
        return await (await self._current()).read_event_log(ref)

    async def save_position(self, name: str, position: str | None, *, lock: LockClaim) -> None:
        await self._write(c.SavePosition(name, position, lock))

    async def read_position(self, name: str) -> str:
        return await (await self._current()).read_position(name)

    async def read_archives(self) -> LogArchives:
        return await (await self._current()).read_archives()

    async def list_dead_letters(self, *, bus: str | None = None, limit: int = 100, offset: int = 0) -> DeadLetterPage:
        return await (await self._current()).list_dead_letters(bus=bus, limit=limit, offset=offset)

    async def requeue_dead_letters(self, refs: Sequence[EventRef]) -> list[Event]:
        return await self._list(refs and c.RequeueDeadLetters(tuple(refs)))

    async def purge_dead_letters(self, *, created_until_ts: float, bus: str | None = None, limit: int = 10_000) -> int:
        return await self._count(c.PurgeDeadLetters(created_until_ts, bus, limit))

    async def purge_dead_letters_by_id(self, ids: Sequence[int]) -> list[int]:
        return await self._list(ids and c.PurgeDeadLettersById(tuple(ids)))


class ReplicatedLogStore(
    ReplicatedLogRegistrations,
    ReplicatedLogEvents,
    ReplicatedLogClaims,
    ReplicatedLogProcesses,
    ReplicatedLogResults,
    ReplicatedLogLocks,
    ReplicatedLogLog,
):
    """``EventStore`` on any ``Transport``."""

    def __init__(self, transport: Transport, options: Options, features: Features, clock: Clock | None = None) -> None:
        self.features = features
        self._transport = transport if clock is None else at_manual_time(transport, clock)
        self._options = options
        self._clock = clock
        self._node = self._new_node()

    def _new_node(self) -> Node:
        options = self._options
        return Node(
            self._transport,
            c.Join(c.LOG_FORMAT, options.cluster, options.max_history),
            clock=LogClock(self._clock),
            timeout=options.timeout,
            snapshot_every=options.snapshot_every,
            public_kept=options.public_kept,
            skip=options.skipped_position,
        )

    @property
    def skipped_records(self) -> int:
        """The number of records that every node skipped: those of other programs, and those that failed."""
        return self._node.replica.skipped

    async def snapshot(self) -> bool:
        """Make a snapshot now, as nodes do by themselves, and trim the log. False if another node is making one."""
        return await self._node.snapshot()

    async def open(self) -> None:
        self._node.check_open()
        try:
            await self._node.start()
        except BaseException:
            self._node = self._new_node()  # so that the store can be opened again
            raise

    async def close(self) -> None:
        await self._node.stop()
        self._core.wake_all()

    async def verify(self) -> None:
        await self._node.verify()

    async def now(self) -> float:
        now: float = await self._write(c.Now())
        return now

    async def wait_for_work(self, bus: str, *, timeout: float) -> bool:  # noqa: ASYNC109  (the contract's name)
        self._node.check_open()
        return await self._core.wait_for_work(bus, timeout=timeout)

    async def wait_for_ends(self, node: str, *, timeout: float) -> bool:  # noqa: ASYNC109  (the contract's name)
        self._node.check_open()
        return await self._core.wait_for_ends(node, timeout=timeout)

    async def tell_ends(self, nodes: Sequence[str]) -> None:  # noqa: ARG002  (the contract's name)
        """See ``EventStore``: each node is woken when it applies the record of the end."""
        self._node.check_open()
