"""The topics of a store: creating, checking and trimming them, where they end, and the options of librdkafka."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka._model import IsolationLevel, TopicPartitionInfo
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.admin._topic import TopicDescription
from confluent_kafka.cimpl import NewTopic

from durabus.clock import monotonic
from durabus.errors import SchemaError, StoreUnavailableError
from durabus.store.outage import SELDOM
from durabus.stores.kafka.layout import KEPT, LARGEST, ROOM, KafkaLayout
from durabus.stores.replicated_log.records import Damage, Doubt
from durabus.stores.replicated_log.transport import GapError, Position

T = TypeVar("T")

logger = logging.getLogger("durabus.kafka.driver")

QUIET: dict[str, Any] = {
    "logger": logger,  # the default is the standard error output
    "log_level": 3,  # errors only: the warnings are about calls that librdkafka repeats
    "log.connection.close": False,
    "reconnect.backoff.max.ms": 500,
}
OVER_AFTER = 30.0
"""Seconds without a line of librdkafka after which the next line is a new trouble."""
LOOK_EVERY = 0.02
ANSWER_WITHIN = 5.0
ABSENT = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})  # noqa: SLF001
COMPACTED = {"cleanup.policy": "compact", "max.message.bytes": str(LARGEST + ROOM), "min.cleanable.dirty.ratio": "0.2"}


class Doublings(logging.Filter):
    """Drops most lines of librdkafka while it cannot connect: each of its clients writes one at every try.

    A line passes at the first trouble and each time the trouble has lasted twice as long.
    """

    def __init__(self) -> None:
        super().__init__()
        self._since = self._next_line = 0.0
        self._last = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line passes."""
        del record
        now = monotonic()
        if now - self._last > OVER_AFTER:
            self._since, self._next_line = now, 0.0
        self._last, lasted = now, now - self._since
        if lasted < self._next_line:
            return False
        self._next_line = max(2 * lasted, SELDOM)
        return True


logger.addFilter(Doublings())


class DriverThreads(ThreadPoolExecutor):
    """Threads for the blocking calls of the driver."""

    def __init__(self) -> None:
        super().__init__(4, thread_name_prefix="durabus-kafka")

    async def run(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self, work)


