"""Claims: the right to work on an event, on one handler's part of it, or on a lock."""

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
    """128 random bits. A token is made for one request and never used for a second one."""
    return secrets.token_hex(16)


def default_worker_id() -> str:
    """``host:pid``: a label for people. Identity is the token, because a pid can come back."""
    return f"{socket.gethostname()}:{os.getpid()}"


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Ask for up to ``limit`` events of ``bus``. ``token`` names this request; repeating it claims nothing new."""

    bus: str
    worker_id: str
    token: str
    limit: int = 1
    lease: float = DEFAULT_LEASE
    mode: EventMode = EventMode.PARALLEL
    tags: tuple[str, ...] = ()
    """Only events that carry at least one of these; empty means all."""
    max_attempts: int | None = None
    """Bound for events that carry none of their own; None means no bound."""
    event_id: str | None = None
    """Only this event."""


class ClaimRef(msgspec.Struct, frozen=True, gc=False):
    """What a write must carry: the event's ``id``, the token, and the fence the grant gave it."""

    id: int
    token: str
    fence: int


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A granted claim. ``results`` are those of handlers that ran in earlier attempts."""

    event: Event
    token: str
    results: tuple[HandlerResult, ...] = ()
    revision: str = ""
    """Which list of handlers the bus had then: see ``list_handlers``."""

    @property
    def ref(self) -> ClaimRef:
        """What ``renew`` and ``settle`` ask for."""
        return ClaimRef(self.event.id, self.token, self.event.fence)


class HandlerClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Ask for the first of ``handler_ids`` that is neither settled nor claimed by somebody."""

    event: ClaimRef
    handler_ids: tuple[str, ...]
    worker_id: str
    token: str
    lease: float = DEFAULT_LEASE
    mode: HandlerMode = HandlerMode.SERIAL


class HandlerClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A granted claim on one handler's part of an event."""

    id: int
    handler_id: str
    token: str
    fence: int
    attempts: int
    expires_ts: float


class LockClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A held lock. ``fence`` is larger than any that this resource had before."""

    key: str
    worker_id: str
    token: str
    fence: int
    expires_ts: float


def event_lock_key(mode: EventMode, bus: str) -> str | None:
    """The lock resource that a claim in this mode takes together with its events."""
    match mode:
        case EventMode.GLOBAL_SERIAL:
            return "event:global"
        case EventMode.BUS_SERIAL:
            return f"event:bus:{bus}"
        case EventMode.PARALLEL:
            return None


def handler_lock_key(event_id: str) -> str:
    """The lock resource of handlers that run one at a time on an event."""
    return f"handler:event:{event_id}"
