"""The reader of the topics reads no faster than the node applies the records."""

import asyncio
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from durabus.stores.kafka.follower import AHEAD, KafkaFollower
from durabus.stores.kafka.layout import KafkaLayout
from durabus.stores.replicated_log.records import seal
from durabus.stores.replicated_log.transport import BrokerRecord

FAR = 10 * AHEAD


class EndlessConsumer:
    """A consumer that always has another control record."""

    def __init__(self, _config: dict[str, Any]) -> None:
        self.polls = 0
        self.far_ahead = threading.Event()

    def assign(self, _places: Sequence[Any]) -> None:
        pass

    def poll(self, _timeout: float) -> Any:
        (record,) = seal(b"", session="", number=1, low=0, public_seen=0, largest=1000)
        offset = self.polls
        self.polls += 1
        if self.polls > FAR:
            self.far_ahead.set()
        return SimpleNamespace(
            error=lambda: None,
            topic=lambda: "p.control",
            offset=lambda: offset,
            value=lambda: record,
            headers=list,
            timestamp=lambda: (1, 1000),
        )

    def consume(self, _count: int, _timeout: float) -> list[Any]:
        return []

    def close(self) -> None:
        pass


async def test_a_node_that_applies_slowly_is_not_buried_in_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durabus.stores.kafka.follower.Consumer", EndlessConsumer)
    reached: list[int] = []
    enough = asyncio.Event()

    def deliver(entries: Sequence[BrokerRecord]) -> None:
        reached.append(entries[-1].position[0])
        if reached[-1] > FAR:
            enough.set()

    follower = KafkaFollower({}, KafkaLayout("p"), (), deliver)
    consumer: Any = follower._consumer
    following = asyncio.create_task(follower.run())
    while not consumer.polls:  # noqa: ASYNC110  (its thread does it)
        await asyncio.sleep(0)
    assert not consumer.far_ahead.wait(0.2)  # this very loop does not apply anything meanwhile
    assert consumer.polls <= AHEAD + len(reached) + 1
    async with asyncio.timeout(10):
        await enough.wait()
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    assert reached == sorted(reached)
