"""Appends records to the lanes and returns their offsets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from durabus.stores.kafka.layout import LARGEST, ROOM
from durabus.stores.kafka.topics import QUIET
from durabus.stores.replicated_log.transport import RefusedError, UnknownOutcomeError

POLL = 0.02
FULL = 0.01
GRACE = 5.0
"""Seconds beyond librdkafka's own timeout. After a fatal error librdkafka does not report at all."""
_REFUSED = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
    }
)


class KafkaOutgoing(NamedTuple):
    """A record for one of the lanes."""

    topic: str
    key: bytes | None
    headers: Mapping[str, str]
    body: bytes


class _Delivery:
    """Counts the delivery reports of a batch in the polling thread, and wakes the loop after the last one."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._loop = asyncio.get_running_loop()
        self._error: KafkaError | None = None
        self._offset = -1
        self.done: asyncio.Future[int] = self._loop.create_future()

    def report(self, error: KafkaError | None, message: Message) -> None:
        self._left -= 1
        if error is not None:
            self._error = error
        else:
            self._offset = max(self._offset, message.offset() or 0)
        if self._left == 0:
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        if self.done.done():
            return
        if self._error is None:
            self.done.set_result(self._offset)
            return
        text = f"Kafka: {self._error.str()}"
        kind = RefusedError if self._error.code() in _REFUSED else UnknownOutcomeError
        self.done.set_exception(kind(text))


class LaneProducer:
    """An idempotent producer, with a thread that polls it."""

    def __init__(self, client: Mapping[str, str], *, timeout: float) -> None:
        self._config: dict[str, Any] = {
            **client,
            "enable.idempotence": True,
            "linger.ms": 0,
            "message.max.bytes": LARGEST + ROOM,
            "message.timeout.ms": max(int(timeout * 1000), 1000),
            **QUIET,
            "allow.auto.create.topics": False,
        }
        self._within = timeout + GRACE
        self._producer = Producer(self._config)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="durabus-kafka-producer", daemon=True)
        self._thread.start()

    async def send(self, records: Sequence[KafkaOutgoing]) -> int:
        """Append records in this order. Returns the offset of the last one when the broker has all of them."""
        delivery = _Delivery(len(records))
        for record in records:
            while not self._accepted(record, delivery):  # noqa: ASYNC110  (librdkafka does not say when there is room)
                await asyncio.sleep(FULL)
        try:
            async with asyncio.timeout(self._within):
                return await delivery.done
        except TimeoutError as error:
            raise UnknownOutcomeError(f"Kafka did not report on a record within {self._within:g} s") from error

    def _accepted(self, record: KafkaOutgoing, delivery: _Delivery) -> bool:
        headers: list[tuple[str, str | bytes | None]] = [
            (name, value.encode()) for name, value in record.headers.items()
        ]
        try:
            self._producer.produce(
                record.topic,
                value=record.body,
                key=record.key,
                headers=headers,
                partition=0,
                on_delivery=delivery.report,
            )
        except BufferError:
            return False
        except KafkaException as error:
            problem = error.args[0]
            if problem.fatal():
                self._producer = Producer(self._config)  # the thread polls the new one from now on
                raise UnknownOutcomeError(f"Kafka: {problem.str()}") from error
            raise RefusedError(f"Kafka refused a record: {problem.str()}") from error
        return True

    def close(self) -> None:
        """End the thread. It does not wait for outstanding reports."""
        self._stopped.set()
        self._thread.join()

    def _poll(self) -> None:
        while not self._stopped.is_set():
            self._producer.poll(POLL)
