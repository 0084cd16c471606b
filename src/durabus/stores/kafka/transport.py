"""The two lanes of the replicated log on two Kafka topics."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from confluent_kafka import KafkaException

from durabus.errors import ConfigurationError, SchemaError, StoreError, StoreUnavailableError
from durabus.store.outage import SELDOM, Outage
from durabus.stores.kafka.follower import KafkaFollower
from durabus.stores.kafka.layout import LARGEST, KafkaLayout
from durabus.stores.kafka.producer import KafkaOutgoing, LaneProducer
from durabus.stores.kafka.snapshots import KafkaSnapshots
from durabus.stores.kafka.topics import ANSWER_WITHIN, DriverThreads, LaneEnds, MissingTopicError, Topics
from durabus.stores.replicated_log.records import Damage, label, seal
from durabus.stores.replicated_log.transport import (
    BEGINNING,
    BrokerRecord,
    GapError,
    Position,
    PublicRecord,
    UnknownOutcomeError,
)

logger = logging.getLogger("durabus.kafka")

PLACE_AGAIN_AFTER = (0.1, 0.5, 1.0)
WATCH_EVERY = 3.0
READING, CHECKING, SENDING = "to read", "to check the topics", "to send"
UNPLACED_FOR = 0.05
"""Seconds. A node waits this long for another node to refer to new public records, before it does so itself."""


class _Clients(NamedTuple):
    """The clients of an open transport. Their connections end when they are released."""

    threads: DriverThreads
    topics: Topics
    producer: LaneProducer
    ends: LaneEnds
    snapshots: KafkaSnapshots


class KafkaTransport:
    """``Transport`` for Kafka."""

    largest = LARGEST

    def __init__(self, client: Mapping[str, str], layout: KafkaLayout, *, replication: int, timeout: float) -> None:
        self._client = client
        self._shown = f"kafka://{client['bootstrap.servers']}"
        self._outage = Outage(logger, f"the store on {self._shown} fails", second_line=SELDOM)
        self._layout = layout
        self._replication = replication
        self._timeout = timeout
        self._opened: _Clients | None = None
        self._follower: KafkaFollower | None = None
        self._reached: Position = BEGINNING
        self._public_sent = 0

    @property
    def name(self) -> str:
        return f"the Kafka topics {self._layout.control!r} and {self._layout.public!r}"

    @property
    def _clients(self) -> _Clients:
        if self._opened is None:
            raise StoreUnavailableError("not connected to Kafka")
        return self._opened

    async def open(self) -> None:
        try:
            topics = Topics(self._client, self._layout, replication=self._replication, timeout=self._timeout)
        except KafkaException as error:
            raise ConfigurationError(f"kafka: {error.args[0].str()}: check the client.… options of the URL") from error
        threads = DriverThreads()
        self._opened = _Clients(
            threads,
            topics,
            # The producer is made before the first wait, because it needs half a second to start.
            LaneProducer(self._client, timeout=min(self._timeout, 2 * ANSWER_WITHIN)),
            LaneEnds(self._client, self._layout, topics, threads),
            KafkaSnapshots(self._client, self._layout, topics, threads),
        )
        try:
            await self._clients.threads.run(topics.ensure)
        except StoreUnavailableError as error:
            if (refusal := await self._clients.threads.run(topics.refusal)) is not None:
                raise StoreError(
                    f"{self._shown} does not accept client.sasl.username and client.sasl.password ({refusal}): "
                    "check both"
                ) from error
            raise StoreUnavailableError(f"{self._shown}: {error}. Is the broker running?") from error

    async def verify(self) -> None:
        await self._clients.threads.run(self._clients.topics.verify)

    async def close(self) -> None:
        opened, self._opened, self._follower = self._opened, None, None
        if opened is not None:
            opened.snapshots.close()
            await opened.threads.run(opened.producer.close)
            await opened.threads.run(opened.ends.close)
            opened.threads.shutdown(wait=False)

    def refusal(self, record: PublicRecord) -> str | None:
        size = len(record.body) + sum(len(name) + len(value) for name, value in record.headers.items())
        if size <= LARGEST:
            return None
        return f"an event of {size:,} bytes with its headers is too large: the limit is {LARGEST:,}"

    async def publish(self, records: Sequence[PublicRecord]) -> None:
        outgoing = [
            KafkaOutgoing(self._layout.public, record.headers["event_id"].encode(), record.headers, record.body)
            for record in records
        ]
        last = await self._send(outgoing)
        self._public_sent = max(self._public_sent, last + 1)
        for pause in PLACE_AGAIN_AFTER:
            try:
                return await self._place()
            except UnknownOutcomeError:
                await asyncio.sleep(pause)  # retried here, so that the events themselves are not sent twice
        return await self._place()

    async def append(self, record: bytes, key: str, headers: Mapping[str, str]) -> None:
        await self._send([KafkaOutgoing(self._layout.control, key.encode(), headers, record)])

    async def head(self) -> Position:
        reached = self._reached
        try:
            last = (await self._clients.ends.of(self._layout.control)).next - 1
        except MissingTopicError:
            away = f"no broker knows the topic {self._layout.control!r} now: it was deleted, or the brokers are away"
            self._look_again(StoreUnavailableError(away))
            raise
        if reached and last < reached[0]:
            shorter = StoreUnavailableError(
                f"the control lane ends at {last}, but this node has read up to {reached[0]}"
            )
            self._look_again(shorter)
            raise shorter
        return (last,)

    def public_seen(self) -> int:
        return max(self._public_sent, 0 if self._follower is None else self._follower.public_read)

    async def follow(self, after: Position, deliver: Callable[[Sequence[BrokerRecord]], None]) -> None:
        self._reached = after

        def deliver_and_remember(entries: Sequence[BrokerRecord]) -> None:
            self._reached = entries[-1].position
            deliver(entries)

        while True:
            try:
                public = await self._clients.ends.check(self._reached)
                self._outage.answered(READING)
                self._follower = KafkaFollower(
                    self._client, self._layout, self._reached, deliver_and_remember, public_first=public.first
                )
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._place_what_waits())
                    group.create_task(self._watch())
                    group.create_task(self._follower.run())
            except* (SchemaError, GapError, Damage) as errors:
                raise errors.exceptions[0] from None
            except* StoreUnavailableError as errors:
                self._outage.failed(errors.exceptions[0], READING)
            await asyncio.sleep(0.1)

    @property
    def snapshots(self) -> KafkaSnapshots:
        return self._clients.snapshots

    async def trim(self, control: Position, public: Position) -> None:
        offsets = {self._layout.control: control[0] + 1}
        if public:
            offsets[self._layout.public] = public[1] + 1
        await self._clients.threads.run(partial(self._clients.topics.delete_before, offsets))

    def _look_again(self, why: StoreUnavailableError) -> None:
        """Start reading again. That shows whether the log is still the one that was read."""
        if self._follower is not None:
            self._follower.end(why)

    async def _watch(self) -> None:
        """Check regularly for what the driver does not notice: recreated topics and lost public records."""
        awaited = 0
        while True:
            await asyncio.sleep(WATCH_EVERY)
            awaited_before, awaited = awaited, 0 if self._follower is None else self._follower.awaited
            try:
                if await self._clients.ends.recreated():
                    self._look_again(StoreUnavailableError("a topic was deleted or created again"))
                if awaited and awaited == awaited_before:
                    await self._clients.ends.check_awaited(awaited, self._reached)
                self._outage.answered(CHECKING)
            except StoreUnavailableError as error:
                self._outage.failed(error, CHECKING)

    async def _place_what_waits(self) -> None:
        """Refer to public records that no control record refers to: those of other programs and of dead nodes."""
        while True:
            await asyncio.sleep(UNPLACED_FOR * (1 + random.random()))
            if self._follower is not None and self._follower.unplaced:
                try:
                    await self._place()
                except StoreUnavailableError as error:
                    self._outage.failed(error, SENDING)

    async def _place(self) -> None:
        """Append an empty control record. It sets the position of the public records before it."""
        for record in seal(b"", session="", number=1, low=0, public_seen=self.public_seen(), largest=self.largest):
            await self._send([KafkaOutgoing(self._layout.control, None, label(record), record)])

    async def _send(self, records: Sequence[KafkaOutgoing]) -> int:
        try:
            offset = await self._clients.producer.send(records)
        except UnknownOutcomeError as error:
            self._outage.failed(error, SENDING)
            raise
        self._outage.answered(SENDING)
        return offset
