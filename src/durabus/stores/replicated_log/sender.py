"""Sends calls to the log. A record carries all calls that wait when it is made, so busy nodes send larger records."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Any

from durabus.clock import monotonic
from durabus.errors import DurabusError, InvalidEventError, StoreUnavailableError
from durabus.stores.replicated_log.callers import PendingCall, Replies, Send, Sent
from durabus.stores.replicated_log.commands import encode_commands
from durabus.stores.replicated_log.public_lane import public_record
from durabus.stores.replicated_log.records import label, seal
from durabus.stores.replicated_log.replica import Answers
from durabus.stores.replicated_log.transport import PublicRecord, RefusedError, Transport

logger = logging.getLogger("durabus.replicated_log")

IN_FLIGHT = 4
"""Maximum number of unconfirmed records of each lane. Calls that come meanwhile share the next record."""
COMMANDS_IN_RECORD = 1000
RETRY_AFTER = (0.02, 0.1, 0.5, 1.0)
RESEND_AFTER = 5.0

Spawn = Callable[[Coroutine[Any, Any, None]], object]


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
        self._sent: dict[int, Sent] = {}

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
        self._sent[self._number] = Sent(calls, lane)
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

    async def _send(self, lane: str, numbers: list[int], send: Send) -> None:
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
                    logger.info("sending again: %s", error)
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
