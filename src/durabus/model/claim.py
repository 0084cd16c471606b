"""Claims: the right to work on an event, to run one of its handlers, or to hold a lock."""

from __future__ import annotations

import os
import secrets
import socket
from itertools import takewhile

import msgspec

from durabus.model.event import Event
from durabus.model.result import HandlerResult
from durabus.model.statuses import EventMode, HandlerMode

DEFAULT_LEASE = 30.0


LEASE_EXPIRED = "lease expired"
PROCESS_ENDED = "process ended"
LOST = (LEASE_EXPIRED, PROCESS_ENDED)
"""How the error of an abandoned claim begins. The worker follows in parentheses."""
MARK = "~"
INCARNATION_LENGTH = 12
_TOKEN_LENGTH = 32
_DOUBLINGS = 20


def new_incarnation() -> str:
    """Return the random name of a process for the stores that see its death. A restart never has the same name."""
    return MARK + secrets.token_hex(INCARNATION_LENGTH // 2)[1:]


def new_token(incarnation: str = "") -> str:
    """Return at least 80 random bits. Every request gets its own token; no token is used for a second request.

    A token that begins with the ``incarnation`` of a process ends with that process: see ``store.processes``.
    """
    return incarnation + secrets.token_hex(_TOKEN_LENGTH // 2)[len(incarnation) :]


def incarnation_of(token: str) -> str:
    """Return the incarnation of the process that a token belongs to; an empty text if it belongs to none."""
    name = token[:INCARNATION_LENGTH]
    is_name = len(name) == INCARNATION_LENGTH and name[0] == MARK and not name[1:].strip("0123456789abcdef")
    return name if is_name else ""


def takeover_delay(errors: tuple[str, ...]) -> float:
    """Return the seconds that an event with these errors waits after the end of its process, if its lease lasts longer.

    One end may be chance. If the processes before ended too, the event itself may be what kills them.
    """
    ends = sum(1 for _ in takewhile(lambda error: error.startswith(PROCESS_ENDED), reversed(errors)))
    return 2.0 ** min(ends - 1, _DOUBLINGS) if ends else 0.0


def default_worker_id() -> str:
    """Return ``host:pid``, a label for people. Only the token identifies a claim, because a pid can be used again."""
    return f"{socket.gethostname()}:{os.getpid()}"


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for up to ``limit`` events of ``bus``. ``token`` identifies it: a repeat claims nothing new."""

    bus: str
    worker_id: str
    token: str
    limit: int = 1
    lease: float = DEFAULT_LEASE
    mode: EventMode = EventMode.PARALLEL
    tags: tuple[str, ...] = ()
    """Only events that carry at least one of these; empty means all."""
    max_attempts: int | None = None
    """The limit for events that have no ``max_attempts`` of their own; None means no limit."""
    event_id: str | None = None
    """If given, only the event with this ``event_id`` is claimed."""


class ClaimRef(msgspec.Struct, frozen=True, gc=False):
    """What a write must carry: the event's ``id``, the token, and the fence that the event got with the claim."""

    id: int
    token: str
    fence: int


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A granted claim. ``results`` are those of the handlers that ran in earlier attempts."""

    event: Event
    token: str
    results: tuple[HandlerResult, ...] = ()
    revision: str = ""
    """The revision of the bus's handlers when the claim was granted: see ``list_handlers``."""

    @property
    def ref(self) -> ClaimRef:
        """The part of the claim that renewals and settlements carry."""
        return ClaimRef(self.event.id, self.token, self.event.fence)


class HandlerClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for the first of ``handler_ids`` that is neither settled nor under an unexpired claim."""

    event: ClaimRef
    handler_ids: tuple[str, ...]
    worker_id: str
    token: str
    lease: float = DEFAULT_LEASE
    mode: HandlerMode = HandlerMode.SERIAL


class HandlerClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A granted claim on one handler of an event."""

    id: int
    handler_id: str
    token: str
    fence: int
    attempts: int
    expires_ts: float


class OfferRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for up to ``limit`` handlers that the workers of ``bus`` have offered, among ``handler_ids``.

    ``token`` identifies it: a repeat claims nothing new.
    """

    bus: str
    handler_ids: tuple[str, ...]
    worker_id: str
    token: str
    limit: int = 1
    lease: float = DEFAULT_LEASE
    mode: HandlerMode = HandlerMode.SERIAL

    def for_handler(self, event: ClaimRef, handler_id: str) -> HandlerClaimRequest:
        """Return the request for one of the handlers, on an event that is claimed under ``event``."""
        return HandlerClaimRequest(
            event=event,
            handler_ids=(handler_id,),
            worker_id=self.worker_id,
            token=self.token,
            lease=self.lease,
            mode=self.mode,
        )


class OfferedHandler(msgspec.Struct, frozen=True):
    """A granted claim on an offered handler. Another worker holds the claim on the event."""

    event: Event
    claim: HandlerClaim
    results: tuple[HandlerResult, ...] = ()
    """The results of the event at this moment, the steps of the handler among them."""


class LockClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A held lock. ``fence`` is larger than any fence that this key had before."""

    key: str
    worker_id: str
    token: str
    fence: int
    expires_ts: float


def event_lock_key(mode: EventMode, bus: str) -> str | None:
    """Return the key of the lock that a claim in this mode takes together with its events; None if it takes none."""
    match mode:
        case EventMode.GLOBAL_SERIAL:
            return "event:global"
        case EventMode.BUS_SERIAL:
            return f"event:bus:{bus}"
        case EventMode.PARALLEL:
            return None


def handler_lock_key(event_id: str) -> str:
    """Return the key of the lock that makes the handlers of an event run one at a time."""
    return f"handler:event:{event_id}"
