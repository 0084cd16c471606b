"""Asks where the lanes begin and end, and judges whether they are still the log that this node has read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from durabus.errors import StoreUnavailableError
from durabus.stores.kafka.layout import KafkaLayout
from durabus.stores.kafka.topics import ABSENT, QUIET, DriverThreads, Topics
from durabus.stores.replicated_log.records import Damage, Doubt
from durabus.stores.replicated_log.transport import GapError, Position

ANSWER_WITHIN = 5.0


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
