"""The state that results from a log. Only the records and their order decide it, so all replicas are equal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from durabus.errors import DurabusError, SchemaError, StoreError
from durabus.model.event import NewEvent
from durabus.stores.replicated_log.commands import (
    Attach,
    Join,
    SettleEvents,
    Snapshotted,
    Written,
    decode_commands,
    finish,
)
from durabus.stores.replicated_log.core import ReplicatedLogCore
from durabus.stores.replicated_log.log_clock import LogClock
from durabus.stores.replicated_log.public_lane import NoEventError, arrival
from durabus.stores.replicated_log.records import (
    AGAIN,
    FORMAT,
    Damage,
    DamagedRecordError,
    NoEnvelopeError,
    fingerprint,
    place,
    unseal,
)
from durabus.stores.replicated_log.transport import BEGINNING, BrokerRecord, Position

logger = logging.getLogger("durabus.replicated_log")

SESSION_KEPT = 7 * 86_400.0
"""Seconds of the log's time that an idle session is kept. No broker delivers a record later than that."""


ATTACHED_KEPT = 600.0
"""Seconds of the log's time that metadata waits for its event. A publish fails long before."""


class SenderSession:
    """What a replica knows about the records of one sender."""

    __slots__ = ("last_ts", "low", "pieces", "seen")

    def __init__(self) -> None:
        self.low = 0
        self.seen: set[int] = set()
        self.pieces: dict[int, dict[int, bytes | NewEvent]] = {}
        self.last_ts = 0.0

    def knows(self, number: int) -> bool:
        """Return whether the record with this number was applied, or its sender gave it up."""
        return number <= self.low or number in self.seen

    def collect(self, number: int, piece: int, pieces: int, content: bytes | NewEvent) -> list[Any] | None:
        """Add a piece. Returns all pieces in order once the last one came; then the record counts as applied."""
        if pieces > 1:
            have = self.pieces.setdefault(number, {})
            have[piece] = content
            if len(have) < pieces:
                return None
            del self.pieces[number]
            self.seen.add(number)
            return [have[place] for place in sorted(have)]
        self.seen.add(number)
        return [content]

    def done_up_to(self, low: int) -> None:
        """Forget the numbers up to ``low``: the sender does not use them any more."""
        if low > self.low:
            self.low = low
            self.seen = {number for number in self.seen if number > low}
            self.pieces = {number: have for number, have in self.pieces.items() if number > low}


class Attached(msgspec.Struct, frozen=True, array_like=True):
    """Metadata that waits for its event."""

    event_id: str
    metadata_json: str
    at_ts: float


class SnapshotMark(msgspec.Struct, frozen=True, array_like=True):
    """The position and the time of a snapshot."""

    position: Position
    applied: int
    at_ts: float


class Answers(NamedTuple):
    """The results of a record of this node's own session: a value or an error for each command."""

    number: int
    values: list[Any]


WithEntries = Callable[[int], Sequence[bool]]
"""For each command of a record of this node's own session, whether its caller asked for log entries."""