class Topics:
    """The topics of a store. The methods block: run them in a thread."""

    def __init__(self, client: Mapping[str, str], layout: KafkaLayout, *, replication: int, timeout: float) -> None:
        self._refusal: str | None = None
        config: dict[str, Any] = {**client, **QUIET, "error_cb": self._heard}
        self._admin = AdminClient(config)
        self._layout = layout
        self._replication = replication
        self._timeout = timeout

    def refusal(self) -> str | None:
        """Return the broker's error if it refuses user or password. Calls do not fail then, they only time out."""
        self._admin.poll(0)
        return self._refusal

    def _heard(self, error: KafkaError) -> None:
        if error.code() == KafkaError._AUTHENTICATION:  # noqa: SLF001
            self._refusal = error.str()

    def ensure(self) -> None:
        """Create the lanes if they are missing, and check them."""
        lanes = [self._layout.control, self._layout.public]
        self.make({name: {**KEPT, "max.message.bytes": str(LARGEST + ROOM)} for name in lanes})
        self.verify()

    def ensure_state(self, names: list[str]) -> None:
        """Create the compacted topics if they are missing."""
        self.make(dict.fromkeys(names, COMPACTED))

    def make(self, wanted: Mapping[str, Mapping[str, str]]) -> None:
        """Create the topics that are missing, and wait until each has a leader."""
        existing = self.existing(list(wanted))
        missing = [
            NewTopic(name, num_partitions=1, replication_factor=self._replication, config=dict(config))
            for name, config in wanted.items()
            if name not in existing
        ]
        if not missing:
            return
        try:
            self._create(missing)
        except KafkaException as error:
            raise StoreUnavailableError(f"cannot create the topics {list(wanted)}: {_words(error)}") from error
        self._wait_for_leaders(list(wanted))

    def verify(self) -> None:
        """Raise ``SchemaError`` for settings that would drop or reorder records, or change their times."""
        lanes = [self._layout.control, self._layout.public]
        wrong: list[str] = []
        known = self.partitions(lanes)
        for name in lanes:
            settings = self.settings(name)
            wrong += [
                f"{name}: {setting}={settings[setting]}, not {value}"
                for setting, value in KEPT.items()
                if settings[setting] != value
            ]
            if (count := len(known.get(name, ()))) != 1:
                wrong.append(f"{name}: {count} partitions, not 1")
        if wrong:
            raise SchemaError(f"topics that would lose or change records: {'; '.join(wrong)}; alter them")

    def existing(self, names: list[str]) -> list[str]:
        """Return those of ``names`` that exist."""
        known = self.partitions(names)
        return [name for name in names if name in known]

    def settings(self, name: str) -> dict[str, str]:
        """Return all settings of a topic. Raises ``SchemaError`` if it does not exist."""
        asked = self._admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)], request_timeout=self._timeout)
        try:
            (described,) = [future.result() for future in asked.values()]
        except KafkaException as error:
            if error.args[0].code() in ABSENT:
                raise SchemaError(f"the topic {name!r} is missing: it was never created, or it was deleted") from error
            raise StoreUnavailableError(f"cannot check the topic {name!r}: {_words(error)}") from error
        return {setting: str(entry.value) for setting, entry in described.items()}

    def delete_before(self, offsets: Mapping[str, int]) -> None:
        """Delete the records of each topic before an offset."""
        places = [TopicPartition(name, 0, offset) for name, offset in offsets.items()]
        try:
            for future in self._admin.delete_records(places, request_timeout=self._timeout).values():
                future.result()
        except KafkaException as error:
            raise StoreUnavailableError(f"cannot trim {list(offsets)}: {_words(error)}") from error

    def wait_until_visible(self, names: list[str]) -> None:
        """Wait until readers of committed records see all records that the topics have now."""
        ends = self._ends(names, IsolationLevel.READ_UNCOMMITTED)
        deadline = monotonic() + self._timeout
        while any(end < ends[name] for name, end in self._ends(names, IsolationLevel.READ_COMMITTED).items()):
            if monotonic() > deadline:
                raise StoreUnavailableError(f"committed records of {names} cannot be read after {self._timeout:g} s")
            time.sleep(LOOK_EVERY)

    def _ends(self, names: list[str], isolation: IsolationLevel) -> dict[str, int]:
        places = {TopicPartition(name, 0): OffsetSpec.latest() for name in names}  # type: ignore[no-untyped-call]
        asked = self._admin.list_offsets(places, isolation_level=isolation, request_timeout=self._timeout)
        try:
            return {place.topic: future.result().offset for place, future in asked.items()}
        except KafkaException as error:
            raise StoreUnavailableError(f"cannot read the end offsets of {names}: {_words(error)}") from error

    def _create(self, missing: list[NewTopic]) -> None:
        for future in self._admin.create_topics(missing, request_timeout=self._timeout).values():
            try:
                future.result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

    def _wait_for_leaders(self, names: list[str]) -> None:
        deadline = monotonic() + self._timeout
        while True:
            known = self.partitions(names)
            if all(name in known and _led(known[name]) for name in names):
                return
            if monotonic() > deadline:
                raise StoreUnavailableError(f"the topics {names} have no leader after {self._timeout:g} s")
            time.sleep(LOOK_EVERY)

    def partitions(self, names: list[str]) -> dict[str, list[TopicPartitionInfo]]:
        """Return the partitions of those topics that exist."""
        return {name: topic.partitions for name, topic in self._described(names).items()}

    def lane_ids(self) -> list[str]:
        """Return the ids of the lanes that exist. A topic that is deleted and created again gets another id."""
        lanes = [self._layout.control, self._layout.public]
        return [str(topic.topic_id) for topic in self._described(lanes).values()]

    def _described(self, names: list[str]) -> dict[str, TopicDescription]:
        """Return the topics of these names that exist. Listing all topics would be slow: there may be thousands."""
        found: dict[str, TopicDescription] = {}
        asked = self._admin.describe_topics(TopicCollection(names), request_timeout=self._timeout)
        for name, future in asked.items():
            try:
                found[name] = future.result()
            except KafkaException as error:
                if error.args[0].code() not in ABSENT:
                    raise StoreUnavailableError(f"cannot describe the topic {name!r}: {_words(error)}") from error
        return found


