"""The lines of a history."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from durabus.model.event import Event
from durabus.model.log_entry import LogEntry


class Subject(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a call says, or is answered, of one event."""

    id: int | None = None
    event_id: str | None = None
    token: str | None = None
    fence: int | None = None
    what: str | None = None
    """How a claim is to end: complete, fail or release; in an answer, the event's status."""
    lost: bool = False
    """Answered with ``LeaseLost``."""
    delay: float | None = None
    """Before it may be claimed (again)."""
    expires: float | None = None
    """When the claim's lease ends, by the store's clock."""
    attempts: int | None = None
    generation: int | None = None
    max_attempts: int | None = None
    ordering_key: str | None = None
    idempotency_key: str | None = None
    bus: str | None = None


class ClaimAsked(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The claim that a call asks for."""

    bus: str
    token: str
    limit: int
    lease: float
    mode: str
    max_attempts: int | None = None


class Invoke(msgspec.Struct, frozen=True, omit_defaults=True, tag="invoke", gc=False):
    """A call begins. ``at`` is when, by the recorder's clock."""

    call: str
    at: float
    host: str
    verb: str
    subjects: tuple[Subject, ...] = ()
    claim: ClaimAsked | None = None
    lease: float | None = None
    after: str | None = None
    """Of a reader of the log: the position it has come to."""
    limit: int | None = None


class Ok(msgspec.Struct, frozen=True, omit_defaults=True, tag="ok", gc=False):
    """It was answered."""

    call: str
    at: float
    subjects: tuple[Subject, ...] = ()
    claims: tuple[Subject, ...] = ()
    positions: tuple[str, ...] | None = None
    next: str | None = None


class Failed(msgspec.Struct, frozen=True, tag="fail", gc=False):
    """It was refused and has changed nothing."""

    call: str
    at: float
    error: str


class Unknown(msgspec.Struct, frozen=True, tag="unknown", gc=False):
    """It may have taken effect, may still do so, or not. A call whose end is not told is such a one too."""

    call: str
    at: float
    error: str


class Effect(msgspec.Struct, frozen=True, tag="effect", gc=False):
    """A handler begins or ends; written down outside of the store."""

    at: float
    host: str
    id: int
    event_id: str
    handler: str
    fence: int
    attempt: int
    what: str
    """start, or how it came to its end: done, raised, cancelled."""


class Holding(msgspec.Struct, frozen=True, tag="holding", gc=False):
    """A process begins or ends work that only the holder of a lock may do. It is recorded outside of the store."""

    at: float
    host: str
    key: str
    fence: int
    since: float
    """When it asked for the lock."""
    what: str
    """start or end."""


class Disturbed(msgspec.Struct, frozen=True, tag="disturbed", gc=False):
    """Something was done to a process: crash, freeze, thaw."""

    at: float
    host: str
    what: str


class Logged(msgspec.Struct, frozen=True, tag="log", gc=False):
    """An entry of the store's log, read when all was over; in commit order."""

    entry: LogEntry


class Final(msgspec.Struct, frozen=True, tag="final", gc=False):
    """An event as it stood when all was over."""

    event: Event


class RunSettings(msgspec.Struct, frozen=True, kw_only=True, tag="settings", gc=False):
    """What the checker may expect."""

    epoch: float = 0.0
    """What the store's clock showed when the recorder's showed 0."""
    tolerance: float = 0.0
    """By how much the two may differ, in seconds."""
    drained: bool = True
    """Whether everything had the time to come to its end."""
    handlers: tuple[str, ...] = ()
    """Those that each event must have had before it is COMPLETED."""
    repeats: bool = False
    """Whether stores repeat a call by themselves when its answer is lost: it may take effect and be answered as its own
    repeat is, after others had the event in between."""
    stops_in_time: bool = True
    """Whether handlers are stopped when their lease ends, unless their process is frozen."""


Line = Invoke | Ok | Failed | Unknown | Effect | Holding | Disturbed | Logged | Final | RunSettings

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Line)


def encode(lines: Iterable[Line]) -> bytes:
    """As JSON, a line each."""
    return _ENCODER.encode_lines(lines)


def decode(text: bytes) -> list[Line]:
    """The reverse."""
    return [_DECODER.decode(line) for line in text.splitlines() if line]
