"""Calls on their way through a node: inbox, records that the node sends, barriers of reading calls, and replies.

Callers are tasks of any event loop in any thread. The node replies from its own thread. A record carries all calls that
wait when it is made, so busy nodes send larger records.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Any, Literal

import anyio

from durabus.clock import monotonic
from durabus.errors import DurabusError, InvalidEventError, StoreClosedError, StoreUnavailableError
from durabus.stores.replicated_log.commands import encode_commands
from durabus.stores.replicated_log.public_lane import public_record
from durabus.stores.replicated_log.records import label, seal
from durabus.stores.replicated_log.replica import Answers
from durabus.stores.replicated_log.transport import BEGINNING, Position, PublicRecord, RefusedError, Transport

logger = logging.getLogger("durabus.replicated_log")

SendRecord = Callable[[], Coroutine[Any, Any, None]]
Spawn = Callable[[Coroutine[Any, Any, None]], object]
Kind = Literal["command", "publish", "barrier"]

CLOSED = "this store is closed: open a new one"
IN_FLIGHT = 4
"""Maximum number of unconfirmed records of each lane. Calls that come meanwhile share the next record."""
COMMANDS_IN_RECORD = 1000
RETRY_AFTER = (0.02, 0.1, 0.5, 1.0)
RESEND_AFTER = 5.0
ASK_AGAIN_AFTER = 0.1
CANCEL_WITHIN = 2.0


class PendingCall:
    """One call that waits for its reply. The caller's loop makes it; the node's thread replies."""

    __slots__ = ("data", "expires", "future", "kind", "loop", "with_entries")

    def __init__(self, kind: Kind, data: Any, *, with_entries: bool = False) -> None:
        self.kind = kind
        self.data = data
        self.with_entries = with_entries
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.expires = 0.0


class SentRecord:
    """The calls of one record that was sent and has not been read back."""

    __slots__ = ("at", "calls", "lane", "send")

    def __init__(self, calls: list[PendingCall], lane: str) -> None:
        self.calls = calls
        self.lane = lane
        self.send: SendRecord | None = None
        self.at = float("inf")
        """When the broker confirmed the record."""


class Replies:
    """Collects replies while a batch of records is applied, and delivers them with one wake-up for each loop."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}

    def add(self, call: PendingCall, value: Any) -> None:
        """Add a reply. ``value`` is the result, or the error to raise."""
        self._waiting.setdefault(call.loop, []).append((call.future, value))

    def send(self) -> None:
        """Deliver the replies to the callers."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, {}
        for loop, replies in waiting.items():
            with contextlib.suppress(RuntimeError):  # the loop and its tasks have ended
                loop.call_soon_threadsafe(_hand_over, replies)


def _hand_over(replies: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, value in replies:
        if future.done():
            continue  # its caller was cancelled
        if isinstance(value, BaseException):
            future.set_exception(value)
        else:
            future.set_result(value)


class Inbox:
    """Calls on their way from any thread to the node's thread."""

    def __init__(self, wake: Callable[[], object], *, timeout: float) -> None:
        self._wake = wake
        """Makes the node's thread call ``take``."""
        self._timeout = timeout
        self._lock = threading.Lock()
        self._calls: list[PendingCall] = []
        self._woken = False
        self.closed = False

    async def ask(self, call: PendingCall) -> Any:
        """Hand a call to the node and wait for its reply."""
        call.expires = monotonic() + self._timeout
        with self._lock:
            if self.closed:
                raise StoreClosedError(CLOSED)
            self._calls.append(call)
            wake, self._woken = not self._woken, True
        if wake:
            self._wake()
        try:
            return await asyncio.shield(call.future)
        except asyncio.CancelledError:
            call.future.add_done_callback(_retrieve_exception)
            with anyio.move_on_after(CANCEL_WITHIN, shield=True):
                await self._withdraw(call)
            raise

    def take(self) -> list[PendingCall]:
        """Return the calls that have come since the last time."""
        with self._lock:
            calls, self._calls = self._calls, []
            self._woken = False
        return calls

    def close(self) -> None:
        """Refuse all further calls."""
        with self._lock:
            self.closed = True

    async def _withdraw(self, call: PendingCall) -> None:
        """Remove a cancelled call that was not sent. Wait for one that was sent, so that it has no later effect."""
        with self._lock:
            waiting = call in self._calls
            if waiting:
                self._calls.remove(call)
        if waiting:
            call.future.cancel()
        else:
            await asyncio.wait([call.future])


