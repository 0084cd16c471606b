"""Reads both lanes and merges them into one order: a control record comes after the public records its sender had read.

So every replica sees the same order, whenever the records of the two topics arrive.

The offsets of the control lane have no gaps, because durabus writes there without transactions. Those of the public
lane may have gaps: a transaction of another program leaves its marker and its aborted records among the offsets.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from durabus.errors import StoreUnavailableError
from durabus.stores.kafka.layout import LARGEST, KafkaLayout
from durabus.stores.kafka.topics import QUIET
from durabus.stores.replicated_log.records import DamagedRecordError, NoEnvelopeError, unseal
from durabus.stores.replicated_log.transport import BrokerRecord, GapError, Position

logger = logging.getLogger("durabus.kafka")

POLL = 0.02
AT_ONCE = 2000
AHEAD = 4
"""Maximum number of batches that wait to be applied. A node that is far behind reads faster than it applies."""
_GONE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})  # noqa: SLF001
_PASSING = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE})  # noqa: SLF001


class KafkaFollower:
    """One consumer without a group, with its own polling thread."""

    def __init__(
        self,
        client: Mapping[str, str],
        layout: KafkaLayout,
        after: Position,
        deliver: Callable[[Sequence[BrokerRecord]], None],
        *,
        public_first: int = 0,
    ) -> None:
        """``public_first`` is the oldest offset that the public lane still has."""
        self._layout = layout
        self._control, self._public = after or (-1, -1)
        self._begin = max(self._control, 0), max(self._public, public_first)
        self._deliver = deliver
        self.public_read = self._public + 1
        """The public records before this offset were read. They may still wait to be merged."""
        self.awaited = 0
        """The next control record waits for the public records before this offset; 0 if it does not wait."""
        self._waiting_control: deque[tuple[Message, int]] = deque()
        self._waiting_public: deque[Message] = deque()
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._stopped = threading.Event()
        self._room = threading.Semaphore(AHEAD)
        self._consumer = Consumer(
            {
                **client,
                "group.id": "durabus-no-group",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "fetch.message.max.bytes": LARGEST,
                "fetch.wait.max.ms": 100,
                **QUIET,
                "allow.auto.create.topics": False,
            }
        )

    @property
    def unplaced(self) -> bool:
        """Whether public records wait for a control record that refers to them."""
        return bool(self._waiting_public) and not self._waiting_control

    async def run(self) -> None:
        """Follow the lanes until cancelled. Raises ``GapError`` if records were trimmed before they were read."""
        self._consumer.assign(
            [
                TopicPartition(topic, 0, offset)
                for topic, offset in zip((self._layout.control, self._layout.public), self._begin, strict=True)
            ]
        )
        thread = threading.Thread(target=self._poll, name="durabus-kafka-consumer", daemon=True)
        thread.start()
        try:
            await self._over
        finally:
            self._stopped.set()
            await asyncio.to_thread(thread.join)

    def end(self, error: Exception) -> None:
        """End ``run`` with this error."""
        if not self._over.done():
            self._over.set_exception(error)

    def _poll(self) -> None:
        try:
            while not self._stopped.is_set():
                if not self._room.acquire(timeout=POLL):
                    continue
                first = self._consumer.poll(POLL)
                if first is None:
                    self._room.release()
                    continue
                messages = [first, *self._consumer.consume(AT_ONCE, 0)]
                self._loop.call_soon_threadsafe(self._take, messages)
        except (KafkaException, RuntimeError) as error:
            self._loop.call_soon_threadsafe(self.end, StoreUnavailableError(f"Kafka: {error}"))
        finally:
            self._consumer.close()

    def _take(self, messages: Sequence[Message]) -> None:
        self._room.release()
        for message in messages:
            error = message.error()
            if error is not None:
                self._trouble(message, error)
            elif message.topic() == self._layout.control:
                self._waiting_control.append((message, _public_seen(message)))
            else:
                self._waiting_public.append(message)
                self.public_read = max(self.public_read, (message.offset() or 0) + 1)
        if not self._over.done():
            self._put_in_order()

    def _put_in_order(self) -> None:
        entries: list[BrokerRecord] = []
        self.awaited = 0
        if self._waiting_public and self._waiting_public[0].offset() == self._public:
            entries.append(self._entry(self._waiting_public.popleft(), (self._control, self._public)))
        while self._waiting_control:
            message, seen = self._waiting_control[0]
            if message.offset() == self._control:
                self._waiting_control.popleft()
                entries.append(self._entry(message, (self._control, self._public)))
                continue
            while self._public + 1 < seen and self._waiting_public:
                public = self._waiting_public.popleft()
                self._public = public.offset() or 0
                entries.append(self._entry(public, (self._control, self._public)))
            if self._public + 1 < seen:
                self.awaited = seen
                break  # its sender had read more public records than we have: the others will arrive
            self._waiting_control.popleft()
            offset = message.offset() or 0
            if offset != self._control + 1:
                self.end(GapError(f"control records {self._control + 1} to {offset - 1} are gone"))
                break
            self._control = offset
            entries.append(self._entry(message, (self._control, self._public)))
        if entries:
            self._deliver(entries)

    def _entry(self, message: Message, position: Position) -> BrokerRecord:
        headers = _headers(message)
        type_ = None if message.topic() == self._layout.control else headers.get("event_type", "")
        return BrokerRecord(position, message.timestamp()[1] / 1000, type_, headers, message.value() or b"")

    def _trouble(self, message: Message, error: KafkaError) -> None:
        if error.code() in _GONE:
            self.end(GapError(f"records of {message.topic()} after {self._control, self._public} are gone"))
        elif error.code() in _PASSING:
            logger.info("Kafka: %s", error.str())
        else:
            self.end(StoreUnavailableError(f"Kafka: {error.str()}"))


def _public_seen(message: Message) -> int:
    try:
        return unseal(message.value() or b"", _headers(message)).public_seen
    except (NoEnvelopeError, DamagedRecordError):
        return 0  # the replica skips this record, or stops at it


def _headers(message: Message) -> dict[str, str]:
    given = message.headers() or []
    return {name: _text(value) for name, value in (given.items() if isinstance(given, dict) else given)}


def _text(value: bytes | str | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
