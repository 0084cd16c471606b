"""What every route uses: the store, the settings, and whether the server is about to stop."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import msgspec

from durabus.errors import ConfigurationError, EventNotFound
from durabus.http.asgi import LISTEN, AnyRequest
from durabus.http.auth.access import Principal
from durabus.http.auth.peers import WrongTokens
from durabus.http.auth.tokens import TokenFile
from durabus.http.metrics import HttpMetrics
from durabus.http.problems import Problem
from durabus.http.settings import Settings
from durabus.maintenance.services import Maintenance
from durabus.model.claim import Claim, ClaimRef
from durabus.model.event import Event
from durabus.model.limits import check_name
from durabus.store.connect import make_store
from durabus.store.contract import EventStore
from durabus.store.events import EventRef

LOOKED_UP_AT_ONCE = 200
"""Maximum number of events to read in one call: they come with their payloads."""
GRANTED_KEPT = 100_000
"""Maximum number of granted claims that a server remembers. One takes about 400 bytes."""

logger = logging.getLogger("durabus.server")


class GrantedClaim(msgspec.Struct, frozen=True, gc=False):
    """A claim that this server granted, and what a report of it needs. Nothing of it can change under the claim."""

    ref: ClaimRef
    worker_id: str | None
    attempts: int
    max_attempts: int | None
    principal: Principal
    """The sender of the claim. It may see the event, because it was given the event."""
    metadata_json: str | None


class GrantedClaims:
    """The newest claims that this server granted and no report has ended: such a report needs no look at the store.

    It only saves reads. A claim that is missing here is read from the store. The store checks every claim again.
    """

    def __init__(self) -> None:
        self._claims: OrderedDict[int, GrantedClaim] = OrderedDict()

    def add(self, claims: Iterable[Claim], principal: Principal) -> None:
        """Remember claims, and forget the oldest ones if there are too many."""
        for claim in claims:
            event = claim.event
            self._claims.pop(event.id, None)
            self._claims[event.id] = GrantedClaim(
                claim.ref, event.worker_id, event.attempts, event.max_attempts, principal, event.metadata_json
            )
        while len(self._claims) > GRANTED_KEPT:
            self._claims.popitem(last=False)

    def take(self, id_: int, principal: Principal, worker_id: str, proof: ClaimRef | None) -> GrantedClaim | None:
        """Remove and return the claim on an event, if the sender may see the event and the claim is meant.

        The proof says which claim is meant; without one, the name of the worker does.
        """
        found = self._claims.get(id_)
        if found is None or not principal.sees_as_much_as(found.principal):
            return None
        meant = found.worker_id == worker_id if proof is None else found.ref == proof
        return self._claims.pop(id_) if meant else None

    def forget(self, ids: Iterable[int]) -> list[GrantedClaim]:
        """Forget claims that were settled in another way, and return them."""
        return [claim for id_ in ids if (claim := self._claims.pop(id_, None)) is not None]


class Api:
    """The state of one app. It opens a store given as a URL, and closes only a store that it opened."""

    def __init__(self, store: EventStore | str, settings: Settings, tokens: TokenFile | None = None) -> None:
        self.settings = settings
        self.tokens = tokens
        self.metrics = HttpMetrics()
        self.granted = GrantedClaims()
        self.stopping = asyncio.Event()
        """Set when the server is asked to stop: long polls and tails then end."""
        self._url = store if isinstance(store, str) else None
        self._store = make_store(store) if isinstance(store, str) else store
        self._wrong_tokens = WrongTokens()
        self._begun = False
        self._beginning = asyncio.Lock()
        self._maintenance = Maintenance(self._store, expire_every=settings.scan_every)

    @property
    def store(self) -> EventStore:
        """The open store."""
        return self._store

    async def begin(self) -> None:
        """Open the store and start its maintenance. Without a lifespan the first request does this."""
        if self._begun:
            return
        async with self._beginning:
            if not self._begun:
                if self._url is not None:
                    await self._store.open()
                self._maintenance.start()
                self._begun = True

    def stop(self) -> None:
        """End all waiting, so that open requests finish soon."""
        self.stopping.set()

    async def end(self) -> None:
        """Stop the maintenance and close the store. Repeatable."""
        self.stop()
        try:
            await self._maintenance.stop()
        finally:
            if self._url is not None:
                await self._store.close()

    def holder(self, text: str, host: str) -> Principal | None:
        """The principal of the token ``text``; None if the token is not valid.

        Raises ``Problem`` 429 if ``host`` has sent too many wrong tokens.
        """
        try:
            holder = None if self.tokens is None else self.tokens.holder(text)
        except ConfigurationError as error:
            logger.error("every request is refused: %s", error)  # noqa: TRY400  (the text says everything)
            raise Problem(503, "tokens cannot be checked now") from error
        if holder is None and self._wrong_tokens.too_many(host):
            raise Problem(
                429,
                "this token is unknown, expired or revoked, and so were too many others from this address: try again "
                "with a valid one",
                {"Retry-After": "60", "Connection": "close"},
            )
        return holder

    def bus(self, named: str | None, principal: Principal) -> str:
        """The bus of a request. Raises ``Problem`` 403 if the sender may not use it."""
        return principal.check_bus(check_name(named, "bus") if named else self.settings.bus)

    async def event(self, ref: EventRef, principal: Principal) -> Event:
        """The stored event. Raises ``EventNotFound`` also if the sender may not see it."""
        event = await self.store.get_event(ref)
        if event is None or not principal.sees(event):
            raise EventNotFound(ref)
        return event

    async def check_events(self, ids: Sequence[int], principal: Principal) -> None:
        """Refuse all ids if the sender may not see one of them. To know a claim's token is not a permission."""
        if principal.limited:
            for id_, theirs in (await self.seen_by(principal, ids)).items():
                if not theirs:
                    raise EventNotFound(id_)

    async def seen_by(self, principal: Principal, ids: Iterable[int]) -> dict[int, bool]:
        """For each id, whether the principal may see the stored event."""
        asked, seen = list(dict.fromkeys(ids)), dict[int, bool]()
        for first in range(0, len(asked), LOOKED_UP_AT_ONCE):
            some = asked[first : first + LOOKED_UP_AT_ONCE]
            for id_, event in zip(some, await self.store.get_events(some), strict=True):
                seen[id_] = event is not None and principal.sees(event)
        return seen


def api_of(request: AnyRequest) -> Api:
    """The ``Api`` behind a request."""
    found: Api = request.scope["api"]  # type: ignore[typeddict-item]
    return found


def still_allowed(request: AnyRequest) -> Callable[[], bool]:
    """A function that returns whether the sender may still send this request. Long requests call it repeatedly."""
    principal, scope = principal_of(request), request.scope
    check_again: Callable[..., Principal] = scope["check_again"]  # type: ignore[typeddict-item]

    def is_allowed() -> bool:
        try:
            return check_again(scope, dict(scope["headers"])) == principal
        except Problem:
            return False

    return is_allowed


def listens(request: AnyRequest, *, begin: bool = True) -> None:
    """Tell the server that this request only waits for events: a full server may close its connection."""
    tell: Callable[..., None] | None = request.scope.get(LISTEN)  # type: ignore[assignment]
    if tell is not None:
        tell(begin=begin)


def principal_of(request: AnyRequest) -> Principal:
    """The sender of a request, as the middleware identified it."""
    found: Principal = request.scope["user"]
    return found
