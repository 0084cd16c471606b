"""The pipeline cell by cell, as in a notebook: a store with a history, its lake, a projection, a question."""

# %% A store with a little history
import asyncio
import tempfile
from pathlib import Path

from durabus import EventQueue, open_store

place = Path(tempfile.mkdtemp())
url = f"sqlite:///{place}/shop.db"


async def trade() -> None:
    store = await open_store(url)
    queue = EventQueue(store)
    for order, customer, amount in [(1, "ada", 10), (2, "grace", 25), (3, "ada", 5), (4, "alan", 7)]:
        await queue.publish("order.placed", {"order": order, "customer": customer, "amount": amount})
    for _ in range(4):
        event = await queue.poll()
        assert event is not None
        await queue.finalize(event.id, success=event.payload["order"] != 4)
    await store.close()


asyncio.run(trade())

# %% The log as a DataFrame: no register call
from durabus.pipeline.session import spark_session  # noqa: E402

spark = spark_session(messages=place / "spark.log")
log = spark.read.format("durabus").option("url", url).load()
print("log entries:", log.count())

# %% A projection of our own, beside a shipped one
from durabus.pipeline.lake import Lake  # noqa: E402
from durabus.pipeline.projections import Projection, latest_state  # noqa: E402
from durabus.pipeline.run import Pipeline  # noqa: E402

spent = Projection(
    name="spent",
    types=("order.*",),
    key={"customer": "get_json_object(payload, '$.customer')"},
    sql="""
        SELECT customer, count(*) AS orders, sum(CAST(get_json_object(payload, '$.amount') AS BIGINT)) AS amount
        FROM {events} WHERE status = 'COMPLETED' GROUP BY customer
    """,
)
lake = Lake(spark, place / "lake")
Pipeline(lake, url, [latest_state("order"), spent]).run()

# %% Ask
for row in lake.sql("SELECT customer, orders, amount FROM gold.spent ORDER BY customer").collect():
    print(f"{row['customer']}: {row['orders']} orders, {row['amount']}")
for row in lake.sql("SELECT status, count(*) AS n FROM silver.events GROUP BY status ORDER BY status").collect():
    print(f"{row['status']}: {row['n']}")