def _led(partitions: list[TopicPartitionInfo]) -> bool:
    return bool(partitions) and all(partition.leader is not None for partition in partitions)


def _words(error: KafkaException) -> str:
    return str(error.args[0].str())


class MissingTopicError(StoreUnavailableError):
    """A topic is missing, or this broker does not know it yet."""


class Ends(NamedTuple):
    """The first and the next offset of a lane."""

    first: int
    """The offset of the oldest record that was not trimmed."""
    next: int
    """The offset that the next record will get."""


class LaneEnds:
    """The ends of both lanes. It remembers the ids of the topics, to notice topics that were created again."""

    def __init__(self, client: Mapping[str, str], layout: KafkaLayout, topics: Topics, threads: DriverThreads) -> None:
        self._consumer = Consumer({**client, "group.id": "durabus-no-group", **QUIET})
        self._layout = layout
        self._topics = topics
        self._threads = threads
        self._ids: list[str] = []

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()

    async def of(self, topic: str) -> Ends:
        """Return the ends of a topic. Raises ``MissingTopicError`` if it does not exist."""
        lane = TopicPartition(topic, 0)
        ask = partial(self._consumer.get_watermark_offsets, lane, timeout=ANSWER_WITHIN, cached=False)
        try:
            ends = await self._threads.run(ask)
        except KafkaException as error:
            if error.args[0].code() in ABSENT:
                raise MissingTopicError(f"the topic {topic!r} does not exist any more") from error
            raise StoreUnavailableError(f"Kafka: {error.args[0].str()}") from error
        if ends is None:
            raise StoreUnavailableError(f"Kafka did not say where the topic {topic!r} ends")
        return Ends(*ends)

    async def check(self, reached: Position) -> Ends:
        """Return the ends of the public lane. Raises ``Damage`` if a lane stays shorter than what was read, and
        ``GapError`` if unread public records were trimmed. The driver checks the control lane for gaps.
        """
        lanes, read, doubt = [self._layout.control, self._layout.public], reached or (-1, -1), Doubt(reached)
        while True:
            try:
                ends = [await self.of(lane) for lane in lanes]
            except MissingTopicError as error:
                await doubt.missing(str(error))
                continue
            short = [
                f"the topic {lane!r} ends at {end.next - 1}, but this node has read up to {offset}"
                for lane, end, offset in zip(lanes, ends, read, strict=True)
                if end.next - 1 < offset
            ]
            if not short:
                break
            await doubt.shorter("; ".join(short))
        self._ids = await self._threads.run(self._topics.lane_ids)
        public = ends[1]
        if public.first > read[1] + 1:
            raise GapError(f"records {read[1] + 1} to {public.first - 1} of {self._layout.public!r} are gone")
        return public

    async def recreated(self) -> bool:
        """Return whether a topic was deleted or created again since ``check``."""
        return await self._threads.run(self._topics.lane_ids) != self._ids

    async def check_awaited(self, awaited: int, reached: Position) -> None:
        """Raise ``Damage`` if a control record refers to public records that are missing: its sender had read them."""
        public = await self.of(self._layout.public)
        if awaited > public.next:
            problem = (
                f"the topic {self._layout.public!r} ends at {public.next - 1}, but the next record of "
                f"{self._layout.control!r} was written when it had {awaited - 1}"
            )
            raise Damage(reached, problem)
