"""Reads the stream from a sequence on, with a consumer that the server deletes when the follower stops listening."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from nats.aio.msg import Msg
from nats.nuid import NUID

from durabus.clock import monotonic
from durabus.stores.nats.lane_client import LaneClient
from durabus.stores.nats.layout import NatsLayout
from durabus.stores.nats.stream import api
from durabus.stores.replicated_log.transport import BrokerRecord, GapError

logger = logging.getLogger("durabus.nats")

HEARTBEAT = 1.0
SILENT_FOR = 4 * HEARTBEAT
NANOSECOND = 1_000_000_000
ANSWER_WITHIN = 5.0
_SHORT_REPLY = 9
"""The number of tokens of a reply subject without a domain:
$JS.ACK.stream.consumer.tries.sequence.number.time.pending"""


class NatsFollower:
    """One consumer. It ends when the server deletes it, goes away, or leaves a message out."""

    def __init__(
        self, client: LaneClient, layout: NatsLayout, reached: int, deliver: Callable[[Sequence[BrokerRecord]], None]
    ) -> None:
        self._client = client
        self._layout = layout
        self._reached = reached
        self._deliver = deliver
        self._number = 0
        self._next = max(reached, 1)
        """The sequence that must come next. Reading starts with the last record that was read before."""
        self._heard = monotonic()
        self._entries: list[BrokerRecord] = []
        self._over = asyncio.Event()
        self._gap: GapError | None = None

    async def run(self) -> None:
        """Follow the stream until the consumer ends. Raises ``GapError`` if records are gone before they were read."""
        inbox = self._client.new_inbox()
        subscription = await self._client.listen(inbox, self._message)
        name = NUID().next().decode()
        try:
            await self._create(name, inbox)
            while not self._over.is_set() and monotonic() - self._heard < SILENT_FOR:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(HEARTBEAT):
                        await self._over.wait()
            self._flush()
        finally:
            self._over.set()
            self._entries.clear()  # they were not delivered, so the next follower reads them again
            await self._client.end_listening(subscription)
        if self._gap is not None:
            raise self._gap

    def end(self) -> None:
        """End ``run``."""
        self._over.set()

    async def _create(self, name: str, inbox: str) -> None:
        config = {
            "name": name,
            "deliver_subject": inbox,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._next,
            "ack_policy": "none",
            "replay_policy": "instant",
            "max_deliver": 1,
            "flow_control": True,
            "idle_heartbeat": int(HEARTBEAT * NANOSECOND),
            "inactive_threshold": int(30 * NANOSECOND),
            "mem_storage": True,
            "num_replicas": 1,
        }
        stream = self._layout.stream
        request = {"stream_name": stream, "config": config, "action": "create"}
        await api(self._client, f"CONSUMER.CREATE.{stream}.{name}", request, timeout=ANSWER_WITHIN)

    async def _message(self, message: Msg) -> None:
        self._heard = monotonic()
        if self._over.is_set():
            return
        if not message.reply.startswith("$JS.ACK."):
            await self._status(message)
            return
        tokens = message.reply.split(".")
        place = 5 if len(tokens) == _SHORT_REPLY else 7
        sequence, number, at_ns = int(tokens[place]), int(tokens[place + 1]), int(tokens[place + 2])
        if number != self._number + 1:
            self._over.set()  # the connection lost a message: the next follower continues from here
            return
        self._number = number
        if sequence != self._next:
            self._gap = GapError(
                f"records {self._next} to {sequence - 1} of the stream {self._layout.stream!r} are gone: "
                "trimmed while this node was away, or deleted by hand"
            )
            self._over.set()
            return
        self._reached, self._next = sequence, sequence + 1
        type_ = self._layout.type_of(message.subject)
        self._entries.append(BrokerRecord((sequence,), at_ns / NANOSECOND, type_, message.headers or {}, message.data))
        if not self._client.has_more:
            self._flush()
        elif len(self._entries) == 1:
            # The bytes that were read may be a part of a message, or another subscription's: do not wait for more.
            asyncio.get_running_loop().call_soon(self._flush)

    async def _status(self, message: Msg) -> None:
        headers = message.headers or {}
        if message.reply:
            await self._client.publish(message.reply)
        elif stalled := headers.get("Nats-Consumer-Stalled"):
            await self._client.publish(stalled)
        elif headers.get("Status") not in (None, "100"):
            self._over.set()
        elif headers.get("Nats-Last-Consumer", str(self._number)) != str(self._number):
            self._over.set()  # the server sent more messages than arrived

    def _flush(self) -> None:
        entries, self._entries = self._entries, []
        if entries:
            self._deliver(entries)
