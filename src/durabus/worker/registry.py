"""The registry announces this node's handlers to the store, and learns those of the other nodes."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from durabus.clock import monotonic
from durabus.errors import ConfigurationError, DurabusError
from durabus.model.claim import default_worker_id, new_token
from durabus.model.handler import HandlerInfo
from durabus.model.limits import Duration, seconds
from durabus.model.pattern import matches
from durabus.store.contract import EventStore
from durabus.store.outage import Outage
from durabus.worker.handler import Handler

logger = logging.getLogger("durabus.worker")

HANDLERS_KEPT_FOR = 300.0
"""Seconds that events wait for the handlers of a node that announces itself no more."""
REFRESH = 10.0
"""Seconds between two announcements of a node."""
ALIVE_WITHIN = 3 * REFRESH
"""A node whose last announcement is older than this many seconds does not count any more."""
LIVE = 1.5 * REFRESH
"""A node whose last announcement is at most this many seconds old is alive."""
LOOK = 1.0
"""Seconds between two reads of the other nodes' handlers, while events wait for one that no live node has."""
MAX_TYPES = 10_000
"""Maximum number of types to remember: types made up at run time must not fill the memory."""
ANNOUNCING = "to note handlers"
RESTART = 30.0
"""Seconds that events wait for the handlers of a node that was shut down: it may restart with or without them."""


class Sighting(NamedTuple):
    """The newest announcement of a handler."""

    node: str
    ago: float