def _retrieve_exception(future: asyncio.Future[Any]) -> None:
    """Retrieve the exception of a cancelled call, so that asyncio does not report it as never retrieved."""
    if not future.cancelled():
        future.exception()


class Barriers:
    """Reading calls that wait until the replica has caught up. Runs in the node's loop.

    One request to the broker serves all calls that were waiting when it was sent.
    """

    def __init__(self, transport: Transport, replies: Replies) -> None:
        self._transport = transport
        self._replies = replies
        self._asking: list[PendingCall] = []
        self._asked: list[PendingCall] = []
        """The calls that the present request to the broker serves."""
        self._behind: list[tuple[Position, list[PendingCall]]] = []
        self._reached: Position = BEGINNING
        self.running = False

    @property
    def needed(self) -> bool:
        """Whether the node must start ``run``."""
        return bool(self._asking) and not self.running

    def add(self, call: PendingCall) -> None:
        """Add a reading call."""
        self._asking.append(call)

    async def run(self) -> None:
        """Ask the broker where the log ends, until no call waits for that."""
        try:
            while self._asking:
                self._asked, self._asking = self._asking, []
                try:
                    head = await self._transport.head()
                except StoreUnavailableError:
                    self._asking[:0], self._asked = self._asked, []
                    await asyncio.sleep(ASK_AGAIN_AFTER)
                    continue
                self._behind.append((head, self._asked))
                self._asked = []
                self.reached(self._reached)
                self._replies.send()
        finally:
            self.running = False

    def reached(self, position: Position) -> None:
        """Reply to the calls that waited for this position of the replica."""
        self._reached = position
        if not self._behind:
            return
        for head, calls in self._behind:
            if position >= head:
                for call in calls:
                    self._replies.add(call, None)
        self._behind = [(head, calls) for head, calls in self._behind if position < head]

    def give_up_late(self, now: float, error: DurabusError) -> None:
        """Fail the calls that have waited too long."""
        for waiting in self._waiting():
            for call in [call for call in waiting if call.expires < now]:
                waiting.remove(call)
                self._replies.add(call, error)
        self._behind = [(head, calls) for head, calls in self._behind if calls]

    def fail_all(self, error: DurabusError) -> None:
        """Fail all calls."""
        for waiting in self._waiting():
            for call in waiting:
                self._replies.add(call, error)
            waiting.clear()

    def _waiting(self) -> list[list[PendingCall]]:
        """Return the lists of calls that have no reply yet."""
        return [self._asking, self._asked, *(calls for _, calls in self._behind)]


