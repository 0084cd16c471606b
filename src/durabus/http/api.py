"""What every route works with: the store, the settings, and whether the server is about to stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from litestar import Request

from durabus.errors import ConfigurationError, EventNotFound, StoreClosedError, StoreError
from durabus.http.asgi import LISTEN
from durabus.http.auth.access import Principal
from durabus.http.auth.peers import WrongTokens
from durabus.http.auth.tokens import TokenFile
from durabus.http.metrics import HttpMetrics
from durabus.http.problems import Problem
from durabus.http.settings import Settings
from durabus.model.event import Event
from durabus.model.limits import check_name
from durabus.store.connect import make_store
from durabus.store.contract import EventStore

SCAN_LIMIT = 1000
LOOKED_UP_AT_ONCE = 200
"""Events in one call: they come with their payloads."""

logger = logging.getLogger("durabus.server")


class Api:
    """One for each app. It opens a store that it was given as URL, and closes only what it opened."""

    def __init__(self, store: EventStore | str, settings: Settings, tokens: TokenFile | None = None) -> None:
        self.settings = settings
        self.tokens = tokens
        self.metrics = HttpMetrics()
        self.stopping = asyncio.Event()
        """Set when the server is asked to stop: whoever waits for work or for news goes home."""
        self._url = store if isinstance(store, str) else None
        self._store = make_store(store) if isinstance(store, str) else store
        self._wrong_tokens = WrongTokens()
        self._begun = False
        self._beginning = asyncio.Lock()
        self._scan: asyncio.Task[None] | None = None

    @property
    def store(self) -> EventStore:
        """The open store."""
        return self._store

    async def begin(self) -> None:
        """Open the store and look for orphans from now on. The first request does it where no lifespan did."""
        if self._begun:
            return
        async with self._beginning:
            if not self._begun:
                if self._url is not None:
                    await self._store.open()
                self._scan = asyncio.create_task(self._look_for_orphans())
                self._begun = True

    def stop(self) -> None:
        """No more waiting: open requests are to end soon."""
        self.stopping.set()

    async def end(self) -> None:
        """Let go of everything. Repeatable."""
        self.stop()
        scan, self._scan = self._scan, None
        try:
            if scan is not None:
                scan.cancel()
                await asyncio.wait({scan})
        finally:
            if self._url is not None:
                await self._store.close()

    def holder(self, text: str, host: str) -> Principal | None:
        """Who holds the token ``text``; None if nobody does. A ``host`` that sends too many wrong ones is told so."""
        try:
            holder = None if self.tokens is None else self.tokens.holder(text)
        except ConfigurationError as error:
            logger.error("nobody gets in: %s", error)  # noqa: TRY400  (its text says all)
            raise Problem(503, "tokens cannot be checked now") from error
        if holder is None and self._wrong_tokens.too_many(host):
            raise Problem(
                429,
                "this token is unknown, over or revoked, and so were too many others from this address: try again "
                "with a valid one",
                {"Retry-After": "60", "Connection": "close"},
            )
        return holder

    def bus(self, named: str | None, principal: Principal) -> str:
        """The bus of a request, if it is the sender's to use."""
        return principal.check_bus(check_name(named, "bus") if named else self.settings.bus)

    async def event(self, id_: int, principal: Principal) -> Event:
        """The stored event; one that the sender must not see is as absent as one that is not there."""
        event = await self.store.get_event(id_)
        if event is None or not principal.sees(event):
            raise EventNotFound(id_)
        return event

    async def check_events(self, ids: Sequence[int], principal: Principal) -> None:
        """Refuse all if one is not theirs. A claim's token is a secret, but it is not a permission."""
        if principal.limited:
            for id_, theirs in (await self.seen_by(principal, ids)).items():
                if not theirs:
                    raise EventNotFound(id_)

    async def seen_by(self, principal: Principal, ids: Iterable[int]) -> dict[int, bool]:
        """Which of these stored events are theirs to see."""
        asked, seen = list(dict.fromkeys(ids)), dict[int, bool]()
        for first in range(0, len(asked), LOOKED_UP_AT_ONCE):
            some = asked[first : first + LOOKED_UP_AT_ONCE]
            for id_, event in zip(some, await self.store.get_events(some), strict=True):
                seen[id_] = event is not None and principal.sees(event)
        return seen

    async def _look_for_orphans(self) -> None:
        """Events whose lease is over go back to the queue also when nobody claims.

        Events without a limit of their own are given none here: they may belong to workers of another kind.
        """
        while True:
            await asyncio.sleep(self.settings.scan_every)
            try:
                taken = await self.store.expire_events(limit=SCAN_LIMIT)
            except StoreClosedError:
                return
            except StoreError as error:
                logger.warning("looking for orphans failed, it is tried again: %s", error)
            except Exception:
                # Nobody else would notice that nobody looks any more.
                logger.exception("looking for orphans failed, it is tried again")
            else:
                if taken:
                    logger.info("orphans taken from their workers: %d", taken)


def api_of(request: Request[Any, Any, Any]) -> Api:
    """The ``Api`` behind a request."""
    found: Api = request.scope["api"]  # type: ignore[typeddict-item]
    return found


def still_allowed(request: Request[Any, Any, Any]) -> Callable[[], bool]:
    """Whether who sent a request may still send it: what goes on for long asks again and again."""
    principal, scope = principal_of(request), request.scope
    ask_again: Callable[..., Principal] = scope["ask_again"]  # type: ignore[typeddict-item]

    def ask() -> bool:
        try:
            return ask_again(scope, dict(scope["headers"])) == principal
        except Problem:
            return False

    return ask


def listens(request: Request[Any, Any, Any], *, begin: bool = True) -> None:
    """Tell the server that this request only waits for events: it may close its connection when it is full."""
    tell: Callable[..., None] | None = request.scope.get(LISTEN)  # type: ignore[assignment]
    if tell is not None:
        tell(begin=begin)


def principal_of(request: Request[Any, Any, Any]) -> Principal:
    """Who sent a request: the gate has found out."""
    found: Principal = request.scope["user"]
    return found
