"""A client of Spark Connect that runs the pipeline: ``python -m tests.pipeline.connected SERVER URL LAKE``.

It prints what it found as JSON. It is a process of its own, because a process has either its own Spark or a server.
"""

import asyncio
import json
import sys

from pyspark.sql import SparkSession
from tests.pipeline.history import history_in

from durabus.pipeline.lake import Lake
from durabus.pipeline.projections import Projection, hourly_counters, journeys, latest_state
from durabus.pipeline.run import Pipeline
from durabus.pipeline.slos import Slo
from durabus.pipeline.store_session import StoreSession
from durabus.pipeline.tables import EventTable
from durabus.pipeline.verification import prove, trim

DECLARED: list[Projection | EventTable | Slo] = [
    hourly_counters(),
    latest_state("order"),
    journeys("order"),
    EventTable("mail.*"),
    Slo(name="well", objective=0.9),
]


async def trade(url: str, number: int) -> int:
    async with history_in(url) as history:
        history.clock.advance(1_000.0 * number)
        await history.varied(first=10 * number)
        return await history.store.log_lag("")


def main() -> None:
    server, url, place = sys.argv[1:]
    spark = SparkSession.builder.remote(server).getOrCreate()
    lake = Lake(spark, place)
    entries = []
    for number in (1, 2):
        entries.append(asyncio.run(trade(url, number)))
        Pipeline(lake, url, DECLARED).run()
    with StoreSession(url) as session:
        proven = prove(lake, session)
        session.ask(trim)
        again = prove(lake, session)
    rows = {name: lake.read(name).count() for name in lake.tables()}
    sys.stdout.write(json.dumps({"entries": entries, "holds": [proven.proof.holds, again.proof.holds], "rows": rows}))
    spark.stop()


if __name__ == "__main__":
    main()
