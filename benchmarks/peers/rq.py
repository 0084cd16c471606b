"""RQ."""

from __future__ import annotations

import logging
from time import perf_counter
from typing import Any

from redis import Redis
from rq import Queue, SimpleWorker

from benchmarks.peers.peer import BATCH, PAYLOAD, Turn

HANDLED = [0]


def bench(**_payload: object) -> None:
    HANDLED[0] += 1


class Rq:
    package = "rq"
    settings = "SimpleWorker, which does not fork for each job; result_ttl=0"
    unfinished = "return redis.call('LLEN', 'rq:queue:default') + redis.call('ZCARD', 'rq:wip:default') > 0 and 1 or 0"
    uvloop = False
    slow = True
    batches = True

    async def install(self, url: str) -> None:
        """Do nothing: RQ needs no tables."""

    async def publish_single(self, url: str, count: int) -> float:
        queue: Any = Queue(connection=Redis.from_url(url))
        started = perf_counter()
        for _ in range(count):
            queue.enqueue(bench, kwargs=PAYLOAD, result_ttl=0)
        return perf_counter() - started

    async def publish_batches(self, url: str, count: int) -> float:
        queue: Any = Queue(connection=Redis.from_url(url))
        started = perf_counter()
        for _ in range(count // BATCH):
            queue.enqueue_many([Queue.prepare_data(bench, kwargs=PAYLOAD, result_ttl=0) for _ in range(BATCH)])
        return perf_counter() - started

    async def drain(self, url: str, go: Turn, stop: Turn) -> int:
        connection = Redis.from_url(url)
        worker: Any = SimpleWorker([Queue(connection=connection)], connection=connection)
        logging.disable(logging.WARNING)
        await go()
        worker.work(burst=True, logging_level="ERROR")  # in the main thread, because of its signals
        await stop()
        return HANDLED[0]


PEER = Rq()
