"""The list of handlers: the nodes that have them, their events in the last minute, and their breakers.

A breaker lives in its worker's process. The page applies the same rule to what the store knows: the attempts of all
workers in the last minute, and the results of the events that failed.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

import msgspec

from durabus.http.api import Api, api_of, principal_of
from durabus.http.dashboard.activity import AttemptEnd
from durabus.http.dashboard.rendering import AnyRequest, Page, bus_of, page_route, render
from durabus.http.dashboard.state import dashboard_state
from durabus.model.handler import HandlerInfo
from durabus.model.limits import seconds
from durabus.model.pattern import matches
from durabus.model.policies import BreakerPolicy
from durabus.model.result import HandlerResult
from durabus.model.statuses import ResultStatus
from durabus.views.workers import HEARD

RULE = BreakerPolicy()
WINDOW = seconds(RULE.window, "window")
LOOKED_AT = 50
"""Maximum number of failed events whose results the page reads to find the handlers that failed."""
MAX_HANDLERS = 500
UNHAPPY = frozenset({ResultStatus.TRANSIENT, ResultStatus.UNRECOVERABLE, ResultStatus.TIMED_OUT})


class HandlerTableRow(msgspec.Struct, kw_only=True):
    """One handler, on all nodes that have it."""

    handler_id: str
    patterns: list[str]
    nodes: list[HandlerInfo]
    created_ts: float
    last_seen_ts: float
    missing: bool
    """Whether no live node has this handler."""
    succeeded: int = 0
    failed: int = 0
    unrecoverable: int = 0
    """Failures that do not count for the breaker, because the event itself is at fault."""
    last_error: str | None = None
    last_error_id: int | None = None

    @property
    def samples(self) -> int:
        """Events of the last minute."""
        return self.succeeded + self.failed

    @property
    def breaker(self) -> str:
        """The state of the breaker according to its rule."""
        samples, failed = self.samples - self.unrecoverable, self.failed - self.unrecoverable
        if samples >= RULE.minimum_samples and failed > RULE.failure_ratio * samples:
            return "open"
        return "failing" if self.failed else "closed"


@page_route("/dashboard/handlers")
async def handlers(request: AnyRequest) -> Page:
    """The page. It shows the whole bus, so tokens that are limited to tags may not see it."""
    api, principal, bus = api_of(request), principal_of(request), bus_of(request)
    principal.check_whole_bus("the list of handlers")
    registered = await api.store.list_handlers(bus)
    activity = await dashboard_state(request).activity(bus)
    now = await api.store.now()
    lines = _lines(registered.handlers, now)
    await _count(api, lines, [one for one in activity.recent if one.at_ts > now - WINDOW])
    return render(
        request,
        "handlers.html",
        now=now,
        handlers=lines[:MAX_HANDLERS],
        more=len(lines) > MAX_HANDLERS,
        rule=f"more than {RULE.failure_ratio:.0%} of at least {RULE.minimum_samples} events failed within {WINDOW:g} s",
        open_for=RULE.open_for,
    )


def _lines(registered: list[HandlerInfo], now: float) -> list[HandlerTableRow]:
    by_id: defaultdict[str, list[HandlerInfo]] = defaultdict(list)
    for info in registered:
        by_id[info.handler_id].append(info)
    return [
        HandlerTableRow(
            handler_id=handler_id,
            patterns=sorted({info.pattern for info in infos}),
            nodes=infos,
            created_ts=min(info.created_ts for info in infos),
            last_seen_ts=max(info.last_seen_ts for info in infos),
            missing=max(info.last_seen_ts for info in infos) < now - HEARD,
        )
        for handler_id, infos in by_id.items()
    ]


async def _count(api: Api, lines: list[HandlerTableRow], attempts: list[AttemptEnd]) -> None:
    """Count a failed event as a failure of the handlers that its results name, and as a success of the others.

    As in a breaker, only the newest attempt of an event counts. If there are too many failures, only the newest ones
    and the successes of the same time count.
    """
    ended: dict[int, AttemptEnd] = {one.id: one for one in attempts}
    failed = [one for one in ended.values() if one.failed]
    since = failed[-LOOKED_AT].at_ts if len(failed) > LOOKED_AT else 0.0
    failed = failed[-LOOKED_AT:]
    results = await asyncio.gather(*(api.store.list_results(one.id) for one in failed))
    blamed = [{r.handler_id: r for r in found if r.status in UNHAPPY} for found in results]
    by_type = Counter(one.type for one in ended.values() if not one.failed and one.at_ts >= since)
    for line in lines:
        line.succeeded = sum(n for type_, n in by_type.items() if any(matches(p, type_) for p in line.patterns))
        for one, names in zip(failed, blamed, strict=True):
            if any(matches(pattern, one.type) for pattern in line.patterns):
                _blame(line, one.id, names)


def _blame(line: HandlerTableRow, id_: int, blamed: dict[str, HandlerResult]) -> None:
    result = blamed.get(line.handler_id)
    if result is not None:
        line.failed += 1
        line.unrecoverable += result.status is ResultStatus.UNRECOVERABLE
        line.last_error, line.last_error_id = result.error or result.status, id_
    elif blamed:
        line.succeeded += 1


ROUTES = [handlers]
