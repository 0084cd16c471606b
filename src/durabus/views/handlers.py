"""The handlers of a bus: the nodes that have them, their events in the last minute, and their breakers.

A breaker lives in its worker's process. This module applies the same rule to what the store knows: the attempts of all
workers in the last minute, and the results of the events that failed.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec

from durabus.model.handler import HandlerInfo
from durabus.model.limits import seconds
from durabus.model.pattern import matches
from durabus.model.policies import BreakerPolicy
from durabus.model.result import HandlerResult
from durabus.model.statuses import ResultStatus
from durabus.store.contract import EventStore
from durabus.views.activity import AttemptEnd
from durabus.views.workers import HEARD, registrations

RULE = BreakerPolicy()
WINDOW = seconds(RULE.window, "window")
LOOKED_AT = 50
"""Maximum number of failed events whose results are read to find the handlers that failed."""
UNHAPPY = frozenset({ResultStatus.TRANSIENT, ResultStatus.UNRECOVERABLE, ResultStatus.TIMED_OUT})


class HandlerView(msgspec.Struct, kw_only=True):
    """One handler of a bus, and the nodes that have it."""

    bus: str
    handler_id: str
    patterns: list[str]
    nodes: list[str]
    last_seen_ts: float
    node: str
    """The node that announced it last."""
    now: float
    succeeded: int = 0
    failed: int = 0
    unrecoverable: int = 0
    """Failures that do not count for the breaker, because the event itself is at fault."""
    last_error: str | None = None
    last_error_id: int | None = None

    @property
    def silent_for(self) -> float:
        """Seconds since a node last announced it."""
        return max(self.now - self.last_seen_ts, 0.0)

    @property
    def missing(self) -> bool:
        """Whether no live node has it: events that match it wait until its registration ends."""
        return self.silent_for > HEARD

    @property
    def samples(self) -> int:
        """Events of the last minute, if ``count_attempts`` has counted them."""
        return self.succeeded + self.failed

    @property
    def breaker(self) -> str:
        """The state of the breaker according to its rule."""
        samples, failed = self.samples - self.unrecoverable, self.failed - self.unrecoverable
        if samples >= RULE.minimum_samples and failed > RULE.failure_ratio * samples:
            return "open"
        return "failing" if self.failed else "closed"


async def registered_handlers(store: EventStore, bus: str | None) -> list[HandlerView]:
    """The handlers that nodes have registered on one bus, or on all buses."""
    now, registered = await store.now(), await registrations(store, bus)
    return [line for name, infos in registered.items() for line in _handlers_of(name, infos, now)]


def _handlers_of(bus: str, registered: Sequence[HandlerInfo], now: float) -> list[HandlerView]:
    by_id: defaultdict[str, list[HandlerInfo]] = defaultdict(list)
    for info in registered:
        by_id[info.handler_id].append(info)
    lines = []
    for handler_id, infos in sorted(by_id.items()):
        newest = max(infos, key=lambda info: info.last_seen_ts)
        lines.append(
            HandlerView(
                bus=bus,
                handler_id=handler_id,
                patterns=sorted({info.pattern for info in infos}),
                nodes=[info.node for info in infos],
                last_seen_ts=newest.last_seen_ts,
                node=newest.node,
                now=now,
            )
        )
    return lines


async def count_attempts(store: EventStore, lines: Sequence[HandlerView], attempts: Sequence[AttemptEnd]) -> None:
    """Count a failed event as a failure of the handlers that its results name, and as a success of the others.

    As in a breaker, only the newest attempt of an event counts. If there are too many failures, only the newest ones
    and the successes of the same time count.
    """
    ended: dict[int, AttemptEnd] = {one.id: one for one in attempts}
    failed = [one for one in ended.values() if one.failed]
    since = failed[-LOOKED_AT].at_ts if len(failed) > LOOKED_AT else 0.0
    failed = failed[-LOOKED_AT:]
    results = await asyncio.gather(*(store.list_results(one.id) for one in failed))
    blamed = [{r.handler_id: r for r in found if r.status in UNHAPPY} for found in results]
    by_type = Counter(one.type for one in ended.values() if not one.failed and one.at_ts >= since)
    for line in lines:
        line.succeeded = sum(n for type_, n in by_type.items() if any(matches(p, type_) for p in line.patterns))
        for one, names in zip(failed, blamed, strict=True):
            if any(matches(pattern, one.type) for pattern in line.patterns):
                _blame(line, one.id, names)


def _blame(line: HandlerView, id_: int, blamed: dict[str, HandlerResult]) -> None:
    result = blamed.get(line.handler_id)
    if result is not None:
        line.failed += 1
        line.unrecoverable += result.status is ResultStatus.UNRECOVERABLE
        line.last_error, line.last_error_id = result.error or result.status, id_
    elif blamed:
        line.succeeded += 1
