"""The lanes' topics: made with settings that lose nothing, and refused with others."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._metadata import PartitionMetadata
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from durabus.backends.kafka.driver import QUIET
from durabus.backends.kafka.layout import KEPT, LARGEST, ROOM, Layout
from durabus.clock import monotonic
from durabus.errors import SchemaError, StoreUnavailableError

LOOK_EVERY = 0.02
COMPACTED = {"cleanup.policy": "compact", "max.message.bytes": str(LARGEST + ROOM), "min.cleanable.dirty.ratio": "0.2"}


class Topics:
    """Blocking calls: run them in a thread."""

    def __init__(self, client: Mapping[str, str], layout: Layout, *, replication: int, timeout: float) -> None:
        self._admin = AdminClient({**client, **QUIET})
        self._layout = layout
        self._replication = replication
        self._timeout = timeout

    def ensure(self) -> None:
        """Make the lanes if they are missing, and check them."""
        lanes = [self._layout.control, self._layout.public]
        self.make({name: {**KEPT, "max.message.bytes": str(LARGEST + ROOM)} for name in lanes})
        self.verify()

    def ensure_state(self, names: list[str]) -> None:
        """Make the compacted topics if they are missing."""
        self.make(dict.fromkeys(names, COMPACTED))

    def make(self, wanted: Mapping[str, Mapping[str, str]]) -> None:
        """Make what is missing, and wait until each has a leader."""
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
            raise StoreUnavailableError(f"cannot make the topics {list(wanted)}: {_words(error)}") from error
        self._wait_for_leaders(list(wanted))

    def verify(self) -> None:
        """Refuse settings that would drop or reorder records, or put other times on them."""
        lanes = [self._layout.control, self._layout.public]
        wrong: list[str] = []
        try:
            known = self._admin.list_topics(timeout=self._timeout).topics
            resources = [ConfigResource(ResourceType.TOPIC, name) for name in lanes]
            described = self._admin.describe_configs(resources, request_timeout=self._timeout)
            for resource, future in described.items():
                config = future.result()
                for setting, value in KEPT.items():
                    if config[setting].value != value:
                        wrong.append(f"{resource.name}: {setting}={config[setting].value}, not {value}")
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise SchemaError(f"a topic of {lanes} is missing: somebody deleted it, and the log with it") from error
            raise StoreUnavailableError(f"cannot check the topics {lanes}: {_words(error)}") from error
        for name in lanes:
            partitions = len(known[name].partitions)
            if partitions != 1:
                wrong.append(f"{name}: {partitions} partitions, not 1")
        if wrong:
            raise SchemaError(f"topics that would lose or bend records: {'; '.join(wrong)}; alter them")

    def existing(self, names: list[str]) -> list[str]:
        """Those of ``names`` that are there."""
        try:
            known = self._admin.list_topics(timeout=self._timeout).topics
        except KafkaException as error:
            raise StoreUnavailableError(f"cannot list the topics: {_words(error)}") from error
        return [name for name in names if name in known]

    def delete_before(self, offsets: Mapping[str, int]) -> None:
        """Trim topics."""
        places = [TopicPartition(name, 0, offset) for name, offset in offsets.items()]
        try:
            for future in self._admin.delete_records(places, request_timeout=self._timeout).values():
                future.result()
        except KafkaException as error:
            raise StoreUnavailableError(f"cannot trim {list(offsets)}: {_words(error)}") from error

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
            known = self._admin.list_topics(timeout=self._timeout).topics
            if all(name in known and _led(known[name].partitions) for name in names):
                return
            if monotonic() > deadline:
                raise StoreUnavailableError(f"the topics {names} have no leader after {self._timeout:g} s")
            time.sleep(LOOK_EVERY)


def _led(partitions: Mapping[int, PartitionMetadata]) -> bool:
    return bool(partitions) and all(partition.leader >= 0 for partition in partitions.values())


def _words(error: KafkaException) -> str:
    return str(error.args[0].str())
