"""The ceiling on a broker, a replicated loop on the same driver: append a command, read it back, apply it.

One record claims 100 events, the next one completes them; the process waits for each. The state that a process builds
from the records gives a fence and a lease to every claim and checks the fence of every completion. It has no tokens, no
log of its own, no deduplication, no snapshots and no public lane, and calls no handler.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable
from time import time
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

import msgspec
import nats
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from nats.aio.client import Client

from benchmarks import raw

CLAIM = 100
LEASE = 30.0
BROKERS = "kafka://"


class Command(msgspec.Struct, array_like=True):
    """One record."""

    sender: str
    added: list[bytes] = []
    completed: list[tuple[int, int]] = []
    """Pairs of event and fence."""
    claim: int = 0
    now: float = 0.0


class Log(Protocol):
    async def append(self, record: bytes) -> None: ...

    async def read(self) -> list[bytes]: ...

    async def close(self) -> None: ...


class Replica:
    """The state that the commands lead to. It is the same in every process."""

    def __init__(self) -> None:
        self.ready: deque[tuple[int, bytes]] = deque()
        self.held: dict[int, tuple[int, float, bytes]] = {}
        self._next = self._fence = 0

    def apply(self, command: Command) -> list[tuple[int, int]]:
        for payload in command.added:
            self.ready.append((self._next, payload))
            self._next += 1
        for id_, fence in command.completed:
            if id_ in self.held and self.held[id_][0] == fence:
                del self.held[id_]
        claimed: list[tuple[int, int]] = []
        for _ in range(min(command.claim, len(self.ready))):
            id_, payload = self.ready.popleft()
            self._fence += 1
            self.held[id_] = self._fence, command.now + LEASE, payload
            claimed.append((id_, self._fence))
        return claimed


_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(Command).decode


async def fill(url: str, name: str, count: int) -> None:
    log = await open_log(url, name, make=True)
    payload = msgspec.json.encode(raw.PAYLOAD)
    for first in range(0, count, CLAIM):
        await log.append(_ENCODE(Command("fill", added=[payload] * min(CLAIM, count - first))))
    await log.close()


class Raw(NamedTuple):
    """A process that has read everything and may begin."""

    log: Log
    replica: Replica

    async def drain(self) -> int:
        """Claim and complete until nothing is left. Returns how many events it completed."""
        sender, count = f"{os.getpid()}", 0
        while True:
            await self.log.append(_ENCODE(Command(sender, claim=CLAIM, now=time())))
            held = await self._claims_of(sender)
            count += len(held)
            if not held:
                await self.log.close()
                return count
            await self.log.append(_ENCODE(Command(sender, completed=held)))
            await self._claims_of(sender)

    async def _claims_of(self, sender: str) -> list[tuple[int, int]]:
        """Wait for the newest record of this process. Returns the claims that it led to."""
        while True:
            found: list[tuple[int, int]] | None = None
            for record in await self.log.read():
                command = _DECODE(record)
                claimed = self.replica.apply(command)
                if command.sender == sender:
                    found = claimed
            if found is not None:
                return found


async def ready(url: str, name: str, count: int) -> Raw:
    replica, log = Replica(), await open_log(url, name)
    while len(replica.ready) < count:
        for record in await log.read():
            replica.apply(_DECODE(record))
    return Raw(log, replica)


async def open_log(url: str, name: str, *, make: bool = False) -> Log:
    opener: Callable[..., Awaitable[Log]] = _open_kafka if url.startswith(BROKERS) else _open_nats
    return await opener(url, name, make=make)


class KafkaLog:
    def __init__(self, url: str, name: str) -> None:
        servers = {"bootstrap.servers": url.removeprefix(BROKERS)}
        self._name = name
        self._producer = Producer({**servers, "enable.idempotence": True, "linger.ms": 0})
        consumer: dict[str, Any] = {**servers, "group.id": uuid4().hex, "enable.auto.commit": False}
        self._consumer = Consumer({**consumer, "fetch.wait.max.ms": 100})
        self._consumer.assign([TopicPartition(name, 0, 0)])

    async def append(self, record: bytes) -> None:
        self._producer.produce(self._name, record, partition=0)
        self._producer.poll(0)

    async def read(self) -> list[bytes]:
        first = self._consumer.poll(1.0)
        messages = [] if first is None else [first, *self._consumer.consume(1000, 0)]
        return [bytes(message.value() or b"") for message in messages if message.error() is None]

    async def close(self) -> None:
        self._producer.flush(30)
        self._consumer.close()


async def _open_kafka(url: str, name: str, *, make: bool) -> Log:
    if make:
        admin = AdminClient({"bootstrap.servers": url.removeprefix(BROKERS)})
        for made in admin.create_topics([NewTopic(name, num_partitions=1)]).values():
            made.result()
    return KafkaLog(url, name)


class NatsLog:
    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name
        self._records: asyncio.Queue[bytes] = asyncio.Queue()

    async def follow(self) -> None:
        async def take(message: Any) -> None:
            self._records.put_nowait(message.data)

        await self._client.jetstream().subscribe(self._name, cb=take, ordered_consumer=True)

    async def append(self, record: bytes) -> None:
        await self._client.jetstream().publish(self._name, record)

    async def read(self) -> list[bytes]:
        found = [await self._records.get()]
        while not self._records.empty():
            found.append(self._records.get_nowait())
        return found

    async def close(self) -> None:
        await self._client.close()


async def _open_nats(url: str, name: str, *, make: bool) -> Log:
    client = await nats.connect(url)
    log = NatsLog(client, name)
    if make:
        await client.jetstream().add_stream(name=name, subjects=[name])
    else:
        await log.follow()
    return log
