"""The time of the log, which the broker writes on every record, and a transport with a manual time for tests.

The time of the log never goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from durabus.clock import Clock, monotonic
from durabus.stores.replicated_log.transport import BrokerRecord, Position, PublicRecord, Transport

STRETCH = 5.0
"""Seconds. A bound counts in the period in which it was measured and in the next one."""


class LogClock:
    """While a record is applied, the clock shows its time. Between records it shows an estimate of the broker's time.

    A record arrives after the broker has appended it, so each record bounds the difference between the broker's clock
    and that of this process. The smallest delay of the last seconds gives the best bound: the estimate is late by that
    delay. It is early at most by how far the clocks have drifted apart since then, so old bounds must be dropped.
    Replicas decide by the times of records alone. Only calls that change nothing use the estimate.
    """

    def __init__(self, manual: Clock | None = None) -> None:
        self._manual = manual
        self._log_ts = 0.0
        self._ahead = self._ahead_before = float("-inf")
        """The bounds of this period and of the one before."""
        self._stretch_began = 0.0
        self._applying = False

    @property
    def log_ts(self) -> float:
        """The latest time of a record that was applied."""
        return self._log_ts

    def now(self) -> float:
        """Return the present time, as the class describes."""
        if self._applying:
            return self._log_ts
        if self._manual is not None:
            return max(self._manual.now(), self._log_ts)
        return max(monotonic() + max(self._ahead, self._ahead_before), self._log_ts)

    def arrived(self, at_ts: float) -> None:
        """Note that a record of this time has arrived."""
        now = monotonic()
        if now - self._stretch_began > STRETCH:
            self._ahead_before, self._ahead, self._stretch_began = self._ahead, float("-inf"), now
        self._ahead = max(self._ahead, at_ts - now)

    def apply_at(self, at_ts: float) -> None:
        """Show the time of this record until ``done``."""
        self._log_ts = max(self._log_ts, at_ts)
        self._applying = True

    def done(self) -> None:
        """End the application of records."""
        self._applying = False

    def restore(self, log_ts: float) -> None:
        """Continue at the time of a snapshot."""
        self._log_ts = log_ts


HEADER = "durabus-manual-time"


class _ManualTime:
    """Writes the time of a manual clock on every record of a transport, and reads it from there."""

    def __init__(self, transport: Transport, clock: Clock) -> None:
        self._transport = transport
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    async def publish(self, records: Sequence[PublicRecord]) -> None:
        header = self._manual_time()
        await self._transport.publish([one._replace(headers={**one.headers, **header}) for one in records])

    async def append(self, record: bytes, key: str, headers: Mapping[str, str]) -> None:
        await self._transport.append(record, key, {**headers, **self._manual_time()})

    async def follow(self, after: Position, deliver: Callable[[Sequence[BrokerRecord]], None]) -> None:
        await self._transport.follow(after, partial(_deliver_at_manual_time, deliver))

    def _manual_time(self) -> dict[str, str]:
        return {HEADER: repr(self._clock.now())}


def at_manual_time(transport: Transport, clock: Clock) -> Transport:
    """Return the transport with the time of ``clock``."""
    return cast("Transport", _ManualTime(transport, clock))


def _deliver_at_manual_time(deliver: Callable[[Sequence[BrokerRecord]], None], entries: Sequence[BrokerRecord]) -> None:
    # A record without the header gets the time of the record before it: the time of the log never goes back.
    deliver([entry._replace(at_ts=msgspec.json.decode(entry.headers.get(HEADER, "0.0"))) for entry in entries])
