"""The newest snapshot in compacted topics, one for each table. One transaction writes what changed since the last one.

All nodes use the same transactional id. A node that starts a snapshot fences the one that started before, so a node
that was stopped for a while cannot finish an old snapshot.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import AsyncIterator, Callable, Mapping

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from durabus.clock import monotonic
from durabus.errors import SchemaError, StoreUnavailableError
from durabus.stores.kafka.layout import LARGEST, ROOM, KafkaLayout
from durabus.stores.kafka.topics import QUIET, DriverThreads, Topics
from durabus.stores.replicated_log.snapshot_rows import TABLES
from durabus.stores.replicated_log.transport import GapError, Manifest, SnapshotPart

ANSWER_WITHIN = 30.0
TRANSACTION_WITHIN = 600.0
STEP = 2.0
"""Seconds. A call that waits for the broker checks this often whether the store was closed."""
POLL = 0.1
AT_ONCE = 1000
AT_END = 10
"""Milliseconds that the broker waits for more records at the end of a topic, and the driver when its queue is full."""
MANIFEST_KEY = b"manifest"
_OVERTAKEN = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})  # noqa: SLF001


class ManifestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of the manifest."""

    manifest: Manifest
    fence: int
    digest: int
    """A checksum of all parts. Parts can be older than the manifest: a transaction becomes visible topic by topic."""


