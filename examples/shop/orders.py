"""Places orders in the shop of app.py. The same orders are placed once, however often you run it."""

import asyncio
import sys

from durabus import open_store
from durabus.demo.shop import order


async def main(orders: int) -> None:
    store = await open_store()
    try:
        await store.add_events([order(number) for number in range(1, orders + 1)])
    finally:
        await store.close()
    print(f"{orders} orders placed")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