class Replica:
    """A memory store, and the state that is needed to apply a log to it."""

    def __init__(self, session: str, clock: LogClock, *, skip: Position | None = None) -> None:
        self._session = session
        self._skipped_position = skip
        self.clock = clock
        self.core = ReplicatedLogCore(clock)
        self.position: Position = BEGINNING
        self.sessions: dict[str, SenderSession] = {}
        self.settings: Join | None = None
        self.attached: dict[str, Attached] = {}
        self.applied = 0
        self.marks: list[SnapshotMark] = []
        """Snapshots, oldest first, that still decide how far the public lane may be trimmed."""
        self.skipped = 0
        """The number of records that every replica skipped: those of other programs, and those that failed."""
        self.last: dict[str, BrokerRecord | int] = {}
        """The newest record of each lane, or its fingerprint."""

    def apply(self, entries: Sequence[BrokerRecord], with_entries: WithEntries = lambda _: ()) -> list[Answers]:
        """Apply records. If the record that was applied last comes again, it must be unchanged.

        Raises ``SchemaError`` before a record of a newer durabus, and ``Damage`` before a damaged record.
        """
        answers: list[Answers] = []
        with self.core._lock:  # noqa: SLF001  (readers in other threads see all of these records or none)
            try:
                for entry in entries:
                    lane = "public" if entry.type is not None else "control"
                    if entry.position == self.position:
                        self._compare(entry, lane)
                        continue
                    self.clock.apply_at(entry.at_ts)
                    try:
                        answer = self._control(entry, with_entries) if entry.type is None else self._public(entry)
                    except DamagedRecordError as error:
                        answer = self._damaged(entry, error)
                    self.position = entry.position
                    self.last[lane] = entry
                    self.applied += 1
                    if answer is not None:
                        answers.append(answer)
            finally:
                self.clock.done()
        return answers

    def fingerprints(self) -> dict[str, int]:
        """Return the fingerprints of the newest record of each lane."""
        return {lane: last if isinstance(last, int) else fingerprint(last) for lane, last in self.last.items()}

    def _compare(self, entry: BrokerRecord, lane: str) -> None:
        """Raise ``Damage`` unless the record at the present position is the one that was applied."""
        if fingerprint(entry) != self.fingerprints().get(lane):
            raise Damage(self.position, "the record at this position is not the one that this node has read")

    def _damaged(self, entry: BrokerRecord, error: DamagedRecordError) -> Answers | None:
        if entry.position == self._skipped_position:
            return self._skip(entry, error)
        lane = "control" if entry.type is None else "public"
        remedy = AGAIN.format(option=f"skip_record={place(entry.position)} in the URL")
        raise Damage(entry.position, f"a record of the {lane} lane is damaged: {error}", remedy)

    def _control(self, entry: BrokerRecord, with_entries: WithEntries) -> Answers | None:
        try:
            envelope = unseal(entry.body, entry.headers)
        except NoEnvelopeError as error:
            return self._skip(entry, error)
        if not envelope.session:
            return None  # this record only sets the position of public records
        if envelope.format > FORMAT:
            raise SchemaError(
                f"a record of format {envelope.format} at {entry.position}: this durabus reads {FORMAT}; upgrade it"
            )
        session = self._sender(envelope.session)
        session.done_up_to(envelope.low)
        if session.knows(envelope.number):
            return None
        whole = session.collect(envelope.number, envelope.piece, envelope.pieces, envelope.body)
        if whole is None:
            return None
        try:
            commands = decode_commands(b"".join(whole))
        except msgspec.MsgspecError as error:
            raise DamagedRecordError(f"its commands cannot be read: {error}") from error
        if envelope.session != self._session:
            for command in commands:
                self._do(command, entry)
            return None
        asked = with_entries(envelope.number) or [False] * len(commands)
        values = [self._do(command, entry, with_entries=one) for command, one in zip(commands, asked, strict=True)]
        return Answers(envelope.number, values)

    def _public(self, entry: BrokerRecord) -> Answers | None:
        try:
            new, rest = arrival(entry)
        except NoEventError as error:
            return self._skip(entry, error)
        if rest is None:
            finish(self.core.add_events([new]))
            return None
        session = self._sender(rest.session)
        if session.knows(rest.number):
            return None
        if rest.metadata_apart:
            attached = self.attached.get(new.event_id)
            if attached is None:
                return self._skip(entry, NoEventError("its metadata did not come before it"))
            new = msgspec.structs.replace(new, metadata_json=attached.metadata_json)
        whole = session.collect(rest.number, rest.place, rest.count, new)
        if whole is None:
            return None
        stored = finish(self.core.add_events(self.core.without_ended(whole) if self.core.unpublished else whole))
        if self.core.unpublished:
            for one in whole:
                self.core.unpublished.pop(one.event_id, None)
        return Answers(rest.number, [stored]) if rest.session == self._session else None

    def _do(self, command: Written, entry: BrokerRecord, *, with_entries: bool = False) -> Any:
        try:
            if isinstance(command, Join):
                return self._join(command)
            if isinstance(command, Attach):
                self.attached[command.event_id] = Attached(command.event_id, command.metadata_json, self.clock.log_ts)
                return None
            if isinstance(command, Snapshotted):
                return self._mark(command)
            if with_entries and isinstance(command, SettleEvents):
                return command.apply(self.core, with_entries=True)
            return command.apply(self.core)
        except DurabusError as error:
            return error
        except Exception as error:
            # The command fails on every replica, so all of them skip it; the sender gets the error.
            logger.exception("a %s at %s failed and is void", type(command).__name__, entry.position)
            self.skipped += 1
            return StoreError(f"{type(command).__name__} failed and is void: {type(error).__name__}: {error}")

    def _join(self, join: Join) -> Join:
        now = self.clock.log_ts
        if self.settings is None:
            self.settings = join
            self.core._max_history = join.max_history  # noqa: SLF001  (the log settles it, not the constructor)
        self.sessions = {
            name: session for name, session in self.sessions.items() if session.last_ts > now - SESSION_KEPT
        }
        return self.settings

    def _mark(self, made: Snapshotted) -> None:
        waiting = self.clock.log_ts - ATTACHED_KEPT
        self.attached = {key: one for key, one in self.attached.items() if one.at_ts > waiting}
        self.marks.append(SnapshotMark(made.position, made.applied, made.at_ts))
        old = [mark for mark in self.marks if mark.at_ts <= self.clock.log_ts - made.public_kept]
        self.marks = self.marks[max(len(old) - 1, 0) :]

    def _sender(self, name: str) -> SenderSession:
        session = self.sessions.get(name)
        if session is None:
            session = self.sessions[name] = SenderSession()
        session.last_ts = self.clock.log_ts
        return session

    def _skip(self, entry: BrokerRecord, error: Exception) -> Answers | None:
        self.skipped += 1
        lane = "control" if entry.type is None else "public"
        logger.warning("skipped a record of the %s lane at %s: %s", lane, entry.position, error)
        return None
