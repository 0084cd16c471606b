"""The lines of a history."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from durabus.model.event import Event
from durabus.model.log_entry import LogEntry


class Subject(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a call, or its reply, says about one event."""

    id: int | None = None
    event_id: str | None = None
    token: str | None = None
    fence: int | None = None
    what: str | None = None
    """How the claim shall end: complete, fail or release. In a reply: the event's status."""
    lost: bool = False
    """Whether the reply is ``LeaseLost``."""
    delay: float | None = None
    """Seconds before the event can be claimed (again)."""
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
    """A call begins. ``at`` is the time of the recorder's clock."""

    call: str
    at: float
    host: str
    verb: str
    subjects: tuple[Subject, ...] = ()
    claim: ClaimAsked | None = None
    lease: float | None = None
    after: str | None = None
    """The position of a reader of the log."""
    limit: int | None = None


class Ok(msgspec.Struct, frozen=True, omit_defaults=True, tag="ok", gc=False):
    """The call returned."""

    call: str
    at: float
    subjects: tuple[Subject, ...] = ()
    claims: tuple[Subject, ...] = ()
    positions: tuple[str, ...] | None = None
    next: str | None = None


class Failed(msgspec.Struct, frozen=True, tag="fail", gc=False):
    """The call was refused and changed nothing."""

    call: str
    at: float
    error: str


class Unknown(msgspec.Struct, frozen=True, tag="unknown", gc=False):
    """The outcome is unknown: the call has taken effect, or still can, or not. A call without an end counts, too."""

    call: str
    at: float
    error: str


class Effect(msgspec.Struct, frozen=True, tag="effect", gc=False):
    """A handler begins or ends. It is recorded outside of the store."""

    at: float
    host: str
    id: int
    event_id: str
    handler: str
    fence: int
    attempt: int
    what: str
    """start, or how the handler ended: done, raised, cancelled."""


class Holding(msgspec.Struct, frozen=True, tag="holding", gc=False):
    """A process begins or ends work that only the holder of a lock may do. It is recorded outside of the store."""

    at: float
    host: str
    key: str
    fence: int
    since: float
    """When the process asked for the lock."""
    what: str
    """start or end."""


class Disturbed(msgspec.Struct, frozen=True, tag="disturbed", gc=False):
    """Something was done to a process: crash, freeze, thaw."""

    at: float
    host: str
    what: str


class Logged(msgspec.Struct, frozen=True, tag="log", gc=False):
    """An entry of the store's log, read after the end of the run, in the order of the log."""

    entry: LogEntry


class Final(msgspec.Struct, frozen=True, tag="final", gc=False):
    """An event after the end of the run."""

    event: Event


class RunSettings(msgspec.Struct, frozen=True, kw_only=True, tag="settings", gc=False):
    """What the checker can expect of the run."""

    epoch: float = 0.0
    """The store's time when the recorder's clock showed 0."""
    tolerance: float = 0.0
    """The maximum difference of the two clocks, in seconds."""
    drained: bool = True
    """Whether all events had ended before the run ended."""
    handlers: tuple[str, ...] = ()
    """The handlers that every COMPLETED event must have had."""
    repeats: bool = False
    """Whether stores repeat a call whose reply is lost. Then a call can take effect, other processes can work on the
    event, and the reply is the one to the repeat."""
    stops_in_time: bool = True
    """Whether handlers are stopped when their lease ends, unless their process is frozen."""


Line = Invoke | Ok | Failed | Unknown | Effect | Holding | Disturbed | Logged | Final | RunSettings

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Line)


def encode(lines: Iterable[Line]) -> bytes:
    """Encode each line as one line of JSON."""
    return _ENCODER.encode_lines(lines)


def decode(text: bytes) -> list[Line]:
    """Decode what ``encode`` made."""
    return [_DECODER.decode(line) for line in text.splitlines() if line]
