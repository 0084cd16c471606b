"""The lines of a history, and the history that the checks read: calls with their replies, events with their entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import msgspec

from durabus.model.event import Event
from durabus.model.log_entry import LogEntry
from durabus.model.statuses import Action
from durabus.testing.history.subjects import ClaimAsked, Subject, WaitAsked

FOREVER = float("inf")


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
    """The outcome is unknown: the call has taken effect, or it still can, or it never will.

    A call without a recorded end has an unknown outcome, too.
    """

    call: str
    at: float
    error: str


class Effect(msgspec.Struct, frozen=True, tag="effect", gc=False):
    """A handler begins or ends. The process records it outside of the store."""

    at: float
    host: str
    id: int
    event_id: str
    handler: str
    fence: int
    attempt: int
    what: str
    """``start``, or how the handler ended: ``done``, ``raised``, ``asleep`` or ``cancelled``."""


class StepEffect(msgspec.Struct, frozen=True, tag="step", gc=False):
    """A step of a handler computes its value, or returns it. The process records it outside of the store."""

    at: float
    host: str
    id: int
    handler: str
    step: str
    fence: int
    what: str
    """``computed`` when the function of the step begins, ``returned`` when the handler gets the value; ``waited`` when
    a wait is over."""
    value: str | None = None
    """For a wait, the ``event_id`` of the event that came; None after the timeout."""

    @property
    def name(self) -> str:
        """The name under which the store keeps the step."""
        return f"{self.handler} > {self.step}"


class Holding(msgspec.Struct, frozen=True, tag="holding", gc=False):
    """A process begins or ends work that only the holder of a lock may do. It records that outside of the store."""

    at: float
    host: str
    key: str
    fence: int
    since: float
    """When the process asked for the lock."""
    what: str
    """``start`` or ``end``."""


class VerbEnd(msgspec.Struct, frozen=True, tag="verb", gc=False):
    """A verb of a bus returned to its caller, or raised. The process records it outside of the store."""

    at: float
    host: str
    verb: str
    """``request``, or ``cancel`` with the children."""
    event_id: str
    since: float
    """When the call began."""
    value: str | None = None
    """What a request returned, as JSON."""
    error: str | None = None
    """The name of the error that it raised."""


class Disturbed(msgspec.Struct, frozen=True, tag="disturbed", gc=False):
    """A process was killed, frozen or thawed."""

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
    strict: bool = False
    """Whether the store knows the success of a handler before the next handler of its event begins."""
    shows_results: bool = False
    """Whether the entry of a COMPLETED event shows the results of its ``handlers``."""
    one_child: bool = False
    """Whether the handlers of an event make one child at most. A requeued event may make another one."""
    batched: tuple[str, ...] = ()
    """The handlers that take batches. Such a call goes on for the other events when one has lost its claim."""
    emitter: str | None = None
    """The handler whose success all children belong to; None if handlers wait for their children."""


Line = (
    Invoke | Ok | Failed | Unknown | Effect | StepEffect | Holding | VerbEnd | Disturbed | Logged | Final | RunSettings
)

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Line)


def encode(lines: Iterable[Line]) -> bytes:
    """Encode each line as one line of JSON."""
    return _ENCODER.encode_lines(lines)


def decode(text: bytes) -> list[Line]:
    """Decode what ``encode`` made."""
    return [_DECODER.decode(line) for line in text.splitlines() if line]


class Violation(msgspec.Struct, frozen=True):
    """A promise that a history breaks."""

    check: str
    text: str

    def __str__(self) -> str:
        return f"{self.check}: {self.text}"


class RecordedCall(msgspec.Struct, frozen=True, gc=False):
    """A call with its end, if the end is known."""

    invoke: Invoke
    end: Ok | Failed | Unknown | None

    @property
    def begins(self) -> float:
        """When the call began, by the recorder's clock."""
        return self.invoke.at

    @property
    def ends(self) -> float:
        """When the call ended. A call of unknown outcome can still take effect later."""
        return self.end.at if isinstance(self.end, Ok | Failed) else FOREVER

    @property
    def ok(self) -> Ok | None:
        """The reply."""
        return self.end if isinstance(self.end, Ok) else None

    def answered(self) -> Iterator[tuple[Subject, Subject]]:
        """Yield what was asked of each event, and the reply."""
        if isinstance(self.end, Ok):
            yield from zip(self.invoke.subjects, self.end.subjects, strict=True)