class KafkaSnapshots:
    """Reads and replaces the newest snapshot."""

    def __init__(self, client: Mapping[str, str], layout: KafkaLayout, topics: Topics, threads: DriverThreads) -> None:
        self._client = client
        self._layout = layout
        self._topics = topics
        self._threads = threads
        self._written: tuple[ManifestRecord, dict[tuple[str, str], int]] | None = None
        """The checksums of what this node wrote last. Unchanged parts need no writing, unless another node wrote since.
        """
        self._closed = threading.Event()

    def close(self) -> None:
        """Release the threads that wait for the broker, because a process cannot exit before its threads end."""
        self._closed.set()

    async def newest(self) -> Manifest | None:
        """Return the manifest of the newest snapshot."""
        kept = await self._threads.run(self._kept)
        return None if kept is None else kept.manifest

    async def read(self, manifest: Manifest) -> AsyncIterator[SnapshotPart]:
        """Yield all parts of the snapshot. Raises ``GapError`` if a newer one replaced it."""
        kept, parts = await self._threads.run(self._whole)
        if kept is None or kept.manifest != manifest or kept.digest != _digest(_checksums(parts)):
            raise GapError("the snapshot was replaced while it was read")
        for part in parts:
            yield part

    async def write(self, manifest: Manifest, parts: AsyncIterator[SnapshotPart], *, fence: int) -> bool:
        """Write a snapshot that replaces the old one. False if another node was faster."""
        topics = [self._layout.manifest, *map(self._layout.table, TABLES)]
        await self._threads.run(lambda: self._topics.ensure_state(topics))
        producer = Producer(
            {
                **self._client,
                "transactional.id": f"{self._layout.prefix}.snapshotter",
                "transaction.timeout.ms": int(TRANSACTION_WITHIN * 1000),
                "message.timeout.ms": int(TRANSACTION_WITHIN * 1000),
                "message.max.bytes": LARGEST + ROOM,
                "linger.ms": 20,
                **QUIET,
            }
        )
        try:
            await self._threads.run(lambda: self._persist(producer.init_transactions, ANSWER_WITHIN))
            before = await self._threads.run(self._kept)
            if before is not None and (before.fence > fence or before.manifest.position >= manifest.position):
                return False
            await self._threads.run(producer.begin_transaction)
            written = await self._write_changed(producer, parts, before)
            kept = ManifestRecord(manifest=manifest, fence=fence, digest=_digest(written))
            await self._produce(producer, self._layout.manifest, MANIFEST_KEY, msgspec.json.encode(kept))
            await self._threads.run(lambda: self._persist(producer.commit_transaction, TRANSACTION_WITHIN))
            # The broker replies before readers see the snapshot. The log must not be trimmed before they do.
            await self._threads.run(lambda: self._topics.wait_until_visible(topics))
        except KafkaException as error:
            if error.args[0].code() in _OVERTAKEN:
                return False
            raise StoreUnavailableError(f"Kafka did not accept a snapshot: {error.args[0].str()}") from error
        self._written = (kept, written)
        return True

    async def _write_changed(
        self, producer: Producer, parts: AsyncIterator[SnapshotPart], before: ManifestRecord | None
    ) -> dict[tuple[str, str], int]:
        if self._written is not None and self._written[0] == before:
            there = self._written[1]
        else:
            there = _checksums((await self._threads.run(self._whole))[1])
        written: dict[tuple[str, str], int] = {}
        async for part in parts:
            checksum = written[part.table, part.key] = zlib.crc32(part.rows)
            if there.get((part.table, part.key)) != checksum:
                await self._produce(producer, self._layout.table(part.table), part.key.encode(), part.rows)
        for table, key in there.keys() - written.keys():
            await self._produce(producer, self._layout.table(table), key.encode(), None)
        return written

    async def _produce(self, producer: Producer, topic: str, key: bytes, value: bytes | None) -> None:
        while True:
            try:
                producer.produce(topic, key=key, value=value, partition=0)
            except BufferError:
                await self._threads.run(lambda: producer.poll(0.1))
            else:
                producer.poll(0)
                return

    def _persist(self, call: Callable[[float], None], seconds: float) -> None:
        """Repeat a call until it is done or its time is over. Each repeat continues where the last one stopped."""
        deadline = monotonic() + seconds
        while True:
            try:
                return call(min(seconds, STEP))
            except KafkaException as error:
                late = self._closed.is_set() or monotonic() > deadline
                if late or error.args[0].code() != KafkaError._TIMED_OUT:  # noqa: SLF001
                    raise

    def _kept(self) -> ManifestRecord | None:
        return self._taken_from(self._newest_values([self._layout.manifest]))

    def _whole(self) -> tuple[ManifestRecord | None, list[SnapshotPart]]:
        """Return the manifest and all parts. The digest tells whether they belong together."""
        tables = {self._layout.table(table): table for table in TABLES}
        found = self._newest_values([self._layout.manifest, *tables])
        kept = self._taken_from(found)
        return kept, [SnapshotPart(tables[topic], key.decode(), rows) for (topic, key), rows in found.items()]

    def _taken_from(self, values: dict[tuple[str, bytes], bytes]) -> ManifestRecord | None:
        newest = values.pop((self._layout.manifest, MANIFEST_KEY), None)
        try:
            return None if newest is None else msgspec.json.decode(newest, type=ManifestRecord)
        except msgspec.DecodeError as error:
            raise SchemaError(
                f"the last record of {self._layout.manifest!r} under the key {MANIFEST_KEY.decode()!r} is no snapshot "
                f"of durabus ({error}): find out which program writes there, and write a record without a value under "
                "that key; a node that still runs then writes a new snapshot"
            ) from error

    def _newest_values(self, topics: list[str]) -> dict[tuple[str, bytes], bytes]:
        """Return the last committed value of every key. Compaction may have left older values in the topics."""
        existing = self._topics.existing(topics)
        if not existing:
            return {}
        consumer = Consumer(
            {
                **self._client,
                "group.id": "durabus-no-group",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.message.max.bytes": LARGEST,
                "fetch.wait.max.ms": AT_END,
                "fetch.queue.backoff.ms": AT_END,
                **QUIET,
            }
        )
        values: dict[tuple[str, bytes], bytes] = {}
        try:
            consumer.assign([TopicPartition(topic, 0, 0) for topic in existing])
            left, deadline, trouble = set(existing), monotonic() + TRANSACTION_WITHIN, ""
            while left:
                if self._closed.is_set():
                    raise StoreUnavailableError("the store was closed before the snapshot came")
                if monotonic() > deadline:
                    raise StoreUnavailableError(f"the snapshot did not come within {TRANSACTION_WITHIN:g} s{trouble}")
                first = consumer.poll(POLL)
                for message in () if first is None else (first, *consumer.consume(AT_ONCE, 0)):
                    topic, key, value, error = message.topic() or "", message.key(), message.value(), message.error()
                    if error is not None:
                        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                            left.discard(topic)
                        else:
                            trouble = _passing(error)
                        continue
                    place = topic, key if isinstance(key, bytes) else b""
                    values.pop(place, None)
                    if isinstance(value, bytes):
                        values[place] = value
        except KafkaException as error:
            raise StoreUnavailableError(f"Kafka gave no snapshot: {error.args[0].str()}") from error
        finally:
            consumer.close()
        return values


def _checksums(parts: list[SnapshotPart]) -> dict[tuple[str, str], int]:
    return {(part.table, part.key): zlib.crc32(part.rows) for part in parts}


def _digest(checksums: dict[tuple[str, str], int]) -> int:
    return zlib.crc32(msgspec.json.encode(sorted(checksums.items())))


def _passing(error: KafkaError) -> str:
    """Return the text of an error that may be temporary. Raises an error that is permanent."""
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise KafkaException(error)
    return f": {error.str()}"