class Registry:
    """Announces this node's handlers when they change and every ten seconds, and knows those of the other nodes.

    A claim names the revision of the bus's list of handlers at that moment. What the registry returns for a claim is
    never older than that revision.
    """

    def __init__(self, store: EventStore, bus: str, *, kept_for: float | None) -> None:
        self._store = store
        self._bus = bus
        self._kept_for = kept_for
        self.name_node()
        self._handlers: Callable[[], Iterable[Handler]] = tuple
        self._listed: list[HandlerInfo] | None = None
        self._changes = 0
        self._told = 0
        self._told_at = 0.0
        self._spoke = False
        """Whether this node has announced anything, so that the store may know it."""
        self.outage = Outage(logger, f"the store of bus {bus!r} fails")
        """The outage that this node's worker shares: one store fails, and one log line reports it."""
        self._changed = asyncio.Event()
        self._talking = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._theirs: list[HandlerInfo] = []
        self._seen: dict[str, HandlerInfo] = {}
        """The newest announcement of each handler of other nodes, by its id."""
        self._store_clock = 0.0
        """The difference between the store's clock and this process's own."""
        self._looked_at = 0.0
        self._others = 0
        self._revision: str | None = None
        self._known: set[str] = set()
        """Revisions that the list is not older than. A claim of a shard carries another one than the whole list."""
        self._by_type: dict[str, tuple[str, ...]] = {}
        self._lacked: tuple[str, ...] | None = None

    def name_node(self) -> None:
        """Name this node after its process. Call it before the first announcement."""
        # A label for people, made unique: a pid can come back, and one process may hold several buses of one name.
        self._node = f"{default_worker_id()}:{new_token()[:8]}"

    def announce(self, handlers: Callable[[], Iterable[Handler]]) -> None:
        """Announce these handlers of this node to the store soon.

        The registry lists them when it needs them: a program that subscribes 100,000 handlers makes one list.
        """
        self._handlers, self._listed = handlers, None
        self._by_type.clear()
        self._lacked = None
        self._changes += 1
        self._changed.set()

    @property
    def _mine(self) -> list[HandlerInfo]:
        if self._listed is None:
            self._listed = [HandlerInfo(handler_id=h.id, pattern=h.pattern) for h in self._handlers()]
        return self._listed

    def start(self) -> None:
        """Begin to announce."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep_announcing())

    async def announced(self) -> None:
        """Wait until the store knows the handlers: every event published later completes only after they had it."""
        if self._told < self._changes:
            async with self._talking:
                if self._told < self._changes:
                    await self._tell()

    async def refreshed(self) -> None:
        """Announce what changed, and everything every ten seconds, for a node that has not called ``start``."""
        if self._mine and self._told_at + REFRESH <= monotonic():
            self._told = 0
        await self.announced()

    async def close(self, *, tell: bool = True) -> bool:
        """Announce for the last time, then stop. Returns whether this node served the bus, or was about to.

        ``tell=False``: the store is away, so this announces nothing and does not wait for a call to end.
        """
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=None if tell else 0.0)
        elif not self._spoke:
            return False
        self._task = None
        try:
            if tell and (self._mine or self._told < self._changes):
                await self._tell(RESTART)
        except DurabusError as error:
            logger.warning("the shutdown of a node of bus %r was not announced: %s", self._bus, error)
        self._told = 0  # after another start it announces everything again
        return self._changes > 0

    def remote_handlers(self, event_type: str, revision: str) -> tuple[str, ...] | None:
        """The ids of the handlers that only other nodes have for this type; None: call ``learn`` first."""
        if revision not in self._known:
            return None
        if not self._theirs:
            return ()
        found = self._by_type.get(event_type)
        if found is None:
            theirs, mine = _matching(self._theirs, event_type), _matching(self._mine, event_type)
            found = tuple(sorted(theirs - mine))
            if len(self._by_type) >= MAX_TYPES:
                self._by_type.clear()
            self._by_type[event_type] = found
        return found

    def has_remote_handlers(self, event_type: str) -> bool:
        """Whether other nodes have handlers for this type that this one does not have, as far as this node knows."""
        return bool(_matching(self._theirs, event_type) - _matching(self._mine, event_type))

    def any_remote(self) -> bool:
        """Whether other nodes have handlers that this one does not have, as far as this node knows."""
        mine = {handler.handler_id for handler in self._mine} if self._theirs else set()
        return any(handler.handler_id not in mine for handler in self._theirs)

    def lacked_elsewhere(self) -> tuple[str, ...]:
        """The ids of this node's handlers that another node does not have, as far as this node knows."""
        if not self._theirs:
            return ()
        if self._lacked is None:
            nodes: dict[str, set[tuple[str, str]]] = {}
            for info in self._theirs:
                nodes.setdefault(info.node, set()).add((info.handler_id, info.pattern))
            everywhere = set.intersection(*nodes.values())
            self._lacked = tuple(i.handler_id for i in self._mine if (i.handler_id, i.pattern) not in everywhere)
        return self._lacked

    def nodes(self) -> int:
        """How many nodes serve the bus, this one included, as far as this node knows."""
        return self._others + 1

    def last_seen(self, handler_id: str) -> Sighting | None:
        """When and by which other node a handler was last announced; None if this node does not know it."""
        info = self._seen.get(handler_id)
        if info is None:
            return None
        return Sighting(info.node, max(monotonic() + self._store_clock - info.last_seen_ts, 0.0))

    async def look(self) -> None:
        """Read the handlers of other nodes again, after a pause. Callers that wait together share one call."""
        await asyncio.sleep(LOOK)
        async with self._talking:
            if self._looked_at + LOOK / 2 <= monotonic():
                try:
                    await self._look()
                except DurabusError as error:
                    logger.debug("handlers of other nodes not learned: %s", error)

    async def learn(self, revision: str) -> None:
        """Read the handlers of other nodes as of ``revision`` or later."""
        async with self._talking:
            if revision not in self._known:
                await self._look()
                self._known.add(revision)

    async def _look(self) -> None:
        registered = await self._store.list_handlers(self._bus)
        self._looked_at = monotonic()
        self._theirs = [info for info in registered.handlers if info.node != self._node]
        self._seen = {info.handler_id: info for info in sorted(self._theirs, key=lambda info: info.last_seen_ts)}
        newest = max((info.last_seen_ts for info in self._theirs), default=0.0)
        mine = [info.last_seen_ts - self._told_at for info in registered.handlers if info.node == self._node]
        self._store_clock = max(mine, default=newest - self._looked_at)
        self._others = len({info.node for info in self._theirs if info.last_seen_ts > newest - ALIVE_WITHIN})
        if registered.revision != self._revision:
            self._revision, self._known = registered.revision, {registered.revision}
        self._by_type.clear()
        self._lacked = None

    async def _keep_announcing(self) -> None:
        while True:
            self._changed.clear()
            pause = REFRESH
            try:
                async with self._talking:
                    if self._mine or self._told < self._changes:
                        await self._tell()
                    if self._mine:  # without handlers this node claims nothing, and needs no list
                        await self._look()
                self.outage.answered(ANNOUNCING)
            except Exception as error:  # noqa: BLE001  (whatever it was, the next announcement is due)
                pause = self.outage.failed(error, ANNOUNCING, unforeseen=not isinstance(error, DurabusError))
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _tell(self, at_most: float = math.inf) -> None:
        changes, self._spoke, self._told_at = self._changes, True, monotonic()
        kept_for = None if self._kept_for is None else min(self._kept_for, at_most)
        await self._store.register_handlers(self._bus, self._node, self._mine, kept_for=kept_for)
        self._told = changes


def check_kept_for(value: Duration | None) -> float | None:
    """Return seconds; raise if a live node may announce itself later than that: events would miss its handlers."""
    kept_for = None if value is None else seconds(value, "handlers_kept_for")
    if kept_for is not None and kept_for < ALIVE_WITHIN:
        raise ConfigurationError(
            f"handlers_kept_for={kept_for:g}: must be at least {ALIVE_WITHIN:g} s. A node announces its handlers every "
            f"{REFRESH:g} s; with less, events complete without the handlers of a process that is alive"
        )
    return kept_for


def _matching(handlers: list[HandlerInfo], event_type: str) -> set[str]:
    return {handler.handler_id for handler in handlers if matches(handler.pattern, event_type)}