class Sender:
    """Sends the records of one session and delivers their replies. Runs in the node's loop."""

    def __init__(self, session: str, transport: Transport, replies: Replies, spawn: Spawn, *, timeout: float) -> None:
        self._session = session
        self._transport = transport
        self._replies = replies
        self._spawn = spawn
        self._timeout = timeout
        self._number = 0
        self._waiting: dict[str, list[PendingCall]] = {"control": [], "public": []}
        self._in_flight = {"control": 0, "public": 0}
        self._sent: dict[int, SentRecord] = {}

    @property
    def idle(self) -> bool:
        """Whether no call waits."""
        return not (self._sent or self._waiting["control"] or self._waiting["public"])

    def add(self, call: PendingCall) -> None:
        """Add a call. ``pump`` sends it."""
        self._waiting["control" if call.kind == "command" else "public"].append(call)

    def pump(self) -> None:
        """Send the waiting calls, as far as the lanes have room."""
        waiting = self._waiting
        while waiting["control"] and self._in_flight["control"] < IN_FLIGHT:
            calls, waiting["control"] = waiting["control"][:COMMANDS_IN_RECORD], waiting["control"][COMMANDS_IN_RECORD:]
            number = self._next(calls, "control")
            body = encode_commands([call.data for call in calls])
            self._spawn(self._send("control", [number], partial(self._append, number, body)))
        if waiting["public"] and self._in_flight["public"] < IN_FLIGHT:
            calls, waiting["public"] = waiting["public"], []
            numbers: list[int] = []
            records: list[PublicRecord] = []
            for call in calls:
                try:
                    records += self._records(call)
                    numbers.append(self._number)
                except DurabusError as error:
                    self.fail(error, [self._number])
            if records:
                self._spawn(self._send("public", numbers, partial(self._transport.publish, records)))

    def with_entries(self, number: int) -> list[bool]:
        """For each command of a record, whether its caller asked for log entries. Empty if no call waits for it."""
        sent = self._sent.get(number)
        return [] if sent is None else [call.with_entries for call in sent.calls]

    def answered(self, answers: Sequence[Answers]) -> None:
        """Deliver the replies of records that were read back."""
        for number, values in answers:
            sent = self._sent.pop(number, None)
            if sent is not None:
                for call, value in zip(sent.calls, values, strict=True):
                    self._replies.add(call, value)

    def give_up_late(self, now: float) -> None:
        """Fail calls that have waited too long. Send confirmed records again that have not been read back."""
        late = [number for number, sent in self._sent.items() if all(call.expires < now for call in sent.calls)]
        waited = f"no answer from the broker within {self._timeout:g} s"
        self.fail(StoreUnavailableError(f"{waited}: it may or may not have taken effect; repeat the call"), late)
        for waiting in self._waiting.values():
            for call in [call for call in waiting if call.expires < now]:
                waiting.remove(call)
                self._replies.add(call, StoreUnavailableError(waited))
        for number, sent in list(self._sent.items()):
            if sent.send is not None and sent.at < now - RESEND_AFTER:
                sent.at = float("inf")  # a piece of the record may be missing in the log
                self._spawn(self._send(sent.lane, [number], sent.send))

    def fail(self, error: DurabusError, numbers: Sequence[int] | None = None) -> None:
        """Fail the calls that were sent under these numbers, or under any number."""
        for number in list(self._sent) if numbers is None else numbers:
            sent = self._sent.pop(number, None)
            for call in () if sent is None else sent.calls:
                self._replies.add(call, error)

    def fail_all(self, error: DurabusError) -> None:
        """Fail all calls."""
        self.fail(error)
        for waiting in self._waiting.values():
            for call in waiting:
                self._replies.add(call, error)
            waiting.clear()

    def _records(self, call: PendingCall) -> list[PublicRecord]:
        """Return the records of one publish. An error of this call must not delay the other calls, so it is raised."""
        number, count = self._next([call], "public"), len(call.data)
        try:
            made = [
                public_record(new, session=self._session, number=number, place=place, count=count)
                for place, new in enumerate(call.data)
            ]
            refusal = next((why for why in map(self._transport.refusal, made) if why is not None), None)
        except Exception as error:
            raise InvalidEventError(f"an event cannot be written: {type(error).__name__}: {error}") from error
        if refusal is not None:
            raise RefusedError(refusal)
        return made

    def _next(self, calls: list[PendingCall], lane: str) -> int:
        self._number += 1
        self._sent[self._number] = SentRecord(calls, lane)
        return self._number

    async def _append(self, number: int, body: bytes) -> None:
        pieces = seal(
            body,
            session=self._session,
            number=number,
            low=next(iter(self._sent), self._number + 1) - 1,
            public_seen=self._transport.public_seen(),
            largest=self._transport.largest,
        )
        for place, piece in enumerate(pieces):
            await self._transport.append(piece, f"{self._session}-{number}-{place}", label(piece))

    async def _send(self, lane: str, numbers: list[int], send: SendRecord) -> None:
        """Send until the broker confirms, the calls have replies, or their time is over. Nodes ignore a repeat."""
        self._in_flight[lane] += 1
        try:
            for pause in chain(RETRY_AFTER, repeat(RETRY_AFTER[-1])):
                try:
                    await send()
                    break
                except RefusedError as error:
                    self.fail(error, numbers)
                    break
                except StoreUnavailableError as error:
                    logger.debug("sending again: %s", error)  # the transport reports the outage
                    await asyncio.sleep(pause)
                if not any(number in self._sent for number in numbers):
                    break
        finally:
            self._in_flight[lane] -= 1
            for number in numbers:
                if (sent := self._sent.get(number)) is not None:
                    sent.send, sent.at = send, monotonic()
            self.pump()
            self._replies.send()
