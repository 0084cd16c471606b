"""Claims: the right to work on an event, to run one of its handlers, or to hold a lock."""

from __future__ import annotations

import os
import secrets
import socket

import msgspec

from durabus.model.event import Event
from durabus.model.result import HandlerResult
from durabus.model.statuses import EventMode, HandlerMode

DEFAULT_LEASE = 30.0


def new_token() -> str:
    """Return 128 random bits. Every request gets its own token; no token is used for a second request."""
    return secrets.token_hex(16)


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
    """Only this event."""


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
