"""What all parts of the store share: opening and closing the shards, and calls on one or all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from durabus.errors import DurabusError, LeaseLost, SchemaError, StoreError
from durabus.model.claim import default_worker_id, new_token
from durabus.model.query import EventQuery
from durabus.store.contract import EventStore
from durabus.store.features import Features
from durabus.store.log import START
from durabus.stores.sharded.numbering import Numbering

S = TypeVar("S")
T = TypeVar("T")

MARK = "durabus.shard"
MARKING = 30.0
MARKING_TRIES = 300
MARKING_PAUSE = 0.1


def features_of(shards: Sequence[EventStore]) -> Features:
    """Return the features that all shards have, without those that do not hold across shards."""
    inner = [shard.features for shard in shards]
    return Features(
        scheme="sharded",
        survives_process_kill=all(one.survives_process_kill for one in inner),
        survives_power_loss=all(one.survives_power_loss for one in inner),
        shared_between_processes=all(one.shared_between_processes for one in inner),
        caller_transactions=False,
        waits=False,
        manual_clock=all(one.manual_clock for one in inner),
        ordering_keys=False,
        claims_by_event_id=all(one.claims_by_event_id for one in inner),
        idempotency_keys=False,
        serial_modes=False,
        one_order=False,
        children=False,
        minimum_lease=max(one.minimum_lease for one in inner),
        sees_ended_processes=all(one.sees_ended_processes for one in inner),
        presence_renewed_every=min(
            (one.presence_renewed_every for one in inner if one.presence_renewed_every), default=None
        ),
    )


class ShardedCore:
    """Opens and closes the shards, and runs calls on them."""

    def __init__(self, shards: Sequence[EventStore]) -> None:
        self._shards = list(shards)
        self._numbers = Numbering(len(self._shards))
        self.features = features_of(self._shards)

    async def open(self) -> None:
        opened: list[EventStore] = []
        try:
            for number, shard in enumerate(self._shards):
                await shard.open()
                opened.append(shard)
                await self._mark(shard, number)
        except BaseException:
            for shard in opened:
                await shard.close()
            raise

    async def close(self) -> None:
        await self._all(lambda shard, _: shard.close())

    async def verify(self) -> None:
        await self._all(lambda shard, _: shard.verify())

    async def now(self) -> float:
        return await self._shards[0].now()

    async def wait_for_work(self, bus: str, *, timeout: float) -> bool:  # noqa: ASYNC109  (the contract's name)
        return await _first_hint(shard.wait_for_work(bus, timeout=timeout) for shard in self._shards)

    async def wait_for_ends(self, node: str, *, timeout: float) -> bool:  # noqa: ASYNC109  (the contract's name)
        return await _first_hint(shard.wait_for_ends(node, timeout=timeout) for shard in self._shards)

    async def tell_ends(self, nodes: Sequence[str]) -> None:
        await self._all(lambda shard, _: shard.tell_ends(nodes))

    async def _mark(self, shard: EventStore, number: int) -> None:
        """Write its number into a shard. Raises if the shard has another number already."""
        mine = f"{number} of {self._numbers.count}"
        for _ in range(MARKING_TRIES):
            known = await shard.read_position(MARK)
            if known == mine:
                return
            if known != START:
                raise SchemaError(
                    f"shard {mine} ({shard.features.scheme}://) was made as shard {known}: ids hold the number of "
                    "shards and their order, so name all stores again as they were named first"
                )
            if self._numbers.count > 1 and (await shard.find(EventQuery(limit=1))).events:
                raise SchemaError(
                    f"shard {mine} ({shard.features.scheme}://) holds events that were not published through shards: "
                    "they could be on the wrong one, so begin with empty stores"
                )
            lock = await shard.claim_lock(MARK, worker_id=default_worker_id(), token=new_token(), lease=MARKING)
            if lock is None:
                await asyncio.sleep(MARKING_PAUSE)  # another process writes the number
                continue
            try:
                await shard.save_position(MARK, mine, lock=lock)
                await shard.release_lock(lock)
            except LeaseLost:
                continue
        raise StoreError(
            f"shard {mine}: its number could not be written within {MARKING_TRIES * MARKING_PAUSE:g} s; open it again"
        )

    async def _all(self, call: Callable[[EventStore, int], Awaitable[T]]) -> list[T]:
        """Call all shards at once and wait for all of them. Then raise the first error, if any."""
        answers = await asyncio.gather(
            *(self._ask(call, number) for number in range(self._numbers.count)), return_exceptions=True
        )
        return [self._good(answer) for answer in answers]

    async def _ask(self, call: Callable[[EventStore, int], Awaitable[T]], number: int) -> T:
        """Call one shard. An error of the shard gets the ids of the sharded store."""
        try:
            return await call(self._shards[number], number)
        except DurabusError as error:
            outer = self._numbers.error(error, number)
            if outer is error:
                raise
            raise outer from error

    async def _each(
        self,
        items: Sequence[S],
        shard_of: Callable[[S], int],
        call: Callable[[EventStore, list[S]], Awaitable[Sequence[T]]],
    ) -> list[T]:
        """Call each item's shard, all shards at once. Returns the results in the order of the items.

        If a shard fails, others may have done their part. The error says so, and a repeat of the call does the rest.
        """
        places: dict[int, list[int]] = {}
        for place, item in enumerate(items):
            places.setdefault(shard_of(item), []).append(place)

        async def ask(shard: EventStore, number: int) -> list[tuple[int, T]]:
            answers = await call(shard, [items[place] for place in places[number]])
            mine = [self._numbers.answer(answer, number) for answer in answers]
            return list(zip(places[number], mine, strict=True))

        parts = await asyncio.gather(*(self._ask(ask, number) for number in places), return_exceptions=True)
        if len(parts) > 1:
            for part in parts:
                if isinstance(part, StoreError):
                    part.add_note("other shards may have done their part: repeat the whole call, which is safe")
        found = dict(pair for part in parts for pair in self._good(part))
        return [found[place] for place in range(len(items))]

    async def _up_to(self, limit: int, call: Callable[[EventStore, int], Awaitable[int]]) -> int:
        """Call one shard after the other until ``limit`` is reached. Returns the total."""
        done = 0
        for shard in self._shards:
            if done >= limit:
                break
            done += await call(shard, limit - done)
        return done

    @staticmethod
    def _good(answer: T | BaseException) -> T:
        if isinstance(answer, BaseException):
            raise answer
        return answer


async def _first_hint(waits: Iterable[Awaitable[bool]]) -> bool:
    """Return True as soon as one of the shards gives a hint; False if none does."""
    waiting = {asyncio.ensure_future(wait) for wait in waits}
    try:
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if True in [task.result() for task in done]:  # reads every result, so that no error is lost
                return True
        return False
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
