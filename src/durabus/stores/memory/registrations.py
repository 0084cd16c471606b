"""``durabus.store.registrations.Registrations`` and ``durabus.store.processes.Processes``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from durabus.lifecycle.handlers import end_handler_claims, end_lock
from durabus.lifecycle.state import Applied, Expire
from durabus.lifecycle.transition import transition
from durabus.model.claim import incarnation_of
from durabus.model.handler import BusInfo, HandlerInfo, Registered
from durabus.store.processes import PRESENT_FOR, EndedProcesses
from durabus.stores.memory.core import MemoryCore, Registration, holders_of


class MemoryRegistrations(MemoryCore):
    """Implements ``store.registrations.Registrations`` in memory."""

    async def register_handlers(
        self, bus: str, node: str, handlers: Sequence[HandlerInfo], *, kept_for: float | None
    ) -> None:
        with self._lock:
            self._check_open()
            now = self._clock.now()
            known = self._buses.get(bus)
            self._buses[bus] = BusInfo(
                bus=bus, created_ts=known.created_ts if known else now, last_seen_ts=now, stopped_ts=None
            )
            before = self._handlers.get(bus, {})
            after = {key: one for key, one in before.items() if key[1] != node and one.lives(now)}
            for handler in handlers:
                old = before.get((handler.handler_id, node))
                created = old.info.created_ts if old is not None and old.lives(now) else now
                after[handler.handler_id, node] = Registration(
                    replace(handler, node=node, created_ts=created, last_seen_ts=now),
                    None if kept_for is None else now + kept_for,
                )
            self._put_handlers(bus, after)

    async def unregister_handler(self, bus: str, handler_id: str) -> bool:
        with self._lock:
            self._check_open()
            now = self._clock.now()
            live = {key: one for key, one in self._handlers.get(bus, {}).items() if one.lives(now)}
            left = {key: one for key, one in live.items() if key[0] != handler_id}
            if bus in self._buses:
                self._put_handlers(bus, left)
            return len(left) < len(live)

    async def list_handlers(self, bus: str) -> Registered:
        with self._lock:
            self._check_open()
            now = self._clock.now()
            live = sorted((key, one.info) for key, one in self._handlers.get(bus, {}).items() if one.lives(now))
            return Registered(self._revisions.get(bus, ""), [info for _, info in live])

    async def list_buses(self, *, after: str = "", limit: int = 100) -> list[BusInfo]:
        with self._lock:
            self._check_open()
            return [self._buses[bus] for bus in sorted(bus for bus in self._buses if bus > after)[:limit]]

    async def active_buses(self, *, after: str = "", limit: int = 100) -> list[str]:
        with self._lock:
            self._check_open()
            return sorted(bus for bus, queue in self._bus_queues.items() if queue.live and bus > after)[:limit]

    async def stop_bus(self, bus: str) -> None:
        with self._lock:
            self._check_open()
            if bus in self._buses:
                self._buses[bus] = replace(self._buses[bus], stopped_ts=self._clock.now())

    async def archive_buses(self, *, stopped_for: float, limit: int = 1000) -> int:
        with self._lock:
            self._check_open()
            cutoff = self._clock.now() - stopped_for
            gone = [
                info.bus
                for info in self._buses.values()
                if info.stopped_ts is not None and info.stopped_ts <= cutoff and not self._bus_queue(info.bus).live
            ][:limit]
            for bus in gone:
                del self._buses[bus]
                self._handlers.pop(bus, None)
                self._revisions.pop(bus, None)
                if not self._bus_queues[bus].history:
                    del self._bus_queues[bus]
            return len(gone)

    def _put_handlers(self, bus: str, after: dict[tuple[str, str], Registration]) -> None:
        before = self._handlers.get(bus, {})
        self._handlers[bus] = after
        if bus not in self._revisions or _patterns(before) != _patterns(after):
            self._last_revision += 1
            self._revisions[bus] = str(self._last_revision)


class MemoryProcesses(MemoryCore):
    """Implements ``store.processes.Processes`` in memory, where the presence of a process is renewed."""

    async def show_presence(self, incarnation: str) -> bool:
        with self._lock:
            self._check_open()
            self._saw_process(incarnation, self._clock.now())
            return self.features.sees_ended_processes

    async def withdraw_presence(self, incarnation: str) -> None:
        with self._lock:
            self._check_open()
            self._processes.pop(incarnation, None)

    async def ended_processes(self) -> EndedProcesses:
        with self._lock:
            self._check_open()
            now = self._clock.now()
            silent = [name for name, seen_ts in self._processes.items() if seen_ts + PRESENT_FOR <= now]
            holders = holders_of(self._locks, self._held, self._offers, now) if silent else set()
            left = [seen_ts + PRESENT_FOR - now for seen_ts in self._processes.values() if seen_ts + PRESENT_FOR > now]
            return EndedProcesses([name for name in silent if name in holders], min(left, default=PRESENT_FOR))

    async def end_process(self, incarnation: str, *, max_attempts: int | None = None, limit: int = 1000) -> int:
        with self._lock:
            self._check_open()
            now = self._clock.now()
            if self._processes.get(incarnation, -math.inf) + PRESENT_FOR > now:
                return 0
            held = [id_ for token, ids in self._held.items() if incarnation_of(token) == incarnation for id_ in ids]
            for id_ in sorted(held)[:limit]:
                state = self._states[id_]
                applied = transition(state, Expire(max_attempts, incarnation), now)
                if isinstance(applied, Applied):
                    self._apply(state, applied, now)
            for state in self._offers.all():
                self._states[state.event.id] = end_handler_claims(state, incarnation, now)
            for key, lock in self._locks.items():
                self._locks[key] = end_lock(lock, incarnation, now)
            if len(held) <= limit:
                self._processes.pop(incarnation, None)
            return min(len(held), limit)


def _patterns(handlers: dict[tuple[str, str], Registration]) -> dict[tuple[str, str], str]:
    return {key: one.info.pattern for key, one in handlers.items()}