class History:
    """All lines of all processes. Times are the recorder's."""

    def __init__(self, lines: Iterable[Line]) -> None:
        invokes: list[Invoke] = []
        ends: dict[str, Ok | Failed | Unknown] = {}
        self.effects: list[Effect] = []
        self.steps: list[StepEffect] = []
        self.holdings: list[Holding] = []
        self.returned: list[VerbEnd] = []
        self.disturbed: list[Disturbed] = []
        self.log: list[LogEntry] = []
        self.finals: dict[int, Event] = {}
        self.settings = RunSettings()
        noted: dict[type[Line], list[Any]] = {
            Effect: self.effects,
            StepEffect: self.steps,
            Holding: self.holdings,
            VerbEnd: self.returned,
            Disturbed: self.disturbed,
        }
        for line in lines:
            match line:
                case Invoke():
                    invokes.append(line)
                case Ok() | Failed() | Unknown():
                    ends[line.call] = line
                case Effect() | StepEffect() | Holding() | VerbEnd() | Disturbed():
                    noted[type(line)].append(line)
                case Logged():
                    self.log.append(line.entry)
                case Final():
                    self.finals[line.event.id] = line.event
                case RunSettings():
                    self.settings = line
        invokes.sort(key=lambda invoke: invoke.at)  # each process wrote its own file
        self.calls = [RecordedCall(invoke, ends.get(invoke.call)) for invoke in invokes]

    def of(self, *verbs: str) -> Iterator[RecordedCall]:
        """Return the calls of these verbs."""
        return (call for call in self.calls if call.invoke.verb in verbs)

    def at(self, instant: float) -> float:
        """Convert a time of the store's clock to the recorder's clock."""
        return instant - self.settings.epoch

    @cached_property
    def trails(self) -> dict[int, list[LogEntry]]:
        """The log entries of each event."""
        trails: dict[int, list[LogEntry]] = {}
        for entry in self.log:
            trails.setdefault(entry.id, []).append(entry)
        return trails

    @cached_property
    def grants(self) -> list[tuple[RecordedCall, Subject]]:
        """Every claim that a process received."""
        return [(call, claim) for call in self.calls if call.ok is not None for claim in call.ok.claims]

    @cached_property
    def handler_grants(self) -> set[tuple[str, int, str, int]]:
        """Every claim on an offered handler: process, event, handler, and the fence that the handler gets."""
        return {
            (call.invoke.host, one.id or 0, one.what or "", one.fence or 0)
            for call in self.of("claim_offered_handlers")
            for one in (() if call.ok is None else call.ok.subjects)
        }

    @cached_property
    def offered(self) -> set[tuple[int, str]]:
        """The events and handlers of which some process claimed the handler by itself."""
        return {(id_, handler) for _, id_, handler, _ in self.handler_grants}

    @cached_property
    def held_by(self) -> dict[tuple[str, int], list[int]]:
        """The fences under which each process held each event."""
        found: dict[tuple[str, int], list[int]] = {}
        for call, claim in self.grants:
            found.setdefault((call.invoke.host, claim.id or 0), []).append(claim.fence or 0)
        return found

    def holds_handler(self, effect: Effect) -> bool:
        """Whether the process held the handler alone, or the event after the handler had been claimed by itself.

        Then the fence that the handler gets is that of the event and its own together.
        """
        if (effect.host, effect.id, effect.handler, effect.fence) in self.handler_grants:
            return True
        held = self.held_by.get((effect.host, effect.id), [])
        return (effect.id, effect.handler) in self.offered and any(fence < effect.fence for fence in held)

    @cached_property
    def settlements(self) -> dict[tuple[int, int], list[tuple[RecordedCall, Subject, Subject | None]]]:
        """The settlements of each claim, by event id and fence, with the replies."""
        found: dict[tuple[int, int], list[tuple[RecordedCall, Subject, Subject | None]]] = {}
        for call in self.of("settle_events"):
            answers = call.ok.subjects if call.ok is not None else (None,) * len(call.invoke.subjects)
            for asked, answer in zip(call.invoke.subjects, answers, strict=True):
                if asked.id is not None and asked.fence is not None:
                    found.setdefault((asked.id, asked.fence), []).append((call, asked, answer))
        return found

    @cached_property
    def asked_waits(self) -> dict[int, dict[str, list[WaitAsked]]]:
        """The waits that the store has kept, or may have kept, by event and name.

        A repeat or a later attempt asks for one again. A release that is refused in the end may have been applied: if
        its first reply was lost, the repeat comes when another worker has the event.
        """
        released = {(entry.id, entry.fence) for entry in self.log if entry.action is Action.RELEASED}
        found: dict[int, dict[str, list[WaitAsked]]] = {}
        for call in self.of("keep_results", "settle_events"):
            for place, subject in enumerate(call.invoke.subjects):
                lost = call.ok is not None and call.ok.subjects[place].lost
                refused = isinstance(call.end, Failed) or (lost and (subject.id, subject.fence) not in released)
                for wait in () if refused else subject.waits:
                    found.setdefault(subject.id or 0, {}).setdefault(wait.name, []).append(wait)
        return found

    @cached_property
    def finals_of(self) -> dict[str, list[Event]]:
        """The events after the end of the run, by type."""
        found: dict[str, list[Event]] = {}
        for event in self.finals.values():
            found.setdefault(event.type, []).append(event)
        return found

    @cached_property
    def shortest_lease(self) -> float:
        """The minimum duration of a claim that no process received."""
        return min((call.invoke.claim.lease for call in self.calls if call.invoke.claim), default=0.0)

    def limit_of(self, event: Event) -> int | None:
        """Return the maximum number of attempts of an event; None if there is no limit."""
        if event.max_attempts is not None:
            return event.max_attempts
        limits = self._limits.get(event.bus, {None})
        return None if None in limits else max(limit for limit in limits if limit is not None)

    @cached_property
    def _limits(self) -> dict[str, set[int | None]]:
        limits: dict[str, set[int | None]] = {}
        for call in self.calls:
            claim = call.invoke.claim
            if claim is not None:
                limits.setdefault(claim.bus, set()).add(claim.max_attempts)
        return limits

    @cached_property
    def crashes(self) -> dict[str, float]:
        """The time at which each process was killed."""
        found: dict[str, float] = {}
        for one in self.disturbed:
            if one.what == "crash":  # another process may have noted it later
                found[one.host] = min(one.at, found.get(one.host, one.at))
        return found

    def was_frozen(self, host: str, begin: float, end: float) -> bool:
        """Return whether a process was frozen between two times."""
        frozen: float | None = None
        for one in self.disturbed:
            if one.host != host:
                continue
            if one.what == "freeze":
                frozen = one.at
            elif one.what == "thaw" and frozen is not None:
                if frozen <= end and one.at >= begin:
                    return True
                frozen = None
        return frozen is not None and frozen <= end
